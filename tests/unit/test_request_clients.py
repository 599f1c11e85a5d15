"""A request of the log gets its client's name only where nobody else can be meant."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.request_clients import MAX_REMEMBERED, RequestClients, match_clients
from gpubox.telemetry.snapshot import Request

BEGAN = datetime.fromisoformat("2026-11-21T13:00:00+00:00")


def logged(number: int, began: float = 0.0, prompt: int | None = 100, out: int | None = 10, **more: int) -> Request:
    at = (BEGAN + timedelta(seconds=began)).isoformat(timespec="milliseconds")
    return Request(number, at, 0, number, prompt, more.get("cached", 0), out, duration_seconds=2.0)


def answered(client: str, ended: float = 2.1, profile: str = "a", **more: int | None) -> FinishedRequest:
    at = (BEGAN + timedelta(seconds=ended)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values = {"prompt_tokens": 100, "cached_tokens": 0, "generated_tokens": 10} | more
    return FinishedRequest(at, client, profile, "/v1/chat/completions", 200, "done", **values)  # type: ignore[arg-type]


def names(requests: list[Request], finished: list[FinishedRequest]) -> list[str]:
    return [name or "" for name in match_clients([("a", request) for request in requests], finished)]


def test_equal_tokens_at_the_same_time_name_the_client() -> None:
    assert names([logged(1)], [answered("opencode")]) == ["opencode"]


def test_other_tokens_profiles_or_times_name_nobody() -> None:
    one = [logged(1)]
    assert names(one, [answered("x", prompt_tokens=101)]) == [""]
    assert names(one, [answered("x", generated_tokens=11)]) == [""]
    assert names(one, [answered("x", cached_tokens=50)]) == [""]
    assert names(one, [answered("x", profile="b")]) == [""]
    assert names(one, [answered("x", ended=9.0)]) == [""]
    assert names(one, [answered("x", ended=-1.0)]) == [""]
    assert names([logged(1, out=None)], [answered("x")]) == [""]
    assert names(one, [answered("x", generated_tokens=None)]) == [""]


def test_a_slow_reader_is_still_named() -> None:
    assert names([logged(1)], [answered("slow", ended=6.5)]) == ["slow"]


def test_two_clients_with_equal_requests_at_once_stay_unnamed() -> None:
    assert names([logged(1), logged(2, 0.2)], [answered("x"), answered("y", 2.3)]) == ["", ""]


def test_one_client_with_equal_requests_is_named_in_all() -> None:
    assert names([logged(1), logged(2, 0.2)], [answered("x"), answered("x", 2.3)]) == ["x", "x"]


def test_a_request_past_the_gateway_makes_its_twin_uncertain() -> None:
    assert names([logged(1), logged(2, 0.5)], [answered("x")]) == ["", ""]


def test_distant_twins_do_not_disturb() -> None:
    rows = [logged(1), logged(2, 60.0)]
    assert names(rows, [answered("x"), answered("y", 62.0)]) == ["x", "y"]


def test_a_broken_time_is_no_match_and_no_error() -> None:
    assert names([logged(1)], [replace(answered("x"), at="yesterday")]) == [""]
    assert names([logged(1)], [replace(answered("x"), at="2026-11-21T13:00:02")]) == [""]


def test_names_stay_when_the_gateway_has_forgotten_the_request() -> None:
    clients = RequestClients()
    rows = (logged(1),)
    assert clients.names(rows, "a") is None
    clients.add([answered("x")])
    assert clients.names(rows, "a") == {rows[0].key: "x"}
    clients.add([answered("y", ended=100.0 + at) for at in range(50)])
    assert clients.names(rows, "a") == {rows[0].key: "x"}
    clients.add([answered("y", ended=1000.0 + at) for at in range(MAX_REMEMBERED)])
    assert clients.names(rows, "a") == {}
