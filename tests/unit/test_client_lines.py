"""The lines of the Clients screen: what each client does now, in any width; speeds; an order that does not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubox.gateway.gateway_status import (
    SCHEMA,
    ClientSums,
    FinishedRequest,
    GatewayStatus,
    GatewaySwitch,
    LiveRequest,
    ProfileStatus,
    WaitsFor,
)
from gpubox.tui.clients.client_lines import (
    CLIENT_COLUMNS,
    REQUEST_COLUMNS,
    ClientOrder,
    LiveSpeeds,
    client_row,
    column_line,
    gateway_lines,
    operation_text,
    request_line,
)
from gpubox.tui.styled_lines import StyledLine, cell_width

NOTHING = GatewayStatus(SCHEMA, "http://127.0.0.1:8080", "", "1", False, False, "", (), (), (), {}, ())
HOLD = WaitsFor("hold")
LONG = LiveRequest(1, "c", "a", "/v1/x", "generating", True, 0.0, 4.0, 1.0, 91)


def text(line: StyledLine) -> str:
    return "".join(part for part, _ in line)


def state(*live: LiveRequest, width: int = 120, errors: int = 0, last: str = "") -> str:
    status = replace(
        NOTHING, requests=live, clients={"c": ClientSums(3, errors)},
        finished=(FinishedRequest("2026-11-21T13:00:00Z", "c", "a", "/", 503, "failed", error=last),) if last else (),
    )  # fmt: skip
    (row,) = ClientOrder().rows(status, LiveSpeeds().feed(live))
    return text(client_row(row, width))


def test_a_live_request_says_what_it_does() -> None:
    assert "generating 30.0 tok/s, 91 out" in state(LONG)
    assert "waiting 3 s for b" in state(LiveRequest(1, "c", "b", "/", "waiting", True, 3.2, 3.2))
    assert "held 3 s, paused" in state(LiveRequest(1, "c", "b", "/", "waiting", True, 3.2, 3.2, waits_for=HOLD))
    assert "reading 2 s" in state(LiveRequest(1, "c", "a", "/", "reading", True, 3.0, 5.0))
    assert "working 2 s" in state(LiveRequest(1, "c", "a", "/", "reading", False, 3.0, 5.0))
    young = replace(LONG, seconds=1.2, generated_tokens=3)
    assert "generating — tok/s, 3 out" in state(young)


def test_several_requests_share_the_cell() -> None:
    waits = LiveRequest(2, "c", "b", "/", "waiting", True, 5.0, 5.0)
    assert "● 1 generating 30.0 tok/s  ◌ 1 waiting 5 s" in state(LONG, waits, width=140)
    assert "● 1 generating  ◌ 1 waiting" in state(LONG, waits, width=110)
    assert "2 generating 60.0 tok/s, 182 out" in state(LONG, replace(LONG, id=2))


def test_errors_have_a_word_and_are_counted() -> None:
    assert "✗ failed 503: no VRAM" in state(last="no VRAM")
    assert "1 error " in state(errors=1)
    assert "2 errors" in state(LONG, errors=2, width=140)
    assert "idle" in state() and "error" not in state()


@pytest.mark.parametrize("width", [30, 50, 74, 116, 196])
def test_rows_and_headings_have_the_same_columns_in_any_width(width: int) -> None:
    odd = FinishedRequest("x", "客户端" * 9, "é" * 70, "/", 200, "done", prompt_tokens=3, generated_tokens=None)
    failed = replace(odd, outcome="failed", status=503, prompt_tokens=None, error="why " * 99)
    status = replace(NOTHING, clients={odd.client: ClientSums(10**6, 3, last_at="x")}, finished=(odd,))
    (row,) = ClientOrder().rows(status, {})

    assert cell_width(client_row(row, width)) == cell_width(column_line(CLIENT_COLUMNS, width))
    assert cell_width(request_line(odd, width)) == cell_width(column_line(REQUEST_COLUMNS, width))
    for line in (client_row(row, width), request_line(odd, width), request_line(failed, width)):
        assert cell_width(line) <= max(width, 54)


def test_the_speed_is_that_of_the_last_seconds() -> None:
    speeds = LiveSpeeds()
    seen = [speeds.feed([replace(LONG, seconds=4.0 + at, generated_tokens=91 + 10 * at)])[1] for at in range(8)]
    assert seen[0] == pytest.approx(30.0) and seen[-1] == pytest.approx(10.0)
    assert speeds.feed([replace(LONG, seconds=30.0, generated_tokens=161)])[1] < 1.0  # it came to a halt
    assert speeds.feed([]) == {}
    assert speeds.feed([replace(LONG, seconds=1.1, generated_tokens=1)]) == {}  # the id is another request's now


def test_the_order_stays_until_it_is_forgotten() -> None:
    order, status = ClientOrder(), NOTHING
    clients = {name: ClientSums(1, last_at=at) for name, at in (("a", "1"), ("b", "3"), ("c", "2"))}
    status = replace(NOTHING, clients=clients)
    assert [row.name for row in order.rows(status, {})] == ["b", "c", "a"]
    busy = replace(status, clients={**clients, "d": ClientSums()}, requests=(LONG,))
    assert [row.name for row in order.rows(busy, {})] == ["b", "c", "a", "d"]
    order.forget()
    assert [row.name for row in order.rows(busy, {})] == ["c", "b", "a", "d"]
    assert [row.name for row in order.rows(NOTHING, {})] == []


def test_the_gateway_in_lines() -> None:
    profiles = (
        ProfileStatus("down", "down"), ProfileStatus("a", "up", running=2, unload_seconds=None),
        ProfileStatus("b", "starting", waiting=1), ProfileStatus("c", "broken", message="no VRAM"),
        ProfileStatus("idle", "up", unload_seconds=90.0), ProfileStatus("far", "upstream"),
    )  # fmt: skip
    operation = GatewaySwitch("start", "b", "opencode", "load", ("a",), 3.4)
    status = replace(
        NOTHING,
        profiles=profiles,
        operations=(operation, GatewaySwitch("stop", "idle")),
        requests=(LONG,),
        exposed="LAN, no key",
    )
    address, loaded = map(text, gateway_lines(status, 200))

    assert "http://0.0.0.0:8080" in address and "▲ LAN, no key" in address and "1 request now" in address
    assert loaded.startswith("◌ stop idle") and "◌ b load, 3 s so far, asked by opencode, 1 waiting" in loaded
    assert "a 2 running" in loaded and "broken: no VRAM" in loaded and "unloads in 90 s" in loaded
    assert "far elsewhere" in loaded and "1 profile not loaded" in loaded
    assert operation_text(operation) == "switch to b, asked by opencode"
    assert operation_text(GatewaySwitch("stop", "b")) == "stop b"
    broken = gateway_lines(replace(status, problems=("The key file is damaged.",)), 200)
    assert text(broken[1]) == "✗ The key file is damaged." and text(broken[2]) == loaded
    assert "PAUSED" in text(gateway_lines(replace(status, paused=True), 60)[0])
    assert "the first request loads one" in text(gateway_lines(NOTHING, 100)[1])
