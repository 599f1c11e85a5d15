"""Recordings are read back as the same values, whatever the disk does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.server.responses import Slot
from gpubox.server.status import ServerStatus
from gpubox.telemetry.recorder import VERSION, Recorder, read_recording
from gpubox.telemetry.snapshot import DeviceMemory, Offload, Request, SlotReading, Snapshot, Throughput, Totals

GPU = Gpu(
    0,
    name="RTX",
    vram_total_bytes=16 * 2**30,
    power_watts=12.5,
    processes=(GpuProcess(7, None, None), GpuProcess(8, "Xorg", 2**30)),
    throttle_reasons=("power cap",),
    lost=True,
    lost_at="2026-01-01T00:00:00+00:00",
)
RICH = Snapshot(
    at=12345.678,
    time="2026-01-01T00:00:00.000Z",
    server=ServerStatus(
        "main", "answering", "a", 42, "http://127.0.0.1:8080", slots=(Slot(0, True, 4096, 9, 3, 1, 4, -1),)
    ),
    driver=DriverReading((GPU,), "580.65", "GPU 0 LOST", 1.5),
    host=HostReading(64 * 2**30, 2**30, 0, (1.5, 99.0)),
    process=ProcessReading(42, 1.25, 8, 1, 2, 3, 4, 5, None, True),
    memory=(
        DeviceMemory("CUDA0", "gpu", other_processes=(("Xorg", 2**30),), unaccounted_bytes=-5),
        DeviceMemory("Host", "host", estimated=True),
    ),
    offload=Offload(41, 41, bottleneck="PCIe", bottleneck_reason="60% of the link"),
    throughput=Throughput("answering", 20.5, accepted_per_position=(1.0, 0.5)),
    slots=(SlotReading(0, "answering", 1, 9, 4096, generated_tokens=3),),
    requests=(Request(1, "2026-01-01T00:00:00.000+00:00", 0, 1, accepted_per_position=(1.0, 0.949), cache_miss="why"),),
    totals=Totals(1, 2, 3, 4),
    kv_bytes_per_token=20480.5,
    kv_cells=131072,
    problems=("/metrics is off: no totals", 'quotes " and \\ and \n lines', "🦙 [bold]"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "run.jsonl"


def record(path: Path, *snapshots: Snapshot) -> Path:
    with closing(Recorder(path, "1.0")) as recorder:
        for snapshot in snapshots:
            recorder.write(snapshot)
        assert (recorder.problem, recorder.count) == ("", len(snapshots))
    return path


def test_a_rich_snapshot_comes_back_as_the_same_value(path: Path) -> None:
    assert list(read_recording(record(path, RICH))) == [RICH]


def test_snapshots_come_back_in_their_order(path: Path) -> None:
    run = [replace(RICH, at=float(n)) for n in (5, 3, 9, 1)]

    assert list(read_recording(record(path, *run))) == run


def test_a_request_is_written_once_however_many_snapshots_list_it(path: Path) -> None:
    done = [replace(RICH.requests[0], number=n) for n in range(1, 8)]
    lists = [(), done[:1], done[:1], done[:3], done[1:5], done[1:5], done[5:], [done[0]], [replace(done[0], slot=9)]]
    run = [replace(RICH, requests=tuple(reversed(some))) for some in lists]

    assert list(read_recording(record(path, *run))) == run
    assert path.read_text().count('"cache_miss":"why"') == 9


def test_each_snapshot_is_on_disk_as_soon_as_it_is_written(path: Path) -> None:
    with closing(Recorder(path, "1.0")) as recorder:
        recorder.write(RICH)

        assert list(read_recording(path)) == [RICH]


def test_the_home_folder_does_not_go_into_a_bug_report(path: Path, own_home: Path) -> None:
    server = replace(
        RICH.server,
        model_path=f"{own_home}/models/m.gguf",
        engine_path=f"{own_home}er/llama-server",
        message=f"see {own_home}",
    )
    (back,) = read_recording(record(path, replace(RICH, server=server)))

    assert back.server.model_path == "~/models/m.gguf"
    assert back.server.engine_path == f"{own_home}er/llama-server"
    assert back.server.message == "see ~"


def test_a_home_that_is_the_root_takes_no_slash_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")

    assert list(read_recording(record(path, RICH))) == [RICH]


def test_a_name_that_is_no_utf8_is_recorded_with_a_question_mark(path: Path) -> None:
    server = replace(RICH.server, model_path="/models/\udcff.gguf")

    assert next(read_recording(record(path, replace(RICH, server=server)))).server.model_path == "/models/?.gguf"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10.0**300])
def test_a_value_that_is_not_a_number_is_unknown(value: float, path: Path) -> None:
    (back,) = read_recording(record(path, replace(RICH, kv_bytes_per_token=value)))

    assert back.kv_bytes_per_token in (None, 10.0**300)


def test_a_full_disk_ends_nothing_and_when_there_is_space_it_goes_on(path: Path) -> None:
    recorder = Recorder(path, "1.0")
    recorder.write(RICH)
    disk, full = os.dup(recorder._file.fileno()), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._file.fileno())  # the disk fills up: every write is refused from now on

    recorder.write(RICH)
    assert recorder.problem == f"{path}: No space left on device"
    recorder.write(RICH)
    assert (recorder.count, recorder.lost) == (1, 2)
    assert list(read_recording(path)) == [RICH]

    os.dup2(disk, recorder._file.fileno())  # there is space again
    later = replace(RICH, at=9.0)
    recorder.write(later)
    recorder.close()
    os.close(disk)
    os.close(full)
    assert (recorder.problem, recorder.count, recorder.lost) == ("", 2, 2)
    assert "No space left" in recorder.last_problem
    assert list(read_recording(path)) == [RICH, later]


@pytest.mark.parametrize("before", [0, 1])
def test_a_line_that_fits_only_in_part_is_removed(before: int, path: Path) -> None:
    """The file may grow so far and no further: first in the middle of a header, then of a reading."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from gpubox.telemetry.recorder import Recorder, read_recording\n"
        "path, before = Path(sys.argv[1]), int(sys.argv[2])\n"
        "[rich] = list(read_recording(path.with_suffix('.in')))\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))\n"
        "limit(20 if not before else 1200 + len(path.with_suffix('.in').read_bytes()))\n"
        "recorder = Recorder(path, '1.0')\n"
        "for _ in range(3): recorder.write(rich)\n"
        "assert 'File too large' in recorder.problem, recorder.problem\n"
        "assert (recorder.count, recorder.lost) == (before, 3 - before)\n"
        "limit(hard)\n"
        "recorder.write(rich)\n"
        "recorder.close()\n"
        "assert list(read_recording(path)) == [rich] * (before + 1)\n"
    )
    record(path.with_suffix(".in"), RICH)
    done = subprocess.run([sys.executable, "-c", code, str(path), str(before)], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_recording_cut_in_the_middle_of_a_line(kept: int, path: Path) -> None:
    record(path, RICH, replace(RICH, at=2.0))
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    path.write_bytes(whole[: last + kept] if kept > 0 else whole[:-9])

    assert list(read_recording(path)) == [RICH]


def test_a_recording_that_is_damaged_in_the_middle_says_where(path: Path) -> None:
    record(path, RICH, RICH, RICH)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:40] + b"\n"
    path.write_bytes(b"".join(lines))

    with pytest.raises(UsageError, match="line 3 is damaged"):
        list(read_recording(path))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"hello",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        b'{"format":"gpubox-recording"',
        b"[]\n",
        b'{"x":' * 50_000,
    ],
)
def test_a_file_that_is_no_recording_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)

    with pytest.raises(UsageError, match="is not a gpubox recording"):
        list(read_recording(path))


