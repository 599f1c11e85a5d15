"""Readings of the host and one process, from this kernel and from a fake /proc."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpubox.hardware import host
from gpubox.hardware.host import HostReader, ProcessReading, read_process
from gpubox.hardware.process import ProcessIdentity, boot_id, identity_of, own_identity

MIB = 1024**2


KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


class Cores:
    """A /proc with two cores; ``work`` lets ticks pass on one of them."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.ticks = [dict.fromkeys(KINDS, 100) for _ in "ab"]
        (proc / "meminfo").write_bytes(Path("/proc/meminfo").read_bytes())
        self.write()

    def work(self, core: int, **ticks: int) -> None:
        for kind, value in ticks.items():
            self.ticks[core][kind] += value
        self.write()

    def write(self) -> None:
        cores = [f"cpu{n} {' '.join(map(str, ticks.values()))}" for n, ticks in enumerate(self.ticks)]
        (self.proc / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *cores, "intr 5 0", "ctxt 7", ""]))


@pytest.fixture
def cores(tmp_path: Path) -> Cores:
    return Cores(tmp_path)


def test_this_host() -> None:
    reader = HostReader()
    first, second = reader.read(), reader.read()

    assert first is not None and second is not None
    assert first.ram_total_bytes > first.ram_available_bytes > 0
    assert first.swap_used_bytes >= 0
    assert first.cpu_percent == ()
    assert all(0 <= percent <= 100 for percent in second.cpu_percent)


def test_memory_is_what_psutil_reads() -> None:
    reading, memory = HostReader().read(), psutil.virtual_memory()

    assert reading is not None
    assert reading.ram_total_bytes == memory.total
    assert abs(reading.ram_available_bytes - memory.available) < 512 * MIB
    assert abs(reading.swap_used_bytes - psutil.swap_memory().used) < 512 * MIB


def test_percent_is_of_the_time_since_the_last_reading(cores: Cores) -> None:
    reader = HostReader(cores.proc)

    def percent() -> tuple[float, ...]:
        reading = reader.read()
        assert reading is not None
        return reading.cpu_percent

    assert percent() == ()
    cores.work(0, user=1, idle=3)
    cores.work(1, user=4, guest=4)  # a guest's time is the user's time, counted twice by the kernel
    assert percent() == (25.0, 100.0)
    assert percent() == (25.0, 100.0), "the kernel's clock has not ticked"
    cores.work(0, iowait=2)
    assert percent() == (0.0, 0.0)
    cores.work(0, user=3, iowait=-1)  # the kernel's iowait counter sometimes decreases
    assert percent() == (100.0, 0.0)


def test_a_core_that_goes_offline_begins_anew(cores: Cores) -> None:
    reader = HostReader(cores.proc)
    reader.read()
    cores.work(0, user=1)
    cores.ticks.pop()
    cores.write()

    reading = reader.read()
    assert reading is not None and reading.cpu_percent == ()


@pytest.mark.parametrize("meminfo", [None, b"", b"MemTotal: 7 kB\n", b"MemTotal: ? kB\nMemAvailable: 3 kB\n"])
def test_a_host_that_cannot_be_read_is_as_before_or_unknown(cores: Cores, meminfo: bytes | None) -> None:
    reader = HostReader(cores.proc)
    before = reader.read()

    if meminfo is None:
        (cores.proc / "meminfo").unlink()
    else:
        (cores.proc / "meminfo").write_bytes(meminfo)

    assert before is not None
    assert reader.read() == before
    assert HostReader(cores.proc).read() is None


def test_this_process() -> None:
    with mmap.mmap(-1, 8 * MIB) as shared:
        shared.write(b"x" * 8 * MIB)
        reading = read_process(own_identity())

    assert reading is not None
    assert (reading.pid, reading.stopped) == (os.getpid(), False)
    assert reading.cpu_seconds == pytest.approx(sum(os.times()[:2]), abs=0.5)
    assert reading.threads >= 1
    assert reading.shared_bytes >= 8 * MIB
    assert reading.anon_bytes > 0 and reading.file_bytes > 0
    assert abs(reading.rss_bytes - reading.anon_bytes - reading.file_bytes - reading.shared_bytes) < 4 * MIB
    assert reading.read_bytes is None or reading.read_bytes >= 0


