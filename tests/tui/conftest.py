"""The screen under test: no personal files, no animation, a fixed clock, fast polling."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pytest_textual_snapshot import SVGImageExtension, normalize_svg  # type: ignore[import-untyped]
from syrupy.assertion import SnapshotAssertion
from textual import _wait
from textual.pilot import Pilot
from textual.strip import Strip

from gpubox.bench import stats
from gpubox.tui import app, bridge
from gpubox.tui.dashboard import history, screen
from gpubox.tui.survival import SurvivingApp
from gpubox.tui.widgets import lines
from tests.sampling import once
from tests.tui.contrast import unreadable
from tests.tui.fake import FakeServices
from tests.tui.whole import record_cuts, unread

SIZE = (120, 36)
BETWEEN = (160, 45)
"""A size without stored pictures: there only what must be whole is looked at."""
SIZES = {"80x24": (80, 24), "120x36": SIZE, "160x45": BETWEEN, "200x50": (200, 50)}
MEAN = once(stats.mean_over_prompts)
"""The pictures show the same few runs again and again: each is drawn from once."""


@pytest.fixture(autouse=True)
def _quiet(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in (
        "PROFILES_POLL_SECONDS", "LOG_PAUSE_SECONDS", "SNAPSHOT_SECONDS", "IDLE_SNAPSHOT_SECONDS",
        "ACTIVITY_CHECK_SECONDS",
    ):  # fmt: skip
        monkeypatch.setattr(bridge, name, 0.01)
    monkeypatch.setattr(bridge, "COMPANIONS_SECONDS", 0.0)
    monkeypatch.setattr(SurvivingApp, "survives", False)
    monkeypatch.setattr(bridge, "GATEWAY_SECONDS", 0.01)
    monkeypatch.setattr(bridge, "NO_GATEWAY_SECONDS", 0.01)
    monkeypatch.setattr(bridge, "FIRST_ADVICE_SECONDS", 0.01)
    monkeypatch.setattr(bridge, "ADVICE_SECONDS", 0.01)
    monkeypatch.setattr(app, "PREVIEW_DELAY", 0.0)
    monkeypatch.setattr(stats, "mean_over_prompts", MEAN)
    monkeypatch.setattr(history, "FIRST_SLOWDOWNS_SECONDS", 0.0)
    monkeypatch.setattr(history, "TYPING_SECONDS", 0.0)
    monkeypatch.setattr(screen, "STEADY_SECONDS", 0.0)
    # What is drawn must not depend on how long a loaded machine took: old readings, and panes that shrink later.
    monkeypatch.setattr(app, "STALE_SECONDS", float("inf"))
    monkeypatch.setattr(lines, "SHRINK_DRAWS", 0)
    # The pilot would wait until the process is idle: a loaded machine looks idle, and a busy one never is. Tests poll.
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", 0.002)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", float("inf"))
    record_cuts(monkeypatch)


@pytest.fixture
def fake() -> FakeServices:
    return FakeServices()


def app_of(pilot: Pilot[bool]) -> app.GpuboxApp:
    """The app under test, with its own type."""
    assert isinstance(pilot.app, app.GpuboxApp)
    return pilot.app


async def until(pilot: Pilot[bool], true: Callable[[], object], what: str = "") -> None:
    """Returns as soon as ``true`` is; fails after a minute."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never came: {what or true}\n{text(pilot)}")


async def shows(pilot: Pilot[bool], *expected: str) -> None:
    """Returns when all of ``expected`` stand on the screen."""
    await until(pilot, lambda: on_screen(pilot, *expected), f"{expected}")
    assert not unreadable(rendered(pilot))  # checked on every screen of every test


async def opened(pilot: Pilot[bool]) -> None:
    """Returns when the dashboard has everything it shows at start."""
    screen = app_of(pilot).dashboard
    await until(pilot, lambda: screen.header.overview, "a status")
    await until(
        pilot,
        lambda: screen.profiles.entry and all(e.compatibility or not e.profile for e in screen.profiles.rows.values),
    )
    await until(
        pilot,
        lambda: (entry := screen.profiles.entry) and (not entry.profile or screen.detail.preview),
        "the engine's answer",
    )
    await settled(pilot)


async def highlight(pilot: Pilot[bool], name: str) -> None:
    """Highlights a profile of the dashboard."""
    profiles = app_of(pilot).dashboard.profiles
    profiles.highlight(f"profile:{name}")
    await until(pilot, lambda: profiles.entry and profiles.entry.name == name, name)


