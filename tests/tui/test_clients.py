"""The gateway on the screen: the header, the Clients screen, its keys, and whose the requests are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.gateway.gateway_status import ClientSums, ProfileStatus
from gpubox.telemetry.snapshot import Request
from gpubox.tui.messages import GatewayView
from tests.tui.conftest import act, app_of, on_dashboard, settled, shows, text, until
from tests.tui.fake import BUSY
from tests.tui.fake_gateway import BASE, FINISHED, QUIET, STATUS, SWITCHING, A, services_with_gateway, view


async def test_clients_with_their_states() -> None:
    async with on_dashboard(services_with_gateway(), size=(160, 45)) as pilot:
        await pilot.press("5")
        await shows(
            pilot, "http://127.0.0.1:8080", "generating 70.2 tok/s, 412 out", "waiting 3 s for its turn after",
            "reading 1 s", "✗ refused 401: this key is not known", "no request yet", "4930k",
            "failed 503: qwen36-turbo cannot start",
            "41,200 of the 41,200 tokens were reused",
        )  # fmt: skip


async def test_enter_on_a_failed_request_says_why_and_no_message_follows_to_another_screen() -> None:
    async with on_dashboard(services_with_gateway(), notifications=True) as pilot:
        app = app_of(pilot)
        app.say("An old message.")
        await shows(pilot, "An old message.")
        app.action_show("clients")
        await until(pilot, lambda: app.clients.requests.values, "the requests")
        await until(pilot, lambda: "An old message." not in text(pilot), "its end")
        app.clients.requests.focus()
        app.clients.requests.highlight(next(each for each in FINISHED if each.outcome == "refused"))
        await shows(pilot, "⏎ why")


async def test_without_a_gateway_the_screen_says_what_to_do_and_s_starts_one() -> None:
    services = services_with_gateway(None)
    async with on_dashboard(services, notifications=True) as pilot:
        assert "gateway" not in text(pilot)
        await act(pilot, "hold")
        await shows(pilot, "No gateway runs. 5 shows")
        await pilot.press("5")
        await shows(pilot, "No gateway runs.", "gpubox serve --detach", "127.0.0.1:8080")
        await pilot.press("s")
        await shows(pilot, "No client yet. o connects one", "no profile is loaded" if not QUIET.profiles else BASE)
        assert services.gateways.asked == ["start"]
        await pilot.press("1")
        await shows(pilot, "gateway 127.0.0.1:8080")


async def test_stopping_asks_first_and_only_another_end_is_news() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, notifications=True) as pilot:
        await pilot.press("5", "s")
        await shows(pilot, "Stop the gateway?", "4 requests are under way")
        await pilot.press("n")
        await settled(pilot)
        assert services.gateways.asked == []
        await pilot.press("s")
        await shows(pilot, "Stop the gateway?")
        await pilot.press("y")
        await shows(pilot, "No gateway runs.", "The gateway is stopped.")
        assert services.gateways.asked == ["stop"] and "has ended" not in text(pilot)
        services.gateway_view = view(QUIET)
        await shows(pilot, "No client yet")
        services.gateway_view = None
        await shows(pilot, "The gateway has ended")


async def test_one_key_holds_all_requests_and_lets_them_go_on() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, notifications=True) as pilot:
        await shows(pilot, "gateway 127.0.0.1:8080")
        controller = app_of(pilot).gateway_controller
        for screen in "15":
            await pilot.press(screen)
            await act(pilot, "hold")
            await shows(pilot, "▐▐ PAUSED", "resumes it")
            await until(pilot, lambda: not controller._busy)  # until then a key would be the same one twice
            await act(pilot, "hold")
            await until(pilot, lambda: "PAUSED" not in text(pilot) and not controller._busy)
        assert services.gateways.asked == ["pause", "resume"] * 2
        services.gateways.error = GpuboxError("The gateway has another mind.")
        await act(pilot, "hold")
        await shows(pilot, "The gateway has another mind.")


async def test_a_switch_for_a_request_says_by_whom() -> None:
    services = services_with_gateway(SWITCHING)
    async with on_dashboard(services, notifications=True) as pilot:
        await shows(pilot, "gateway: switch to qwen36-256k, asked by aider", "waits, 4 s so far")
        services.gateway_view = view(STATUS)
        await until(pilot, lambda: "asked by aider" not in text(pilot))


async def test_a_gateway_that_does_not_answer_is_shown_as_one() -> None:
    services = services_with_gateway()
    services.gateway_view = GatewayView(BASE, problem="The gateway (pid 7) does not answer.")
    async with on_dashboard(services, notifications=True) as pilot:
        await shows(pilot, "gateway 127.0.0.1:8080", "✗ no answer")
        await pilot.press("5")
        await shows(pilot, "✗ The gateway (pid 7) does not answer.")


async def test_what_the_owner_should_mend_is_shown_at_every_size() -> None:
    async with on_dashboard(
        services_with_gateway(replace(STATUS, problems=("The key file is damaged; nobody gets in.",))), size=(80, 24)
    ) as pilot:
        await shows(pilot, "✗ 5 shows a problem")
        await pilot.press("5")
        await shows(pilot, "✗ The key file is damaged")


async def test_who_can_reach_the_gateway_is_never_dropped() -> None:
    async with on_dashboard(
        services_with_gateway(replace(STATUS, exposed="LAN, no key", paused=True)), size=(80, 24)
    ) as pilot:
        await shows(pilot, "▲ gateway LAN, no key", "PAUSED")


async def test_rows_keep_their_places_when_clients_come_and_go() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, notifications=True) as pilot:
        app = app_of(pilot)
        await pilot.press("5")
        await shows(pilot, "lm-eval")
        assert app.clients is not None
        before = [row.name for row in app.clients.rows.values]
        assert before == ["opencode", "aider", "lm-eval", "continue", "127.0.0.1", "cline"]
        services.gateway_view = view(replace(STATUS, clients={"aaa": ClientSums(1), **STATUS.clients}, requests=()))
        await shows(pilot, "aaa")
        # "continue" had only a request that is gone
        assert [row.name for row in app.clients.rows.values] == [*(n for n in before if n != "continue"), "aaa"]


async def test_enter_shows_the_requests_of_one_client_and_all_fields_of_one() -> None:
    async with on_dashboard(services_with_gateway(), notifications=True) as pilot:
        app = app_of(pilot)
        await pilot.press("5")
        await shows(pilot, "lm-eval")
        assert app.clients is not None
        app.clients.rows.highlight("opencode")
        await pilot.press("enter")
        await shows(pilot, "Requests of opencode")
        assert {request.client for request in app.clients.requests.values} == {"opencode"}
        await pilot.press("tab", "enter")
        await shows(pilot, "number", "generating 70")
        await pilot.press("escape", "down", "enter")
        await shows(pilot, "as the client saw it", "41,200 tokens")
        await pilot.press("escape", "escape")
        await until(
            pilot,
            lambda: (
                app.clients
                and {*app.clients.requests.values[-6:]} == {*FINISHED}
                and len(app.clients.requests.values) == 10
            ),
        )
        await pilot.press("escape")
        await shows(pilot, "Throughput")


async def test_a_request_that_waits_is_cancelled_at_once_and_one_that_runs_after_a_question() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, size=(120, 36), notifications=True) as pilot:
        app = app_of(pilot)
        await pilot.press("5")
        await shows(pilot, "waiting 1 s for a slot behind 1 request of opencode and 1 of continue", "#72")
        await until(pilot, lambda: app_of(pilot).clients.chosen)
        assert app.clients is not None
        app.clients.rows.highlight("cline")
        await until(pilot, lambda: not app_of(pilot).clients.chosen)
        app.clients.rows.highlight("aider")
        await act(pilot, "clients_cancel")
        await shows(pilot, "Request 72 of aider is cancelled", "it was waiting 3 s")
        await until(pilot, lambda: "#72" not in text(pilot))
        await pilot.press("tab")
        app.clients.requests.highlight(71)
        await act(pilot, "clients_cancel")
        await shows(pilot, "Cancel request 71 of opencode?")
        await pilot.press("escape")
        await settled(pilot)
        assert services.gateways.asked == [("cancel", 72)]
        await act(pilot, "clients_cancel")
        await shows(pilot, "Cancel request 71 of opencode?")
        await pilot.press("y")
        await shows(pilot, "Request 71 of opencode is cancelled")


async def test_names_and_errors_from_outside_are_text_and_cut() -> None:
    evil = "[red]x[/red]\x1b[31m" + "very-long-name" * 9
    request = replace(FINISHED[1], client=evil, error="[bold]a\nb\x07" + "c" * 400)
    status = replace(
        STATUS, finished=(request,), requests=(replace(STATUS.requests[1], client=evil, profile="[u]p[/u]" * 9),),
        clients={evil: ClientSums(1, 1, last_at=request.at)},
        profiles=(ProfileStatus(A, "broken", message="[link=x]y\x1b]0;t\x07 no VRAM"),), kept_kv=("[blink]z\x1b[5m",),
    )  # fmt: skip
    async with on_dashboard(services_with_gateway(status), size=(80, 24)) as pilot:
        await pilot.press("5")
        await shows(pilot, "[red]x[/red]", "broken: [link=x]y", "[blink]z")
        assert "\x1b" not in text(pilot) and "\x07" not in text(pilot)
        await pilot.press("enter", "tab", "down", "enter")
        await shows(pilot, "[bold]a")


async def test_the_requests_pane_names_clients_only_where_a_gateway_is() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, notifications=True) as pilot:
        app = app_of(pilot)
        await shows(pilot, "client", "13:02:11 opencode", "13:01:02 opencode")
        rows = app.dashboard.requests
        assert [rows.client(row) for row in rows.rows.values if isinstance(row, Request)] == [
            "opencode",
            "",
            "opencode",
        ]


async def test_the_throughput_says_for_whom_only_if_it_is_one_client() -> None:
    alone = replace(STATUS, requests=STATUS.requests[:2])
    services = services_with_gateway(alone, BUSY)
    services.eager = True
    async with on_dashboard(services, size=(160, 45)) as pilot:
        await shows(pilot, "for opencode")
        services.gateway_view = view(STATUS)  # two at once
        await until(pilot, lambda: "for opencode" not in text(pilot))


async def test_another_machine_or_a_recording_has_no_gateway_here() -> None:
    services = services_with_gateway()
    services.read_only = "This is a recording: nothing in it can be changed."
    async with on_dashboard(services, notifications=True) as pilot:
        await pilot.press("5")
        await shows(pilot, "another machine or a recording")
        await pilot.press("s")
        await shows(pilot, "This is a recording")
        assert services.gateways.asked == []


async def test_connecting_a_client_copies_its_settings_with_a_key_made_for_it() -> None:
    services = services_with_gateway()
    async with on_dashboard(services, notifications=True) as pilot:
        app = app_of(pilot)
        await pilot.press("o")
        await shows(pilot, '"baseURL": "http://127.0.0.1:8080/v1"', "YOUR-KEY", A, "opencode.json")
        await pilot.press("right")
        await shows(pilot, '"model": "gpubox/mine"')
        await pilot.press("n")
        await shows(pilot, "A key for a client")
        await pilot.press("enter")
        await shows(pilot, "gb-xxx", "shown here once")
        await pilot.press("y")
        await until(pilot, lambda: "gb-xxx" in app.clipboard)
        assert app.clipboard.startswith("{") and services.gateways.asked == [("key", "opencode")]
        await pilot.press("j")
        await shows(pilot, "aider.conf", "openai-api-key: YOUR-KEY")


@pytest.fixture
def opencode_file(own_home: Path) -> Path:
    file = Path(os.environ["XDG_CONFIG_HOME"], "opencode/opencode.json")
    file.parent.mkdir(parents=True)
    return file


async def test_enter_starts_the_gateway_and_writes_the_clients_file_and_u_undoes_that(opencode_file: Path) -> None:
    services, file = services_with_gateway(None), opencode_file
    services.newcomer = True
    file.write_text('{\n  // mine\n  "theme": "dark"\n}\n')
    async with on_dashboard(services, notifications=True) as pilot:
        await shows(pilot, "connect your coding agent: o")
        await pilot.press("o")
        await shows(pilot, "No gateway runs yet: Enter starts it", "start the gateway, write opencode.json", "+  ")
        await pilot.press("enter")
        await shows(pilot, "✓ opencode has the settings", "undoes this", "opencode.json.before-gpubox-")
        assert services.gateways.asked == ["start"] and services.hint_ended
        assert "// mine" in file.read_text() and '"model": "gpubox/qwen36-mtp-16gb"' in file.read_text()
        await pilot.press("u")
        await shows(pilot, "is as it was")
        assert file.read_text() == '{\n  // mine\n  "theme": "dark"\n}\n'
        await pilot.press("escape")
        assert "connect your coding agent" not in text(pilot)


async def test_a_broken_file_of_a_client_is_left_alone(opencode_file: Path) -> None:
    file = opencode_file
    file.write_text('{"theme": ')
    async with on_dashboard(services_with_gateway(), notifications=True) as pilot:
        await pilot.press("o")
        await shows(pilot, "a value is expected there", "leaves a broken file as it is", "y copies the settings")
        await pilot.press("enter", "enter")
        await shows(pilot, "leaves a broken file as it is")
    assert file.read_text() == '{"theme": ' and len(list(file.parent.iterdir())) == 1
