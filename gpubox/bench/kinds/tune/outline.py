"""What a tune will do, in sentences for the owner, before it starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpubox import units
from gpubox.bench.kinds.tune.final import GOOD_ENOUGH
from gpubox.bench.kinds.tune.protocol import TuneOptions

_GOALS = {
    "tg": "the most tg (token generation)",
    "pp": "the most pp (prompt processing)",
    "agent": "the most turns per minute of several agents at once",
}


def tune_outline(options: TuneOptions) -> Iterator[str]:
    """Goal, candidates, what does not fit, time, restarts."""
    count, axes = len(options.cells), [axis.flag for axis in options.axes]
    yield f"Goal: {_GOALS[options.goal]}. Candidates: {count:,} sets of flags over {', '.join(axes)}."
    if options.pruned:
        reasons = "; ".join(f"{number:,} {reason}" for reason, number in options.pruned.items())
        yield f"Not tried: {reasons}."
    if options.keep_free_mib:
        free = units.memory(options.keep_free_mib * units.MIB)
        yield f"Each candidate leaves at least {free} free on each card, as predicted."
    else:
        yield "Candidates that are predicted not to fit are left out."
    minutes = f"{options.minutes:g} {'minute' if options.minutes == 1 else 'minutes'}"
    yield (
        f"It takes at most {minutes} and {options.space.starts_limit} starts, and ends as soon as no candidate can win "
        f"by more than {GOOD_ENOUGH:.0%}."
    )
    yield "Each start restarts the server, so no other client is answered meanwhile. No profile is changed."
