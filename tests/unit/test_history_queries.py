"""The history file read back: requests, sums, graph and marks against rows that were put in by hand."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.telemetry.history.file import REQUEST_COLUMNS, connect_writer, iso_time, request_row
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.snapshot import Request

NOON = datetime(2026, 11, 2, 12).timestamp()
DAY = 86400.0


def add_launch(
    connection: sqlite3.Connection, number: int, profile: str, started: float, ended: float, **more: str
) -> None:
    values = {"how": "stop", "engine_version": "b1", "engine_path": "/e", "driver": "550", **more}
    connection.execute(
        f"INSERT INTO launches (id, identity, profile, started, seen, ended, {', '.join(values)})"
        f" VALUES (?, ?, ?, ?, ?, ?{', ?' * len(values)})",
        (number, f"boot:{number}:1", profile, started, ended, ended, *values.values()),
    )


def add_request(connection: sqlite3.Connection, launch: int, request: Request, client: str | None = None) -> None:
    row = request_row(request, datetime.fromisoformat(request.at).timestamp())
    marks = ", ".join("?" * (len(REQUEST_COLUMNS) + 2))
    connection.execute(
        f"INSERT INTO requests ({', '.join(REQUEST_COLUMNS)}, launch, client) VALUES ({marks})", (*row, launch, client)
    )


def request(task: int, at: float, tg: float = 20.0, **more: object) -> Request:
    values = {
        "prompt_tokens": 100, "cached_tokens": 60, "generated_tokens": 40, "tg_tokens_per_second": tg,
        "pp_tokens_per_second": 500.0, "queue_seconds": 0.25, "slot_ttft_seconds": 0.5, "ttft_seconds": 0.75,
        "duration_seconds": 2.5, "stop_reason": "stop", **more,
    }  # fmt: skip
    return Request(number=task, at=iso_time(at), slot=0, task=task, **values)  # type: ignore[arg-type]


def test_an_absent_history_is_empty(tmp_path: Path) -> None:
    queries = HistoryQueries(tmp_path / "history.sqlite")
    assert queries.requests(0, NOON) == [] and queries.sums(0, NOON, "day") == [] and queries.marks(0, NOON) == []
    assert [bucket.tg for bucket in queries.buckets(NOON, NOON + 60, 3)] == [None] * 3
    assert not list(tmp_path.iterdir())


def test_a_history_that_is_just_being_made_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    maker = sqlite3.connect(path)
    maker.execute("PRAGMA journal_mode=WAL")  # it has a first page now, and no tables yet
    queries = HistoryQueries(path)
    assert path.stat().st_size and queries.requests(0, 4e9) == []
    maker.close()
    path.unlink()
    connect_writer(path).close()
    assert queries.requests(0, 4e9) == []


def test_a_request_comes_back_as_it_was(tmp_path: Path) -> None:
    connection = connect_writer(tmp_path / "h")
    add_launch(connection, 1, "chat", NOON, NOON + 60)
    full = request(
        7, NOON + 1.125, draft_tokens=30, draft_tokens_accepted=21, mean_accepted_length=2.1,
        accepted_per_position=(0.9, 0.5), prompt_seconds=0.08, generation_seconds=2.0, restored_tokens=12,
        cache_miss="prefix changed", reread_tokens=3,
    )  # fmt: skip
    bare = Request(number=8, at=iso_time(NOON + 9), slot=3, task=9)
    add_request(connection, 1, full, "opencode")
    add_request(connection, 1, bare)
    newest, older = HistoryQueries(tmp_path / "h").requests(NOON, NOON + 60)
    assert (newest.request, newest.client) == (bare, None)
    assert (older.request, older.client, older.profile, older.at) == (full, "opencode", "chat", NOON + 1.125)


def test_sums_by_profile_and_day(tmp_path: Path) -> None:
    connection = connect_writer(tmp_path / "h")
    add_launch(connection, 1, "chat", NOON, NOON + DAY)
    add_launch(connection, 2, "code", NOON + DAY, NOON + DAY + 600)
    for task in range(60):
        tg = 10.0 + task
        add_request(connection, 1, request(task, NOON + task * 600, tg, stop_reason="error" if task < 2 else "stop"))
    add_request(connection, 2, request(1, NOON + DAY + 5), "opencode")
    connection.execute(
        "INSERT INTO minutes (minute, launch, joules, power_seconds, power_tokens) VALUES (?, 1, 12000.0, 60, 2400)",
        (NOON - NOON % 60,),
    )
    queries = HistoryQueries(tmp_path / "h")
    chat, code = queries.sums(NOON - DAY, NOON + 2 * DAY, "profile")
    by_day = queries.sums(NOON - DAY, NOON + 2 * DAY, "day")
    assert (chat.key, chat.requests, chat.errors, chat.tg_median) == ("chat", 60, 2, 39.5)
    assert (chat.prompt_tokens, chat.cached_tokens, chat.generated_tokens, chat.read_tokens) == (6000, 3600, 2400, 2400)
    assert (chat.up_seconds, code.up_seconds, chat.ttft_median) == (DAY, 600, 0.75)
    assert (chat.energy_joules, chat.observed_seconds, chat.joules_per_token) == (12000, 60, 5)
    assert (code.energy_joules, code.joules_per_token) == (None, None)
    assert queries.clients(NOON, NOON + 2 * DAY) == ["opencode"]
    assert [s.key for s in by_day] == ["2026-11-02", "2026-11-03"]
    assert sum(s.up_seconds or 0 for s in by_day) == DAY + 600


def test_the_graph_has_means_over_the_time_in_which_a_value_was_known(tmp_path: Path) -> None:
    connection = connect_writer(tmp_path / "h")
    begin = NOON - NOON % 3600
    rows = [(begin, 1, 60, 60, 1800, 60), (begin + 60, 1, 60, 0, 0, 0), (begin + 120, 1, 60, 30, 1200, 20)]
    connection.executemany(
        "INSERT INTO minutes (minute, launch, observed_seconds, busy_seconds, tg_tokens, tg_seconds)"
        " VALUES (?,?,?,?,?,?)",
        [tuple(map(float, row)) for row in rows],
    )
    first, second = HistoryQueries(tmp_path / "h").buckets(begin, begin + 360, 2)
    assert (first.tg, first.busy_share, second.tg, second.busy_share) == (37.5, 0.5, None, None)


def test_marks_say_what_changed_between_two_launches(tmp_path: Path) -> None:
    connection = connect_writer(tmp_path / "h")
    add_launch(connection, 1, "chat", NOON, NOON + 10, how="switch")
    add_launch(connection, 2, "code", NOON + 11, NOON + 20, how="crash", engine_version="b2")
    add_launch(connection, 3, "code", NOON + 30, NOON + 40, engine_version="b2", driver="560")
    marks = HistoryQueries(tmp_path / "h").marks(NOON, NOON + DAY)
    assert [(mark.kind, mark.text) for mark in marks] == [
        ("start", "chat"), ("switch", "code"), ("engine", "b1 -> b2"), ("crash", "code"), ("start", "code"),
        ("driver", "550 -> 560"), ("stop", "code"),
    ]  # fmt: skip
    assert [mark.kind for mark in HistoryQueries(tmp_path / "h").marks(NOON + 15, NOON + 25)] == ["crash"]


@pytest.mark.parametrize("content", [b"no database at all, but as long as one" * 50, b"SQLite format 3\0"])
def test_a_damaged_history_is_an_error_for_the_owner(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "h").write_bytes(content)
    with pytest.raises(GpuboxError, match="cannot be read"):
        HistoryQueries(tmp_path / "h").sums(0, NOON, "day")
