"""Waiting for the driver to give VRAM back: it does so after the process is gone, not with it."""

from __future__ import annotations

import asyncio
import time

from gpubox import units
from gpubox.hardware.nvml import vram_used

STEADY_BYTES = 32 * 1024 * 1024
INTERVAL_SECONDS = 0.1
LIMIT_SECONDS = 10.0


async def settle() -> str:
    """Returns when two readings agree on every card, or after LIMIT_SECONDS. Says what it saw, in a few words."""
    before = await asyncio.to_thread(vram_used)
    if before is None:
        return "no GPU driver to ask"
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_SECONDS:
        await asyncio.sleep(INTERVAL_SECONDS)
        after = await asyncio.to_thread(vram_used)
        if after is None:
            return "the GPU driver stopped answering"
        if len(after) == len(before) and all(abs(a - b) <= STEADY_BYTES for a, b in zip(after, before, strict=True)):
            return f"{units.memory(sum(after))} in use"
        before = after
    return f"still moving after {LIMIT_SECONDS:.0f} s"
