"""Files that the owner's tools run by themselves: repositories with hooks, and settings that start programs.

Those that a program creates are moved out of the workspace; those that the owner had are made read-only. No list of
names is complete, so every name that begins with a dot counts, but for a few that nothing obeys. Blocking: call it in
a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.storage import make_folder

MAX_DEPTH = 128
"""Folders nested deeper than this are moved out whole."""
REPOSITORY = "a repository"
HIDDEN = "a hidden name, which some tool may obey"
BYTECODE = "bytecode, which runs in place of its source"
HIDES = "hides another module"
PACKAGES = "installed packages"
_SETTINGS = ("yml", "yaml", "toml", "json")
_KINDS = {
    REPOSITORY: ".git .hg .svn .bzr .jj .pijul _darcs .fslckout _fossil_",
    "run on entering the folder": ".envrc .direnv mise.toml mise.local.toml .mise.toml .autoenv .autoenv.zsh",
    "settings of an editor": ".vscode .idea .zed .exrc .vimrc _vimrc .nvim.lua .lvimrc .dir-locals.el session.vim",
    "hooks": " ".join(f"{name}.{suffix}" for name in ("lefthook", "lefthook-local") for suffix in _SETTINGS),
    "settings of a coding agent": (
        ".claude .mcp.json .cursor .kiro .gemini .codex opencode.json opencode.jsonc crush.json agents.md "
        "agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md crush.md warp.md "
        "copilot-instructions.md"
    ),
    "settings that run code": ".npmrc .pnpmfile.cjs .pnp.cjs bunfig.toml devbox.json flake.nix shell.nix",
    PACKAGES: (
        ".venv venv pyvenv.cfg activate activate.csh activate.fish activate.ps1 activate_this.py site-packages "
        "dist-packages __pypackages__ conda-meta node_modules"
    ),
    "Python's": "sitecustomize usercustomize",
}
"""Of the hidden names only those that are moved out while the program still runs."""
_NAMES = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_WORKSPACE_SUFFIXES = (".code-workspace", ".sublime-project", ".sublime-workspace")
_INERT = {".gitignore", ".gitkeep", ".keep", ".editorconfig", ".dockerignore", ".npmignore", ".prettierignore"}
_INERT |= {".eslintignore", ".nojekyll", ".ds_store", ".coverage", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
"""Hidden names that no tool takes orders from."""
_INERT_SUFFIXES = (".swp", ".swo", ".tmp", ".part")
_INVISIBLE = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that HFS+ ignores in a name. NTFS ignores what follows a colon, and dots and spaces at the end."""
_BARE_REPOSITORY = ({"head", "objects", "refs"}, {"head", "commondir"})
"""Entries by which git takes any folder for a repository: setup.c, is_git_directory."""
_REPOSITORY_PARTS = frozenset({"head", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs"})
_DATA_PARTS = frozenset({"objects", "refs"})
"""Parts of a repository that run nothing. They are searched."""
_STANDARD_MODULES = sys.stdlib_module_names - {"test", "this", "antigravity", "turtledemo"}
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class AutoRunFile:
    """A file or folder that some tool runs or obeys by itself."""

    path: str
    """Relative to the workspace, with slashes."""
    kind: str
    """In words, such as ``a repository``."""
    identity: tuple[int, int]
    """Device and inode."""

    def __str__(self) -> str:
        return f"{readable(self.path)} ({self.kind})"


Token = tuple[int, int, str, str, str]
"""What an auto-run file is known by: device, inode, kind, and its name, or its path if it is a part of a repository. A
program can rename any file, but not so that all of them stay; a link is made anew for each target (its ctime), and the
last item also says what it leads to."""


@dataclass(eq=False, slots=True)
class Entry:
    """One file or folder that a walk met."""

    path: str
    item: os.DirEntry[str]
    fd: int
    """The open folder that holds it, until the next step of the walk."""
    key: str
    kind: str
    """Empty if nothing runs it by itself."""
    within: bool
    """Whether it lies in an auto-run file."""

    @property
    def status(self) -> os.stat_result:
        """Raises OSError if it is gone."""
        return self.item.stat(follow_symlinks=False)

    @property
    def is_part(self) -> bool:
        """Whether it may be a part of a repository without a ``.git``."""
        return self.key in _REPOSITORY_PARTS

    def token(self) -> Token:
        """What it is known by. Raises OSError if it is gone."""
        status, link = self.status, ""
        if stat.S_ISLNK(status.st_mode):
            link = str(status.st_ctime_ns)
            with contextlib.suppress(OSError):
                target = self.item.stat()
                link += f" {target.st_dev} {target.st_ino}"
        return status.st_dev, status.st_ino, self.kind, self.path if self.is_part else self.key, link

    def auto_run_file(self, kind: str = "") -> AutoRunFile:
        """Raises OSError if it is gone."""
        return AutoRunFile(self.path, kind or self.kind, (self.status.st_dev, self.status.st_ino))


@dataclass(eq=False)
class _Folder:
    """One folder of the walk. It stays open while its subfolders are walked."""

    fd: int
    path: str
    mode: int
    """As it was found."""
    within: bool = False
    pending: list[Entry] = field(default_factory=list)
    """Subfolders that are still to be walked."""


def readable(path: str) -> str:
    """The path with bytes that are not UTF-8 replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def auto_run_kind(name: str) -> str:
    """What runs a file or folder of this name; empty if nothing does. Ignores case and invisible characters."""
    return _kind(_key(name))


def auto_run_kinds(path: str) -> list[str]:
    """``auto_run_kind`` of each part of ``path`` that has one."""
    return [kind for name in path.split("/") if (kind := auto_run_kind(name))]


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository."""
    keys = {_key(name) for name in names}
    return any(entries <= keys for entries in _BARE_REPOSITORY)


def import_kind(path: str, before: Container[str]) -> str:
    """Why Python would import the new or changed file ``path`` in place of another; empty if it would not.

    ``before``: all paths before the run. Next to ``x.py``, ``x/__init__.py`` and ``x.so`` come first; a file at the top
    of the workspace comes before Python's own module of its name.
    """
    if not path.endswith((".pyc", ".pyo", ".py", ".so", ".pyd")):
        return ""
    folder, _, name = path.rpartition("/")
    stem, _, suffix = name.partition(".")
    if suffix.endswith(("pyc", "pyo")):
        return BYTECODE
    if path in before:
        return ""
    if stem == "__init__":
        folder, _, stem = folder.rpartition("/")
    elif suffix == "py":
        return HIDES if not folder and stem in _STANDARD_MODULES else ""
    module = f"{folder}/{stem}.py" if folder else f"{stem}.py"
    return HIDES if module in before or (not folder and stem in _STANDARD_MODULES) else ""


def walk(
    folder: Path, unreadable: list[str], *, modes: Mapping[str, int] | None = None, inside: bool = False
) -> Iterator[Entry]:
    """Yields every file and folder below ``folder``; with ``inside`` also those in auto-run files. Follows no link.

    Each folder is made accessible first, if that is needed. When it is left it gets its mode in ``modes`` (path ->
    mode), or the one that it had if that is None. Those that cannot be read are added to ``unreadable``. Reads each
    folder to its end before it yields, so that the caller may move the file away. Raises OSError if ``folder`` cannot
    be read.
    """
    stack: list[_Folder] = []
    try:
        stack.append(_enter(None, str(folder), ""))
        yield from _read(stack[0], inside)
        while stack:
            current = stack[-1]
            if not current.pending:
                _leave(stack.pop(), modes)
                continue
            entry = current.pending.pop()
            if len(stack) == MAX_DEPTH:
                entry.kind = f"folders deeper than {MAX_DEPTH}"
                yield entry
                continue
            try:
                stack.append(_enter(entry.fd, entry.item.name, f"{entry.path}/"))
                stack[-1].within = entry.within or bool(entry.kind and entry.key not in _DATA_PARTS)
                yield from _read(stack[-1], inside)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it was moved or replaced meanwhile
            except OSError as error:
                if error.errno != errno.ELOOP:
                    unreadable.append(entry.path)
    finally:
        while stack:
            _leave(stack.pop(), modes)


def move_out(entry: Entry, kind: str, target: Path, number: int, workspace: Path) -> bool:
    """Moves ``entry`` into the folder ``target``, which it makes. Returns whether it could. A program may still run.

    Only the entry is moved, out of an open folder, so swapping folders meanwhile has no effect. If ``target`` is on
    another disk, the entry is renamed in place and made inaccessible.
    """
    fd, name = entry.fd, entry.item.name
    with contextlib.suppress(OSError):
        _change_mode(fd, name, 0o700, stat.S_ISDIR)  # otherwise it cannot be moved into another folder
        try:
            make_folder(target)
            new_name = os.fsdecode(os.fsencode(f"{number}-{name}")[:255])
            os.rename(name, target / new_name, src_dir_fd=fd)
            _make_inaccessible(None, target / new_name)
            with (target / "from.txt").open("a", encoding="utf-8", errors="replace") as note:
                note.write(f"{new_name!r} was {str(workspace / entry.path)!r}: {kind}\n")
        except OSError:
            aside = f"gpubox-quarantine-{secrets.token_hex(4)}"
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
            _make_inaccessible(fd, aside)
        return True
    return False


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


def _read(folder: _Folder, inside: bool) -> Iterator[Entry]:
    """Yields what is in one folder, and fills ``pending`` with its subfolders."""
    entries: list[Entry] = []
    parts: set[str] = set()
    with os.scandir(folder.fd) as items:
        for item in items:
            key = "" if folder.within else _key(item.name)
            kind = _kind(key) if key else ""
            entries.append(Entry(f"{folder.path}{item.name}", item, folder.fd, key, kind, folder.within))
            if key in _REPOSITORY_PARTS:
                parts.add(key)
    is_repository = not folder.within and is_bare_repository(parts)
    for entry in entries:
        if is_repository and entry.is_part:
            entry.kind = REPOSITORY
        yield entry  # the caller may say that it is no auto-run file
        if not entry.kind or inside or (entry.is_part and entry.key in _DATA_PARTS):
            with contextlib.suppress(OSError):
                if entry.item.is_dir(follow_symlinks=False):
                    folder.pending.append(entry)


def _enter(parent: int | None, name: str, path: str) -> _Folder:
    """Opens a folder and makes it accessible for its owner, if a program took that right away. Raises OSError."""
    try:
        fd = os.open(name, OPEN_FOLDER, dir_fd=parent)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        with contextlib.suppress(OSError):
            _change_mode(parent, name, mode | 0o700, stat.S_ISDIR)
        return _Folder(os.open(name, OPEN_FOLDER, dir_fd=parent), path, mode)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.fchmod(fd, mode | 0o700)
    return _Folder(fd, path, mode)


def _leave(folder: _Folder, modes: Mapping[str, int] | None) -> None:
    now = stat.S_IMODE(os.fstat(folder.fd).st_mode)
    wanted = folder.mode if modes is None else modes.get(folder.path[:-1], now)
    if now != wanted:
        with contextlib.suppress(OSError):
            os.fchmod(folder.fd, wanted)
    os.close(folder.fd)


def _key(name: str) -> str:
    visible = name if name.isascii() else name.translate(_INVISIBLE)
    return visible.partition(":")[0].casefold().rstrip(". ")


def _kind(key: str) -> str:
    if kind := _NAMES.get(key):
        return kind
    if key[:1] == ".":
        return "" if key in _INERT or key.endswith(_INERT_SUFFIXES) else HIDDEN
    if key.startswith("git~"):
        return REPOSITORY
    if key.endswith(_WORKSPACE_SUFFIXES):
        return "settings of an editor"
    return _NAMES.get(key.partition(".")[0], "") if key.endswith((".py", ".pyc", ".so", ".pyd")) else ""
