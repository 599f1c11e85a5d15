"""The owner's settings: config.toml, and the API key that never stands in it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.storage import open_regular
from gpubox.toml_table import TomlTable, read_toml

MAX_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """What config.toml says; every key has a default and the file may be absent."""

    engines: dict[str, str] = field(default_factory=dict)
    """Engine name -> path of a llama-server binary (a fork beside upstream)."""
    default_engine: str = ""
    """The engine of profiles that name none; empty: PATH's llama-server, else embedded."""
    model_dirs: tuple[Path, ...] = ()
    """More folders to look for GGUF files in."""
    allow_exposed: bool = False
    """Whether a non-loopback host without an API key may start unasked."""
    weakest_confinement: str = "bubblewrap"
    """``bubblewrap``, ``landlock`` or ``none``: the weakest that may confine the model's programs."""
    stall_seconds: float = 60.0
    """A load is given up after this long without any sign of progress."""
    load_seconds: float = 3600.0
    """A load is given up after this long, whatever it does."""
    stop_seconds: float = 15.0
    """How long an idle server may take to leave after SIGTERM before it is killed."""
    wait_seconds: float = 600.0
    """How long a change waits for requests that are being answered before it is given up."""
    keys: dict[str, Path] = field(default_factory=dict)
    """Address of a server that gpubox did not start -> the 0600 file with its API key."""
    shipped_profiles: str = "auto"
    """``show``, ``hide``, or ``auto``: the shipped profiles are hidden where the owner has one of their own."""
    price_dollars: float | None = None
    """What the box cost: benchmarks give tok/s per $1,000 with it."""


def load_config(paths: Paths) -> Config:
    """The settings of config.toml; the defaults where there is none. Raises UsageError."""
    path = paths.config_file
    if not _there(path):
        if paths.config_override:
            raise UsageError(f"{path} does not exist.", "It is named by --config or GPUBOX_CONFIG.")
        return Config()
    table = TomlTable(path, "", read_toml(path))
    engines = table.table("engines")
    sandbox = table.table("sandbox")
    keys = table.table("keys")
    config = Config(
        weakest_confinement=_confinement(sandbox),
        engines={name: str(_expanded(engines, name, value)) for name, value in engines.text_map().items()},
        default_engine=table.text("default-engine"),
        model_dirs=tuple(_expanded(table, "model-dirs", value) for value in table.texts("model-dirs")),
        allow_exposed=table.flag("allow-exposed"),
        stall_seconds=_patience(table, "stall-seconds", 60.0),
        load_seconds=_patience(table, "load-seconds", 3600.0),
        stop_seconds=_patience(table, "stop-seconds", 15.0),
        wait_seconds=_patience(table, "wait-seconds", 600.0),
        keys={address: _expanded(keys, address, value) for address, value in keys.text_map().items()},
        shipped_profiles=_choice(table, "shipped-profiles", ("auto", "show", "hide")),
        price_dollars=_patience(table, "price-dollars", 0.0) if "price-dollars" in table.values else None,
    )
    sandbox.done()
    table.done()
    return config


def _confinement(table: TomlTable) -> str:
    value = table.text("confinement", "bubblewrap")
    if value not in ("bubblewrap", "landlock", "none"):
        raise table.refuse("confinement", f'must be "bubblewrap", "landlock" or "none", not {value!r}')
    return value


def _choice(table: TomlTable, key: str, choices: tuple[str, ...]) -> str:
    value = table.text(key, choices[0])
    if value not in choices:
        raise table.refuse(key, f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
    return value


def _there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a name too long, a folder that is closed, links in a circle: reading it says why
    return True


def _expanded(table: TomlTable, key: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise table.refuse(key, f"names a user that this machine does not have: {value}") from None


def _patience(table: TomlTable, key: str, default: float) -> float:
    value = table.number(key, default)
    if value is None or value <= 0:
        raise table.refuse(key, f"must be more than 0, not {value!r}")
    return value


def api_key(paths: Paths) -> str | None:
    """The box's API key: ``$GPUBOX_API_KEY``, ``$LLAMA_API_KEY``, else the 0600 file ``api-key``.

    It goes to servers that gpubox started, to no other (``server.keys``). Raises UsageError as ``read_key_file`` does.
    """
    for name in ("GPUBOX_API_KEY", "LLAMA_API_KEY"):
        if value := os.environ.get(name, "").strip():
            return value
    return read_key_file(paths.api_key_file)


def read_key_file(path: Path) -> str | None:
    """The key in a file of mode 0600; ``None`` where there is no such file.

    Raises UsageError when the file can be read by others: a key that leaked is no key.
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
