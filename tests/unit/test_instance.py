"""The view of an instance: its record against the processes that really run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.hardware.process import MARKER_VARIABLE, ProcessIdentity, boot_id, identity_of, own_identity
from gpubox.paths import Paths
from gpubox.server.instance import instance_names, launch_marker, observe
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, load_state, save_state

LAUNCH = Launch("a", ("llama-server", "--port", "8080"), "127.0.0.1", 8080)
DEAD = ProcessIdentity(2**22 + 5, 1, "")
Spawn = Callable[..., ProcessIdentity]


@pytest.fixture
def spawn(paths: Paths) -> Iterator[Spawn]:
    """Starts a process with a marker and the liveness lock of the instance. It lives until the test ends."""
    children: list[subprocess.Popen[bytes]] = []

    def start(mark: str, *argv: str, where: Paths = paths) -> ProcessIdentity:
        # Its command line looks like llama-server's; it only waits until its stdin is closed.
        command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *argv]
        life = where.liveness_lock("main")
        life.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(life, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_SH)
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, MARKER_VARIABLE: mark},
            pass_fds=(lock,),
        )
        os.close(lock)
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        identity = identity_of(child.pid)
        assert identity is not None
        return identity

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def save(paths: Paths) -> Callable[..., Path]:
    """Writes the state of the main instance."""

    def write(**fields: object) -> Path:
        path = paths.instance_state("main")
        save_state(path, InstanceState(**fields))  # type: ignore[arg-type]
        return path

    return write


def running(process: ProcessIdentity | None = None, **fields: object) -> RunningServer:
    return RunningServer(LAUNCH, "f00d", "2026-01-01T00:00:00.000Z", process, **fields)  # type: ignore[arg-type]


def log(paths: Paths, text: str) -> None:
    paths.logs.mkdir(parents=True, exist_ok=True)
    paths.instance_log("main").write_text(text)


def test_nothing_at_all(paths: Paths) -> None:
    view = observe(paths, "main")

    assert (view.running, view.operation, view.message, view.crashed, view.process) == (None, None, "", False, None)
    assert instance_names(paths) == []
    assert not paths.state.exists()


def test_a_recorded_server_that_lives(paths: Paths, save: Callable[..., Path], spawn: Spawn) -> None:
    process = spawn("whatever")
    save(running=running(process, ready_at="t"), message="an old message")

    view = observe(paths, "main")

    assert (view.process, view.message, view.crashed) == (process, "", False)


@pytest.mark.parametrize(
    "process",
    [DEAD, replace(own_identity(), start_ticks=own_identity().start_ticks - 1)],
    ids=["dead pid", "pid used again"],
)
def test_a_server_that_is_gone_has_crashed_and_the_log_says_why(
    process: ProcessIdentity, paths: Paths, save: Callable[..., Path]
) -> None:
    save(running=running(process))
    log(paths, "0.00.001.426 I srv  llama_server: listening on http://x\n1.00.000.000 E CUDA error: out of memory\n")

    view = observe(paths, "main")

    assert view.running is None
    assert view.crashed
    assert (
        view.message
        == "a died: out of VRAM while running. Try a higher n-cpu-moe, a smaller ctx-size or smaller cache types."
    )


def test_looking_changes_nothing(paths: Paths, save: Callable[..., Path]) -> None:
    path = save(running=running(DEAD), operation=Operation("switch", "b", "load", DEAD, "t"))
    before = path.read_bytes()
    observe(paths, "main")

    assert path.read_bytes() == before


def test_a_restart_of_the_machine_is_no_crash(paths: Paths, save: Callable[..., Path]) -> None:
    save(running=running(replace(own_identity(), boot_id="the boot before")))

    view = observe(paths, "main")

    assert (view.running, view.crashed) == (None, False)
    assert view.message == "The machine was rebooted; a is not running."


def test_a_stop_from_outside_is_said_to_be_one(paths: Paths, save: Callable[..., Path]) -> None:
    save(running=running(ProcessIdentity(DEAD.pid, 1, boot_id())))
    log(paths, "5.00.000.000 I srv    operator(): operator(): cleaning up before exit...\n")

    assert observe(paths, "main").message == "a died: it was stopped from outside gpubox."


def test_a_message_of_the_last_operation_is_kept(paths: Paths, save: Callable[..., Path]) -> None:
    save(message="b: out of VRAM. Nothing runs.")

    assert observe(paths, "main").message == "b: out of VRAM. Nothing runs."


def test_an_operation_of_a_living_gpubox_is_seen(paths: Paths, save: Callable[..., Path]) -> None:
    operation = Operation("switch", "b", "load", own_identity(), "t")
    save(operation=operation, last_good=LAUNCH)

    view = observe(paths, "main")

    assert (view.operation, view.message, view.crashed) == (operation, "", False)


def test_an_operation_of_a_dead_gpubox_is_cut_off_and_says_how_to_go_on(
    paths: Paths, save: Callable[..., Path]
) -> None:
    save(operation=Operation("switch", "b", "VRAM settled", DEAD, "t"), last_good=LAUNCH)

    view = observe(paths, "main")

    assert view.operation is None
    assert view.message == (
        "A switch to b was interrupted at the step 'VRAM settled'; nothing runs. `gpubox start a` starts it again."
    )


def test_a_first_start_that_was_cut_off_has_nothing_to_bring_back(paths: Paths, save: Callable[..., Path]) -> None:
    save(operation=Operation("start", "b", "load", DEAD, "t"), running=running(DEAD))

    assert observe(paths, "main").message == "A start of b was interrupted at the step 'load'; nothing runs."


def test_a_server_whose_gpubox_died_before_the_proof(paths: Paths, save: Callable[..., Path], spawn: Spawn) -> None:
    process = spawn("whatever")
    save(running=running(process), operation=Operation("switch", "a", "load", DEAD, "t"))

    view = observe(paths, "main")

    assert view.process == process
    assert view.message == "The gpubox that started it has exited (at the step 'load')."


def test_a_server_forked_and_not_yet_recorded_is_found_by_its_marker(
    paths: Paths, save: Callable[..., Path], spawn: Spawn
) -> None:
    recorded = running(None)
    spawn(launch_marker(paths, "main", replace(recorded, launch_id="older")))  # it comes first in /proc
    process = spawn(launch_marker(paths, "main", recorded))
    spawn(launch_marker(paths, "other", recorded))
    save(running=recorded)

    view = observe(paths, "main")

    assert view.process == process
    assert view.running == replace(recorded, process=process)


def test_a_lost_record_is_made_again_from_the_process(paths: Paths, spawn: Spawn) -> None:
    mark = launch_marker(paths, "main", running())
    process = spawn(mark, "--model", "/m.gguf", "--host", "0.0.0.0", "--port", "8123")
    paths.instance_state("main").parent.mkdir(parents=True, exist_ok=True)
    paths.instance_state("main").write_text("{ not json")

    view = observe(paths, "main")

    assert view.running is not None
    launch = view.running.launch
    assert (view.process, launch.profile, launch.host, launch.port) == (process, "a", "0.0.0.0", 8123)
    assert (launch.model_path, view.running.launch_id) == ("/m.gguf", "f00d")


@pytest.mark.parametrize("words", [("--port", "many"), ("--port",), ()])
def test_a_lost_record_of_a_strange_command_line_is_no_error(
    words: tuple[str, ...], paths: Paths, spawn: Spawn
) -> None:
    process = spawn(launch_marker(paths, "main", running()), *words)
    paths.instance_state("main").parent.mkdir(parents=True, exist_ok=True)
    paths.instance_state("main").write_text("")

    assert observe(paths, "main").process == process


def test_a_state_folder_with_a_bar_in_its_name(tmp_path: Path, spawn: Spawn) -> None:
    odd = Paths(tmp_path / "c", tmp_path / "a|b|c", tmp_path / "d")
    process = spawn(launch_marker(odd, "main", running()), where=odd)
    save_state(odd.instance_state("main"), InstanceState(running()))

    assert observe(odd, "main").process == process


def test_a_server_that_the_disk_refused_to_record_is_found_by_its_lock(
    paths: Paths, save: Callable[..., Path], spawn: Spawn
) -> None:
    process = spawn(launch_marker(paths, "main", running()))
    save(message="a was stopped.")

    assert observe(paths, "main").process == process


def test_the_slots_are_the_state_files(paths: Paths, save: Callable[..., Path]) -> None:
    save()
    save_state(paths.instance_state("nomic.v1.5"), InstanceState())
    paths.instance_lock("main").touch()
    (paths.instance_state("x").parent / "main.jsonab12").touch()

    assert instance_names(paths) == ["main", "nomic.v1.5"]
    assert load_state(paths.instance_state("nomic.v1.5")) == InstanceState()