def test_another_process_under_the_same_number_is_not_read() -> None:
    own = own_identity()

    assert read_process(replace(own, start_ticks=own.start_ticks - 1)) is None
    assert read_process(replace(own, boot_id="another boot")) is None
    assert read_process(ProcessIdentity(2**22 + 5, 1, boot_id())) is None


def test_a_zombie_and_a_reaped_process_are_gone() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    identity = identity_of(child.pid)
    assert identity is not None and read_process(identity) is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert read_process(identity) is None
    child.communicate()
    assert read_process(identity) is None


def test_a_stopped_process_is_said_to_be_stopped() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    identity = identity_of(child.pid)
    assert identity is not None
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        reading = read_process(identity)
        assert reading is not None and reading.stopped
        child.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED)
        reading = read_process(identity)
        assert reading is not None and not reading.stopped
    finally:
        child.kill()
        child.communicate()


STAT = "7 (llama) Z 9 (x) T 1 7 7 0 -1 4194304 900 0 42 0 250 50 0 0 20 0 17 0 5555 1 2 3"
STATUS = "Name:\tllama\nVmRSS:\t  300 kB\nRssAnon:\t  100 kB\nRssFile:\t  150 kB\nRssShmem:\t   50 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "7").mkdir()
    for name, text in (("stat", STAT), ("status", STATUS), ("io", "rchar: 9\nread_bytes: 4096\n")):
        (tmp_path / "7" / name).write_text(text)
    return tmp_path


@pytest.fixture
def identity() -> ProcessIdentity:
    return ProcessIdentity(7, 5555, boot_id())


def test_each_number_is_from_its_field(proc: Path, identity: ProcessIdentity) -> None:
    ticks = os.sysconf("SC_CLK_TCK")

    assert read_process(identity, proc) == ProcessReading(
        pid=7,
        cpu_seconds=300 / ticks,
        threads=17,
        rss_bytes=300 * 1024,
        anon_bytes=100 * 1024,
        file_bytes=150 * 1024,
        shared_bytes=50 * 1024,
        major_faults=42,
        read_bytes=4096,
        stopped=True,
    )


def test_a_process_that_a_debugger_looks_at_is_not_suspended(proc: Path, identity: ProcessIdentity) -> None:
    (proc / "7/stat").write_text(STAT.replace(") T ", ") t "))

    reading = read_process(identity, proc)

    assert reading is not None and not reading.stopped


@pytest.mark.parametrize("text", [None, "", "rchar: 9\n"])
def test_bytes_read_may_be_hidden(proc: Path, identity: ProcessIdentity, text: str | None) -> None:
    (proc / "7/io").unlink()
    if text is not None:
        (proc / "7/io").write_text(text)

    reading = read_process(identity, proc)

    assert reading is not None and (reading.read_bytes, reading.threads) == (None, 17)


def test_bytes_read_by_another_user_are_unknown(
    proc: Path, identity: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = host._read

    def denied(folder: int, name: str) -> bytes:
        if name == "io":
            raise PermissionError
        return read(folder, name)

    monkeypatch.setattr(host, "_read", denied)

    reading = read_process(identity, proc)
    assert reading is not None and reading.read_bytes is None


@pytest.mark.parametrize(
    ("name", "text"), [("stat", ""), ("stat", "7 (x) R"), ("status", "VmRSS:\t\n"), ("stat", None)]
)
def test_a_process_that_ends_while_it_is_read_is_gone(
    proc: Path, identity: ProcessIdentity, name: str, text: str | None
) -> None:
    (proc / "7" / name).unlink()
    if text is not None:
        (proc / "7" / name).write_text(text)

    assert read_process(identity, proc) is None


def test_no_file_is_left_open(proc: Path, identity: ProcessIdentity) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        read_process(identity, proc)
        read_process(replace(identity, start_ticks=1), proc)

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_reading_opens_three_small_files(
    proc: Path, identity: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs four times a second for days, so it must not read smaps (slow in the kernel) or the thread folders."""
    read, names = host._read, []

    def noted(folder: int, name: str) -> bytes:
        names.append(name)
        return read(folder, name)

    monkeypatch.setattr(host, "_read", noted)

    assert read_process(identity, proc) is not None
    assert sorted(names) == ["io", "stat", "status"]
