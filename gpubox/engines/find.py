"""Finds the engines of this machine. Fast: runs nothing and does not import xllamacpp."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.toml_table import closest_match

PATH_ENGINE = "llama-server"
EMBEDDED = "embedded"
EMBEDDED_COMMAND = (sys.executable, "-P", "-m", "gpubox.engines.embedded_server")
INSTALL_EMBEDDED = "pip install 'gpubox[embedded]'"
NOT_FOUND = "No llama-server was found."
GET_ONE = (
    f"{INSTALL_EMBEDDED}, or `gpubox engines build`, or put yours on PATH, or name it in config.toml: "
    '[engines] llama-server = "/PATH/TO/llama-server".'
)


@dataclass(frozen=True, slots=True)
class Engine:
    """One llama-server. Its file may be missing."""

    name: str
    kind: Literal["llama-server", "embedded"]
    command: tuple[str, ...]
    """The command line before the server's arguments."""
    path: Path
    """The binary; for the embedded engine xllamacpp's extension module."""


def find_engines(config: Config) -> list[Engine]:
    """All engines: those of config.toml (even if their file is missing), llama-server on PATH, the embedded engine."""
    engines = [_binary(name, _resolve(value)) for name, value in config.engines.items()]
    on_path = shutil.which("llama-server")
    if on_path and PATH_ENGINE not in config.engines:
        engines.append(_binary(PATH_ENGINE, Path(on_path)))
    if (extension := embedded_extension()) and EMBEDDED not in config.engines:
        engines.append(Engine(EMBEDDED, "embedded", EMBEDDED_COMMAND, extension))
    return engines


def default_name(config: Config) -> str:
    """The name of the engine of profiles that name none; empty if there is none. It may be missing."""
    names = {engine.name for engine in find_engines(config)}
    return config.default_engine or next((name for name in (PATH_ENGINE, EMBEDDED) if name in names), "")


def choose_engine(config: Config, wanted: str) -> Engine:
    """The engine called ``wanted``; for ``""`` the default engine, else llama-server on PATH, else the embedded engine.

    Raises GpuboxError if there is no such engine, or if its file cannot be run.
    """
    engines = {engine.name: engine for engine in find_engines(config)}
    name = wanted or default_name(config)
    if not name:
        known = ", ".join(engines)
        raise GpuboxError(
            NOT_FOUND if not known else "No llama-server was found on PATH, and none is the default.",
            f'Write default-engine = "NAME" into config.toml (it has {known}).' if known else GET_ONE,
        )
    if name not in engines:
        raise GpuboxError(f"There is no engine {name!r}.", _unknown_hint(name, list(engines)))
    check_runnable(engines[name])
    return engines[name]


def find_beside_engine(config: Config, engine: str, program: str) -> Path | None:
    """``program`` in the folder of the engine called ``engine``, if it is there and runs."""
    try:
        chosen = choose_engine(config, engine)
    except GpuboxError:
        return None
    path = chosen.path.resolve().with_name(program)
    return path if chosen.kind == "llama-server" and path.is_file() and os.access(path, os.X_OK) else None


def check_runnable(engine: Engine) -> None:
    """Raises GpuboxError if the engine's file is missing, a folder or not executable."""
    path = engine.path
    if not path.exists():
        raise GpuboxError(f"The engine {engine.name!r} is missing: {path} does not exist.", _CORRECT)
    if path.is_dir():
        raise GpuboxError(
            f"The engine {engine.name!r} is a folder: {path}.", "Name the llama-server binary inside it in config.toml."
        )
    if engine.kind == "llama-server" and not os.access(path, os.X_OK):
        raise GpuboxError(f"The engine {engine.name!r} is not executable: {path}.", f"Run: chmod +x {path}")


def embedded_extension() -> Path | None:
    """xllamacpp's extension module, or ``None`` if it is not installed. Does not import it."""
    try:
        spec = importlib.util.find_spec("xllamacpp")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    return next((path for path in sorted(folder.glob("xllamacpp*")) if path.suffix in {".so", ".pyd"}), None)


_CORRECT = "Correct its path under [engines] in config.toml."


def _binary(name: str, path: Path) -> Engine:
    return Engine(name, "llama-server", (str(path),), path)


def _resolve(value: str) -> Path:
    """A value without a slash is a program on PATH, any other value a path."""
    on_path = shutil.which(value) if "/" not in value else None
    return Path(on_path or value)


def _unknown_hint(name: str, known: list[str]) -> str:
    if name == EMBEDDED:
        return f"Install it: {INSTALL_EMBEDDED}"
    if name == PATH_ENGINE:
        return "There is no llama-server on PATH; name its path under [engines] in config.toml."
    if "/" in name:
        return 'Write an engine\'s name instead of its path: NAME = "PATH" under [engines] in config.toml names it.'
    if near := closest_match(name, known):
        return f"Did you mean {near!r}?"
    listing = f"Known engines: {', '.join(known)}. " if known else ""
    return f"{listing}Name its llama-server under [engines] in config.toml."
