"""Which failures to load are a result of a cell's flags, for the kinds that start many of them."""

from __future__ import annotations

import re

from gpubox.errors import GpuboxError, UsageError
from gpubox.server.failure_causes import FailureKind
from gpubox.server.supervisor import OperationFailed

_LOAD_FAILURES = frozenset(
    {FailureKind.OOM, FailureKind.FLAG, FailureKind.UNSUPPORTED, FailureKind.HANG, FailureKind.CRASH}
)
"""Failures that the flags of a cell can cause. Others, such as a missing file or a taken port, end the run."""
_OUT_OF = re.compile(r"out of (VRAM|RAM)\b")


def cell_load_failure(error: GpuboxError) -> str:
    """Why a cell cannot load, if its flags can be the cause; empty: the run must end with ``error``."""
    if isinstance(error, OperationFailed) and error.cause.kind in _LOAD_FAILURES:
        return error.cause.sentence
    return error.message.rstrip(".") if isinstance(error, UsageError) else ""


def lacked_memory(reason: str) -> str:
    """``VRAM`` or ``RAM``, if ``reason`` of ``cell_load_failure`` is that a cell ran out of it."""
    match = _OUT_OF.match(reason)
    return match[1] if match else ""
