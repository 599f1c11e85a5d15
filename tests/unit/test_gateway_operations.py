"""The children of the gateway: one does an operation after the other, and a dead one is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.gateway.operations import OperationRequest, Operations, ServerOperation, TemporaryFailure
from gpubox.hardware.process import identity_of
from gpubox.paths import Paths

CHILD = """#!/bin/sh
while read line; do
  case "$line" in
    *dies*) exit 9 ;;
    *waits*) echo '{"event": "placed", "instances": ["main"]}'; read go ;;
  esac
  echo '{"event": "finished", "message": "done"}'
done
"""


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child"
    script.write_text(CHILD)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


async def begin(operations: Operations, profile: str) -> ServerOperation:
    return await operations.begin(OperationRequest("start", profile), lambda values: None)


async def pid_of(operations: Operations, profile: str = "a") -> int:
    """The process that has done an operation."""
    operation = await begin(operations, profile)
    assert await operation.finished == "done"
    return operation.pid


async def test_one_child_does_one_operation_after_the_other(paths: Paths) -> None:
    operations = Operations(paths)
    await operations.warm()
    first = await pid_of(operations)
    assert await pid_of(operations) == first
    operations.close()
    assert identity_of(first) is None
    assert await pid_of(operations) != first
    operations.close()


async def test_two_at_once_are_two_children_which_stay(paths: Paths) -> None:
    operations = Operations(paths)
    waits = await begin(operations, "waits")
    assert await waits.placed == ("main",)
    beside = await pid_of(operations)
    assert beside != waits.pid
    waits.go()
    assert await waits.finished == "done"
    assert await pid_of(operations) == waits.pid and identity_of(beside)
    operations.close()
    assert not identity_of(beside) and not identity_of(waits.pid)


async def test_a_child_that_died_is_replaced_and_its_death_is_told(paths: Paths) -> None:
    operations = Operations(paths)
    with pytest.raises(GpuboxError, match=r"ended without a result \(exit code 9\)") as fault:
        await (await begin(operations, "dies")).finished
    assert not isinstance(fault.value, TemporaryFailure)
    waited = await pid_of(operations)
    os.kill(waited, signal.SIGKILL)
    while identity_of(waited):
        await asyncio.sleep(0)
    assert await pid_of(operations) != waited
    with pytest.raises(TemporaryFailure):  # it died while it waited, as far as anybody knows: nothing was touched
        await (await begin(operations, "dies")).finished
    operations.close()
