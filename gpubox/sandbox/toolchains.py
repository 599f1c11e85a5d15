"""The owner's compilers and interpreters, which programs over a workspace use, read-only. Looks, and runs nothing.

Only folders that hold nothing but tools: never the home itself, nor settings and credentials that lie beside the tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.sandbox.policy import WORKSPACE_MOUNT

CACHE_MOUNT = "/cache"
"""The folder inside that lasts as long as the chat."""
_IN_HOME = (
    *(".pyenv", ".local/share/uv/python", ".local/share/uv/tools", ".local/share/pipx", ".local/share/mise/installs"),
    *("miniconda3", "anaconda3", "miniforge3", "mambaforge", ".asdf/installs", ".sdkman/candidates"),
    *(".dotnet/dotnet", ".dotnet/host", ".dotnet/sdk", ".dotnet/shared", ".dotnet/packs", ".dotnet/templates"),
    *(".dotnet/sdk-manifests", ".dotnet/tools"),
    *(".nvm/versions", ".local/share/fnm", ".fnm", ".volta/bin", ".volta/tools", ".bun/bin", ".deno/bin"),
    *(".cargo/bin", ".rustup", "sdk", "go/bin", ".ghcup", ".juliaup"),
)
_DOWNLOADED = (".cargo/registry", ".cargo/git", "go/pkg/mod")
"""Sources of libraries that the owner's tools have fetched; a program with network fetches its own."""
_ELSEWHERE = ("/home/linuxbrew/.linuxbrew", "/nix/store", "/run/current-system")
_ETC = (
    *("alternatives", "java-*", "ld.so.cache", "localtime", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs"),
    "ssl/openssl.cnf",
)
_ETC_OF_NETWORK = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "services", "protocols")
_BINS = (".cargo/bin", "go/bin", ".volta/bin", ".bun/bin", ".deno/bin", ".dotnet", ".juliaup/bin", ".ghcup/bin")
AGENT_HOME = "/agent"
"""The home inside of a program that stays. Not the owner's path: what it left there must not lie above his tools."""
VENVS = (".venv", "venv")
_TAKEN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/run", "/opt/python", WORKSPACE_MOUNT,
          CACHE_MOUNT, AGENT_HOME)  # fmt: skip
