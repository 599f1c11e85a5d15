"""Sentences that every report of ``speed`` needs: who measured the times, and what energy means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubox.bench.energy import MEANING, NO_POWER
from gpubox.bench.model import Result

ENERGY_KEYS = ("joules_per_token", "joules_per_prompt_token")


def timing_notes(results: Sequence[Result]) -> Iterator[str]:
    """Whether the client measured the times."""
    if any(result.values.get("timed_by") == "client" for result in results):
        yield "This server sends no timings: pp and tg are measured by the client and include the network."


def energy_note(results: Sequence[Result]) -> Iterator[str]:
    """What the energy figures include; without any, why there are none."""
    if any(result.values.get(key) is not None for result in results for key in ENERGY_KEYS):
        yield MEANING
    elif reasons := [str(result.values["no_energy"]) for result in results if result.values.get("no_energy")]:
        longest = max(reasons, key=lambda reason: reason != NO_POWER)
        yield f"Energy per token: — ({longest})."
