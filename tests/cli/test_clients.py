"""``gpubox clients`` and ``gpubox serve --install``."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpubox.clock import utc_now
from gpubox.gateway.gateway_status import FinishedRequest, WaitsFor
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values
from tests.fake_gateway import fake_gateway

Capture = pytest.CaptureFixture[str]
NOON = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)


def finished(client: str, hours: float = 0, **more: object) -> FinishedRequest:
    at = (NOON + timedelta(hours=hours)).astimezone(UTC).isoformat().replace("+00:00", "Z")
    start = {"at": at, "client": client, "profile": "coder", "path": "/v1/chat/completions", "status": 200}
    return FinishedRequest(**{**start, "outcome": "done", **more})  # type: ignore[arg-type]


@pytest.fixture
def asked(paths: Paths) -> None:
    """A day with three clients, and the day before."""
    ledger = Ledger(paths.ledger)
    whole = {"stream": True, "ttft_seconds": 0.25, "tg_tokens_per_second": 41.25, "seconds": 3.5,
             "swap_seconds": 0.75, "prefill_seconds": 0.25, "generation_seconds": 3.1}  # fmt: skip
    ledger.add(finished("laptop", -24, prompt_tokens=1_000_000))
    ledger.add(finished("laptop", prompt_tokens=20_000, cached_tokens=19_000, generated_tokens=512, **whole))
    ledger.add(finished("laptop", 0.1, prompt_tokens=20_600, cached_tokens=20_512, generated_tokens=30, **whole))
    ledger.add(finished("curl", 0.2, outcome="failed", status=503, queue_seconds=2.5, error="coder is broken."))
    ledger.add(finished("e\x1b[31mvil\n", 0.3, outcome="left", status=0, profile=""))


def test_clients_of_today(capfd: Capture, asked: None) -> None:
    code, out, _ = gpubox(capfd, "clients")

    assert code == 0
    heads = ["QUEUE", "SWITCH", "READING", "GEN", "TTFT", "TG", "ERR", "LEFT", "LAST"]
    nothing = ["0", "ms"] * 4
    assert [line.split() for line in out.splitlines()] == [
        ["CLIENT", "REQS", "READ", "REUSED", "OUT", *heads],
        ["evil", "1", "0", "0", "0", *nothing, "—", "—", "0", "1", "12:18:00"],
        ["curl", "1", "0", "0", "0", "2.5", "s", *nothing[:6], "—", "—", "1", "0", "12:12:00"],
        ["laptop", "2", "1,088", "39,512", "542", *nothing[:2], "1.5", "s", "500", "ms", "6.2", "s", "250", "ms",
         "41.2", "0", "0", "12:06:00"],
    ]  # fmt: skip


def test_clients_of_two_days_as_json(capfd: Capture, asked: None) -> None:
    code, listed = values(capfd, "clients", "--days", "2")

    assert (code, listed["days"], listed["base_url"]) == (0, 2, None)
    laptop = listed["clients"][-1]
    assert (laptop["name"], laptop["requests"], laptop["read_tokens"]) == ("laptop", 3, 1_001_088)
    assert (laptop["cached_tokens"], laptop["ttft_seconds_median"], laptop["waiting_requests"]) == (39_512, 0.25, 0)


def test_requests_of_the_clients(capfd: Capture, asked: None) -> None:
    code, out, _ = gpubox(capfd, "clients", "--requests", "-n", "3")

    assert code == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["12:05:56", "laptop", "coder", "answered", "88", "20.5k", "30", "0", "ms", "750", "ms", "250", "ms", "3.1",
         "s", "250", "ms", "41.2", "3.5", "s"],
        ["12:12:00", "curl", "coder", "failed", "503", "—", "—", "—", "2.5", "s", "0", "ms", "—", "—", "—", "—", "0",
         "ms", "coder", "is", "broken."],
        ["12:18:00", "evil", "—", "client", "left", "—", "—", "—", "0", "ms", "0", "ms", "—", "—", "—", "—", "0", "ms"],
    ]  # fmt: skip
    _, listed = values(capfd, "clients", "--requests", "--days", "2")
    assert [request["client"] for request in listed["requests"]][:2] == ["laptop", "laptop"]
    assert (len(listed["requests"]), listed["requests"][1]["swap_seconds"], listed["live"]) == (5, 0.75, [])


def test_who_runs_and_who_waits_behind_whom(capfd: Capture, paths: Paths, asked: None) -> None:
    with fake_gateway(paths) as gateway:
        running = gateway.status.requests[0]
        waits = replace(running, id=2, client="aider", state="waiting", queue_seconds=8.2, seconds=8.2)
        kinds = (
            WaitsFor("slot", (("laptop", 2), ("evil", 1))), WaitsFor("swap", (("coder", 1),)), WaitsFor("load"),
            WaitsFor("limit", (("aider", 2),)), WaitsFor("hold"), None,
            WaitsFor("slot", tuple((f"c{at}", at) for at in range(1, 7))),
        )  # fmt: skip
        waiting = tuple(replace(waits, id=2 + at, waits_for=kind) for at, kind in enumerate(kinds))
        gateway.status = replace(gateway.status, requests=(*waiting, running))
        code, out, _ = gpubox(capfd, "clients")
        table = [line.split("  ")[0].strip() for line in out.splitlines()[1:5]]
        assert (code, table) == (0, ["laptop", "aider", "evil", "curl"])
        assert [line.split(maxsplit=5)[-1] for line in out.splitlines()[7:]] == [
            "generating — tok/s",
            "waiting 8 s for a slot behind 2 requests of laptop and 1 of evil",
            "waiting 8 s for its turn after 1 request for coder",
            "waiting 8 s for its model to load",
            "waiting 8 s at its key's limit behind 2 requests of aider",
            "held 8 s, paused",
            "waiting 8 s for coder",
            "waiting 8 s for a slot behind 1 request of c1, 2 of c2, 3 of c3 and 15 of others",
        ]
        assert gpubox(capfd, "clients", "--requests")[1].splitlines()[-1].split()[:3] == ["8", "aider", "coder"]
        _, listed = values(capfd, "clients")
        assert (listed["base_url"], listed["paused"]) == ("http://127.0.0.1:8080", False)
        assert [client["generating_requests"] for client in listed["clients"]] == [1, 0, 0, 0]
        assert listed["live"][0]["waits_for"] == {"kind": "slot", "behind": [["laptop", 2], ["evil", 1]]}

        gateway.answer = (500, b"broken")
        code, out, err = gpubox(capfd, "clients")
        assert (code, len(out.splitlines())) == (0, 4)
        assert "The gateway answers 500" in err
        assert values(capfd, "clients")[1]["clients"][0]["waiting_requests"] is None


def test_a_request_is_cancelled(capfd: Capture, paths: Paths) -> None:
    assert gpubox(capfd, "clients", "cancel", "1")[0] == 3  # no gateway runs
    with fake_gateway(paths) as gateway:
        code, out, _ = gpubox(capfd, "clients", "cancel", "1")
        assert (code, out) == (0, "Request 1 of laptop is cancelled; it was generating — tok/s.\n")
        assert gateway.asked[-1] == "POST /gpubox/cancel/1"
        assert values(capfd, "clients", "cancel", "1")[1]["client"] == "laptop"
        assert "No request has the number 9 now." in gpubox(capfd, "clients", "cancel", "9")[2]


def test_requests_are_held_and_let_go(capfd: Capture, paths: Paths) -> None:
    assert gpubox(capfd, "clients", "--hold")[0] == 3  # no gateway runs
    assert gpubox(capfd, "clients", "--hold", "--requests")[0] == 2
    with fake_gateway(paths) as gateway:
        assert gpubox(capfd, "clients", "--hold")[1].startswith("New requests wait at the gateway.")
        assert gateway.status.paused
        assert "New requests wait at the gateway." in gpubox(capfd, "clients")[2]
        assert values(capfd, "clients", "--release")[1]["paused"] is False
        assert not gateway.status.paused


def test_nobody_has_asked(capfd: Capture, paths: Paths) -> None:
    assert gpubox(capfd, "clients")[1] == "No client has sent a request today. `gpubox serve` starts the gateway.\n"
    assert gpubox(capfd, "clients", "--requests")[1] == "No request has finished yet.\n"
    assert gpubox(capfd, "clients", "--days", "0")[0] == 2
    Ledger(paths.ledger).add(replace(finished("a"), at=utc_now()))
    assert gpubox(capfd, "clients")[1].splitlines()[1].startswith("a ")
    assert Path(paths.ledger).stat().st_mode & 0o077 == 0


def test_a_unit_is_installed(capfd: Capture, paths: Paths) -> None:
    code, out, _ = gpubox(capfd, "serve", "--install", "--port", "8099")
    unit = paths.config.parent / "systemd/user/gpubox-gateway.service"
    assert (code, out.splitlines()[0]) == (0, f"{unit} is written.")
    assert out.splitlines()[1:] == [
        f"{unit.with_suffix('.socket')} is written.",
        "Start both now and at each boot; clients then wait while the gateway restarts:",
        "    systemctl --user enable --now gpubox-gateway.socket gpubox-gateway.service",
        "    loginctl enable-linger",
    ]
    assert "serve --quiet --port 8099\n" in unit.read_text()

    code, out, err = gpubox(capfd, "serve", "--install", "--host", "0.0.0.0")
    assert (code, "there is no key" in err, "8099" in unit.read_text()) == (2, True, True)
    unit.write_text("mine")
    assert gpubox(capfd, "serve", "--install")[0] == 2
