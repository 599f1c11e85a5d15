"""All paths that gpubox reads or writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MAIN_INSTANCE = "main"
"""The instance of the active server. A companion, and a profile that the gateway starts beside others, runs as an
instance named like the profile."""


@dataclass(frozen=True, slots=True)
class Paths:
    """gpubox's three folders and the files in them. Creates nothing."""

    config: Path
    state: Path
    cache: Path
    config_override: Path | None = None

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

    @property
    def api_key_file(self) -> Path:
        return self.config / "api-key"

    @property
    def profiles(self) -> Path:
        """The owner's profiles. They replace shipped ones of the same name."""
        return self.config / "profiles"

    @property
    def drafts(self) -> Path:
        """Texts of profiles that an editor has open, or that could not be saved."""
        return self.state / "drafts"

    @property
    def capabilities(self) -> Path:
        return self.cache / "engines"

    @property
    def built_engines(self) -> Path:
        """The engines that gpubox built, a folder each. A name with a leading dot is a build that is not finished."""
        return self.state / "engines"

    @property
    def headers(self) -> Path:
        """Parsed headers of GGUF files."""
        return self.cache / "headers"

    @property
    def plans(self) -> Path:
        """What dry runs of engines told the planner."""
        return self.cache / "plans"

    @property
    def models(self) -> Path:
        """Models that gpubox downloaded (the demo model)."""
        return self.cache / "models"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def history(self) -> Path:
        """The requests and readings of the last 90 days, in SQLite (``telemetry.history``)."""
        return self.state / "history.sqlite"

    @property
    def history_lock(self) -> Path:
        """Held by the gpubox that writes the history."""
        return self.state / "history.lock"

    @property
    def trial_record(self) -> Path:
        """The trial that has not ended (``server.trial``)."""
        return self.state / "trial.json"

    @property
    def trial_lock(self) -> Path:
        """Held by the gpubox that tries."""
        return self.state / "trial.lock"

    @property
    def dismissed_advice(self) -> Path:
        """The advice that the owner dismissed, by profile."""
        return self.state / "dismissed-advice.json"

    @property
    def crashes(self) -> Path:
        """Post-mortems, a file for each server that crashed."""
        return self.state / "crashes"

    @property
    def scratch(self) -> Path:
        """Temporary workspaces of chats without one of their own; removed with the chat."""
        return self.cache / "scratch"

    @property
    def chats(self) -> Path:
        """The chats, one JSONL file each."""
        return self.state / "chats"

    @property
    def gateway(self) -> Path:
        """What the gateway keeps: its record and its ledger."""
        return self.state / "gateway"

    @property
    def gateway_record(self) -> Path:
        """Where the running gateway listens (``server.state``)."""
        return self.gateway / "gateway.json"

    @property
    def gateway_lock(self) -> Path:
        """Held by the gateway for as long as it lives."""
        return self.gateway / "lock"

    @property
    def gateway_log(self) -> Path:
        return self.logs / "gateway.log"

    @property
    def ledger(self) -> Path:
        """The finished requests of the gateway's clients, a file for each day."""
        return self.gateway / "ledger"

    @property
    def client_keys(self) -> Path:
        """Names of the gateway's clients, and the hashes of their keys."""
        return self.config / "client-keys.json"

    @property
    def key_memory(self) -> Path:
        """Which files with keys the gateway has seen: when one is gone, it refuses everybody."""
        return self.gateway / "keys-seen"

    @property
    def kept_kv(self) -> Path:
        """States of slots that were saved before a server stopped."""
        return self.cache / "kv"

    def instance_state(self, instance: str) -> Path:
        return self.state / "servers" / f"{instance}.json"

    def instance_lock(self, instance: str) -> Path:
        """Held by the gpubox that is changing this instance."""
        return self.state / "servers" / f"{instance}.lock"

    def liveness_lock(self, instance: str) -> Path:
        """Held by the server process itself for as long as it lives."""
        return self.state / "servers" / f"{instance}.life"

    @property
    def owner_lock(self) -> Path:
        """Shared by the owner's operations while they wait or work: meanwhile the gateway begins nothing."""
        return self.state / "servers" / "owner"

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
    packaged = Path(__file__).parent / "_shipped_profiles"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "profiles"
