"""VRAM around a launch: wait until the old server's VRAM is released, and measure what the new server holds."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from gpubox import units
from gpubox.hardware.nvml import read_driver, vram_used

STEADY_BYTES = 32 * 1024 * 1024
INTERVAL_SECONDS = 0.1
LIMIT_SECONDS = 10.0


async def wait_vram_released() -> str:
    """Waits until two readings agree on every card, at most LIMIT_SECONDS; returns a note about the result.

    The driver releases the memory only after the process is gone.
    """
    before = await asyncio.to_thread(vram_used)
    if before is None:
        return "no GPU driver"
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_SECONDS:
        await asyncio.sleep(INTERVAL_SECONDS)
        after = await asyncio.to_thread(vram_used)
        if after is None:
            return "the GPU driver stopped answering"
        if len(after) == len(before) and all(abs(a - b) <= STEADY_BYTES for a, b in zip(after, before, strict=True)):
            return f"{units.memory(sum(after))} in use"
        before = after
    return f"still changing after {LIMIT_SECONDS:.0f} s"


class VramInUse(NamedTuple):
    """VRAM in use when a server is ready. What it uses more later, it has grown since the load."""

    used: tuple[tuple[int, int], ...]
    """``(GPU index, bytes)``: what the server holds, or what all processes hold if the driver hides the processes."""
    whole: tuple[int, ...]
    """The GPU indexes of the second case."""


def vram_in_use(pid: int) -> VramInUse:
    """What ``pid`` holds on each card now."""
    used, whole = [], []
    for gpu in read_driver().gpus:
        own = next((p.vram_bytes for p in gpu.processes if p.pid == pid), None)
        if own is not None:
            used.append((gpu.index, own))
        elif gpu.vram_used_bytes is not None:
            used.append((gpu.index, gpu.vram_used_bytes))
            whole.append(gpu.index)
    return VramInUse(tuple(used), tuple(whole))
