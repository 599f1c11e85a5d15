"""Which of the owner's tools come into the sandbox, and what of his home never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.sandbox.toolchains import Toolchains, find_toolchains

TOOLS = (
    ".pyenv/versions/3.12.1/bin", ".local/share/uv/python/cpython-3.13/bin", ".nvm/versions/node/v9.1.0/bin",
    ".nvm/versions/node/v22.3.0/bin", ".cargo/bin", ".cargo/registry", ".rustup/toolchains", "go/pkg/mod", "go/bin",
)  # fmt: skip
PRIVATE = (
    ".ssh/id_ed25519",
    ".cargo/credentials.toml",
    ".npmrc",
    ".netrc",
    ".config/gh/hosts.yml",
    ".local/bin/mine",
    ".nvm/x",
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home/o"
    for name in TOOLS:
        (home / name).mkdir(parents=True)
    for name in PRIVATE:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    (home / "code").mkdir()
    return home


def tools(
    home: Path, *, path: str = "/usr/bin", network: bool = False, cache: Path | None = None, root: str = "/nowhere"
) -> Toolchains:
    return find_toolchains(home / "code", cache, network=network, home=home, path=path, root=Path(root))


def test_tools_come_in_and_nothing_else_of_the_home(home: Path) -> None:
    seen = tools(home)

    inside = [Path(folder).relative_to(home) for folder in seen.folders]
    for name in TOOLS:
        assert any(Path(name).is_relative_to(folder) for folder in inside), name
    for name in PRIVATE:
        assert not any(Path(name).is_relative_to(folder) for folder in inside), name
    assert seen.env["RUSTUP_HOME"] == str(home / ".rustup")


def test_the_workspaces_environment_is_before_the_owners_path(home: Path) -> None:
    path = (
        tools(home, path=f"{home}/.cargo/bin:/usr/bin:{home}/private/bin:relative:/opt/x/../../root")
        .env["PATH"]
        .split(":")
    )

    assert path[:4] == ["/workspace/.venv/bin", "/workspace/venv/bin", f"{home}/.cargo/bin", "/usr/bin"]
    assert not any("private" in folder or "relative" in folder or ".." in folder for folder in path)
    assert f"{home}/.nvm/versions/node/v22.3.0/bin" in path
    assert f"{home}/.nvm/versions/node/v9.1.0/bin" not in path


def test_a_virtual_environment_finds_its_python_by_the_owners_path(home: Path) -> None:
    assert (str(home / "code"), "/workspace") in tools(home).links
    at_home = find_toolchains(home, None, network=False, home=home, path="", root=Path("/nowhere"))
    assert at_home.links == ()


def test_tools_that_pipx_and_uv_installed_keep_their_names(home: Path) -> None:
    target = home / ".local/share/uv/tools/ruff/bin/ruff"
    target.parent.mkdir(parents=True)
    target.touch()
    (home / ".local/bin/ruff").symlink_to(target)
    (home / ".local/bin/evil").symlink_to(home / ".ssh/id_ed25519")

    seen = tools(home)

    assert seen.links[0] == (str(home / ".local/bin/ruff"), str(target))
    assert len(seen.links) == 2
    assert f"{home}/.local/bin" in seen.env["PATH"]


def test_libraries_that_a_program_fetched_itself_are_its_own(home: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    assert "CARGO_HOME" not in tools(home, cache=cache).env
    assert tools(home, cache=cache).env["CARGO_NET_OFFLINE"] == "true"

    online = tools(home, cache=cache, network=True)
    assert online.env["CARGO_HOME"] == "/cache/cargo"
    assert "CARGO_NET_OFFLINE" not in online.env
    assert not any("registry" in folder or "pkg/mod" in folder for folder in online.folders)

    (cache / "cargo").mkdir()
    assert tools(home, cache=cache).env["CARGO_HOME"] == "/cache/cargo"


def test_only_public_settings_of_the_system_and_names_only_with_network(tmp_path: Path, home: Path) -> None:
    for name in ("ssl/certs", "ssl/private", "java-21-openjdk", "cron.d"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    for name in ("shadow", "passwd", "resolv.conf", "hosts"):
        (tmp_path / "etc" / name).touch()
    (tmp_path / "opt/cuda/bin").mkdir(parents=True)

    off = tools(home, root=str(tmp_path), path="/opt/cuda/bin").folders
    assert {folder for folder in off if folder.startswith("/etc")} == {"/etc/ssl/certs", "/etc/java-21-openjdk"}
    assert "/opt/cuda" in off
    on = tools(home, root=str(tmp_path), network=True).folders
    assert {"/etc/resolv.conf", "/etc/hosts"} <= set(on)


@pytest.mark.parametrize("odd", ["/", "relative", "/usr/share/x"])
def test_a_home_that_is_none_is_replaced(odd: str, tmp_path: Path) -> None:
    seen = find_toolchains(tmp_path, None, network=False, home=Path(odd), path="", root=Path("/nowhere"))

    assert (seen.home, seen.folders) == ("/home/sandbox", ())
