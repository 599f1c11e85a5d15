"""The owner's settings: config.toml, and the API key that never stands in it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.tables import Table, read_toml


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
    stop_seconds: float = 15.0
    """How long a server may take to leave after SIGTERM before it is killed."""
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
    table = Table(path, "", read_toml(path))
    engines = table.table("engines")
    sandbox = table.table("sandbox")
    config = Config(
        weakest_confinement=_confinement(sandbox),
        engines={name: str(_expanded(engines, name, value)) for name, value in engines.text_map().items()},
        default_engine=table.text("default-engine"),
        model_dirs=tuple(_expanded(table, "model-dirs", value) for value in table.texts("model-dirs")),
        allow_exposed=table.flag("allow-exposed"),
        stall_seconds=_patience(table, "stall-seconds", 60.0),
        stop_seconds=_patience(table, "stop-seconds", 15.0),
        shipped_profiles=_choice(table, "shipped-profiles", ("auto", "show", "hide")),
        price_dollars=_patience(table, "price-dollars", 0.0) if "price-dollars" in table.values else None,
    )
    sandbox.done()
    table.done()
    return config


def _confinement(table: Table) -> str:
    value = table.text("confinement", "bubblewrap")
    if value not in ("bubblewrap", "landlock", "none"):
        raise table.refuse("confinement", f'must be "bubblewrap", "landlock" or "none", not {value!r}')
    return value


def _choice(table: Table, key: str, choices: tuple[str, ...]) -> str:
    value = table.text(key, choices[0])
    if value not in choices:
        raise table.refuse(key, f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
    return value


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # a name too long, a folder that is closed: reading it says why


def _expanded(table: Table, key: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise table.refuse(key, f"names a user that this machine does not have: {value}") from None


def _patience(table: Table, key: str, default: float) -> float:
    value = table.number(key, default)
    if value is None or value <= 0:
        raise table.refuse(key, f"must be more than 0, not {value!r}")
    return value


def foreign_key(paths: Paths, url: str) -> str | None:
    """The key to send to a server that gpubox did not start: the box's own only to this machine.

    Elsewhere only ``$GPUBOX_API_KEY``, which the owner gave for this very command.
    """
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return api_key(paths)
    return os.environ.get("GPUBOX_API_KEY", "").strip() or None


def api_key(paths: Paths) -> str | None:
    """The box's API key: ``$GPUBOX_API_KEY``, ``$LLAMA_API_KEY``, else the 0600 file ``api-key``.

    Raises UsageError when the file can be read by others: a key that leaked is no key.
    """
    for name in ("GPUBOX_API_KEY", "LLAMA_API_KEY"):
        if value := os.environ.get(name, "").strip():
            return value
    path = paths.api_key_file
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} cannot be read.", "It holds the API key as one line of text.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{path} can be read by other users.", f"Run: chmod 600 {path}")
    return text or None
