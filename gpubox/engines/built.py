"""The engines that gpubox built: a folder each below ``Paths.built_engines``. Their names, and how they are removed.

Also makes an engine the default: one line of config.toml changes; comments, order and other lines stay byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

from gpubox.config import Config
from gpubox.engines.find import EMBEDDED, PATH_ENGINE, find_engines
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import find_by_marker, processes_running
from gpubox.paths import Paths
from gpubox.storage import held_lock, is_locked, write_atomically
from gpubox.toml_table import read_toml_text

BUILDING = ".building-"
"""Begins the name of a folder in which an engine is being built, or was when gpubox was killed."""
BUILD_MARKER = "GPUBOX_ENGINE_BUILD"
"""Environment variable of every process of a build: its temporary folder, and a bar."""
_REMOVED = ".removed-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCK_ATTEMPTS = 500
_KILL_SECONDS = 20.0
_KILL_PAUSE_SECONDS = 0.02


def is_built(path: Path, paths: Paths) -> bool:
    """Whether ``path`` is the binary of an engine that gpubox built."""
    return path.is_relative_to(paths.built_engines)


def check_new_name(name: str, paths: Paths, config: Config) -> None:
    """Raises UsageError if a new engine cannot be called ``name``."""
    if not _NAME.fullmatch(name) or name in (EMBEDDED, PATH_ENGINE):
        raise UsageError(f"{name!r} cannot be an engine's name.", "Use letters, digits, '.', '_' and '-'.")
    if name in config.engines or (paths.built_engines / name).exists():
        raise UsageError(
            f"There is an engine {name!r} already.",
            f"`gpubox engines rm {name}` removes it; --name gives the new engine another name.",
        )


def remove_engine(name: str, paths: Paths, config: Config) -> Path:
    """Removes an engine that gpubox built and returns its folder.

    Raises UsageError if gpubox has not built it, or if it is the default engine; GpuboxError if a program of it runs.
    """
    folder = paths.built_engines / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        known = [engine.name for engine in find_engines(config) if is_built(engine.path, paths)]
        listing = f"It has built: {', '.join(known)}." if known else "It has built none."
        raise UsageError(f"gpubox has built no engine {name!r}.", listing)
    if config.default_engine == name:
        raise UsageError(
            f"{name} is the default engine.",
            "`gpubox engines use OTHER` first, or remove default-engine from config.toml.",
        )
    if pids := processes_running(folder.resolve()):
        raise GpuboxError(f"{name} runs (pid {pids[0]}).", "Stop or switch the server first.")
    removed = folder.with_name(f"{_REMOVED}{name}-{os.urandom(4).hex()}")
    try:
        with engines_lock(paths):
            folder.rename(removed)  # so that a kill leaves no half of an engine
            shutil.rmtree(removed)
    except OSError as error:
        raise GpuboxError(f"{folder} cannot be removed: {error.strerror}.") from None
    with contextlib.suppress(OSError):
        paths.built_engines.rmdir()
    return folder


def leftovers(paths: Paths) -> list[Path]:
    """The folders that killed builds and removals have left."""
    return [
        path
        for path in paths.built_engines.glob(".*")
        if path.name.startswith(_REMOVED) or (path.name.startswith(BUILDING) and not is_locked(path / "lock"))
    ]


def clear_leftovers(paths: Paths) -> None:
    """Ends the processes of killed builds and removes their folders. The caller holds ``engines_lock``."""
    for path in leftovers(paths):
        kill_build(path)
        shutil.rmtree(path, ignore_errors=True)


def kill_build(work: Path) -> None:
    """Kills every process of the build in ``work``. Ninja puts each compiler into a process group of its own."""
    end = time.monotonic() + _KILL_SECONDS
    while (alive := find_by_marker(f"{work}|", BUILD_MARKER)) and time.monotonic() < end:
        for identity, _ in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_SECONDS)


def engines_lock(paths: Paths) -> AbstractContextManager[int]:
    """Held while folders of engines appear or go. Raises GpuboxError if another gpubox holds it long."""
    return held_lock(paths.state / "engines.lock", "Another gpubox is changing the engines.", attempts=_LOCK_ATTEMPTS)


def set_default_engine(paths: Paths, name: str) -> Path:
    """Sets ``default-engine`` in config.toml, which is made if there is none. Returns the file.

    Raises UsageError if the file cannot be read or is not TOML, GpuboxError if it cannot be written.
    """
    path = paths.config_file
    try:
        with held_lock(paths.state / "config.lock", "Another gpubox is changing config.toml."):
            after = changed_text(path, read_toml_text(path) if path.exists() else "", name)
            write_atomically(path, after.encode())
    except OSError as error:
        raise GpuboxError(
            f"{path} cannot be written: {error.strerror}.", f'Write it yourself: default-engine = "{name}"'
        ) from None
    return path


def changed_text(path: Path, text: str, name: str) -> str:
    """``text`` with the default engine ``name``. Raises UsageError if that would change anything else."""
    from gpubox.toml_edit import change_toml

    try:
        return change_toml(text, {("default-engine",): name}, f'Write it yourself: default-engine = "{name}"')
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
