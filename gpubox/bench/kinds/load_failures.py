"""Which failures to load are a result of a cell's flags, for the kinds that start many of them."""

from __future__ import annotations

from gpubox.errors import GpuboxError, UsageError
from gpubox.server.failure_causes import FailureKind
from gpubox.server.supervisor import OperationFailed

LOAD_FAILURES = frozenset(
    {FailureKind.OOM, FailureKind.FLAG, FailureKind.UNSUPPORTED, FailureKind.HANG, FailureKind.CRASH}
)
"""Failures that the flags of a cell can cause. Others, such as a missing file or a taken port, end the run."""


def cell_load_failure(error: GpuboxError) -> str:
    """Why a cell cannot load, if its flags can be the cause; empty: the run must end with ``error``."""
    if isinstance(error, OperationFailed) and error.cause.kind in LOAD_FAILURES:
        return error.cause.sentence
    return error.message.rstrip(".") if isinstance(error, UsageError) else ""
