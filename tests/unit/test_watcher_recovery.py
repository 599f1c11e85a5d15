"""What the acting part of the watcher hands over to the waiting one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.hardware import process as processes
from gpubox.hardware.process import ProcessIdentity, boot_id, identity_of, own_identity
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.server import trial, watcher_idle, watcher_recovery
from gpubox.server.instance import cause_of
from gpubox.server.state import (
    InstanceState,
    Launch,
    Operation,
    RunningServer,
    TrialRecord,
    load_state,
    save_launch_record,
    save_state,
)
from gpubox.server.supervisor import Supervisor

KILLED = ProcessIdentity(2**22 + 9, 1, boot_id())


def _server(profile: str, process: ProcessIdentity) -> RunningServer:
    return RunningServer(Launch(profile, ("server",), "127.0.0.1", 1), profile, "", process, "t")


def test_a_server_that_dies_as_it_is_handed_over_is_still_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ProcessIdentity(4711, 12, "boot")
    alive = SimpleNamespace(
        operation=None, interrupted=None, crashed=False, watched=process, state=SimpleNamespace(running=None)
    )
    dead = SimpleNamespace(
        operation=None, interrupted=None, crashed=True, watched=None, state=SimpleNamespace(running=None)
    )
    views = iter([alive])
    monkeypatch.setattr(watcher_recovery, "observe", lambda *_: next(views, dead))
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    monkeypatch.setattr(sys, "argv", ["watcher", "main", *paths.arguments, f"fd:{lock}", "died"])

    watcher_recovery.main()

    os.close(lock)
    assert [words[words.index("--") - 1] for words in started] == ["4711:12"]


@pytest.mark.parametrize("problem", ["lock", "record"])
def test_a_trial_that_can_be_neither_ended_nor_forgotten_is_not_tried_for_ever(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    save_state(paths.instance_state("main"), InstanceState(_server("a", own_identity())))
    trial._write(TrialRecord("b", "main", "", str(paths.profiles / "b.toml"), "", None, KILLED), paths)
    if problem == "lock":
        paths.trial_lock.mkdir()
    else:  # a disk that refuses writing
        monkeypatch.setattr(trial, "_forget", lambda paths: None)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    lock = os.open(paths.state / "lock", os.O_CREAT | os.O_RDWR)
    monkeypatch.setattr(sys, "argv", ["watcher", "main", *paths.arguments, f"fd:{lock}", "died"])
    once = asyncio.run
    monkeypatch.setattr(asyncio, "run", lambda work: once(asyncio.wait_for(work, 20)))

    watcher_recovery.main()

    os.close(lock)
    assert not started
    assert not list(paths.logs.glob("watcher-error.log"))


async def test_an_operation_of_the_owner_that_is_refused_leaves_a_promise_on_record(paths: Paths) -> None:
    living, gone = _server("a", own_identity()), _server("beside", KILLED)
    killed = Operation("switch", "big", "KV saved", KILLED, "", replaces={"main": living, "beside": gone})
    save_state(paths.instance_state("main"), InstanceState(living, killed))

    with pytest.raises(GpuboxError):
        await Supervisor(paths, Config(), "main").restart(Profile("a", "/no/such.gguf"))

    left = load_state(paths.instance_state("main")).operation
    assert left
    assert left.replaces.keys() == {"main", "beside"}
    assert left.owner == KILLED


async def test_recovery_says_nothing_about_a_server_that_the_owner_started_meanwhile(paths: Paths) -> None:
    own, before = _server("a", own_identity()), _server("a", KILLED)
    killed = Operation("start", "big", "load", KILLED, "", replaces={"main": before})
    save_state(paths.instance_state("big"), InstanceState(None, killed))
    save_state(paths.instance_state("main"), InstanceState(own))

    await Supervisor(paths, Config(), "big", gives_way=True).recover()

    assert load_state(paths.instance_state("main")).running == own
    assert load_state(paths.instance_state("big")).operation is None


@pytest.mark.parametrize(
    ("number", "messages", "words"),
    [
        (signal.SIGSEGV, [], "killed by SIGSEGV"),
        (signal.SIGKILL, [], "killed by SIGKILL (perhaps by the kernel"),
        (signal.SIGKILL, [(1e9, "Out of memory: Killed process {pid} (llama-server)")], "out-of-memory killer"),
        (signal.SIGKILL, [(0.0, "Out of memory: Killed process {pid} (an earlier one)")], "killed by SIGKILL"),
    ],
)
def test_a_signal_that_only_the_watcher_saw_is_named_to_all(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, number: int, messages: list[tuple[float, str]], words: str
) -> None:
    log = paths.instance_log("main")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("0.00.000.001 I srv: all is well\n")
    child = subprocess.Popen(["sleep", "60"])
    process = identity_of(child.pid)
    assert process
    save_launch_record(log, _server("a", process))
    kernel = [(at, text.format(pid=child.pid)) for at, text in messages]
    monkeypatch.setattr(processes, "_kernel_log", lambda: iter(kernel))
    child.send_signal(number)
    event = watcher_idle._wait([f"{process.pid}:{process.start_ticks}"], str(log), 1_000_000)
    child.wait()
    watcher_recovery.note_death(paths, "main", *map(int, event.removeprefix("died:").split(":")))

    assert words in cause_of(paths, "main", process).sentence
