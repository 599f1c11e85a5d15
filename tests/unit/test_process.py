"""Processes by identity, and the owner of a port, with real processes and sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpubox.hardware import process
from gpubox.hardware.process import MARKER_VARIABLE, PortOwner, ProcessIdentity
from tests.conftest import until

STATE = f"/state{os.getpid()}"
"""The tests of another worker find only their own processes."""


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    """A running process with a marker."""
    env = {**os.environ, MARKER_VARIABLE: f"{STATE}|main|a|f00d"}
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"\n")
    child.stdout.read(1)  # it runs: /proc shows all of it
    yield child
    child.kill()
    child.communicate()


def test_a_living_process_has_one_identity(living: subprocess.Popen[bytes]) -> None:
    identity = process.identity_of(living.pid)

    assert identity is not None
    assert identity == process.identity_of(living.pid)
    assert identity.boot_id == process.boot_id() != ""
    assert process.is_alive(identity)


def test_the_same_pid_of_another_start_or_boot_is_another_process(living: subprocess.Popen[bytes]) -> None:
    identity = process.identity_of(living.pid)
    assert identity is not None

    assert not process.is_alive(replace(identity, start_ticks=identity.start_ticks - 1))
    assert not process.is_alive(replace(identity, boot_id="another boot"))


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped

    assert process.identity_of(child.pid) is None
    child.wait()
    assert process.identity_of(child.pid) is None


LEADER_LEAVES = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)  # exit, of this thread alone
"""


def test_a_process_lives_until_its_last_thread_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER_LEAVES], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        identity = process.identity_of(child.pid)
        assert identity and process.is_alive(identity)
        child.stdin.close()
        until(lambda: not process.is_alive(identity))


def test_no_process_is_dead() -> None:
    assert not process.is_alive(None)
    assert not process.is_alive(ProcessIdentity(2**22 + 5, 1, process.boot_id()))
    assert not process.is_alive(ProcessIdentity(os.getpid(), -1, ""))


def test_a_name_with_brackets_and_spaces_does_not_confuse() -> None:
    script = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert process.is_alive(process.identity_of(child.pid))
    finally:
        child.communicate()


def test_this_gpubox_is_alive() -> None:
    assert process.own_identity().pid == os.getpid()
    assert process.is_alive(process.own_identity())


def test_the_marker_is_read_and_found_by_its_beginning(living: subprocess.Popen[bytes]) -> None:
    assert process.marker_of(living.pid) == f"{STATE}|main|a|f00d"
    assert [(i.pid, m) for i, m in process.find_by_marker(f"{STATE}|main|")] == [(living.pid, f"{STATE}|main|a|f00d")]
    assert process.find_by_marker(f"{STATE}|other|") == []


def test_a_process_without_marker_or_without_environment_has_none(living: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "60"], env={"X" + MARKER_VARIABLE: "/state|main|b|1", "EMPTY": ""}) as other:
        assert process.marker_of(other.pid) is None
        other.kill()
    assert process.marker_of(2**22 + 5) is None
    assert process.environment_of(2**22 + 5) == {}


def test_the_dead_are_not_found_by_marker(living: subprocess.Popen[bytes]) -> None:
    living.send_signal(signal.SIGKILL)
    living.wait()

    assert process.find_by_marker(f"{STATE}|main|") == []


def test_activity_of_the_living_and_the_dead(living: subprocess.Popen[bytes]) -> None:
    reading = process.process_activity(os.getpid())

    assert reading is not None
    assert reading.cpu_seconds > 0
    assert reading.rss_bytes > reading.file_rss_bytes > 0
    assert process.process_activity(2**22 + 5) is None
    assert process.process_argv(living.pid) == ["cat"]
    assert process.process_argv(2**22 + 5) == []


def test_a_listening_port_has_an_owner_and_another_state_has_none() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert process.port_owner(port) is None
        listener.listen()
        owner = process.port_owner(port)
        assert owner is not None
        assert owner.pid == os.getpid()
        assert str(owner).endswith(f"(pid {os.getpid()})")
        assert process.is_listening(os.getpid(), port) is True
        assert process.is_listening(os.getpid(), port + 1) is False or port == 65535
    assert process.port_owner(port) is None


@pytest.mark.usefixtures("need_ipv6")
def test_an_ipv6_listener_is_seen() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        listener.listen()
        owner = process.port_owner(listener.getsockname()[1])

    assert owner is not None
    assert owner.pid == os.getpid()


def test_a_hidden_owner_is_said_to_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        hidden = [c._replace(pid=None) for c in psutil.net_connections(kind="inet")]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: hidden)

        assert process.port_owner(port) == PortOwner(None, "another user's program")

    assert str(PortOwner(None, "another user's program")) == "another user's program"


def test_what_cannot_be_seen_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **kwargs: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    monkeypatch.setattr(psutil.Process, "net_connections", denied)

    assert process.port_owner(80) is None
    assert process.is_listening(os.getpid(), 80) is None
    assert process.is_listening(2**22 + 5, 80) is None


@pytest.mark.parametrize("lists_children", [True, False])
def test_the_engine_in_a_wrapper_script_is_found_on_every_kernel(
    lists_children: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without CONFIG_PROC_CHILDREN lists no children."""
    monkeypatch.setattr(process, "_lists_children", lambda: lists_children)
    with subprocess.Popen(["sh", "-c", "sh -c 'cat; :'; :"], stdin=subprocess.PIPE) as wrapper:
        until(lambda: "cat" in map(process.process_name, process.descendants(wrapper.pid)))
        found_at = [process.process_name(pid) for pid in process.descendants(wrapper.pid)]
        wrapper.communicate()

    assert found_at == ["sh", "cat"]
    assert process.descendants(wrapper.pid) == []


def test_memory_that_a_driver_pins_does_not_look_like_a_model_that_was_read() -> None:
    """NVIDIA's driver pins host memory as shared memory, all of it at once and before anything is read."""
    code = "import mmap; pinned = mmap.mmap(-1, 256 << 20); pinned.write(bytes(256 << 20)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        activity = process.process_activity(server.pid)
        server.communicate(b"\n")

    assert activity is not None
    assert activity.rss_bytes >= 256 << 20
    assert activity.file_rss_bytes < 64 << 20
