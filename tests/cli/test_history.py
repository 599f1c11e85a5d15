"""``gpubox history``: what the logs and the ledger hold, summed up."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpubox.cli.commands.status import show_status
from gpubox.cli.context import Context
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.gateway.request_clients import clients_of
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.state import Launch, RunningServer, save_launch_record
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.log_source import LogSource
from tests.cli.verbs import gpubox, values

Capture = pytest.CaptureFixture[str]
LOG = Path(__file__).parent.parent / "fixtures" / "logs" / "b11434-queue.log"
BEGIN = datetime.now(UTC) - timedelta(minutes=30)


@pytest.fixture
def logged(paths: Paths) -> list[StoredRequest]:
    """A launch that ran and ended while no gpubox looked: the requests in its log."""
    log = paths.instance_log("main")
    log.parent.mkdir(parents=True)
    log.write_bytes(LOG.read_bytes())
    process = ProcessIdentity(4_000_000, 7, "an-earlier-boot")
    launch = Launch("coder", ("llama-server", "--ctx-size", "512"), "127.0.0.1", 1, engine_version="b11434")
    running = RunningServer(launch, "id", BEGIN.isoformat(), process, BEGIN.isoformat(), probe_tokens=(1, 1))
    save_launch_record(log, running)
    requests = LogSource(log, BEGIN, probe=True).requests.finished
    return [StoredRequest(datetime.fromisoformat(r.at).timestamp(), "coder", None, r, 1) for r in requests]


def ask_through_gateway(paths: Paths, requests: list[StoredRequest]) -> dict[str, list[StoredRequest]]:
    """Puts the lines that the gateway would have written into the ledger; each third request came past it."""
    asked: dict[str, list[StoredRequest]] = {"laptop": [], "desk": []}
    for number, stored in enumerate(requests):
        if number % 3 == 2:
            continue
        client, r = ("laptop", "desk")[number % 3], stored.request
        ended = datetime.fromtimestamp(stored.at, UTC) + timedelta(seconds=(r.duration_seconds or 0) + 0.01)
        Ledger(paths.ledger).add(
            FinishedRequest(
                ended.isoformat(),
                client,
                "coder",
                "/v1/chat/completions",
                200,
                "done",
                prompt_tokens=r.prompt_tokens,
                cached_tokens=r.cached_tokens,
                generated_tokens=r.generated_tokens,
            )
        )
        asked[client].append(stored)
    return asked


def test_requests_that_nobody_watched_are_summed_up_once(
    capfd: Capture, paths: Paths, logged: list[StoredRequest]
) -> None:
    for _ in range(2):
        code, said = values(capfd, "history", "--since", "3d")
        (coder,) = said["sums"]
        assert (code, coder["key"], coder["requests"]) == (0, "coder", len(logged))
        assert coder["generated_tokens"] == sum(s.request.generated_tokens or 0 for s in logged)
        assert coder["read_tokens"] + coder["cached_tokens"] == coder["prompt_tokens"]
        assert (coder["energy_joules"], coder["cost"], coder["observed_seconds"]) == (None, None, 0)
    listed = values(capfd, "history", "--requests", "-n", "3")[1]["requests"]
    assert [row["task"] for row in listed] == [s.request.task for s in logged[:3][::-1]]
    assert "coder" in gpubox(capfd, "history", "--requests")[1]
    assert gpubox(capfd, "history", "--by", "day")[1].startswith("DAY ")
    days = values(capfd, "history", "--by", "day")[1]["sums"]
    assert sum(day["requests"] for day in days) == len(logged)


def test_requests_that_nobody_watched_have_their_clients(
    capfd: Capture, paths: Paths, logged: list[StoredRequest]
) -> None:
    ask_through_gateway(paths, logged)
    names = clients_of(Ledger(paths.ledger), logged)
    assert any(names)
    listed = values(capfd, "history", "--requests", "-n", "1000")[1]["requests"]
    by_task = {stored.request.task: name for stored, name in zip(logged, names, strict=True)}
    assert {row["task"]: row["client"] for row in listed} == by_task


def test_a_client_is_named_only_if_no_other_could_be_meant(paths: Paths, logged: list[StoredRequest]) -> None:
    asked = ask_through_gateway(paths, logged)
    names = clients_of(Ledger(paths.ledger), logged)
    for stored, name in zip(logged, names, strict=True):
        mine = next((client for client, theirs in asked.items() if stored in theirs), None)
        twins = [other for other in logged if _tokens(other) == _tokens(stored)]
        assert name == mine or (name is None and len(twins) > 1)
    assert any(names)


def _tokens(stored: StoredRequest) -> tuple[int | None, int | None]:
    return stored.request.prompt_tokens, stored.request.generated_tokens


def test_energy_costs_what_the_owner_pays(capfd: Capture, paths: Paths, logged: list[StoredRequest]) -> None:
    import sqlite3

    gpubox(capfd, "history")
    with sqlite3.connect(paths.history) as connection:  # an hour at 300 W, as the writer stores it
        at = int(BEGIN.timestamp()) // 60 * 60
        columns = "(minute, launch, joules, power_seconds, power_tokens)"
        connection.execute(f"INSERT INTO minutes {columns} VALUES (?, 1, 1080000.0, 3600.0, 540)", (at,))
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text("price-per-kwh = 0.5\n")
    (coder,) = values(capfd, "history")[1]["sums"]
    assert (coder["energy_joules"], coder["cost"], coder["joules_per_token"]) == (1_080_000, 0.15, 2000)
    text = gpubox(capfd, "history")[1]
    assert "0.30" in text and "0.15" in text and "in which gpubox read their power" in text


def test_since_takes_days_hours_and_dates(capfd: Capture, paths: Paths) -> None:
    assert gpubox(capfd, "history", "--since", "2026-11-01")[0] == 0
    assert gpubox(capfd, "history", "--since", "12h")[0] == 0
    assert gpubox(capfd, "history", "--since", "last week")[0] == 2


def test_a_damaged_history_is_said_and_set_aside(capfd: Capture, paths: Paths, logged: list[StoredRequest]) -> None:
    paths.history.parent.mkdir(parents=True, exist_ok=True)
    paths.history.write_bytes(b"no database " * 1000)
    code, out, said = gpubox(capfd, "history")
    assert (code, "coder" in out) == (0, True) and "damaged" in said
    assert len(list(paths.history.parent.glob("history.sqlite.damaged-*"))) == 1
    assert asdict(HistoryQueries(paths.history).launches(0, 4e9)[0])["profile"] == "coder"


def test_status_watch_fills_the_history_too(
    capfd: Capture, paths: Paths, logged: list[StoredRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpubox.cli.commands import status

    shown: list[object] = []

    def show(snapshot: object, as_json: bool, *, one_line: bool) -> None:
        shown.append(snapshot)
        if len(HistoryQueries(paths.history).requests(0, 4e9)) == len(logged):
            raise BrokenPipeError  # as when its reader has gone

    monkeypatch.setattr(status, "_show", show)
    with pytest.raises(BrokenPipeError):
        show_status(Context(), as_json=True, watch=0.1)
    assert shown
