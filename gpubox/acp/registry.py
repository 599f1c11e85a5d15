"""Which coding agents gpubox can host, and how one is found on this machine and started in its walls."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.agent_launch import DATA, LAUNCHED, agent_launch, home_files
from gpubox.interchange.client_settings import ClientTarget
from gpubox.storage import open_regular
from gpubox.toml_table import closest_match, parse_toml

_SHEBANG_BYTES = 256


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """One agent that speaks the Agent Client Protocol."""

    name: str
    title: str
    command: tuple[str, ...]
    launch: str = ""
    """The agent of ``gpubox launch`` whose settings point it at the gateway; empty: the owner's do."""
    arguments: bool = True
    """Whether it takes that one's arguments."""
    install: str = ""
    auth: str = ""
    """How it signs in, if it insists."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """Settings in its home."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The owner's additions."""
    hosts: tuple[str, ...] = ()
    """What it reaches besides the gateway, by the owner's word."""

    @property
    def program(self) -> Path | None:
        """Where it is installed; None: it is not on PATH."""
        path = shutil.which(self.command[0])
        return Path(path) if path else None

    @property
    def key_name(self) -> str:
        """Its name in the ledger."""
        return f"hosted-{self.name}"


def known_agents(config: Config) -> dict[str, KnownAgent]:
    """By name: gpubox's, changed and completed by the owner's ``[agents.NAME]``."""
    agents = dict(_shipped())
    for name, own in config.agents.items():
        old = agents.get(name)
        agents[name] = KnownAgent(
            name,
            own.title or (old.title if old else name),
            own.command or (old.command if old else (name,)),
            own.launch or (old.launch if old else ""),
            old.arguments if old and not own.command else True,
            old.install if old else "",
            old.auth if old else "",
            old.files if old else {},
            own.env,
            own.hosts,
        )
    return agents


def known_agent(config: Config, name: str) -> KnownAgent:
    """Raises UsageError if there is none of this name."""
    agents = known_agents(config)
    if name not in agents:
        near = closest_match(name, agents)
        hint = f"Did you mean {near!r}?" if near else f"There are: {', '.join(agents)}."
        raise UsageError(f"gpubox knows no agent {name!r}.", hint)
    return agents[name]


@cache
def _shipped() -> Mapping[str, KnownAgent]:
    data = parse_toml((Path(__file__).parent / "data" / "agents.toml").read_text(encoding="utf-8"))
    return {
        name: KnownAgent(name, LAUNCHED[entry["launch"]].title, **{**entry, "command": tuple(entry["command"])})
        for name, entry in data.items()
    }


@dataclass(frozen=True, slots=True)
class AgentStart:
    """What starts an agent."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Texts by their paths in its home."""
    folders: tuple[Path, ...]
    """Where it is installed on this machine."""


def require_program(agent: KnownAgent) -> Path:
    """Where it is installed. Raises GpuboxError."""
    if program := agent.program:
        return program
    hint = f"Install it: {agent.install}" if agent.install else f"Its command is {' '.join(agent.command)}."
    raise GpuboxError(f"{agent.title} is not installed: {agent.command[0]} is not on PATH.", hint)


def agent_start(agent: KnownAgent, target: ClientTarget, home: str) -> AgentStart:
    """How ``agent`` is started at ``target``. ``home``: its home, as it names it. Raises GpuboxError."""
    program = require_program(agent)
    arguments, env, files = list(agent.command[1:]), dict[str, str](), dict[str, str]()
    if known := LAUNCHED.get(agent.launch):
        launch = agent_launch(known, target, Path(home) / ".gpubox")
        arguments += launch.arguments if agent.arguments else ()
        env |= launch.environment
        files = {f".gpubox/{name}": text for name, text in launch.files.items()}
        files |= home_files(known, target, agent.files)
    folders = _installed_in(program)
    folders += (DATA,) if any(str(DATA) in word for word in arguments) else ()
    tools = [path.parent for path in (program, *map(Path, filter(None, map(shutil.which, ("node", "python3")))))]
    env["PATH"] = os.pathsep.join(dict.fromkeys([*map(str, tools), "/usr/local/bin", "/usr/bin", "/bin"]))
    return AgentStart((str(program), *arguments), {**env, **agent.env}, files, folders)


def _installed_in(program: Path) -> tuple[Path, ...]:
    """The folders, or the file, without which a program does not run: not what every machine has below /usr."""
    real = program.resolve()
    interpreter = _interpreter(real)
    places = [program, _package(real)]
    if interpreter:
        places += [interpreter, _package(interpreter), _package(interpreter.resolve())]
    outermost = [each for each in dict.fromkeys(places) if not any(other in each.parents for other in places)]
    return tuple(each for each in outermost if not each.is_relative_to("/usr"))


def _package(program: Path) -> Path:
    """The outermost node_modules or the prefix of an interpreter that holds it, else the file itself."""
    if "node_modules" in program.parts:
        return Path(*program.parts[: program.parts.index("node_modules") + 1])
    for folder in program.parents[1:3]:
        if (folder / "pyvenv.cfg").is_file() or (folder / "lib" / "node_modules").is_dir():
            return folder
        if program.name.startswith("python") and (folder / "lib").is_dir():
            return folder
    return program


def _interpreter(program: Path) -> Path | None:
    try:
        with open_regular(program) as file:
            first = file.read(_SHEBANG_BYTES).split(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return None
    match = re.match(r"#!\s*(\S+)(?:\s+(?:-S\s+)?(\S+))?", first)
    if match is None:
        return None
    name = shutil.which(match[2]) if match[1].endswith("/env") and match[2] else match[1]
    return Path(name) if name else None
