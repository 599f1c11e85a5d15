"""Hosts agents on this box: each in walls, with a home that lasts, and the gateway as its only way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from gpubox.acp.hosted import HostedProgram
from gpubox.acp.hosted_turn import HowHosted, Started
from gpubox.acp.registry import AgentStart, KnownAgent, agent_start, known_agent, require_program
from gpubox.acp.relay import GATEWAY, PROXY, Relay
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.hosting import HostAgent, HostedTurn
from gpubox.agent.tools import AskOwner
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.agent_keys import agent_key
from gpubox.gateway.gateway_client import read_gateway
from gpubox.gateway.gateway_status import GatewayStatus
from gpubox.gateway.offers import choose_model, gateway_models, offered_models
from gpubox.interchange.client_settings import ClientTarget
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.sandbox.layers import TopLayer, View
from gpubox.sandbox.policy import WORKSPACE_MOUNT, Policy
from gpubox.sandbox.resident import Resident, start_resident
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import ResidentProgram, layer_owner
from gpubox.sandbox.toolchains import AGENT_HOME
from gpubox.storage import private_folder, unwritable

_PORT, _PROXY_PORT = 8080, 8081
"""On 127.0.0.1 inside."""
StartAgent = Callable[["AgentOnBox", HostedTurn], Awaitable[Started]]


class AgentOnBox:
    """One agent for one chat."""

    def __init__(self, paths: Paths, config: Config, agent: KnownAgent, model: str | None = None) -> None:
        """``model``: a profile or alias; None: a loaded one."""
        self.paths, self.config, self.agent, self._model = paths, config, agent, model
        self.target = ClientTarget("gpubox", "", ())
        """Where its requests go; known after ``connect``."""

    async def connect(self) -> ServerEndpoint:
        """Raises GpuboxError without a gateway, a model or the program."""
        return await run_in_thread(self._connect)

    def _connect(self) -> ServerEndpoint:
        require_program(self.agent)
        if (status := read_gateway(self.paths)) is None:
            text = f"{self.agent.title} asks models through the gateway, and none runs."
            raise GpuboxError(text, "`gpubox serve --detach` starts one.", code=ExitCode.NOT_RUNNING)
        models = gateway_models(status, load_catalog(self.paths).profiles)
        chosen = choose_model([model for model in models if not model.embeddings], self._model)
        offered = offered_models(chosen, chosen[0].name, status)
        key = agent_key(self.paths, self.agent.key_name)
        self.target = ClientTarget("gpubox", status.base_url, offered, key)
        return ServerEndpoint(status.base_url, chosen[0].name, build=self.agent.title)

    async def asks_now(self) -> bool:
        """Whether one of its requests is at the gateway."""
        try:
            status: GatewayStatus | None = await run_in_thread(read_gateway, self.paths)
        except GpuboxError:
            return False
        return status is not None and any(each.client == self.agent.key_name for each in status.requests)

    def prepare(self, home: Path, inside: str, base_url: str) -> AgentStart:
        """What starts it; its settings are in ``home`` then, ``inside`` for it. Blocking. Raises GpuboxError."""
        started = agent_start(self.agent, replace(self.target, base_url=base_url), inside)
        try:
            private_folder(home)
            layer = TopLayer(View([home]), layer_owner())  # it may have left links there
            for name, text in started.files.items():
                layer.write(tuple(name.split("/")), text.encode())
        except OSError as error:
            raise unwritable(home, error) from None
        return started


def host_agents(paths: Paths, config: Config, start: StartAgent | None = None) -> HostAgent:
    """Makes the agents of chats. ``start``: instead of the walls, for tests."""

    def host(name: str, ask: AskOwner) -> HostedProgram:
        box = AgentOnBox(paths, config, agent := known_agent(config, name))
        begin, key = start or _confined, agent.key_name
        how = HowHosted(
            agent.title, box.connect, lambda turn: begin(box, turn), paths.ledger, key, box.asks_now, agent.auth
        )
        return HostedProgram(how, ask)

    return host


async def _confined(box: AgentOnBox, turn: HostedTurn) -> Started:
    walls = await open_walls(box, turn)
    return Started(walls.process, WORKSPACE_MOUNT, turn.work.steps.folder / "agent", walls.ways.close)


@dataclass(frozen=True, slots=True)
class Walls:
    """An agent that runs in walls."""

    process: Resident
    ways: Relay

    async def close(self) -> None:
        await self.process.close()
        await self.ways.close()


async def open_walls(
    box: AgentOnBox,
    turn: HostedTurn,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    terminal: bool = False,
) -> Walls:
    """Starts it. Its only ways out are the gateway, and a proxy to the hosts that the owner named. Raises GpuboxError.

    ``arguments``: the owner's, after its own.
    """
    home, work, agent = box.paths.agent_home(box.agent.name), turn.work, box.agent
    started = await run_in_thread(box.prepare, home, AGENT_HOME, f"http://127.0.0.1:{_PORT}")
    ports, env = {_PORT: GATEWAY}, {**(environment or {}), **started.env}
    if agent.hosts:
        ports |= {_PROXY_PORT: PROXY}
        proxy = f"http://127.0.0.1:{_PROXY_PORT}"
        env = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1,localhost", **env}
    where = urlsplit(box.target.base_url)
    log = box.paths.logs / f"agent-{agent.name}.log"
    ways = Relay((where.hostname or "127.0.0.1", where.port or 80), hosts=agent.hosts, log=log)
    await ways.__aenter__()
    try:
        argv = (*started.argv, *arguments)
        program = ResidentProgram(argv, started.folders, home, env, ways.folder, ports, terminal)
        policy = Policy.for_agents(work.workspace.root, work.workspace.layers())
        resident = await start_resident(Sandbox(box.config), program, policy, work.steps.folder)
    except BaseException:
        await ways.close()
        raise
    return Walls(resident, ways)
