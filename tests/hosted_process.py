"""A hosted agent without walls: a process of this user in a private copy. For agents that the tests bring along."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpubox.acp.hosted_turn import Started
from gpubox.agent.hosting import HostedTurn
from gpubox.json_rpc import pipe_streams
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.spawn import layer_owner


class OpenProcess:
    """As ``sandbox.resident.Resident``, but for the walls."""

    def __init__(self, process: subprocess.Popen[bytes], policy: Policy, copy: Path, errors: Path) -> None:
        self.process, self._policy, self._copy, self._errors = process, policy, copy, errors
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    why = ""

    @property
    def last_words(self) -> str:
        return self._errors.read_text(errors="replace").strip()

    def _private(self, layers: tuple[Path, ...]) -> PrivateCopy:
        return PrivateCopy(replace(self._policy, layers=layers), self._copy, layer_owner(), heavy=False)

    async def begin_turn(self, layers: tuple[Path, ...]) -> None:
        self._layers = layers
        await asyncio.to_thread(self._private(layers).synchronize)

    async def end_turn(self) -> None:
        await asyncio.to_thread(self._private(self._layers).harvest)

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)
        self.writer.close()


async def start_open(turn: HostedTurn, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> Started:
    """Starts ``argv`` in a copy of the turn's workspace below ``folder``."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    copy, errors = folder / "copy", folder / "stderr"
    policy = Policy(turn.work.workspace.root, turn.work.workspace.layers())
    copy.mkdir(exist_ok=True)
    with errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: ASYNC220
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=copy, env=dict(env),
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin and process.stdout
    resident = OpenProcess(process, policy, copy, errors)
    resident.reader, resident.writer = await pipe_streams(process.stdout, process.stdin)
    return Started(resident, str(copy), copy)
