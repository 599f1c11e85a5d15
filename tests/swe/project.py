"""The owner's side: his project's folder, his toolchains, and what he sees when he compares his folder with before."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.guards import OWNER

DEBIAN_PYTHON = "/usr/bin/python3"
OWN_HOME = Path(OWNER.get("HOME", "/nonexistent"))
PROGRAM_SECONDS = 120
Entry = tuple[object, ...]
"""What must not change of one file, link or folder."""


class MissingError(Exception):
    """This machine lacks what a task needs; the text says what."""


def need(program: str) -> str:
    """The path of ``program``, a file that this user may run. Raises MissingError."""
    path = shutil.which(program)
    if path is None:
        raise MissingError(f"no {program} here")
    return path


class Project:
    """One folder with the owner's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)

    def put(self, files: Mapping[str, str | bytes], mode: int | None = None) -> None:
        """Writes files, text as UTF-8 with the line ends that it has. ``mode``: else what the owner's umask makes."""
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            if mode is not None:
                path.chmod(mode)

    def bytes(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def text(self, name: str) -> str:
        return self.bytes(name).decode()

    def mode(self, name: str) -> int:
        return stat.S_IMODE((self.root / name).lstat().st_mode)

    def run(self, *command: str, **environment: str) -> str:
        """The output of one of the owner's own programs in his folder. Raises AssertionError unless it ends with 0."""
        code, output = self.ends(*command, **environment)
        assert code == 0, f"{command} ended with {code}:\n{output}"
        return output

    def ends(self, *command: str, **environment: str) -> tuple[int, str]:
        """How it ended, and its output."""
        variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "GIT_CONFIG_NOSYSTEM": "1", **environment}
        done = subprocess.run(
            command, cwd=self.root, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=PROGRAM_SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.decode(errors="replace")

    def entries(self) -> dict[str, Entry]:
        """Everything below the folder: kind, mode, time, and size or content."""
        return {os.fsdecode(name): entry for name, entry in _entries(os.fsencode(self.root), b"")}

    def commit(self, message: str, day: int = 1) -> None:
        """Commits all as the owner; the first time it makes the repository."""
        who = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org"}
        when = f"2026-03-{day:02}T10:00:00Z"
        variables = who | {name.replace("AUTHOR", "COMMITTER"): value for name, value in who.items()}
        variables |= {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        if not (self.root / ".git").exists():
            self.run(need("git"), "init", "-q", "-b", "main")
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "-m", message, **variables)

    def venv(self, python: str, *libraries: Mapping[str, str]) -> None:
        """A virtual environment ``.venv`` of ``python``, with pytest and these files in its packages."""
        try:
            self.run(python, "-m", "venv", "--without-pip", ".venv")
        except (AssertionError, OSError) as error:
            raise MissingError(f"{python} makes no virtual environment: {error}") from error
        self.install_pytest(*libraries)

    def install_pytest(self, *libraries: Mapping[str, str]) -> None:
        """Copies pytest into ``.venv``: no test may need the network."""
        (packages,) = (self.root / ".venv").glob("lib/python3.*/site-packages")
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            source = Path(str(importlib.import_module(name).__file__)).parent
            if name == "pytest":
                shutil.copy(source.parent / "py.py", packages)
            shutil.copytree(source, packages / name, ignore=_unneeded)
        for library in libraries:
            for name, text in library.items():
                (packages / name).write_text(text)


def differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> set[str]:
    """The paths that are new, removed or different. A folder's time is not compared: a new entry changes it."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _unneeded(folder: str, names: list[str]) -> list[str]:
    """Of pygments pytest needs little; the lexers are 9 MB."""
    kept = {"__init__.py", "_mapping.py", "python.py", "diff.py", "_lua_builtins.py"}
    if Path(folder).name == "lexers":
        return [name for name in names if name not in kept]
    return ["__pycache__"] if "__pycache__" in names else []


def _entries(folder: bytes, prefix: bytes) -> Any:
    for entry in os.scandir(folder):
        name = prefix + entry.name
        state = entry.stat(follow_symlinks=False)
        mode = stat.filemode(state.st_mode)
        if entry.is_symlink():
            yield name, (mode, os.fspath(Path(os.fsdecode(entry.path)).readlink()), state.st_mtime_ns)
        elif entry.is_dir(follow_symlinks=False):
            yield name, (mode, state.st_uid, state.st_gid)
            yield from _entries(entry.path, name + b"/")
        else:
            yield name, (mode, state.st_uid, state.st_gid, state.st_nlink, state.st_size, state.st_mtime_ns)
