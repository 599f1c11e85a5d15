"""The settings in config.toml, and the API key, which is never in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.storage import open_regular
from gpubox.toml_table import TomlTable, read_toml, toml_key

MAX_KEY_BYTES = 64 * 1024
BUILT_SERVER = "bin/llama-server"
"""The binary in the folder of an engine that gpubox built."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """``[gateway]``: where `gpubox serve` listens, and its limits."""

    host: str = toml_key("text", "The address that the gateway listens on.", "127.0.0.1")
    port: int = toml_key("integer", "The port that the gateway listens on.", 8080, between=(1, 65535))
    wait_seconds: float = toml_key(
        "number", "A request for another model waits at most so long for those before it.", 60.0, above=0
    )
    queue: int = toml_key("integer", "So many requests may wait; more get 429.", 128, between=(1, 100_000))
    names: tuple[str, ...] = toml_key(
        "list", "More names of this machine, under which clients may ask a gateway without keys.", tuple, items="text"
    )
    unknown_model: str = toml_key(
        "text", "Of a model without a profile: refuse, or let the current one answer.", "refuse",
        choices=("refuse", "current")
    )  # fmt: skip
    max_body_mib: int = toml_key("integer", "The largest request body, in MiB.", 32, between=(1, 1024))


@dataclass(frozen=True, slots=True)
class KeptKvSettings:
    """``[kept-kv]``: whether the KV caches of slots survive a stop, and how much disk they may take."""

    enabled: bool = toml_key("boolean", "Save the KV cache of idle slots around a stop or switch.", True)
    max_gib: int = toml_key("integer", "The saved KV caches take at most so many GiB of disk.", 8, between=(1, 100_000))


EVENTS = ("crash", "rollback", "slowdown", "run", "gpu")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """``[notify]``: who is told what happened while nobody looks."""

    ntfy: str = toml_key("text", "An ntfy topic that gets a text, such as https://ntfy.sh/YOUR-TOPIC.", "")
    webhook: str = toml_key("text", "An address that gets JSON by POST, without prompts, keys and folders.", "")
    token_file: Path | None = toml_key(  # noqa: RUF009 - it returns a field
        "path", "A file (mode 0600) with a token that is sent to both.", None
    )
    events: tuple[str, ...] = toml_key(
        "list",
        "crash: a server died; rollback: a start failed and what ran before came back; slowdown: a profile is slower; "
        "run: a tune, or a run of 5 minutes and more, ended; gpu: a card is lost.",
        EVENTS,
        items="text",
        choices=EVENTS,
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.ntfy, self.webhook)))


@dataclass(frozen=True, slots=True)
class McpServer:
    """``[mcp.NAME]``: a program whose tools the chat may call (Model Context Protocol, over stdio)."""

    command: tuple[str, ...] = toml_key("list", "The program and its arguments.", items="text")
    env: Mapping[str, str] = toml_key("map", "Its environment, besides PATH, HOME and LANG.", dict, items="text")
    cwd: Path | None = toml_key("path", "Its folder. Default: your home folder.", None)  # noqa: RUF009 - a field
    ask: bool = toml_key("boolean", "Ask you before each call: it runs outside the sandbox.", True)


@dataclass(frozen=True, slots=True)
class OwnAgent:
    """``[agents.NAME]``: a coding agent that a chat may host (Agent Client Protocol, over stdio)."""

    command: tuple[str, ...] = toml_key("list", "The program that speaks ACP, and its arguments.", tuple, items="text")
    title: str = toml_key("text", "How it is shown.", "")
    launch: str = toml_key("text", "The agent of `gpubox launch` whose settings point it at the gateway.", "")
    env: Mapping[str, str] = toml_key("map", "More of its environment.", dict, items="text")
    hosts: tuple[str, ...] = toml_key(
        "list", "Hosts that it may reach besides the gateway, such as api.example.com:443.", tuple, items="text"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of config.toml. Every key has a default, and the file may be absent."""

    default_engine: str = toml_key(
        "text", "The engine of profiles that name none. Default: llama-server on PATH, else the embedded engine.", ""
    )
    model_dirs: tuple[Path, ...] = toml_key("list", "More folders to search for GGUF files.", tuple, items="path")
    allow_exposed: bool = toml_key(
        "boolean", "Start servers that other machines can reach without an API key, and do not ask.", False
    )
    weakest_isolation: str = toml_key(
        "text",
        "The weakest isolation that the model's programs may run in.",
        "bubblewrap",
        choices=("bubblewrap", "landlock", "none"),
    )
    stall_seconds: float = toml_key("number", "A model load fails after this long without progress.", 60.0, above=0)
    load_seconds: float = toml_key("number", "A model load fails after this long.", 3600.0, above=0)
    stop_seconds: float = toml_key(
        "number", "A server is killed this long after SIGTERM; after 1 s with --now and `gpubox stop`.", 15.0, above=0
    )
    wait_seconds: float = toml_key(
        "number", "A switch or restart fails after waiting this long for running requests.", 600.0, above=0
    )
    shipped_profiles: str = toml_key(
        "text",
        "Whether lists show the shipped profiles, which are examples.",
        "hide",
        choices=("hide", "show"),
    )
    theme: str = toml_key(
        "text", "The colours of the screen: auto (as the terminal's background), gpubox, gpubox-light or another theme "
        "of Textual.", "auto"
    )  # fmt: skip
    price_per_kwh: float | None = toml_key(
        "number", "What a kWh costs you. `gpubox history` then says what the energy cost.", None, above=0
    )
    gateway: GatewaySettings = toml_key(  # noqa: RUF009 - it returns a field
        "table", "Where `gpubox serve` listens, and its limits.", GatewaySettings, table=GatewaySettings
    )
    kept_kv: KeptKvSettings = toml_key(  # noqa: RUF009 - it returns a field
        "table", "Whether the KV caches of slots survive a stop.", KeptKvSettings, table=KeptKvSettings
    )
    notify: NotifySettings = toml_key(  # noqa: RUF009 - it returns a field
        "table", "Who is told of crashes, rollbacks, slowdowns, finished runs and lost cards.", NotifySettings,
        table=NotifySettings,
    )  # fmt: skip
    mcp: Mapping[str, McpServer] = toml_key(
        "map", "Name -> a server whose tools the chat may call.", dict, items="table", table=McpServer
    )
    agents: Mapping[str, OwnAgent] = toml_key(
        "map", "Name -> a coding agent that a chat may host.", dict, items="table", table=OwnAgent
    )
    engines: Mapping[str, str] = toml_key("map", "Engine name -> path of a llama-server binary.", dict, items="path")
    keys: Mapping[str, Path] = toml_key(
        "map", "Address of a server that gpubox did not start -> file (mode 0600) with its API key.", dict, items="path"
    )


