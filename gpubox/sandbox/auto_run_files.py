"""Files that the owner's tools run by themselves: repositories with hooks, and settings that start programs.

Those that a program creates are moved out of the workspace; those that the owner had are made read-only. They are
identified by device and inode, so that renaming one hides nothing. Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_DEPTH = 128
"""Folders nested deeper than this are moved out whole."""
MAX_PROTECTED = 256
"""How many of the owner's files are made read-only: each is a mount."""
REPOSITORY = "a repository"
_KINDS = {
    REPOSITORY: ".git .hg .svn .bzr .jj .pijul _darcs .fslckout _fossil_",
    "run on entering the folder": (
        ".envrc .direnv .mise.toml mise.toml .mise.local.toml mise.local.toml .mise .rtx.toml .tool-versions .autoenv "
        ".autoenv.zsh .autoenv_leave.zsh"
    ),
    "settings of an editor": (
        ".vscode .idea .vs .fleet .zed .devcontainer .devcontainer.json .exrc .vimrc _vimrc .gvimrc .nvimrc .nvim.lua "
        ".lvimrc .local.vimrc .vim .dir-locals.el .dir-locals-2.el .kakrc .helix .gdbinit .lldbinit"
    ),
    "hooks": (
        ".husky .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml .lefthook.yml lefthook-local.yml "
        ".overcommit.yml"
    ),
    "settings of a coding agent": (
        ".claude .mcp.json .cursor .windsurf .opencode opencode.json opencode.jsonc .aider.conf.yml .gemini .codex "
        ".continue .roo .cline .kilocode .zencoder .amazonq"
    ),
    "run by a shell": (
        ".bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .zlogout .login "
        ".cshrc .tcshrc .xprofile .xsession .xinitrc .ssh"
    ),
    "settings that run code": (
        ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnp.cjs .cargo .bundle .irbrc .pryrc .rprofile .ghci"
    ),
    "Python's": "sitecustomize.py usercustomize.py .venv pyvenv.cfg .pdbrc",
}
_NAMES = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_INVISIBLE = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that HFS+ ignores in a name. NTFS ignores what follows a colon, and dots and spaces at the end."""
_BARE_REPOSITORY = ({"head", "objects", "refs"}, {"head", "commondir"})
"""Entries by which git takes any folder for a repository: setup.c, is_git_directory."""
_REPOSITORY_PARTS = frozenset({"head", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs"})
_DATA_PARTS = frozenset({"objects", "refs"})
"""Parts of a repository that run nothing. They are searched."""
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AutoRunFile:
    """A file or folder that some tool runs or obeys by itself."""

    path: str
    """Relative to the workspace, with slashes."""
    kind: str
    """In words, such as ``a repository``. Empty for a part of an incomplete repository."""
    identity: tuple[int, int]
    """Device and inode."""

    def __str__(self) -> str:
        return f"{os.fsencode(self.path).decode('utf-8', 'replace')} ({self.kind})"


@dataclass(eq=False)
class _Folder:
    """One folder of the walk. It stays open while its subfolders are walked."""

    fd: int
    path: str
    pending: list[str] = field(default_factory=list)
    """Subfolders that are still to be walked."""


def auto_run_kind(name: str) -> str:
    """What runs a file or folder of this name; empty if nothing does. Ignores case and invisible characters."""
    key = _key(name)
    return _NAMES.get(key) or (REPOSITORY if key.startswith("git~") else "")


def auto_run_kinds(path: str) -> list[str]:
    """``auto_run_kind`` of each part of ``path`` that has one."""
    return [kind for name in path.split("/") if (kind := auto_run_kind(name))]


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository."""
    keys = {_key(name) for name in names}
    return any(entries <= keys for entries in _BARE_REPOSITORY)


def find_auto_run_files(folder: Path) -> list[AutoRunFile]:
    """Every auto-run file in ``folder``, at any depth, without following links. Raises OSError if it is no folder."""
    return [file for file, _, _ in _walk(folder)]


def move_out(
    folder: Path, known: Collection[tuple[int, int]], quarantine: Path
) -> tuple[list[AutoRunFile], list[AutoRunFile]]:
    """Moves every auto-run file that is not ``known`` into a new folder in ``quarantine``. A program may still run.

    Returns the files that were moved, and those that could not be.

    Only the entry is moved, out of an open folder, so swapping folders meanwhile has no effect. If ``quarantine`` is on
    another disk, the entry is renamed in place and made inaccessible.
    """
    moved: list[AutoRunFile] = []
    left: list[AutoRunFile] = []
    target: Path | None = None
    with contextlib.suppress(OSError):
        for file, fd, name in _walk(folder):
            if file.identity in known or not file.kind:
                continue
            if target is None:
                target = quarantine / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
                with contextlib.suppress(OSError):
                    target.mkdir(parents=True, mode=0o700)
            done = _move(target, f"{len(moved) + 1}-{name}", fd, name, file, folder)
            (moved if done else left).append(file)
    return moved, left


