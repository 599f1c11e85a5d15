"""Readings that change, become stale or stop: the screen shows it and recovers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpubox.hardware.gpu import DriverReading
from gpubox.tui import app as app_module
from gpubox.tui.app import GpuboxApp
from tests.tui.conftest import SIZE, app_of, on_dashboard, opened, shows, text, until
from tests.tui.fake import BUSY, READY, FakeServices
from tests.tui.snapshots import ANSWERING, CARD, snapshot


async def test_a_card_lost_in_mid_answer(fake: FakeServices) -> None:
    fake.status = BUSY
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "70.2 tok/s", "64°C")
        lost = replace(CARD, lost=True, lost_at="2026-11-21T13:01:52.000Z")
        fake.reading = replace(snapshot(BUSY), driver=DriverReading((lost,)))
        await shows(
            pilot,
            "✗ GPU 0 LOST at 13:01:52",
            "look in `dmesg` for Xid",
            "last readings  64°C, 142 W, 54% busy",
            "70.2 tok/s",
        )
        assert "✗ GPU LOST" in text(pilot).splitlines()[0]
        fake.reading = snapshot(BUSY)
        await until(pilot, lambda: "LOST" not in text(pilot) and "64°C" in text(pilot))


async def test_old_readings_are_dim(fake: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        pane = app.dashboard.snapshot_panes[0]
        await until(pilot, lambda: pane.drawn)
        assert not any("dim" in style for row in pane.drawn for _, style in row)
        monkeypatch.setattr(app_module, "STALE_SECONDS", -1.0)
        app._tick()
        await until(pilot, lambda: all("dim" in style for row in pane.drawn for _, style in row))
        monkeypatch.setattr(app_module, "STALE_SECONDS", 1e9)
        app._tick()
        await until(pilot, lambda: not any("dim" in s for row in pane.drawn for _, s in row))


async def test_a_problem_with_a_reading_is_shown(fake: FakeServices) -> None:
    fake.extra_readings = {"problems": ("the server asks for a key that gpubox does not have",)}
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "! the server asks for a key that gpubox does not have")


async def test_requests_that_wait_are_counted(fake: FakeServices) -> None:
    fake.status = BUSY
    fake.extra_readings = {"throughput": replace(ANSWERING, queued_requests=3)}
    async with on_dashboard(fake, size=(80, 24)) as pilot:
        await shows(pilot, "slots 1 of 1 busy  ◌ 3 queued")


async def test_numbers_are_not_drawn_while_the_dashboard_is_hidden(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("question_mark")
        await shows(pilot, "Help")
        before = app.dashboard.throughput.rendered
        fake.status = replace(BUSY, pid=READY.pid)
        await until(pilot, lambda: app.bridge.poller.pending is None and app.dashboard._undrawn)
        assert app.dashboard.throughput.rendered == before
        await pilot.press("escape")
        await shows(pilot, "70.2 tok/s")


async def test_readings_that_did_not_change_draw_nothing(fake: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        fake.reading = snapshot(READY)
        await opened(pilot)
        drawn: list[object] = []
        compositor = app.dashboard._compositor
        update = compositor.render_update

        def counting_update(*args: Any, **kwargs: Any) -> Any:
            drawn.append(1)
            return update(*args, **kwargs)

        monkeypatch.setattr(compositor, "render_update", counting_update)
        rendered = [pane.rendered for pane in app.dashboard.snapshot_panes]

        fake.eager, asked = True, len(fake.asked_now)
        await until(pilot, lambda: len(fake.asked_now) > asked + 20)

        assert (drawn, [pane.rendered for pane in app.dashboard.snapshot_panes]) == ([], rendered)


async def test_one_changed_number_draws_its_row_and_no_other(fake: FakeServices) -> None:
    fake.status = BUSY
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        fake.reading = snapshot(BUSY)
        await opened(pilot)
        rendered = [pane.rendered for pane in app.dashboard.snapshot_panes]

        fake.reading = snapshot(BUSY, throughput=replace(ANSWERING, tg_median=55.5))
        await shows(pilot, "usual 55.5")

        assert [
            pane.rendered - before for pane, before in zip(app.dashboard.snapshot_panes, rendered, strict=True)
        ] == [0, 0, 1]
