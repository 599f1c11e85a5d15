"""Questions: all answers can be read, and nothing is downloaded or opened unasked."""

from __future__ import annotations

from dataclasses import replace

from gpubox.tui.app import GpuboxApp
from gpubox.tui.dialogs import QuestionScreen
from tests.tui.conftest import SIZE, opened, settled, shows, text, until
from tests.tui.fake import FakeServices


async def test_every_answer_can_be_read_also_while_it_is_highlighted(fake: FakeServices) -> None:
    app = GpuboxApp(fake)
    answers = (
        ("n", "keep it", "no"),
        ("y", "stop it", "yes"),
        ("c", "leave it", "cancel"),
    )
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        app.push_screen(QuestionScreen("Stop?", "It answers.", *answers))
        await shows(pilot, "keep it")
        for _ in answers:
            await pilot.press("down")
            await settled(pilot)  # says what cannot be read


async def test_a_download_is_asked_for_with_its_size_its_place_and_the_room_there(fake: FakeServices) -> None:
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        app.dashboard.profiles.highlight("profile:demo")
        await pilot.press("enter")
        await shows(
            pilot, "Download 98 MB?", "demo:smollm2 is not on this machine yet", "~/.cache/gpubox/models (54.0 GB free)"
        )
        await pilot.press("enter")  # the first answer is the safe one
        await until(pilot, lambda: "Download 98 MB?" not in text(pilot))
        assert not fake.asked

        await pilot.press("enter")
        await shows(pilot, "Download 98 MB?")
        await pilot.press("d")
        await until(pilot, lambda: [asked[:2] for asked in fake.asked] == [("fetch", "demo"), ("switch", "demo")])


async def test_a_download_that_does_not_fit_is_not_offered(fake: FakeServices) -> None:
    fake.download_plan = replace(fake.download_plan, free_bytes=50_000_000)
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        app.dashboard.profiles.highlight("profile:demo")
        await pilot.press("enter")
        await shows(pilot, "(50 MB free)", "too little space")
        await pilot.press("d", "enter")
        await until(pilot, lambda: "too little space" not in text(pilot))
        assert not fake.asked


async def test_an_unknown_download_size_is_shown_as_unknown(fake: FakeServices) -> None:
    fake.download_plan = replace(fake.download_plan, size_bytes=None, free_bytes=None)
    app = GpuboxApp(fake)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        app.dashboard.profiles.highlight("profile:demo")
        await pilot.press("enter")
        await shows(pilot, "Download the model?", "Its size is not known.", "download it, then switch demo")
