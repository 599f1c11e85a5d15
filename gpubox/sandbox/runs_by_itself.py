"""Names of files that the owner's tools run or obey by themselves: a take shows the reason, and asks for each of them.

Nothing depends on the list being complete: the owner sees all files before he takes them. It names those that are no
source, so that every name that begins with a dot counts, but for a few that nothing obeys.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

REPOSITORY = "a repository, whose hooks and settings git runs"
_HIDDEN = "a hidden name, which some tool may obey"
_COMPILED = "compiled code, which Python runs in place of its source"
_SETTINGS = ("yml", "yaml", "toml", "json")
_KINDS = {
    REPOSITORY: ".git .hg .svn .bzr .jj .pijul _darcs .fslckout _fossil_ .gitmodules .gitattributes",
    "run on entering the folder": ".envrc .direnv mise.toml mise.local.toml .mise.toml .autoenv .autoenv.zsh",
    "settings of an editor": ".vscode .idea .zed .exrc .vimrc _vimrc .nvim.lua .lvimrc .dir-locals.el session.vim",
    "hooks": " ".join(f"{name}.{suffix}" for name in ("lefthook", "lefthook-local") for suffix in _SETTINGS),
    "rules for coding agents": (
        ".claude .mcp.json .cursor .kiro .gemini .codex opencode.json opencode.jsonc crush.json agents.md "
        "agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md crush.md warp.md "
        "copilot-instructions.md"
    ),
    "settings that run code": ".npmrc .pnpmfile.cjs .pnp.cjs bunfig.toml devbox.json flake.nix shell.nix",
    "installed packages": (
        ".venv venv pyvenv.cfg activate activate.csh activate.fish activate.ps1 activate_this.py site-packages "
        "dist-packages __pypackages__ conda-meta node_modules"
    ),
    "run when Python starts": "sitecustomize usercustomize",
}
_NAMES = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_PYTHON_SUFFIXES = (".py", ".pyc", ".pyo", ".so", ".pyd")
_WORKSPACE_SUFFIXES = (".code-workspace", ".sublime-project", ".sublime-workspace")
_INERT = {".gitignore", ".gitkeep", ".keep", ".editorconfig", ".dockerignore", ".npmignore", ".prettierignore"}
_INERT |= {".eslintignore", ".nojekyll", ".ds_store", ".coverage"}
_CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
_INVISIBLE = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that HFS+ ignores in a name. NTFS ignores what follows a colon, and dots and spaces at the end."""
_BARE_REPOSITORY = ({"head", "objects", "refs"}, {"head", "commondir"})
"""Entries by which git takes any folder for a repository: setup.c, is_git_directory."""
_REPOSITORY_PARTS = {"head", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs"}


def is_cache(name: str) -> bool:
    """Whether tools keep there only what they make again: it is no change, and is never taken."""
    return name in _CACHES


def why_it_runs(path: str, link_target: str | None = None) -> str:
    """Why a tool of the owner would run or obey the file or folder ``path``, in words; empty: nothing does.

    ``link_target``: where it leads, if it is a symbolic link.
    """
    if why := next((why for name in path.split("/") if (why := _why(_key(name)))), ""):
        return why
    if link_target is None:
        return ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link_target))
    if target.startswith(("/", "..")) or ".." in link_target.lstrip("./").split("/"):  # where "a/.." is, a link decides
        return "a link out of the workspace"
    why = why_it_runs(target)
    return f"a link to {target}: {why}" if why else ""


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository."""
    keys = {_key(name) for name in names}
    return any(entries <= keys for entries in _BARE_REPOSITORY)


def is_repository_part(name: str) -> bool:
    """Whether git would obey the entry ``name`` of a folder that ``is_bare_repository``."""
    return _key(name) in _REPOSITORY_PARTS


def _key(name: str) -> str:
    visible = name if name.isascii() else name.translate(_INVISIBLE)
    return visible.partition(":")[0].casefold().rstrip(". ")


def _why(key: str) -> str:
    if why := _NAMES.get(key):
        return why
    if key[:1] == ".":
        return "" if key in _INERT or key in _CACHES else _HIDDEN
    if key.startswith("git~"):
        return REPOSITORY
    if key.endswith(_WORKSPACE_SUFFIXES):
        return "settings of an editor"
    if key.endswith(_PYTHON_SUFFIXES):
        stem_why = _NAMES.get(key.partition(".")[0], "")
        return stem_why or ("" if key.endswith(".py") else _COMPILED)
    return ""
