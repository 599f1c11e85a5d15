"""Whatever fails behind the screen, the screen says so in one line and goes on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from textual.widget import Widget

from gpubox.tui import bridge, survival
from gpubox.tui.app import GpuboxApp
from gpubox.tui.services import LocalServices
from gpubox.tui.survival import STORM, SurvivingApp
from tests.sampling import sampled
from tests.tui.conftest import SIZE, app_of, on_dashboard, opened, shows, until
from tests.tui.fake import STOPPED, FakeServices

SERVICES = [
    name
    for name, value in inspect.getmembers(LocalServices, inspect.isfunction)
    if not name.startswith("_") and name not in ("close", "save_traceback") and hasattr(FakeServices, name)
]
"""Everything that the screen asks of the services."""
KEYS = ("j", "k", "enter", "escape", "c", "escape", "b", "escape", "m", "escape", "s", "escape", "r", "escape", "e",
        "escape", "f", "x", "escape", "l", "escape", "v", "escape", "g", "escape", "C", "escape", "question_mark",
        "escape")  # fmt: skip
"""Keys of the dashboard that start something."""


class Unforeseen(Exception):
    """What no code expects."""


@pytest.fixture(autouse=True)
def saved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tracebacks that were kept."""
    saved: list[str] = []
    monkeypatch.setattr(FakeServices, "save_traceback", lambda self, text: saved.append(text))
    monkeypatch.setattr(SurvivingApp, "survives", True)
    monkeypatch.setattr(bridge, "RETRY_SECONDS", 0.05)
    return saved


@pytest.mark.parametrize("name", sampled(SERVICES, share=0.01))
async def test_a_service_that_fails_ends_nothing(
    fake: FakeServices, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*args: object, **more: object) -> Any:
        raise Unforeseen("[b]\x1b[2J \ud800")

    async with on_dashboard(fake, notifications=True) as pilot:
        app = app_of(pilot)
        for service in (type(fake), fake):
            monkeypatch.setattr(service, name, fails, raising=False)
        for key in KEYS:
            await pilot.press(key)
            assert app.is_running and not app.crash
    assert not app.crash


async def test_a_poller_begins_again(fake: FakeServices, saved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "read_log", lambda: [][1])
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "A part of the screen failed: IndexError")
        assert "IndexError" in saved[0]
        monkeypatch.setattr(fake, "read_log", lambda: ["a line of the log"])
        await until(pilot, lambda: app.dashboard.log_pane.line_count)
        assert len(app._notifications) == 1


async def test_what_keeps_failing_is_said_again(
    fake: FakeServices, saved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "read_log", lambda: [][1])
    monkeypatch.setattr(survival, "SAY_AGAIN_SECONDS", 0.1)
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: len(saved) > 1)


@pytest.mark.parametrize("place", ["handler", "worker", "timer", "action", "drawing", "callback"])
async def test_wherever_it_is_raised(
    fake: FakeServices, saved: list[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fails(*args: object, **more: object) -> Any:
        raise Unforeseen("here")

    async def works() -> None:
        fails()

    async with on_dashboard(fake, notifications=True) as pilot:
        app = app_of(pilot)
        pane = app.dashboard.profiles
        if place == "handler":
            monkeypatch.setattr(app.dashboard, "show_overview", fails)
            fake.status = STOPPED
        elif place == "worker":
            app.bridge.run(works, "anything")
        elif place == "timer":
            app.set_timer(0.01, fails)
        elif place == "action":
            monkeypatch.setattr(app, "action_help", fails)
            await pilot.press("question_mark")
        elif place == "drawing":
            with monkeypatch.context() as patch:
                patch.setattr(Widget, "render_line", fails)
                patch.setattr(type(pane), "render_line", fails, raising=False)
                pane.refresh()
                await until(pilot, lambda: saved)
        else:
            pane.call_after_refresh(fails)
        await until(pilot, lambda: saved)
        assert "Unforeseen" in saved[0]
        await shows(pilot, "A part of the screen failed: Unforeseen: here.")
        await pilot.press("j")
        assert app.is_running
    assert not app.crash


async def test_a_storm_of_exceptions_ends_the_screen(fake: FakeServices) -> None:
    app = GpuboxApp(fake)
    with pytest.raises(Unforeseen):
        async with app.run_test(size=SIZE) as pilot:
            await opened(pilot)
            for _ in range(STORM):
                app._handle_exception(Unforeseen())
    assert "Unforeseen" in app.crash