def load_config(paths: Paths) -> Config:
    """Reads config.toml; the defaults if there is none. Raises UsageError.

    ``engines`` also has those that gpubox built. One of the same name in config.toml replaces it.
    """
    path, built = paths.config_file, _built_engines(paths)
    if not _exists(path):
        if paths.config_override:
            raise UsageError(f"{path} does not exist.", "It is named by --config or GPUBOX_CONFIG.")
        return Config(engines=built)
    table = TomlTable(path, "", read_toml(path))
    config = Config(**table.read(Config))
    for name, server in config.mcp.items():
        if not name.replace("-", "_").isidentifier() or not name.isascii():  # the model writes it; a log is named so
            raise table.error(f"[mcp.{name}]", "needs a name of letters, digits, - and _, such as [mcp.files]")
        if not server.command:
            raise table.error(f"[mcp.{name}] command", "is empty")
    for name in config.agents:
        if not name.replace("-", "_").isidentifier() or not name.isascii():  # a folder and a key are named so
            raise table.error(f"[agents.{name}]", "needs a name of letters, digits, - and _, such as [agents.mine]")
    given = {name: str(binary) for name, binary in config.engines.items()}
    return replace(config, engines={**built, **given})


def _built_engines(paths: Paths) -> dict[str, str]:
    try:
        names = sorted(entry.name for entry in os.scandir(paths.built_engines) if not entry.name.startswith("."))
    except OSError:
        return {}
    binaries = {name: f"{paths.built_engines}/{name}/{BUILT_SERVER}" for name in names}
    return {name: binary for name, binary in binaries.items() if Path(binary).is_file()}


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # the name is too long, a folder is closed, links form a loop: read_toml reports it
    return True


def api_key(paths: Paths) -> str | None:
    """The box's API key: ``$GPUBOX_API_KEY``, ``$LLAMA_API_KEY``, else the file ``api-key`` (mode 0600).

    Only servers that gpubox started receive it (``server.api_keys``). Raises UsageError as ``read_key_file`` does.
    """
    for name in ("GPUBOX_API_KEY", "LLAMA_API_KEY"):
        if value := os.environ.get(name, "").strip():
            return value
    return read_key_file(paths.api_key_file)


def read_key_file(path: Path) -> str | None:
    """The key in a file of mode 0600; None if the file is absent or empty.

    Raises UsageError if it cannot be read, or if other users can read it.
    """
    try:
        with open_regular(path, MAX_KEY_BYTES) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().decode().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} cannot be read.", "It holds the API key as one line of text.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{path} can be read by other users.", f"Run: chmod 600 {path}")
    return text or None
