"""The arguments for bwrap, the interpreter, the limits, and the hints for the owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.config import Config, load_config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.sandbox import bubblewrap, runner, spawn
from gpubox.sandbox.bubblewrap import Place
from gpubox.sandbox.folders import check_workspace
from gpubox.sandbox.interpreter import Interpreter, find_interpreter, system_interpreter
from gpubox.sandbox.policy import Policy

PYTHON = Interpreter("/usr/bin/python3.11", "3.11", masked=("/usr/lib/python3/dist-packages",))
FILES = {bubblewrap.BOOT: 7, bubblewrap.MAIN: 8}


def bwrap_command(policy: Policy | None = None, place: Place = Place(), *, as_root: bool = False) -> str:  # noqa: B008
    argv = bubblewrap.arguments(policy or Policy(), PYTHON, FILES, place, as_root=as_root)
    return " ".join(argv) + " "


def test_every_namespace_and_no_capability() -> None:
    command = bwrap_command()

    for name in ("user", "pid", "net", "ipc", "uts", "cgroup-try"):
        assert f"--unshare-{name} " in command
    for word in ("--cap-drop ALL ", "--disable-userns ", "--die-with-parent ", "--new-session ", "--clearenv "):
        assert word in command
    assert "--cap-add" not in command


def test_root_keeps_the_capabilities_to_become_another_user() -> None:
    command = bwrap_command(as_root=True)

    assert command.count("--cap-add") == 2
    assert "--cap-add CAP_SETUID --cap-add CAP_SETGID " in command
    assert "--unshare-user" not in command


def test_the_workspace_is_never_bound_to_be_written(own_home: Path) -> None:
    over = Policy(workspace=Path("/home/o/project"), layers=(Path("/c/2/up"), Path("/c/1/up")))
    only_read = Policy(workspace=Path("/home/o/project"))
    copy = bwrap_command(over, Place(overlay=False, copy=Path("/c/copy"), read_only=("node_modules",)))

    layered = bwrap_command(over)
    assert " --overlay-src /home/o/project --overlay-src /c/1/up --overlay /c/2/up /c/2/work /workspace " in layered
    closed = " --overlay-src /home/o/project --tmp-overlay /workspace --remount-ro /workspace "
    assert closed in bwrap_command(only_read)
    assert " --ro-bind /home/o/project /workspace " in bwrap_command(only_read, Place(overlay=False))
    assert " --bind /c/copy /workspace --ro-bind /home/o/project/node_modules /workspace/node_modules " in copy
    for command in (layered, copy, bwrap_command(only_read)):
        assert " --bind /home/o/project" not in command
        assert f" {own_home}" not in command
        for folder in ("/home ", "/sys", "/etc/passwd"):
            assert f"bind {folder}" not in command


def test_the_hosts_network_only_where_it_was_allowed() -> None:
    assert "--unshare-net " in bwrap_command(Policy(workspace=Path("/w")))
    assert "--unshare-net " not in bwrap_command(Policy(workspace=Path("/w"), network=True))


@pytest.mark.parametrize(
    ("text", "able"),
    [("bubblewrap 0.11.0", True), ("bubblewrap 1.0", True), ("bubblewrap 0.8.0", False), ("", False), ("x y z", False)],
)
def test_which_bubblewrap_mounts_overlays(text: str, able: bool, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)

    assert bubblewrap.mounts_overlays(str(program)) == able


def test_more_layers_than_one_mount_takes() -> None:
    layer = Path("/home/o/.local/state/gpubox/chats/some-name.layers/20261127-101112/up")

    assert bubblewrap.can_overlay(Policy(workspace=Path("/w"), layers=(layer,) * 30))
    assert not bubblewrap.can_overlay(Policy(workspace=Path("/w"), layers=(layer,) * 60))


def test_without_a_workspace_there_is_an_empty_one_of_bounded_size() -> None:
    command = bwrap_command(Policy(scratch_bytes=4096))

    for folder in ("/workspace", "/tmp", "/dev/shm"):
        assert f"--size 4096 --tmpfs {folder} " in command
    assert " --bind " not in command


def test_the_root_of_the_sandbox_is_closed_last() -> None:
    command = bwrap_command(Policy(workspace=Path("/w")), Place(overlay=False, masked=("a/sock", "fifo")))
    closing = command.index("--remount-ro / ")

    assert command.rindex("--tmpfs") < closing
    assert command.index("--ro-bind /dev/null /workspace/a/sock ") < closing
    assert "--ro-bind /dev/null /workspace/fifo " in command
    assert "--remount-ro /proc " in command


def test_limits_have_no_way_back_up() -> None:
    bounds = spawn.limits(Policy(memory_bytes=5, processes=6, cpu_seconds=7))

    assert bounds["RLIMIT_DATA"] == (5, 5)
    assert "RLIMIT_AS" not in bounds  # Node, Go and the JVM reserve far more than they use
    assert bounds["RLIMIT_NPROC"] == (6, 6)
    assert bounds["RLIMIT_CPU"] == (7, 8)
    assert bounds["RLIMIT_CORE"] == (1, 1)  # 0 would still call the host's core handler


def fake_usr(root: Path, version: str, *parts: str) -> Path:
    (root / "bin").mkdir()
    (root / f"bin/python{version}").touch()
    (root / "bin/python3").symlink_to(f"python{version}")
    for part in parts:
        (root / f"lib/python{version}/{part}").mkdir(parents=True)
        (root / f"lib/python{version}/{part}/__init__.py").touch()
    (root / "lib/python3/dist-packages").mkdir(parents=True)
    return root


def test_the_systems_python_where_it_is_whole_and_new(tmp_path: Path) -> None:
    interpreter = system_interpreter(fake_usr(tmp_path, "3.12", "asyncio", "unittest", "sqlite3"))

    assert interpreter is not None
    assert (interpreter.version, interpreter.prefix) == ("3.12", None)
    assert interpreter.masked == (str(tmp_path / "lib/python3/dist-packages"),)


@pytest.mark.parametrize(("version", "parts"), [("3.9", ("asyncio", "unittest", "sqlite3")), ("3.12", ("asyncio",))])
def test_an_old_or_minimal_python_is_not_used(tmp_path: Path, version: str, parts: tuple[str, ...]) -> None:
    assert system_interpreter(fake_usr(tmp_path, version, *parts)) is None


def test_a_python_from_elsewhere_is_mounted_at_its_own_path() -> None:
    python = Interpreter("/opt/python/bin/python3.13", "3.13", Path("/home/o/.pyenv/v"), ("/opt/python/lib/x",))
    command = " ".join(bubblewrap.arguments(Policy(), python, FILES, as_root=False))

    assert "--ro-bind /home/o/.pyenv/v/lib /opt/python/lib " in command
    assert "--tmpfs /opt/python/lib/x " in command
    assert "/home/o/.pyenv/v /" not in command
    assert python.command("b.py", on_host=True)[0] == "/home/o/.pyenv/v/bin/python3.13"


def test_this_machine_has_an_interpreter() -> None:
    assert find_interpreter().version >= "3.1"


@pytest.mark.parametrize(
    ("file", "value", "hint"),
    [
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", runner.APPARMOR),
        ("proc/sys/kernel/unprivileged_userns_clone", "0", runner.CLONE),
        ("proc/sys/user/max_user_namespaces", "0", runner.NONE_ALLOWED),
        (".dockerenv", "", runner.CONTAINER),
        ("etc/hostname", "box", runner.OTHERWISE),
    ],
)
def test_the_cure_depends_on_who_refuses(tmp_path: Path, file: str, value: str, hint: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(value)

    assert runner.remedy(tmp_path, installed=True).startswith(hint)


def test_a_missing_bubblewrap_is_to_be_installed(tmp_path: Path) -> None:
    assert runner.remedy(tmp_path, installed=False).startswith(runner.MISSING)


@pytest.mark.parametrize("value", ["bubblewrap", "landlock", "none"])
def test_weaker_confinement_is_accepted_by_name(paths: Paths, value: str) -> None:
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(f'weakest-isolation = "{value}"\n')

    assert load_config(paths).weakest_isolation == value
    assert Config().weakest_isolation == "bubblewrap"


@pytest.mark.parametrize(
    "text", ['weakest-isolation = "off"', "weakest-isolation = false", 'weakest-isoation = "none"']
)
def test_an_unknown_isolation_is_an_error(paths: Paths, text: str) -> None:
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(f"{text}\n")

    with pytest.raises(UsageError, match=r"weakest-isol?ation"):
        load_config(paths)


@pytest.mark.parametrize("folder", ["/", "/nowhere/at/all", "/etc/hostname"])
def test_a_workspace_is_a_folder_and_not_everything(folder: str) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        check_workspace(Path(folder))


def test_a_workspace_that_became_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert check_workspace(tmp_path / "real") == tmp_path / "real"
    with pytest.raises(UsageError, match="through a link"):
        check_workspace(tmp_path / "link")
