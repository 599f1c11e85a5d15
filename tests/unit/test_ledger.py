"""The ledger: its sums equal its lines, whatever happened to the file."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpubox.gateway import ledger as ledger_module
from gpubox.gateway.gateway_status import ClientSums, FinishedRequest
from gpubox.gateway.ledger import MAX_CLIENTS, OTHERS, Ledger, local_day

AT = "2026-11-22T12:00:00.000Z"
DAY = local_day(AT)


def finished(client: str = "laptop", **values: object) -> FinishedRequest:
    start = {"at": AT, "client": client, "profile": "a", "path": "/v1/chat/completions", "status": 200}
    return FinishedRequest(**{**start, "outcome": "done", **values})  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def test_sums_are_those_of_the_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    split: Any = {"queue_seconds": 2.0, "swap_seconds": 1.5, "prefill_seconds": 0.25, "generation_seconds": 0.1}
    ledger.add(finished(prompt_tokens=100, cached_tokens=90, generated_tokens=7, ttft_seconds=0.25, **split))
    ledger.add(finished(prompt_tokens=1, ttft_seconds=0.35, tg_tokens_per_second=30, at="2026-11-22T12:00:01.000Z"))
    ledger.add(finished(outcome="failed", status=503, error="It broke."))
    ledger.add(finished("desk", outcome="left", status=0))
    ledger.add(finished("desk", outcome="refused", status=429))

    sums = ledger.sums(DAY)

    assert sums == {
        "laptop": ClientSums(
            requests=3, errors=1, prompt_tokens=101, cached_tokens=90, generated_tokens=7, **split,
            wait_seconds_max=3.5, ttft_seconds_median=0.3, tg_tokens_per_second_median=30,
            last_at="2026-11-22T12:00:01.000Z",
        ),
        "desk": ClientSums(requests=2, errors=1, left=1, last_at=AT),
    }  # fmt: skip
    assert Ledger(tmp_path / "ledger").sums(DAY) == sums  # the next gateway
    assert ledger.sums_of([DAY, DAY - timedelta(1)]) == sums
    lines = ledger.path(DAY).read_text().splitlines()
    assert [json.loads(line)["client"] for line in lines] == ["laptop"] * 3 + ["desk"] * 2
    assert json.loads(lines[0]) == asdict(next(ledger.requests(DAY)))
    assert ledger.path(DAY).stat().st_mode & 0o777 == 0o600


def test_a_running_ledger_sees_each_line_once(tmp_path: Path) -> None:
    ledger, reader = Ledger(tmp_path), Ledger(tmp_path)
    for number in range(1, 50):
        ledger.add(finished(generated_tokens=number))
        assert reader.sums(DAY) == ledger.sums(DAY)
        assert ledger.sums(DAY)["laptop"].generated_tokens == number * (number + 1) // 2
    ledger.path(DAY).unlink()  # the owner deletes it
    assert ledger.sums(DAY) == {}
    ledger.add(finished(generated_tokens=5))
    assert ledger.sums(DAY)["laptop"].generated_tokens == 5


TORN = {
    "half a line": b'{"at":"2026-11-22T12:00:00.000Z","client":"lap',
    "all but the line end": json.dumps(asdict(finished(generated_tokens=1000))).encode(),
    "zeros": b"\x00" * 300,
    "not UTF-8": b'{"client":"\xff',
}


@pytest.mark.parametrize("torn", TORN.values(), ids=TORN)
def test_a_torn_line_never_counts_and_does_not_touch_the_next(tmp_path: Path, torn: bytes) -> None:
    Ledger(tmp_path).add(finished(generated_tokens=1))
    with Ledger(tmp_path).path(DAY).open("ab") as file:
        file.write(torn)
    running = Ledger(tmp_path)
    assert running.sums(DAY)["laptop"].generated_tokens == 1

    running.add(finished(generated_tokens=2))
    running.add(finished(generated_tokens=4))

    for ledger in (running, Ledger(tmp_path)):
        assert ledger.sums(DAY)["laptop"].generated_tokens == 7
        assert [request.generated_tokens for request in ledger.requests(DAY)] == [1, 2, 4]


@pytest.mark.parametrize("line", [b"[]", b'{"client":3}', b"\xff\xfe", b"null", b"", b'{"client":"x"}', b"[" * 100_000])
def test_a_foreign_line_is_left_out(line: bytes, ledger: Ledger) -> None:
    ledger.add(finished(generated_tokens=1))
    with ledger.path(DAY).open("ab") as file:
        file.write(line + b"\n")
    ledger.add(finished(generated_tokens=2))

    assert ledger.sums(DAY) == {"laptop": ClientSums(requests=2, generated_tokens=3, last_at=AT)}


def test_a_line_without_an_end_is_read_once(tmp_path: Path, ledger: Ledger) -> None:
    ledger.add(finished(generated_tokens=1))
    with ledger.path(DAY).open("ab") as file:
        file.write(bytes(40 * 2**20))
    assert ledger.sums(DAY)["laptop"].generated_tokens == 1

    ledger.add(finished(generated_tokens=2))

    assert ledger.sums(DAY) == {"laptop": ClientSums(requests=2, generated_tokens=3, last_at=AT)}
    assert Ledger(tmp_path).sums(DAY) == ledger.sums(DAY)


def test_a_full_disk_breaks_nothing_and_loses_nothing(tmp_path: Path, ledger: Ledger) -> None:
    ledger.add(finished(generated_tokens=1))
    size = ledger.path(DAY).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))  # a write stops after 20 bytes
        for tokens in (2, 4, 8):
            ledger.add(finished(generated_tokens=tokens))
        assert "cannot be written" in ledger.problem
        assert ledger.path(DAY).stat().st_size == size
        assert ledger.sums(DAY)["laptop"].generated_tokens == 15
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)

    ledger.add(finished(generated_tokens=16))

    assert ledger.problem == ""
    assert [request.generated_tokens for request in Ledger(tmp_path).requests(DAY)] == [1, 2, 4, 8, 16]
    assert ledger.sums(DAY)["laptop"] == ClientSums(requests=5, generated_tokens=31, last_at=AT)


def test_old_days_go_and_other_files_stay(tmp_path: Path) -> None:
    days = [DAY - timedelta(age) for age in (0, 89, 90, 400)]
    for day in days[1:]:
        (tmp_path / f"{day}.jsonl").write_text("")
    (tmp_path / "notes.jsonl").write_text("")

    Ledger(tmp_path).add(finished())

    assert {path.stem for path in tmp_path.iterdir()} == {str(days[0]), str(days[1]), "notes"}


def test_a_request_belongs_to_the_local_day_on_which_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        ledger = Ledger(tmp_path)
        ledger.add(finished(at="2026-11-22T10:59:59.999Z"))
        ledger.add(finished(at="2026-11-22T11:00:00.000Z"))  # UTC+13
        assert [ledger.sums(date(2026, 11, day))["laptop"].requests for day in (22, 23)] == [1, 1]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_medians_are_exact_to_three_digits(tmp_path: Path) -> None:
    values = [(number * 7919 % 10_007) / 1000 for number in range(3000)]
    ledger = Ledger(tmp_path)
    with ledger.path(DAY).open("ab") as file:
        for value in values:
            file.write(json.dumps(asdict(finished(ttft_seconds=value))).encode() + b"\n")

    assert ledger.sums(DAY)["laptop"].ttft_seconds_median == pytest.approx(statistics.median(values), rel=0.005)


def test_clients_that_choose_a_new_name_each_time_cost_bounded_memory(ledger: Ledger) -> None:
    with ledger.path(DAY).open("wb") as file:
        for number in range(MAX_CLIENTS + 50):
            file.write(json.dumps(asdict(finished(f"c{number}", generated_tokens=1))).encode() + b"\n")

    sums = ledger.sums(DAY)

    assert len(sums) == MAX_CLIENTS + 1
    assert sums[OTHERS].generated_tokens == 50


def test_nonsense_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_MAX_REFUSED_BYTES", 1000)
    ledger = Ledger(tmp_path)
    for _ in range(50):
        ledger.add(finished(outcome="refused", status=401))
    size = ledger.path(DAY).stat().st_size
    ledger.add(finished())

    assert 1000 < size < 2000
    assert ledger.sums(DAY)["laptop"].requests == sum(1 for _ in ledger.requests(DAY))
    assert ledger.path(DAY).stat().st_size > size


def test_a_file_that_is_moved_away_gets_no_more_lines(tmp_path: Path, ledger: Ledger) -> None:
    ledger.add(finished(generated_tokens=1))
    ledger.path(DAY).rename(tmp_path / "kept")
    ledger.add(finished(generated_tokens=2))
    ledger.path(DAY).write_bytes((tmp_path / "kept").read_bytes())  # another one in its place, of the same size
    ledger.add(finished(generated_tokens=4))

    assert [request.generated_tokens for request in Ledger(tmp_path).requests(DAY)] == [1, 4]


def test_a_day_that_cannot_be_opened_is_empty(ledger: Ledger) -> None:
    os.mkfifo(ledger.path(DAY), 0o600)
    assert ledger.sums(DAY) == {}
    assert list(ledger.requests(DAY)) == []
