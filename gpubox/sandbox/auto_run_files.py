"""What tools of the owner run without being asked: repositories with their hooks, and settings that start programs.

What a program makes of these is moved out of the workspace; those the owner had are handed to it read-only. They are
known by their place on the disk (device and inode), so that renaming one hides nothing. Blocking; run in a thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_DEPTH = 128
"""Folders in folders that are looked into; what lies deeper is moved out whole."""
MAX_PROTECTED = 256
"""Of the owner's own, how many are handed over read-only: each is a mount."""
REPOSITORY, _EDITOR, _FOLDER, _HOOKS = "a repository", "settings of an editor", "run on entering the folder", "hooks"
_AGENT, _SHELL, _PACKAGES, _PYTHON = (
    "settings of a coding agent",
    "run by a shell",
    "settings that run code",
    "Python's",
)
_KINDS = {
    REPOSITORY: ".git .hg .svn .bzr .jj .pijul _darcs .fslckout _fossil_",
    _FOLDER: ".envrc .direnv .mise.toml mise.toml .mise.local.toml mise.local.toml .mise .rtx.toml .tool-versions "
    ".autoenv .autoenv.zsh .autoenv_leave.zsh",
    _EDITOR: ".vscode .idea .vs .fleet .zed .devcontainer .devcontainer.json .exrc .vimrc _vimrc .gvimrc .nvimrc "
    ".nvim.lua .lvimrc .local.vimrc .vim .dir-locals.el .dir-locals-2.el .kakrc .helix .gdbinit .lldbinit",
    _HOOKS: ".husky .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml .lefthook.yml lefthook-local.yml "
    ".overcommit.yml",
    _AGENT: ".claude .mcp.json .cursor .windsurf .opencode opencode.json opencode.jsonc .aider.conf.yml .gemini .codex "
    ".continue .roo .cline .kilocode .zencoder .amazonq",
    _SHELL: ".bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin .zlogout .login "
    ".cshrc .tcshrc .xprofile .xsession .xinitrc .ssh",
    _PACKAGES: ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnp.cjs .cargo .bundle .irbrc .pryrc .rprofile .ghci",
    _PYTHON: "sitecustomize.py usercustomize.py .venv pyvenv.cfg .pdbrc",
}
_NAMES = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_INVISIBLE = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""What HFS+ leaves out of a name; NTFS leaves out what follows a colon, and dots and spaces at the end."""
_BARE = ({"head", "objects", "refs"}, {"head", "commondir"})
"""What git takes for a repository whatever its folder is called: setup.c, is_git_directory."""
_OF_BARE = frozenset({"head", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs"})
_SEARCHED = frozenset({"objects", "refs"})
"""Parts of such a repository that start nothing: they are looked into."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AutoRunFile:
    """One thing that a tool would run."""

    path: str
    """From the workspace, with slashes."""
    kind: str
    """``a repository``: for the owner; empty for what would be a part of a repository if others were beside it."""
    identity: tuple[int, int]
    """Device and inode."""

    def __str__(self) -> str:
        return f"{os.fsencode(self.path).decode('utf-8', 'replace')} ({self.kind})"


@dataclass(frozen=True, slots=True)
class QuarantinedFiles:
    """What was moved out of a workspace, and where it lies."""

    what: tuple[AutoRunFile, ...] = ()
    left: tuple[AutoRunFile, ...] = ()
    """What could not be moved: it is there still."""


@dataclass(eq=False)
class _Folder:
    """One folder of the walk, open as long as its own folders are walked."""

    fd: int
    path: str
    waiting: list[str] = field(default_factory=list)


def auto_run_kind(name: str) -> str:
    """What runs a file or folder called so; empty where nothing does. Case and invisible characters do not matter."""
    key = _key(name)
    return _NAMES.get(key) or (REPOSITORY if key.startswith("git~") else "")


