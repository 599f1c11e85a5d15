"""Messages cover neither a prompt box nor what has the focus, and all of them can be read; so can each sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from gpubox.paths import Paths
from gpubox.tui import bridge
from gpubox.tui import styled_lines as lines
from gpubox.tui.app import GpuboxApp
from gpubox.tui.messages import UndoStep
from tests.bench_runs import speed_run
from tests.tui.conftest import SIZES, app_of, on_dashboard, pictured, rendered, settled, shows, until, whole
from tests.tui.fake import BUSY, FakeServices
from tests.tui.fake_bench import BenchServices
from tests.tui.fake_chat import ChatServices, FakeChats
from tests.tui.test_polling import Slow
from tests.tui.whole import CUTS, covered, is_sentence, squeezed

SHORT = "The gateway is stopped."
LONG = (
    "What ran before a trial could not be restored: the port 8081 is taken by another program, so nothing was started. "
    * 2
)


def read(pilot: Pilot[bool], message: str) -> bool:
    return message.strip() in squeezed(" ".join(strip.text for strip in rendered(pilot)))


@pytest.mark.parametrize("size", SIZES)
async def test_messages_cover_nothing_and_are_whole(size: str) -> None:
    async with on_dashboard(ChatServices(FakeChats()), size=SIZES[size], notifications=True) as pilot:
        app = app_of(pilot)
        for screen in ("dashboard", "chat"):
            app.action_show(screen)
            await until(pilot, lambda: app.screen.focused)
            height = app.screen.focused.region.height if app.screen.focused else 0
            for message in (SHORT, LONG):
                app.say(message)
                await until(pilot, lambda: read(pilot, message), message)  # noqa: B023
                await settled(pilot)
                assert not covered(pilot)
                assert message is LONG or screen == "chat" or app.screen.focused.region.height == height  # type: ignore[union-attr]
                app.clear_notifications()
                await until(pilot, lambda: not read(pilot, message))  # noqa: B023


SMALL = "80x24"
"""The size at which the menu, the palette and the first frame are pictures, too."""
OVER: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "help": (("question_mark",), ("^p lists",)),
    "menu": (("x",), ("⏎ or its key runs it", "Benchmarks")),
    "palette": (("ctrl+p",), ("Switch to the highlighted",)),
    "stop": (("s",), ("The request will be", "keep it running")),
    "restart": (("r",), ("is busy", "The last load took 12.4 s", "come back")),
    "plan": (("3", "n"), ("Plan a run", "45 measurements")),
    "measure": (("b",), ("Measure qwen36-mtp-16gb?",)),
}
"""What opens over a screen: the keys that open it, and texts that stand there then."""


@pytest.mark.parametrize("scene", OVER)
@pytest.mark.parametrize("size", SIZES)
async def test_what_opens_over_a_screen_is_whole(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, paths: Paths, size: str, scene: str
) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    speed_run(paths)
    services, (keys, expected) = BenchServices(paths), OVER[scene]
    services.status = replace(BUSY, load_seconds=12.4)
    async with on_dashboard(services, size=SIZES[size]) as pilot:
        for key in keys:
            await pilot.press(key)
            app = app_of(pilot)
            await until(pilot, lambda: key != "3" or (app.bench and app.bench.rows.has_focus))  # noqa: B023
        await shows(pilot, *expected)
        if size == SMALL and scene in ("menu", "palette"):
            await pictured(pilot, snapshot)
        await settled(pilot)
        whole(pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_frame_is_whole(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(bridge, "FIRST_FIGURES_SECONDS", 3600.0)
    slow = Slow()
    async with GpuboxApp(slow).run_test(size=SIZES[size]) as pilot:
        await shows(pilot, "big was answering", "18.9 tok/s")
        if size == SMALL:
            await pictured(pilot, snapshot)
        await settled(pilot)
        whole(pilot)
        slow.may_sample.set()
        slow.may_read.set()


@pytest.mark.parametrize("size", SIZES)
async def test_undo_is_seen_where_there_is_something_to_undo(fake: FakeServices, size: str) -> None:
    fake.undo = [UndoStep("back to qwen36-256k (ran before)", "qwen36-256k", runs=True)]
    async with on_dashboard(fake, size=SIZES[size]) as pilot:
        await shows(pilot, "u undo" if size == SMALL else "u back to qwen36-256k")


def test_what_cuts_a_sentence_is_seen() -> None:
    for text, prose in (
        ("r starts it again", True), ("more than the card has", True), ("qwen36-mtp-16gb-stock", False),
        ("70.2 tok/s now", False), ("/models/a/b/of/the/box.gguf", False),
    ):  # fmt: skip
        assert is_sentence(text) is prose, text
    line = lines.styled_line("the server died, and nothing was started")
    CUTS.clear()
    assert lines.wrap_parts([line], 20) and not CUTS
    lines.truncate_line(line, 20)
    lines.sanitize_to_width(line[0][0], 21)
    lines.shorten(line[0][0], 22)
    lines.fit_by_priority([(2, lines.styled_line("tg 70 tok/s")), (1, line)], 23)
    assert [text for text, _ in CUTS] == [line[0][0]] * 4
