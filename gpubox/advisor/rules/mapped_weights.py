"""Mapped weights that the CPU computes with, but that are not in RAM."""

from __future__ import annotations

from gpubox import units
from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import Evidence
from gpubox.telemetry.offload import FAULTS_PER_SECOND

LEAST_ON_DISK = 0.02
"""Up to this share of the weights in RAM the reading is not exact: libraries are counted with them."""
LEAST_FAULTY_READINGS = 3
SLOWED_BY = frozenset({"paging"})
_SPARE_BYTES = units.GIB
"""What must stay free in RAM beside the whole weights."""


def _read(evidence: Evidence) -> Judgement | None:
    """The CPU waits for the disk while it computes experts or layers.

    Evidence: weights are mapped (load-mode auto or mmap, by the log's own line), the CPU computes a part of them, and
    the median of the major faults while the server worked is above the threshold of the bottleneck "paging", or a part
    of them is not resident. Source: an article on a 16 GB card (49 -> 54.5 tok/s of tg, server side, without mmap);
    ggml-org/llama.cpp#26414.
    """
    flags, snapshot, host = evidence.memory_flags, evidence.snapshot, evidence.host_memory
    if flags is None or snapshot is None or host is None or not flags.mapped or not evidence.computes_on_cpu:
        return None
    if evidence.log.load_mode not in ("", "mmap"):
        return None
    weights, on_disk = host.weights_bytes or 0, host.on_disk_bytes
    faults = evidence.busy.faults_per_second
    faulty = faults is not None and faults > FAULTS_PER_SECOND and evidence.busy.count >= LEAST_FAULTY_READINGS
    absent = on_disk if on_disk is not None and weights and on_disk > LEAST_ON_DISK * weights else 0
    if not (faulty or absent) or not weights:
        return None
    shown = [f"load-mode {evidence.flags.get('load-mode', 'auto')}; ~{units.memory(weights)} of weights in RAM"]
    if absent:
        shown.append(f"{units.memory(absent)} of them are on the disk now")
    if faulty:
        shown.append(f"{faults:.0f} major faults/s while it works (median of {evidence.busy.count} readings)")
    if host.total_bytes is None or host.free_bytes is None:
        return None
    room = host.free_bytes
    if absent + _SPARE_BYTES > room:
        short = absent + _SPARE_BYTES - room
        shown.append(f"{units.memory(room)} of RAM can be freed: {units.memory(short)} too little to hold them all")
        return Judgement(
            "The CPU reads weights from the disk while it computes, and RAM cannot hold them all: a smaller quant, "
            "a smaller n-cpu-moe or fewer programs would.",
            tuple(shown),
            slowed_by=SLOWED_BY,
        )
    shown.append(f"~{units.memory(weights)} of RAM are taken at the start instead; {units.memory(room)} can be freed")
    return Judgement(
        "The CPU waits for weights that are read from the disk while it computes; load-mode none (no mmap) loads them "
        "into RAM once.",
        tuple(shown),
        (("load-mode", "none"),),
        SLOWED_BY,
    )


MAPPED_WEIGHTS = Rule("mmap", "paging", _read)
