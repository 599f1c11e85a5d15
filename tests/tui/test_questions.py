"""Questions: all answers can be read, and nothing is downloaded or opened unasked."""

from __future__ import annotations

from dataclasses import replace

from gpubox.errors import GpuboxError
from gpubox.planner.plan import DevicePlan, MemoryPlan
from gpubox.tui.dialogs import QuestionScreen
from tests.tui.conftest import app_of, choose, on_dashboard, settled, shows, text, until
from tests.tui.fake import BUSY, FakeServices


async def test_every_answer_can_be_read_also_while_it_is_highlighted(fake: FakeServices) -> None:
    answers = (("n", "keep it", "no"), ("y", "stop it", "yes"), ("c", "leave it", "cancel"))
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        app.push_screen(QuestionScreen("Stop?", "It answers.", *answers))
        await shows(pilot, "keep it")
        for _ in answers:
            await pilot.press("down")
            await settled(pilot)  # says what cannot be read


async def test_a_download_is_asked_for_with_its_size_its_place_and_the_room_there(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "demo")
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
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "demo")
        await shows(pilot, "(50 MB free)", "too little space")
        await pilot.press("d", "enter")
        await until(pilot, lambda: "too little space" not in text(pilot))
        assert not fake.asked


async def test_an_unknown_download_size_is_shown_as_unknown(fake: FakeServices) -> None:
    fake.download_plan = replace(fake.download_plan, size_bytes=None, free_bytes=None)
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "demo")
        await shows(pilot, "Download the model?", "Its size is not known.", "download it, then switch demo")


async def test_a_profile_that_would_not_fit_is_asked_about(fake: FakeServices) -> None:
    fake.short["qwen36-256k"] = GpuboxError(
        "qwen36-256k would not fit: short by 2.1 GiB on CUDA0.", "It would with n-cpu-moe=22."
    )
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "qwen36-256k")
        await shows(pilot, "short by 2.1 GiB on CUDA0", "n-cpu-moe=22", "start it anyway")
        await pilot.press("enter")  # the first answer is the safe one
        await until(pilot, lambda: "short by" not in text(pilot))
        assert not fake.asked

        await pilot.press("enter")
        await shows(pilot, "start it anyway")
        await pilot.press("a")
        await until(pilot, lambda: [asked[1] for asked in fake.asked] == ["qwen36-256k"])


async def test_the_list_says_what_would_not_fit(fake: FakeServices) -> None:
    device = DevicePlan("CUDA0", "gpu", 20 << 30, 0, 0, 0, 0, 0, free_bytes=16 << 30)
    fake.planned["qwen36-256k"] = MemoryPlan("qwen36-256k", (device,), "formula")
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "short by 4.0 GiB")


async def test_after_a_download_memory_and_running_requests_are_asked_about(fake: FakeServices) -> None:
    fake.status = BUSY
    fake.short["demo"] = GpuboxError("demo would not fit: short by 2.1 GiB on CUDA0.", "")
    async with on_dashboard(fake) as pilot:
        await choose(pilot, "demo")
        await shows(pilot, "download it, then switch demo")
        await pilot.press("d")
        await shows(pilot, "short by 2.1 GiB on CUDA0")
        assert fake.asked == [("fetch", "demo")]
        await pilot.press("a")
        await shows(pilot, "is busy")
        await pilot.press("n")
        await until(pilot, lambda: fake.asked[-1] == ("switch", "demo", True, False))
        assert fake.anyway

        fake.absent.add("demo")
        await choose(pilot, "demo")
        await shows(pilot, "download it, then switch demo")
        await pilot.press("d")
        await shows(pilot, "short by 2.1 GiB on CUDA0")
        await pilot.press("n")
        await shows(pilot, "The model is downloaded; nothing else was changed.")


async def test_a_question_may_be_closed_before_it_is_shown(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        for _ in range(3):
            pilot.app.push_screen(QuestionScreen("Sure?", "", ("n", "no", "no")))
            pilot.app.pop_screen()
        await settled(pilot)
        assert pilot.app.screen is app_of(pilot).dashboard
