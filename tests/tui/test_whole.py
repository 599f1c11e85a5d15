"""Messages cover neither a prompt box nor what has the focus, and all of them can be read; so can each sentence."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gpubox.tui import styled_lines as lines
from tests.tui.conftest import SIZES, app_of, on_dashboard, rendered, settled, until
from tests.tui.fake_chat import ChatServices, FakeChats
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
