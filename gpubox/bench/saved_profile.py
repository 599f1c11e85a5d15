"""Saves a measured target as a profile: the best of a sweep or of a tune, or one side of an A/B run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Target
from gpubox.bench.overrides import MODEL, apply_overrides
from gpubox.bench.run_store import Run, readable_results
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.edit import KeyValue, change_text, copied_text, parse_text
from gpubox.profiles.profile import Profile
from gpubox.profiles.writer import save_profile, save_text
from gpubox.toml_edit import KeyPath


def target_to_save(run: Run, name: str = "") -> Target:
    """The target called ``name`` (an unambiguous part is enough); without a name what was shown to be faster.

    Raises UsageError if no single target matches.
    """
    info = run.info
    targets = [target for target in info.plan.targets if target.profile and not target.stopped]
    if name:
        matches = [target for target in targets if target.name == name] or [
            target for target in targets if name in target.name
        ]
        if len(matches) == 1:
            return matches[0]
        names = ", ".join(target.name for target in (matches or targets)[:8])
        count = len(matches) or "None"
        raise UsageError(f"{count} of this run's targets match {name!r}.", f"There are: {names}.")
    with readable_results(run):
        best = make_benchmark(info.plan).best(run.scored())
    if best is None or not best.overrides:
        names = ", ".join(target.name for target in targets[:8])
        raise UsageError(
            f"{run.id} has nothing to save: no flags were shown to be faster than the present ones.",
            f"--cell saves one all the same: {names}." if names else "",
        )
    return best


def profile_of_target(base: Profile, target: Target, name: str, run: str) -> tuple[Profile, str]:
    """``base`` with the target's flags under a new name, and the comment for the top of its file.

    The reference figures are removed, because they were measured with other flags.
    """
    changes = " ".join(f"{flag}={value}" for flag, value in target.overrides.items())
    title = f"{base.summary}, {changes}" if changes else base.summary
    profile = replace(
        apply_overrides(base, target), name=name, title=title[:120], references=(), path=None, shipped=False
    )
    return profile, f"{base.name} with {changes or 'its own flags'}, as measured in {run}."


def save_target(base: Profile, target: Target, name: str, run: str, paths: Paths, *, overwrite: bool = False) -> Path:
    """Writes ``base`` with the target's flags as the profile ``name``. Its comments and its order stay.

    Raises UsageError if the name is impossible, or taken (without ``overwrite``), GpuboxError if the disk refuses.
    """
    profile, header = profile_of_target(base, target, name, run)
    changes: dict[KeyPath, KeyValue] = {("flags", flag): value if value != "" else None
                                        for flag, value in target.overrides.items()}  # fmt: skip
    try:
        text = change_text(copied_text(base), {**changes, ("title",): profile.title, ("reference",): None})
        text = f"# {header}\n{text}"
        if parse_text(paths.profiles / f"{name}.toml", text).flags != profile.flags:
            raise UsageError("The text would not say what was measured.")
    except UsageError:  # no file, or one that cannot be edited line by line: the profile is written anew
        return save_profile(profile, paths, overwrite=overwrite, header=header)
    return save_text(name, text, paths, overwrite=overwrite)


def default_profile_name(base: Profile, target: Target) -> str:
    """``qwen36-n-cpu-moe-4``."""
    changes = "-".join(
        Path(str(value)).stem if flag == MODEL else f"{flag}-{value}" for flag, value in target.overrides.items()
    )
    safe = "".join(char if char.isalnum() or char in "._-" else "-" for char in f"{base.name}-{changes}")
    return safe[:64].strip("-.")
