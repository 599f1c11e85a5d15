"""Saves a measured target as a profile: the best cell of a sweep, or one side of an A/B run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Target
from gpubox.bench.overrides import MODEL, apply_overrides
from gpubox.bench.run_store import Run
from gpubox.errors import UsageError
from gpubox.profiles.profile import Profile


def target_to_save(run: Run, name: str = "") -> Target:
    """The target called ``name`` (an unambiguous part is enough); without a name the best cell of a sweep.

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
    best = make_benchmark(info.plan).best(run.scored())
    if best is None:
        names = ", ".join(target.name for target in targets[:8])
        raise UsageError(f"{run.id} has no single best target.", f"Choose one with --cell: {names}.")
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


def default_profile_name(base: Profile, target: Target) -> str:
    """``qwen36-n-cpu-moe-4``."""
    changes = "-".join(
        Path(str(value)).stem if flag == MODEL else f"{flag}-{value}" for flag, value in target.overrides.items()
    )
    safe = "".join(char if char.isalnum() or char in "._-" else "-" for char in f"{base.name}-{changes}")
    return safe[:64].strip("-.")
