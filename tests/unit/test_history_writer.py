"""The writer of the history: what it stores of Snapshots and logs, and what it does when the disk or the file fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.process import ProcessIdentity, own_identity
from gpubox.paths import Paths
from gpubox.server.log import CUT_MARKER, rotate_log, rotated_path
from gpubox.server.state import Launch, RunningServer, read_launch_record, save_launch_record
from gpubox.server.status import ServerStatus
from gpubox.telemetry.history import writer as history_writer
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.history.tables import HistoryTables, KnownLaunch
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.history.writer import HistoryWriter
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.snapshot import Offload, Request, Snapshot, Throughput, Totals
from tests.history_box import check_kills, check_size

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
BEGIN = datetime(2026, 11, 2, 12, tzinfo=UTC)
DEAD = ProcessIdentity(4_000_000, 77, "an-earlier-boot")


def snapshot(
    second: float,
    requests: Sequence[Request] = (),
    *,
    state: str = "answering",
    server: str = "ready",
    pid: int | None = 5,
    power: float | None = 100.0,
    **more: float,
) -> Snapshot:
    return Snapshot(
        at=1000.0 + second,
        time=(BEGIN + timedelta(seconds=second)).isoformat(),
        server=ServerStatus("main", server, "chat", pid, started_at=f"start of {pid}"),
        driver=DriverReading((Gpu(0, vram_used_bytes=8 << 30, power_watts=power, temperature_celsius=61),), "550.1"),
        host=None,
        process=None,
        memory=(),
        offload=Offload(),
        throughput=Throughput(state, **more),  # type: ignore[arg-type]
        slots=(),
        requests=tuple(requests),
        totals=Totals(),
    )


def finished(task: int, second: float, **more: object) -> Request:
    at = (BEGIN + timedelta(seconds=second)).isoformat(timespec="milliseconds")
    values = {"prompt_tokens": 100, "cached_tokens": 10, "generated_tokens": 50, "duration_seconds": 1.0, **more}
    return Request(number=task, at=at, slot=0, task=task, **values)  # type: ignore[arg-type]


def launch_of(snapshot: Snapshot) -> KnownLaunch:
    return KnownLaunch(f"boot:{snapshot.server.pid}:1", "chat", BEGIN.timestamp(), "/e", "b1", ("llama-server",))


def writer_of(paths: Paths, **more: object) -> HistoryWriter:
    writer = HistoryWriter(paths, launch_of=launch_of, clock=BEGIN.timestamp, **more)  # type: ignore[arg-type]
    writer.step()
    return writer


def stored(paths: Paths) -> list[StoredRequest]:
    return HistoryQueries(paths.history).requests(0, 2e9, limit=10_000)


def test_requests_and_minutes_survive_the_writer(paths: Paths) -> None:
    first = writer_of(paths)
    for second in range(30):
        first.push(snapshot(second, [finished(9, 5)] if second > 10 else [], tg_tokens_per_second=20.0))
    first.step()
    first._release()  # as a kill does: the lock and the connection go
    second_writer = writer_of(paths)
    for second in range(30, 91):
        second_writer.push(snapshot(second, [finished(9, 5)], state="idle", power=50.0))
    second_writer.step()
    second_writer.close()
    queries = HistoryQueries(paths.history)
    assert [(row.request, row.profile) for row in stored(paths)] == [(finished(9, 5), "chat")]
    minute, next_minute = queries.buckets(BEGIN.timestamp(), BEGIN.timestamp() + 120, 2)
    assert minute.tg == 20.0
    assert minute.busy_share == pytest.approx(29 / 58, abs=0.01)  # the first Snapshot of each stands for no time
    assert (next_minute.tg, next_minute.busy_share) == (None, 0)
    (usage,) = queries.sums(0, 2e9, "profile")
    assert (usage.requests, usage.observed_tokens, usage.up_seconds) == (1, 50, 90)
    assert usage.energy_joules == pytest.approx(29 * 100 + 60 * 50, rel=0.01)


def test_a_second_gpubox_writes_only_after_the_first_has_gone(paths: Paths) -> None:
    first = writer_of(paths)
    second = writer_of(paths)
    second.push(snapshot(0, [finished(1, 0)]))
    second.step()
    assert not stored(paths) and not second.problem
    first._release()
    second._retry_at = 0
    second.push(snapshot(1, [finished(1, 0)]))
    second.step()
    assert len(stored(paths)) == 1


def test_the_end_of_a_launch_is_a_mark(paths: Paths) -> None:
    writer = writer_of(paths)
    writer.push(snapshot(0))
    writer.push(snapshot(1, pid=6))
    writer.push(snapshot(2, pid=None, server="crashed", state="down"))
    writer.push(snapshot(3, pid=7))
    writer.push(snapshot(4, pid=None, server="stopped", state="down"))
    writer.step()
    launches = HistoryQueries(paths.history).launches(0, 2e9)
    assert [launch.how for launch in launches] == ["switch", "crash", "stop"]
    assert {launch.driver for launch in launches} == {"550.1"}


def test_a_damaged_file_is_set_aside_and_a_new_one_begins(paths: Paths) -> None:
    problems: list[str] = []
    paths.history.parent.mkdir(parents=True)
    paths.history.write_bytes(b"nothing like a database " * 400)
    writer = writer_of(paths, on_problem=problems.append)
    writer.push(snapshot(0, [finished(1, 0)]))
    writer.step()
    assert len(stored(paths)) == 1 and len(problems) == 1 and "damaged" in problems[0]
    (aside,) = paths.history.parent.glob("history.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"nothing like")


def test_damage_while_it_runs_loses_no_new_request(paths: Paths) -> None:
    problems: list[str] = []
    writer = writer_of(paths, on_problem=problems.append)
    for task in range(300):
        writer.push(snapshot(task, [finished(task, task)]))
    writer.step()
    writer._drop()
    data = bytearray(paths.history.read_bytes())
    data[100:] = bytes(len(data) - 100)
    paths.history.write_bytes(data)
    writer._retry_at = 0
    writer.step()
    writer.push(snapshot(301, [finished(301, 301)]))
    writer.step()
    writer.step()
    assert len(problems) == 1 and [row.request.task for row in stored(paths)] == [301]


def test_a_full_disk_is_one_sentence_and_nothing_is_lost_when_there_is_room_again(paths: Paths) -> None:
    problems: list[str] = []
    writer = writer_of(paths, on_problem=problems.append)
    connection = writer._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    for task in range(400):
        writer.push(snapshot(task, [finished(task, task)]))
    writer.step()
    assert len(problems) == 1 and "full" in problems[0] and writer.problem
    writer.step()  # not yet again
    assert not stored(paths)
    writer._retry_at = 0
    writer.step()
    assert len(stored(paths)) == 400 and not writer.problem and len(problems) == 1
    minutes = HistoryQueries(paths.history).buckets(BEGIN.timestamp(), BEGIN.timestamp() + 420, 7)
    assert all(minute.busy_share is not None for minute in minutes)


def test_a_history_of_another_version_is_set_aside_with_a_sentence(paths: Paths) -> None:
    problems: list[str] = []
    paths.history.parent.mkdir(parents=True)
    with sqlite3.connect(paths.history) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = paths.history.read_bytes()
    writer = writer_of(paths, on_problem=problems.append)
    writer.push(snapshot(0, [finished(1, 0)]))
    writer.step()
    (aside,) = paths.history.parent.glob("history.sqlite.other-version-*")
    assert len(stored(paths)) == 1 and aside.read_bytes() == before
    assert len(problems) == 1 and "version 99" in problems[0] and aside.name in problems[0]


def test_a_clock_that_goes_back_makes_no_minute_longer_than_a_minute(paths: Paths) -> None:
    writer = writer_of(paths)
    for second in range(50):
        writer.push(snapshot(second))
    for second in range(50, 100):
        writer.push(replace(snapshot(second), time=snapshot(second - 50).time))
    writer.step()
    connection = sqlite3.connect(paths.history)
    assert connection.execute("SELECT MAX(observed_seconds) FROM minutes").fetchone()[0] <= 60


# -- logs of launches that nobody watched -------------------------------------------------------------


def leave_log(paths: Paths, name: str, process: ProcessIdentity = DEAD, profile: str = "chat") -> Path:
    log = paths.instance_log("main")
    rotate_log(log)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes((LOGS / name).read_bytes())
    launch = Launch(profile, ("llama-server", "-m", "m.gguf"), "127.0.0.1", 1, engine_version="b11434")
    running = RunningServer(launch, name, BEGIN.isoformat(), process, ready_at=BEGIN.isoformat(), probe_tokens=(1, 1))
    save_launch_record(log, running)
    return log


def catch_up(writer: HistoryWriter) -> None:
    while writer._catch_up is not None:
        writer.step()


def expected_tasks(name: str) -> set[int]:
    return {request.task for request in LogSource(LOGS / name, BEGIN, probe=True).requests.finished}


def test_requests_that_ended_while_nobody_looked_are_read_from_the_logs_once(paths: Paths) -> None:
    leave_log(paths, "b11434-queue.log")
    leave_log(paths, "b11434-slots-cache.log", ProcessIdentity(4_000_001, 9, "an-earlier-boot"), "code")
    for _ in range(2):
        writer = writer_of(paths)
        catch_up(writer)
        writer._release()
    by_profile: dict[str, set[int]] = {"chat": set(), "code": set()}
    for row in stored(paths):
        by_profile[row.profile].add(row.request.task)
    assert by_profile == {
        "chat": expected_tasks("b11434-queue.log"), "code": expected_tasks("b11434-slots-cache.log")
    }  # fmt: skip
    assert len(stored(paths)) == sum(map(len, by_profile.values()))
    assert all(launch.ended for launch in HistoryQueries(paths.history).launches(0, 2e9))


def test_a_launch_that_still_runs_is_read_again_and_stays_open(paths: Paths) -> None:
    log = leave_log(paths, "b11434-queue.log", own_identity())
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    writer = writer_of(paths)
    catch_up(writer)
    some = len(stored(paths))
    writer._release()
    log.write_bytes(whole)
    later = HistoryWriter(paths, launch_of=launch_of, clock=lambda: BEGIN.timestamp() + 90)
    later.step()
    catch_up(later)
    assert some < len(stored(paths)) == len(expected_tasks("b11434-queue.log"))
    (launch,) = HistoryQueries(paths.history).launches(0, 4e9)
    assert (launch.ended, launch.until - launch.started) == (None, 90)


def test_a_log_that_was_cut_is_read_with_what_was_cut_out(paths: Paths) -> None:
    log = leave_log(paths, "b11434-queue.log")
    whole = log.read_bytes()
    half = whole.rindex(b"\n", 0, 2 * len(whole) // 3) + 1
    rotated_path(log, 1).write_bytes(whole[:half])
    ended = whole[:half].count(b"| stop processing: n_")
    cut = f"{CUT_MARKER}2026-11-02T12:00:00+00:00, after {ended} requests: the removed lines are in main.log.1\n"
    with log.open("r+b") as file:  # as truncate_log does: the same file
        file.truncate(0)
        file.write(whole[: whole.index(b"\n", 2000) + 1] + cut.encode() + whole[half:])
    catch_up(writer_of(paths))
    assert {row.request.task for row in stored(paths)} == expected_tasks("b11434-queue.log")


def test_a_record_beside_the_wrong_log_names_no_launch(paths: Paths) -> None:
    log = leave_log(paths, "b11434-queue.log")
    assert read_launch_record(log) is not None
    other = log.with_name("other")
    other.write_bytes(b"")
    other.replace(log)
    assert read_launch_record(log) is None


# -- what is old --------------------------------------------------------------------------------------


def test_what_is_old_goes_in_small_steps_and_of_a_large_file_the_oldest_day(paths: Paths) -> None:
    writer = writer_of(paths)
    connection = writer._connection
    assert connection is not None
    tables, now = HistoryTables(connection), BEGIN.timestamp()
    launch = tables.launch_id(launch_of(snapshot(0)), now)
    tables.add_requests(launch, [finished(day, -86400 * day) for day in range(120)])
    for day in range(120):
        for minute in range(12):
            tables.save_minute(int(now) - 86400 * day + 60 * minute, launch, tables.minute(0, 0))
    while tables.prune(now):
        pass
    assert len(stored(paths)) == 90
    assert connection.execute("SELECT COUNT(*) FROM minutes").fetchone()[0] == 90 * 12
    assert tables.prune(now, limit=0) and len(stored(paths)) == 89


def test_a_kill_loses_at_most_the_last_second(tmp_path: Path) -> None:
    """A short version of ``tests/perf/history_truth.py kills``."""
    assert check_kills(2, tmp_path, longest=1.8) == []


def test_a_week_is_small_quick_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short version of ``tests/perf/history_truth.py size``."""
    monkeypatch.setattr(history_writer, "MAX_GAP_SECONDS", 60.0)
    assert check_size(6, 1500, tmp_path, timed=False) == []