def _move(target: Path, new_name: str, fd: int, name: str, file: AutoRunFile, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        _make_accessible(fd, name)
        try:
            new_name = os.fsdecode(os.fsencode(new_name)[:255])
            os.rename(name, target / new_name, src_dir_fd=fd)
            _make_inaccessible(None, target / new_name)
            with (target / "from.txt").open("a", encoding="utf-8", errors="replace") as note:
                note.write(f"{new_name!r} was {str(folder / file.path)!r}: {file.kind}\n")
        except OSError:
            aside = f"gpubox-quarantine-{secrets.token_hex(4)}"
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
            _make_inaccessible(fd, aside)
        return True
    return False


def _make_accessible(fd: int, name: str) -> None:
    """Makes a folder writable for its owner: otherwise it cannot be moved into another folder."""
    _change_mode(fd, name, 0o700, stat.S_ISDIR)


def _make_inaccessible(fd: int | None, name: str | Path) -> None:
    """Nobody but root reads it until the owner changes its mode: git obeys a repository under any name."""
    _change_mode(fd, name, 0, lambda mode: not stat.S_ISLNK(mode))


def _change_mode(fd: int | None, name: str | Path, mode: int, applies: Callable[[int], bool]) -> None:
    """Changes the mode of what is opened, if it ``applies`` to it; never through a link."""
    inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        if applies(os.fstat(inner).st_mode):
            Path(f"/proc/self/fd/{inner}").chmod(mode)
    finally:
        os.close(inner)


def _walk(folder: Path) -> Iterator[tuple[AutoRunFile, int, str]]:
    """Yields each auto-run file with the open folder that holds it and its name there; does not look into the file.

    Reads each folder to its end before it yields, so that the caller may move the file away.
    """
    stack: list[_Folder] = []
    try:
        stack.append(_Folder(os.open(folder, OPEN_FOLDER), ""))
        yield from _scan(stack[0])
        while stack:
            current = stack[-1]
            if not current.pending:
                os.close(stack.pop().fd)
                continue
            name = current.pending.pop()
            path = f"{current.path}{name}"
            inner = _open_folder(current.fd, name)
            if inner is None:
                continue
            if len(stack) == MAX_DEPTH:
                status = os.fstat(inner)
                os.close(inner)
                identity = (status.st_dev, status.st_ino)
                yield AutoRunFile(path, f"folders deeper than {MAX_DEPTH}", identity), current.fd, name
                continue
            stack.append(_Folder(inner, f"{path}/"))
            yield from _scan(stack[-1])
    finally:
        for entry in stack:
            os.close(entry.fd)


def _scan(folder: _Folder) -> Iterator[tuple[AutoRunFile, int, str]]:
    """Yields the auto-run files of one folder, as ``_walk``, and fills ``pending`` with its other subfolders."""
    kinds: list[tuple[str, str]] = []
    parts: dict[str, str] = {}
    with contextlib.suppress(OSError), os.scandir(folder.fd) as entries:
        for entry in entries:
            if kind := auto_run_kind(entry.name):
                kinds.append((entry.name, kind))
                continue
            if (key := _key(entry.name)) in _REPOSITORY_PARTS:
                parts[key] = entry.name
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    folder.pending.append(entry.name)
    is_repository = is_bare_repository(parts)
    kinds += [(name, REPOSITORY if is_repository else "") for name in parts.values()]
    if is_repository:
        skipped = {name for key, name in parts.items() if key not in _DATA_PARTS}
        folder.pending = [name for name in folder.pending if name not in skipped]
    for name, kind in kinds:
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            yield AutoRunFile(f"{folder.path}{name}", kind, (status.st_dev, status.st_ino)), folder.fd, name


def _open_folder(fd: int, name: str) -> int | None:
    """Opens a subfolder, and makes it readable first if a program took that right away."""
    for _ in range(2):
        try:
            return os.open(name, OPEN_FOLDER, dir_fd=fd)
        except PermissionError:
            with contextlib.suppress(OSError):
                _make_accessible(fd, name)
        except OSError:
            return None
    return None


def _key(name: str) -> str:
    visible = name if name.isascii() else name.translate(_INVISIBLE)
    return visible.partition(":")[0].casefold().rstrip(". ")
