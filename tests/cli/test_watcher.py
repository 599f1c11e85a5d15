"""The watcher beside a server: it handles a crash without a screen, and ignores an intended stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubox.hardware.process import find_by_marker, is_alive
from gpubox.paths import Paths
from gpubox.server import watcher
from gpubox.server.instance import observe
from gpubox.server.state import load_state
from gpubox.storage import is_locked, lock_holder
from tests.conftest import until
from tests.ports import free_port
from tests.sampling import sampled

GPUBOX = [sys.executable, "-m", "gpubox"]


class Box:
    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def gpubox(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run([*GPUBOX, *words, "--json"], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout)

    def server(self) -> dict[str, Any]:
        server: dict[str, Any] = self.gpubox("status")[1]["server"]
        return server

    def servers(self) -> list[int]:
        return [identity.pid for identity, _ in find_by_marker(f"{self.paths.state}|")]

    def watcher(self) -> int | None:
        return lock_holder(self.paths.watcher_lock("main"))

    def kill_server(self) -> None:
        (pid,) = self.servers()
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.servers())

    def answers_anew(self, before: list[int]) -> bool:
        """Whether another process than ``before`` is recorded as ready. A dying process loses its marker first."""
        servers = self.servers()
        return bool(servers) and servers != before and self.proven()

    def switch_when_free(self, name: str) -> None:
        """Switches to ``name``; tries again while the watcher works on the instance."""

        def done() -> bool:
            code, answer = self.gpubox("switch", name, "--now")
            assert code == 0 or "Another gpubox" in json.dumps(answer), answer
            return code == 0

        until(done)

    def crashes(self) -> list[Path]:
        return sorted(self.paths.crashes.glob("*.txt")) if self.paths.crashes.is_dir() else []

    def proven(self) -> bool:
        running = observe(self.paths, "main").running
        return running is not None and running.ready_at is not None and running.process is not None

    def quiet(self) -> bool:
        """Whether no gpubox works on it, and no watcher runs."""
        return self.watcher() is None and observe(self.paths, "main").operation is None


@pytest.fixture
def box(
    paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Box]:  # fmt: skip
    monkeypatch.delenv("GPUBOX_WATCHER")
    port = free_port()
    for name, settings in (("a", "restart = true"), ("b", "restart = true\ntitle = 'b'"), ("calm", "")):
        write_profile(name, f'model = "{tiny_gguf}"\nport = {port}\n{settings}\n')
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')
    box = Box(paths)
    yield box
    for pid in filter(None, [box.watcher(), *box.servers()]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_server_that_dies_is_written_down_and_answers_again(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    first, pid = box.watcher(), box.servers()
    box.kill_server()

    until(lambda: box.answers_anew(pid))

    server = box.server()
    assert (server["state"], server["profile"]) == ("ready", "a")
    assert "It died once recently and was restarted" in server["message"]
    (report,) = box.crashes()
    assert "a died" in report.read_text()
    assert box.watcher() == first  # the same process waits beside the new server
    box.kill_server()
    until(lambda: len(box.crashes()) == 2 and box.proven())
    assert "died 2 times recently" in box.server()["message"]


def test_after_three_restarts_it_stays_down_and_says_why(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    for count in (1, 2, 3):
        until(box.watcher)
        box.kill_server()
        until(lambda count=count: len(box.crashes()) == count and box.proven())  # type: ignore[misc]
    until(box.watcher)
    box.kill_server()

    until(box.quiet)

    assert len(box.crashes()) == 4
    assert box.servers() == []
    assert box.server()["state"] == "crashed"
    assert box.gpubox("start", "a")[0] == 0


def test_one_that_does_not_ask_for_it_is_only_written_down(box: Box) -> None:
    assert box.gpubox("start", "calm")[0] == 0
    until(box.watcher)
    box.kill_server()

    until(box.quiet)

    assert len(box.crashes()) == 1
    assert box.servers() == []


def test_a_stop_and_a_switch_are_no_deaths(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    for target in "bab":
        assert box.gpubox("switch", target)[0] == 0
    assert len(box.servers()) == 1
    until(box.watcher)

    assert box.gpubox("stop")[0] == 0

    assert box.quiet()
    assert (box.servers(), box.crashes()) == ([], [])
    assert box.server()["message"] == "b was stopped."


def test_there_is_never_more_than_one_and_it_is_its_own_master(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    pid = box.watcher()
    assert pid is not None
    assert os.getsid(pid) == pid
    process = observe(box.paths, "main").process
    assert process is not None
    for _ in range(5):
        assert not watcher.ensure_watcher(box.paths, "main", process)
    extra = subprocess.run(
        watcher.idle_command(box.paths, "main", process, str(box.paths.watcher_lock("main"))), check=False
    )
    assert extra.returncode == 0  # it found the lock taken
    assert box.watcher() == pid


def test_a_look_at_the_lock_while_it_starts_does_not_send_it_away(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    os.kill(box.watcher() or 0, signal.SIGKILL)
    until(lambda: box.watcher() is None)
    process = observe(box.paths, "main").process
    assert process is not None

    with box.paths.watcher_lock("main").open("rb") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        assert watcher.ensure_watcher(box.paths, "main", process)
        started = watcher._children[box.paths.watcher_lock("main")][-1].pid
        until(lambda: lock_waits(started))

    until(lambda: box.watcher() == started)
    assert is_locked(box.paths.watcher_lock("main"))


def lock_waits(pid: int) -> bool:
    """Whether the waiting watcher has opened its lock file and so tries to take the lock."""
    return any(path.endswith("main.watch") for path in map(os.path.realpath, Path(f"/proc/{pid}/fd").glob("*")))


def test_at_rest_it_weighs_next_to_nothing(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(lambda: (pid := box.watcher()) and "watcher_idle.py" in " ".join(psutil.Process(pid).cmdline()))
    process = psutil.Process(box.watcher())
    before = process.cpu_times()
    assert process.memory_info().rss < 16 << 20
    assert process.num_threads() == 1
    time.sleep(1.0)  # the test measures this time
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.02


def test_a_killed_watcher_is_replaced_by_the_next_look(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    pid = box.watcher()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: box.watcher() is None)
    assert len(box.servers()) == 1

    box.server()

    until(lambda: box.watcher() not in (None, pid))
    before = box.servers()
    box.kill_server()
    until(lambda: box.answers_anew(before))


def test_one_that_was_sent_sigterm_stays_down(box: Box) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    with box.paths.instance_log("main").open("a") as log:
        log.write("5.00.000.000 I srv    operator(): operator(): cleaning up before exit...\n")
    (pid,) = box.servers()
    os.kill(pid, signal.SIGTERM)

    until(box.quiet)

    assert box.servers() == []
    assert "stopped from outside" in box.server()["message"]


def test_a_state_folder_that_is_gone_is_not_made_again(box: Box, tmp_path: Path) -> None:
    assert box.gpubox("start", "a")[0] == 0
    until(box.watcher)
    pids = [box.watcher(), *box.servers()]
    box.paths.state.rename(tmp_path / "elsewhere")
    os.kill(pids[1] or 0, signal.SIGKILL)

    until(lambda: not any(psutil.pid_exists(pid) for pid in pids if pid))

    assert not box.paths.state.exists()


@pytest.mark.parametrize("seed", sampled(range(20)))
def test_kill_9_of_gpubox_the_server_or_the_watcher_in_a_switch_leaves_no_orphan(box: Box, seed: int) -> None:
    rng = random.Random(seed)
    assert box.gpubox("start", "a")[0] == 0
    for target in "bab":
        switch = subprocess.Popen([*GPUBOX, "switch", target, "--now"], stderr=subprocess.DEVNULL)
        # A random moment between the start of Python and the readiness probe. The wait is the experiment itself.
        with contextlib.suppress(subprocess.TimeoutExpired):
            switch.wait(timeout=rng.uniform(0.05, 1.0))
        victims = rng.sample(["gpubox", "watcher", "server"], rng.randint(1, 2))
        for victim in victims:
            processes: dict[str, list[int | None]]
            processes = {"gpubox": [switch.pid], "watcher": [box.watcher()], "server": [*box.servers()]}
            for pid in filter(None, processes[victim]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        switch.wait()
        assert len(box.servers()) <= 1

        box.server()  # any command starts a watcher again, which does the rest
        until(lambda: observe(box.paths, "main").operation is None)
        assert len(box.servers()) <= 1
    box.switch_when_free("a")
    (pid,) = box.servers()
    assert box.server()["pid"] == pid
    assert box.gpubox("stop")[0] == 0
    assert box.servers() == []
    assert box.quiet()
    assert load_state(box.paths.instance_state("main")).running is None
    assert not is_alive(observe(box.paths, "main").process)