"""Here the workspace cannot have its own path inside."""
_LOCAL_BIN = ".local/bin"
_OFFLINE = {"CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "npm_config_offline": "true", "UV_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Toolchains:
    """What comes in."""

    home: str
    """The home inside, an empty folder: the owner's path, because what the tools wrote down names it."""
    folders: tuple[str, ...]
    """Files and folders of the host, each at its own path."""
    links: tuple[tuple[str, str], ...]
    """(path inside, where it leads)"""
    env: Mapping[str, str]

    def for_agent(self, folders: Iterable[Path], env: Mapping[str, str]) -> Toolchains:
        """For a program that stays: ``folders``, in which it is installed, and the environment ``env`` come in too.

        Its home is AGENT_HOME, and what the tools look for in the home they find by variables.
        """
        installed = [str(folder) for folder in folders]
        links = tuple(link for link in self.links if not any(_within(path, link[0]) for path in installed))
        own = {name: value for name, value in self.env.items() if name != "XDG_CACHE_HOME"}
        if "HTTPS_PROXY" in env:
            own = {name: value for name, value in own.items() if name not in _OFFLINE}
        places = {"CARGO_HOME": f"{self.home}/.cargo", "GOPATH": f"{self.home}/go"}
        return replace(self, folders=(*self.folders, *installed), links=links,
                       env=places | own | {"HOME": AGENT_HOME} | dict(env))  # fmt: skip


def find_toolchains(
    workspace: Path, cache: Path | None, *, network: bool, home: Path, path: str, root: Path = Path("/")
) -> Toolchains:
    """``cache``: the host folder of CACHE_MOUNT. ``path``: the owner's PATH. Tests replace ``root``, which is /."""
    at_home = home.is_absolute() and len(home.parts) > 1 and not home.is_relative_to("/usr")
    folders = [str(home / name) for name in _IN_HOME if at_home and (home / name).exists()]
    own = network or (cache is not None and (cache / "cargo").is_dir())
    folders += [str(home / name) for name in _DOWNLOADED if at_home and not own and (home / name).is_dir()]
    folders += [folder for folder in _ELSEWHERE if (root / folder[1:]).is_dir()]
    words = [word for word in path.split(":") if word.startswith("/") and ".." not in word.split("/")]
    optional = {"/".join(word.split("/")[:3]) for word in words if word.startswith("/opt/")}
    folders += sorted(folder for folder in optional if (root / folder[1:]).is_dir())
    places = ("/usr", "/bin", "/sbin", *folders)
    kept = [word for word in words if _within(word, *places)]
    usual_bins = [str(home / name) for name in _BINS]
    bins = [each for each in usual_bins if _within(each, *folders) or any(_within(inner, each) for inner in folders)]
    bins += [str(folder) for folder in _newest_node(home, folders)]
    tools = tuple(_tool_links(home, folders)) if at_home else ()
    venvs = [f"{WORKSPACE_MOUNT}/{name}/bin" for name in VENVS]
    usual = ["/usr/local/go/bin", "/usr/local/bin", "/usr/bin", "/bin", "/run/bin"]
    all_bins = dict.fromkeys([*venvs, *kept, *bins, *([str(home / _LOCAL_BIN)] if tools else []), *usual])
    names = (*_ETC, *(_ETC_OF_NETWORK if network else ()))
    etc = [f"/{path.relative_to(root)}" for name in names for path in sorted((root / "etc").glob(name))]
    env = {"PATH": ":".join(all_bins), "HOME": str(home) if at_home else "/home/sandbox"}
    if cache is not None:
        env |= {"XDG_CACHE_HOME": CACHE_MOUNT, "GOCACHE": f"{CACHE_MOUNT}/go-build"}
        env |= {"npm_config_cache": f"{CACHE_MOUNT}/npm", "PIP_CACHE_DIR": f"{CACHE_MOUNT}/pip"}
        if own:
            env |= {"CARGO_HOME": f"{CACHE_MOUNT}/cargo", "GOMODCACHE": f"{CACHE_MOUNT}/go-mod"}
    if not network:
        env |= _OFFLINE
    if str(home / ".rustup") in folders:
        env["RUSTUP_HOME"] = str(home / ".rustup")
    env |= {"GOTOOLCHAIN": "local", "GIT_OPTIONAL_LOCKS": "0"}  # git status writes no index: it would be a change
    # Scripts of a virtual environment begin with the owner's path of its Python.
    taken = _within(str(workspace), *_TAKEN, *folders) or _within(str(home), str(workspace))
    place = () if taken else ((str(workspace), WORKSPACE_MOUNT),)
    return Toolchains(env["HOME"], tuple([*folders, *etc]), (*tools, *place), env)


def _within(path: str, *places: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _newest_node(home: Path, folders: list[str]) -> Iterator[Path]:
    """nvm and fnm choose a version only in the owner's shell."""
    for place in (".nvm/versions/node", ".local/share/fnm/node-versions", ".fnm/node-versions"):
        if _within(str(home / place), *folders):
            versions = sorted((home / place).glob("v*"), key=lambda path: _numbers(path.name), reverse=True)
            for version in versions[:1]:
                yield version / ("bin" if place.startswith(".nvm") else "installation/bin")


def _numbers(version: str) -> list[int]:
    return [int(word) if word.isdecimal() else 0 for word in version.lstrip("v").split(".")]


def _tool_links(home: Path, folders: list[str]) -> Iterator[tuple[str, str]]:
    """What pipx and uv put into ~/.local/bin: the links into the folders of their tools."""
    with contextlib.suppress(OSError):
        for path in sorted((home / _LOCAL_BIN).iterdir()):
            if path.is_symlink() and _within(target := str(path.readlink()), *folders):
                yield str(path), target
