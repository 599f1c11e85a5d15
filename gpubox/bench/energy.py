"""Energy per token, from the driver's power readings during an item. Pure.

J per generated token: the mean power while the answer was generated, times those seconds, over the generated tokens.
J per read token: the same while the prompt was read, over the evaluated prompt tokens (cached ones are not read).
The power is that of the whole cards which the server uses, as the driver reports it. Idle power is included, not
subtracted; the power of the host (CPU, RAM) is not, because no driver reports it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from gpubox.bench.model import RawRecord, Result, Sample

SETTLE_SECONDS = 1.0
"""A reading is the mean of the second before it (``nvmlDeviceGetPowerUsage``, NVML API, Ampere and newer but not
GA100), so the readings of a phase's first second also show what came before."""
MIN_READINGS = 2
NO_POWER = "the driver gives no power reading"
TOO_SHORT = (
    "reading and answering were too short: a power reading is the mean of a second, so a phase needs about two seconds"
)
MEANING = (
    "Energy is the power of the whole cards that the server uses, idle power included, times the seconds of reading or "
    "generating; the host's CPU and RAM are not in it."
)


def energy_joules(samples: Sequence[Sample], begin: float, end: float) -> float | None:
    """The energy of one phase: mean power times its seconds. ``None`` if fewer than two readings show it alone.

    ``begin`` and ``end`` are seconds since the item began.
    """
    watts = [
        sample.power_watts
        for sample in samples
        if sample.power_watts is not None and begin + SETTLE_SECONDS <= sample.at <= end
    ]
    return statistics.fmean(watts) * (end - begin) if len(watts) >= MIN_READINGS else None


def energy_values(raw: RawRecord, first: float | None, end: float, *, prompt: int, generated: int) -> dict[str, Any]:
    """A result's J per token, and why it has none.

    ``first`` and ``end``: seconds from the item's begin to the first token and to the end.
    """
    read = energy_joules(raw.samples, 0.0, first) if first is not None and prompt else None
    answer = energy_joules(raw.samples, first, end) if first is not None and generated else None
    values: dict[str, Any] = {
        "joules_per_token": answer / generated if answer is not None else None,
        "joules_per_prompt_token": read / prompt if read is not None else None,
    }
    if read is None and answer is None:
        known = any(sample.power_watts is not None for sample in raw.samples)
        values["no_energy"] = TOO_SHORT if known else NO_POWER
    return values


def energy_note(results: Sequence[Result]) -> Iterator[str]:
    """What the energy figures of a report include; without any, why there are none."""
    keys = ("joules_per_token", "joules_per_prompt_token")
    if any(result.values.get(key) is not None for result in results for key in keys):
        yield MEANING
    elif reasons := [str(result.values["no_energy"]) for result in results if result.values.get("no_energy")]:
        longest = max(reasons, key=lambda reason: reason != NO_POWER)
        yield f"Energy per token: — ({longest})."