def test_a_line_that_nests_for_ever_is_damage(path: Path) -> None:
    record(path, RICH)
    with path.open("ab") as file:
        file.write(b'{"host":' + b'{"x":' * 50_000 + b"\n" + path.read_bytes().splitlines()[1] + b"\n")

    with pytest.raises(UsageError, match="line 3 is damaged"):
        list(read_recording(path))


@pytest.mark.parametrize("header", [{"version": VERSION + 1}, {"format": "another-recording"}])
def test_a_recording_of_another_version_names_who_made_it(header: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps({"format": "gpubox-recording", "version": VERSION, "gpubox": "9.9", **header}) + "\n")

    with pytest.raises(UsageError, match=r"recorded by another version of gpubox \(9\.9\)"):
        list(read_recording(path))


def test_an_empty_recording_is_one(path: Path) -> None:
    assert list(read_recording(record(path))) == []


def test_a_file_that_is_there_is_not_written_over(path: Path) -> None:
    record(path, RICH)

    with pytest.raises(UsageError, match="exists already"):
        Recorder(path, "1.0")
    assert list(read_recording(path)) == [RICH]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(GpuboxError, match="cannot be written"):
        Recorder(tmp_path / "file" / "run.jsonl", "1.0")


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_recording(tmp_path / "no.jsonl"))
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_recording(tmp_path))
