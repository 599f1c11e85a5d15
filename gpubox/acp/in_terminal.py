"""An agent in the owner's terminal, in the walls of a hosted one: ``gpubox launch --confined``.

For its chat it is a hosted agent whose only turn lasts from its start to its end: so what it changes lies in a layer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from gpubox.acp.host import AgentOnBox, Walls, open_walls
from gpubox.acp.registry import KnownAgent, known_agents
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import AgentEvent, Notice, RoundTiming, TurnFailed, TurnFinished, TurnStarted, TurnTotals
from gpubox.agent.hosting import HostedTurn
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.interchange.agent_launch import LaunchedAgent
from gpubox.paths import Paths
from gpubox.sandbox.confined_run import finish
from gpubox.sandbox.resident import run_in_terminal

_OF_TERMINALS = ("TERM", "COLORTERM", "TERM_PROGRAM", "LANG", "LC_ALL", "LC_CTYPE")


class AgentInTerminal:
    """``run`` connects it with this process's terminal."""

    def __init__(self, box: AgentOnBox, arguments: tuple[str, ...]) -> None:
        self._box, self._arguments = box, arguments
        self._work: asyncio.Task[int] | None = None
        self._why = ""
        """What ended it, if it did not end by itself."""
        self.exit_code = 1
        """Of the agent."""
        self.lost = False
        """What it changed could not be read: it is only in its copy."""

    async def connect(self) -> ServerEndpoint:
        """Raises GpuboxError without a gateway, a model or the program."""
        return await self._box.connect()

    async def run(self, turn: HostedTurn) -> AsyncGenerator[AgentEvent, None]:
        """The start and the end of its turn."""
        yield TurnStarted("terminal", model=self._box.target.model.name)
        began, problem = time.monotonic(), None
        self._work = asyncio.create_task(self._run(turn))
        try:
            self.exit_code = await self._work
        except GpuboxError as error:
            problem = error
        finally:
            self.stop()
            await finish(asyncio.wait([self._work]))
            await finish(run_in_thread(turn.work.workspace.note_changes))
        if self._why:
            yield Notice("stopped", f"{self._box.agent.title}: {self._why}.")
        totals = TurnTotals(timing=RoundTiming(wall_seconds=time.monotonic() - began))
        yield TurnFailed(problem.message, problem.hint) if problem else TurnFinished(totals, "answered")

    def stop(self) -> None:
        """Ends the agent."""
        if self._work:
            self._work.cancel()

    async def close(self) -> None:
        """``run`` ends what it starts."""

    async def _run(self, turn: HostedTurn) -> int:
        env = {name: os.environ[name] for name in _OF_TERMINALS if name in os.environ}
        walls = await open_walls(self._box, turn, self._arguments, env, terminal=True)
        try:
            await walls.process.begin_turn(turn.work.workspace.layers())
            try:
                code = await run_in_terminal(walls.process)
                if walls.process.exit_code is None:
                    self._why = walls.process.why
                return code
            finally:
                self.lost = True
                await finish(self._harvest(walls))
        finally:
            await finish(walls.close())

    async def _harvest(self, walls: Walls) -> None:
        await walls.process.end_turn()
        self.lost = False


def in_terminal(
    paths: Paths, config: Config, launched: LaunchedAgent, arguments: tuple[str, ...], model: str | None
) -> AgentInTerminal:
    """``launched`` with the owner's ``[agents.NAME]`` and what the hosted one of that name has in its home."""
    known = known_agents(config).get(launched.name) or KnownAgent(launched.name, launched.title, ())
    agent = replace(
        known, command=(launched.name,), launch=launched.name, arguments=True, install=launched.install
    )  # fmt: skip
    return AgentInTerminal(AgentOnBox(paths, config, agent, model), (*launched.confined, *arguments))
