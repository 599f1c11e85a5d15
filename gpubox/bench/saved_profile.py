"""A measured target as a profile of its own: the best cell of a sweep, one side of an ab."""

from __future__ import annotations

from dataclasses import replace

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Target
from gpubox.bench.run_store import Run
from gpubox.bench.target_server import apply_overrides
from gpubox.errors import UsageError
from gpubox.profiles.profile import Profile


def target_to_save(run: Run, words: str = "") -> Target:
    """The target called ``words`` (a part that only one has will do); without words the best cell of a sweep.

    Raises UsageError where there is none to choose.
    """
    info = run.info
    profiles = [target for target in info.plan.targets if target.profile and not target.stopped]
    if words:
        found = [one for one in profiles if one.name == words] or [one for one in profiles if words in one.name]
        if len(found) == 1:
            return found[0]
        names = ", ".join(one.name for one in (found or profiles)[:8])
        raise UsageError(f"{len(found) or 'None'} of this run's targets is called {words!r}.", f"There are: {names}.")
    benchmark = make_benchmark(info.plan)
    kept = benchmark.best(run.scored())
    if kept is None:
        names = ", ".join(one.name for one in profiles[:8])
        raise UsageError(f"{run.id} says not which is best.", f"Choose with --cell, of: {names}.")
    return kept


def profile_of_target(base: Profile, target: Target, name: str, run: str) -> tuple[Profile, str]:
    """``base`` with the target's flags under a new name, and the comment for the top of its file.

    The article's figures stay behind: they were measured with other flags.
    """
    changes = " ".join(f"{flag}={value}" for flag, value in target.overrides.items())
    made = apply_overrides(base, target)
    title = f"{base.summary}, {changes}" if changes else base.summary
    made = replace(made, name=name, title=title[:120], references=(), path=None, shipped=False)
    return made, f"{base.name} with {changes or 'its own flags'}, as measured in {run}."


def default_profile_name(base: Profile, target: Target) -> str:
    """``qwen36-n-cpu-moe-4``."""
    words = "-".join(f"{flag}-{value}" for flag, value in target.overrides.items())
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in f"{base.name}-{words}")
    return safe[:64].strip("-.")
