"""What starts a coding agent at the gateway without a file of its owner: environment, arguments, files of gpubox. Pure.

What each agent needs is a table ``launch`` in data/clients.toml, besides the settings that ``gpubox connect`` prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.interchange.client_settings import CLIENT_DATA, ClientTarget, filled


@dataclass(frozen=True, slots=True)
class LaunchedAgent:
    """An agent that gpubox can start."""

    name: str
    """Its program, and the name of its key."""
    client: str
    """A key of CLIENTS."""
    title: str
    install: str
    """The command that installs it."""


@dataclass(frozen=True, slots=True)
class AgentLaunch:
    """One start of an agent. The key stands in ``environment`` and ``files``, never in ``arguments``."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    """Variables that the agent must not inherit."""
    files: Mapping[str, str]
    """Texts by their names in gpubox's own folder for this agent."""


LAUNCHED: Mapping[str, LaunchedAgent] = {
    entry["launch"]["program"]: LaunchedAgent(
        entry["launch"]["program"], client, entry["title"], entry["launch"]["install"]
    )
    for client, entry in CLIENT_DATA.items()
    if "launch" in entry
}


def launched_agent(word: str) -> LaunchedAgent:
    """The agent with this program or name. Raises UsageError for an unknown one."""
    for agent in LAUNCHED.values():
        if word.lower() in (agent.name, agent.client):
            return agent
    raise UsageError(f"gpubox starts no agent {word!r}.", f"There are: {', '.join(LAUNCHED)}.")


def agent_launch(agent: LaunchedAgent, target: ClientTarget, folder: Path) -> AgentLaunch:
    """What starts ``agent`` for ``target``; ``folder``: where the caller writes its files."""
    entry = CLIENT_DATA[agent.client]
    launch = {"settings": {}, "env": {}, "args": [], "files": {}, "unset": [], **entry["launch"]}
    settings = _settings(entry, target, launch["settings"])
    exported = settings if entry["form"] == "exports" else {}
    words = {
        "settings": settings,
        "settings_json": json.dumps(settings, ensure_ascii=False),
        "folder": folder,
        "data": Path(__file__).parent / "data",
    }
    environment = exported | filled(launch["env"], target, target.model, words)
    arguments = [filled(word, target, target.model, words) for word in launch["args"]]
    if option := launch.get("options"):
        arguments += [word for leaf in _leaves(settings) for word in (option, leaf)]
    files = {name: filled(value, target, target.model, words) for name, value in launch["files"].items()}
    return AgentLaunch(
        tuple(arguments),
        {name: str(value) for name, value in environment.items()},
        tuple(launch["unset"]),
        {name: json.dumps(value, indent=2, ensure_ascii=False) for name, value in files.items()},
    )


def home_files(agent: LaunchedAgent, target: ClientTarget, files: Mapping[str, Any]) -> dict[str, str]:
    """JSON texts by their paths; their words are those of ``agent``."""
    words = {"settings": _settings(CLIENT_DATA[agent.client], target, {})}
    return {name: json.dumps(filled(value, target, target.model, words), indent=2) for name, value in files.items()}


def _settings(entry: Mapping[str, Any], target: ClientTarget, changes: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = filled(_merged(entry["settings"], changes), target, target.model)
    return {name: str(value) for name, value in values.items()} if entry["form"] == "exports" else values


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(settings[key], item) if isinstance(settings.get(key), dict) and isinstance(item, dict) else item
        for key, item in changes.items()
    }
    return {**settings, **both}


def _leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Each setting as ``a.b=value``, the value in TOML: JSON of a string, a number and a truth value is that."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}={json.dumps(value, ensure_ascii=False)}"