async def act(pilot: Pilot[bool], *actions: str) -> None:
    """Runs actions that have no key, as the menu and the palette do."""
    for action in actions:
        await app_of(pilot)._run_by_id(action)


async def choose(pilot: Pilot[bool], name: str) -> None:
    """Highlights a profile and presses Enter."""
    if pilot.app.size.width < 100:  # the list is a key away
        await pilot.press("p")
    await highlight(pilot, name)
    await until(pilot, lambda: app_of(pilot).dashboard.detail.preview)
    await pilot.press("enter")


@asynccontextmanager
async def on_dashboard(
    services: FakeServices, *, size: tuple[int, int] = SIZE, notifications: bool = False
) -> AsyncIterator[Pilot[bool]]:
    """The screen of these services, with everything that the dashboard shows at start."""
    async with app.GpuboxApp(services).run_test(size=size, notifications=notifications) as pilot:
        await opened(pilot)
        yield pilot


async def settled(pilot: Pilot[bool]) -> None:
    """Returns when the screen no longer changes."""
    await pilot.pause(0)
    pilot.app.screen.refresh(layout=True)  # what is shown is what a layout of now makes of it
    last: list[Strip] = []
    same = 0
    while same < 3:
        await pilot.pause(0)  # until every widget has handled what was sent to it
        strips = rendered(pilot)
        same = same + 1 if strips == last else 0
        last = strips
    assert not unreadable(last)


def _stored(wanted: SnapshotAssertion) -> str | None:
    place = Path(wanted.extension.get_location(test_location=wanted.test_location, index=wanted.index))
    return normalize_svg(place.read_text(encoding="utf-8")) if place.exists() else None


async def pictured(pilot: Pilot[bool], snapshot: SnapshotAssertion) -> None:
    """Returns when the screen equals the stored picture; fails if it settles on another, or if a sentence is cut."""
    if pilot.app.size == BETWEEN:
        await settled(pilot)
        whole(pilot)
        return
    wanted = snapshot.use_extension(SVGImageExtension)
    stored = None if wanted.update_snapshots else _stored(wanted)
    limit = time.monotonic() + 20
    while True:
        await settled(pilot)
        picture = pilot.app.export_screenshot(title="gpubox", simplify=True)
        # Settled is a guess: what comes from a thread or after a timer may be late where the machine is slow.
        if stored == normalize_svg(picture) or time.monotonic() > limit:
            break
        if stored is None:  # a new picture has nothing to be compared with but itself, a while later
            stored = normalize_svg(picture)
            await asyncio.sleep(0.5)
        elif wanted.update_snapshots:
            stored = None
        else:
            await asyncio.sleep(0.05)
    whole(pilot)
    assert picture == wanted


def whole(pilot: Pilot[bool]) -> None:
    """Fails if a sentence on the screen is cut."""
    lost = unread(pilot, rendered(pilot))
    assert not lost, "cut:\n" + "\n".join(lost)


def rendered(pilot: Pilot[bool]) -> list[Strip]:
    """The lines on the screen. Costs more than all else that a test does."""
    return pilot.app.screen._compositor.render_strips()


def text(pilot: Pilot[bool]) -> str:
    """The text on the screen."""
    return "\n".join(strip.text for strip in rendered(pilot))


def on_screen(pilot: Pilot[bool], *expected: str) -> bool:
    """Whether all of ``expected`` stand on the screen now, also where a sentence is wrapped: paths differ in length."""
    shown = text(pilot)
    wrapped = re.sub(r"[\s│]+", " ", shown)
    return all(word in shown or word in wrapped for word in expected)


def place(pilot: Pilot[bool], expected: str) -> tuple[int, int]:
    """Column and row at which ``expected`` stand on the screen."""
    for y, row in enumerate(text(pilot).splitlines()):
        if (x := row.find(expected)) >= 0:
            return x, y
    raise AssertionError(f"not on the screen: {expected}")


async def drag(pilot: Pilot[bool], first: str, last: str) -> None:
    """Selects with the mouse from the start of ``first`` to the end of ``last``."""
    await settled(pilot)
    x, y = place(pilot, last)
    await pilot.mouse_down(offset=place(pilot, first))
    await pilot.hover(offset=(x + len(last) - 1, y))
    await pilot.mouse_up(offset=(x + len(last) - 1, y))