def auto_run_kinds(path: str) -> list[str]:
    """What runs each part of ``path`` that is of a kind; empty where none is."""
    return [kind for name in path.split("/") if (kind := auto_run_kind(name))]


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository, whatever it is called."""
    keys = {_key(name) for name in names}
    return any(needed <= keys for needed in _BARE)


def find_auto_run_files(folder: Path) -> list[AutoRunFile]:
    """Everything of the kind in ``folder``, at any depth, links not followed. Raises OSError where it is no folder."""
    return [found for found, _, _ in _walk(folder)]


def move_out(folder: Path, known: Collection[tuple[int, int]], place: Path) -> QuarantinedFiles:
    """Moves all that ``find_auto_run_files`` finds and that is not ``known`` to a new folder in ``place``; a program may still run.

    Only the entry is moved, from a folder that is held open: what a program swaps meanwhile leads nowhere else. Where
    ``place`` lies on another disk the entry is renamed where it is, and closed to everybody.
    """
    moved: list[AutoRunFile] = []
    left: list[AutoRunFile] = []
    target: Path | None = None
    with contextlib.suppress(OSError):
        for found, fd, name in _walk(folder):
            if found.identity in known or not found.kind:
                continue
            if target is None:
                target = place / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
                with contextlib.suppress(OSError):
                    target.mkdir(parents=True, mode=0o700)
            (moved if _moved_to(target, f"{len(moved) + 1}-{name}", fd, name, found, folder) else left).append(found)
    return QuarantinedFiles(tuple(moved), tuple(left))


def _moved_to(target: Path, new_name: str, fd: int, name: str, found: AutoRunFile, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        _open_for_owner(fd, name)
        try:
            new_name = os.fsdecode(os.fsencode(new_name)[:255])
            os.rename(name, target / new_name, src_dir_fd=fd)
            _close(None, target / new_name)
            with (target / "from.txt").open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{new_name!r} was {str(folder / found.path)!r}: {found.kind}\n")
        except OSError:
            aside = f"gpubox-quarantine-{secrets.token_hex(4)}"
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
            _close(fd, aside)
        return True
    return False


def _open_for_owner(fd: int, name: str) -> None:
    """A folder that its owner may not write cannot be moved to another one."""
    if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            Path(f"/proc/self/fd/{inner}").chmod(0o700)
        finally:
            os.close(inner)


def _close(fd: int | None, name: str | Path) -> None:
    """Nobody but root reads it until the owner says so (chmod): a repository is one under any name."""
    inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        if not stat.S_ISLNK(os.fstat(inner).st_mode):
            Path(f"/proc/self/fd/{inner}").chmod(0)
    finally:
        os.close(inner)


def _walk(folder: Path) -> Iterator[tuple[AutoRunFile, int, str]]:
    """Each one with the open folder that holds it and its name there; what is found is not looked into.

    A folder is read whole before any of it is told, so that it may be moved meanwhile.
    """
    stack: list[_Folder] = []
    try:
        stack.append(_Folder(os.open(folder, _OPEN_FOLDER), ""))
        yield from _told(stack[0])
        while stack:
            here = stack[-1]
            if not here.waiting:
                os.close(stack.pop().fd)
                continue
            name = here.waiting.pop()
            path = f"{here.path}{name}"
            inner = _opened(here.fd, name)
            if inner is None:
                continue
            if len(stack) == MAX_DEPTH:
                found = os.fstat(inner)
                os.close(inner)
                yield AutoRunFile(path, f"folders deeper than {MAX_DEPTH}", (found.st_dev, found.st_ino)), here.fd, name
                continue
            stack.append(_Folder(inner, f"{path}/"))
            yield from _told(stack[-1])
    finally:
        for entry in stack:
            os.close(entry.fd)


def _told(here: _Folder) -> Iterator[tuple[AutoRunFile, int, str]]:
    """What tools would run in one folder; its other folders are put down to be walked."""
    found: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    with contextlib.suppress(OSError), os.scandir(here.fd) as entries:
        for entry in entries:
            if kind := auto_run_kind(entry.name):
                found.append((entry.name, kind))
                continue
            if (key := _key(entry.name)) in _OF_BARE:
                names[key] = entry.name
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    here.waiting.append(entry.name)
    whole = is_bare_repository(names)
    found += [(name, REPOSITORY if whole else "") for name in names.values()]
    if whole:
        closed = {name for key, name in names.items() if key not in _SEARCHED}
        here.waiting = [name for name in here.waiting if name not in closed]
    for name, kind in found:
        with contextlib.suppress(OSError):
            facts = os.stat(name, dir_fd=here.fd, follow_symlinks=False)
            yield AutoRunFile(f"{here.path}{name}", kind, (facts.st_dev, facts.st_ino)), here.fd, name


def _opened(fd: int, name: str) -> int | None:
    """The folder, made readable where a program closed it to its own user."""
    for _ in range(2):
        try:
            return os.open(name, _OPEN_FOLDER, dir_fd=fd)
        except PermissionError:
            with contextlib.suppress(OSError):
                _open_for_owner(fd, name)
        except OSError:
            return None
    return None


def _key(name: str) -> str:
    plain = name if name.isascii() else name.translate(_INVISIBLE)
    return plain.partition(":")[0].casefold().rstrip(". ")
