"""All paths that gpubox reads or writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MAIN_INSTANCE = "main"
"""The instance of the active server. A companion, and a profile that the gateway starts beside others, runs as an
instance named like the profile."""


class _Place:
    """A file or folder in one of the three folders of a ``Paths``."""

    def __init__(self, folder: str, *names: str) -> None:
        self._folder, self._names = folder, names

    def __get__(self, paths: Paths, kind: type[Paths]) -> Path:
        folder: Path = getattr(paths, self._folder)
        return folder.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class Paths:
    """gpubox's three folders and the files in them. Creates nothing."""

    config: Path
    state: Path
    cache: Path
    config_override: Path | None = None

    api_key_file = _Place("config", "api-key")
    profiles = _Place("config", "profiles")
    """The owner's profiles. They replace shipped ones of the same name."""
    drafts = _Place("state", "drafts")
    """Texts of profiles that an editor has open, or that could not be saved."""
    capabilities = _Place("cache", "engines")
    former_profiles = _Place("state", "former-profiles")
    """What profiles were before an edit, a kept trial or their deletion (``profiles.edit``)."""
    built_engines = _Place("state", "engines")
    """The engines that gpubox built, a folder each. A name with a leading dot is a build that is not finished."""
    headers = _Place("cache", "headers")
    """Parsed headers of GGUF files."""
    plans = _Place("cache", "plans")
    """What dry runs of engines told the planner."""
    models = _Place("cache", "models")
    """Models that gpubox downloaded (the demo model)."""
    logs = _Place("state", "logs")
    history = _Place("state", "history.sqlite")
    """The requests and readings of the last 90 days, in SQLite (``telemetry.history``)."""
    history_lock = _Place("state", "history.lock")
    """Held by the gpubox that writes the history."""
    last_seen = _Place("state", "last-seen.json")
    """What the screen showed last (``tui.last_seen``)."""
    trial_record = _Place("state", "trial.json")
    """The trial that has not ended (``server.trial``)."""
    trial_lock = _Place("state", "trial.lock")
    """Held by the gpubox that tries."""
    dismissed_advice = _Place("state", "dismissed-advice.json")
    """The advice that the owner dismissed, by profile."""
    screen = _Place("state", "screen.json")
    """What the screen remembers of its last session."""
    crashes = _Place("state", "crashes")
    """Post-mortems, a file for each server that crashed."""
    chats = _Place("state", "chats")
    """The chats, one JSONL file each."""
    projects = _Place("state", "projects.json")
    """What the owner said about his projects (``agent.projects``)."""
    gateway = _Place("state", "gateway")
    """What the gateway keeps: its record and its ledger."""
    gateway_record = _Place("state", "gateway", "gateway.json")
    """Where the running gateway listens (``server.state``)."""
    gateway_lock = _Place("state", "gateway", "lock")
    """Held by the gateway for as long as it lives."""
    gateway_log = _Place("state", "logs", "gateway.log")
    ledger = _Place("state", "gateway", "ledger")
    """The finished requests of the gateway's clients, a file for each day."""
    client_keys = _Place("config", "client-keys.json")
    """Names of the gateway's clients, and the hashes of their keys."""
    agent_keys = _Place("state", "gateway", "agent-keys.json")
    """The keys of the agents that gpubox starts (``gateway.agent_keys``)."""
    key_memory = _Place("state", "gateway", "keys-seen")
    """Which files with keys the gateway has seen: when one is gone, it refuses everybody."""
    kept_kv = _Place("cache", "kv")
    """States of slots that were saved before a server stopped."""
    owner_lock = _Place("state", "servers", "owner")
    """Shared by the owner's operations while they wait or work: meanwhile the gateway begins nothing."""

    @classmethod
    def default(cls, config_file: Path | None = None) -> Paths:
        """The XDG folders. ``config_file`` or ``$GPUBOX_CONFIG`` replaces config.toml."""
        override = config_file or (Path(v) if (v := os.environ.get("GPUBOX_CONFIG")) else None)
        return cls(
            config=_xdg("CONFIG", ".config"),
            state=_xdg("STATE", ".local/state"),
            cache=_xdg("CACHE", ".cache"),
            config_override=override,
        )

    @classmethod
    def from_arguments(cls, config: str, state: str, cache: str, config_file: str) -> Paths:
        """The Paths whose ``arguments`` these are."""
        return cls(Path(config), Path(state), Path(cache), Path(config_file) if config_file else None)

    @property
    def arguments(self) -> tuple[str, str, str, str]:
        """For the command line of one of gpubox's own programs: ``CONFIG STATE CACHE CONFIG_FILE``."""
        # absolute: many of them run in another folder
        override = self.config_override.absolute() if self.config_override else ""
        return str(self.config), str(self.state), str(self.cache), str(override)

    @property
    def options(self) -> tuple[str, ...]:
        """For the command line of gpubox itself, which finds the folders by the environment."""
        return ("--config", str(self.config_override.absolute())) if self.config_override else ()

    @property
    def config_file(self) -> Path:
        return self.config_override or self.config / "config.toml"

    def agent_home(self, agent: str) -> Path:
        """The home of an agent that chats host: its state, which lasts."""
        return self.state / "agents" / agent

    def agent_settings(self, agent: str, model: str) -> Path:
        """The folder with the settings of an agent that `gpubox launch` starts with this model; another may run."""
        from urllib.parse import quote  # only `gpubox launch` needs it

        return self.state / "launch" / agent / quote(model, safe="").replace(".", "%2E")

    def instance_state(self, instance: str) -> Path:
        return self.state / "servers" / f"{instance}.json"

    def instance_lock(self, instance: str) -> Path:
        """Held by the gpubox that is changing this instance."""
        return self.state / "servers" / f"{instance}.lock"

    def liveness_lock(self, instance: str) -> Path:
        """Held by the server process itself for as long as it lives."""
        return self.state / "servers" / f"{instance}.life"

    def watcher_lock(self, instance: str) -> Path:
        """Held by the watcher of the instance's server for as long as it watches."""
        return self.state / "servers" / f"{instance}.watch"

    def instance_log(self, instance: str) -> Path:
        return self.logs / f"{instance}.log"

    def failed_log(self, instance: str) -> Path:
        """The log of the instance's last launch that failed or crashed. No running server writes to this name."""
        return self.logs / f"{instance}.log.failed"


def _xdg(kind: str, default: str) -> Path:
    """gpubox's folder of one kind, by the XDG base directory specification, which ignores relative paths."""
    folder = Path(os.environ.get(f"XDG_{kind}_HOME", ""))
    home = os.path.expanduser("~")  # noqa: PTH111  pathlib raises without a home folder
    return (folder if folder.is_absolute() else Path(home, default)) / "gpubox"


def shipped_profiles() -> Path:
    """The folder of the profiles that come with gpubox, in the wheel or in the checkout."""
    return shipped("profiles")


def shipped(what: str) -> Path:
    """The same of ``docs``, too."""
    packaged = Path(__file__).parent / f"_shipped_{what}"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / what
