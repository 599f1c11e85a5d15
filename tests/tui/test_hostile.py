"""Text that others wrote is shown, never obeyed: titles, log lines, model names, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from gpubox.errors import UsageError
from gpubox.sanitize import sanitize_line, sanitize_paragraph
from gpubox.tui.styled_lines import block_bar, shorten
from gpubox.tui.survival import SanitizeFilter
from tests.hostile_text import ATTACKS
from tests.tui.conftest import SIZE, app_of, on_dashboard, shows, text, until
from tests.tui.fake import MINE, READY, FakeServices

HOSTILE = "[/foo] [INFO] [b]x[/b] \x1b[31mred\x1b[0m \x07\u202eevil\u200b $error [@click=app.quit]"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "red"),
        ("a\x1b]52;c;eHg=\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("a\x1b]0;never\x1b[3", "a␛␛"),
        ("a\tb", "a    b"),
        ("two\nlines\r", "two lines"),
        ("100 %\rgone", "100 %␍gone"),
        ("\x9b31mred", "red"),
        ("\u202eabc\u2066", "�abc�"),
        ("\udc80", "�"),
        ("größe 模型", "größe 模型"),
    ],
)
def test_plain(raw: str, shown: str) -> None:
    assert sanitize_line(raw) == shown


def test_paragraph_keeps_its_lines() -> None:
    assert sanitize_paragraph("one\ntwo\x1b") == "one\ntwo␛"


@pytest.mark.parametrize("raw", [*ATTACKS, HOSTILE, "plain ┃ 模型 👩\u200d💻"])
def test_a_line_that_a_view_forgot_to_clean_is_harmless_and_as_wide(raw: str) -> None:
    before = [Segment("│ "), Segment(raw.replace("\n", " "), Style(bold=True)), Segment(" │")]
    after = SanitizeFilter().apply(before, Color(0, 0, 0))
    text = "".join(segment.text for segment in after)
    assert not [char for char in text if not char.isprintable() and char not in "\u200c\u200d"]
    assert cell_len(text) == cell_len("".join(segment.text for segment in before))
    assert [segment.style for segment in after] == [segment.style for segment in before]


def test_short_cuts_at_words() -> None:
    assert shorten("needs a fork: cache-type-k", 15) == "needs a fork…"
    assert shorten("unbreakable", 6) == "unbre…"
    assert shorten("fits", 4) == "fits"


def test_bar_stays_in_its_cells() -> None:
    assert [block_bar(share, 4) for share in (-1, 0, 0.5, 1, 9)] == ["░░░░", "░░░░", "▓▓░░", "▓▓▓▓", "▓▓▓▓"]


async def test_everywhere_on_the_screen(fake: FakeServices) -> None:
    fake.profiles = [replace(MINE, title=HOSTILE, description=HOSTILE, model=HOSTILE, source=HOSTILE)]
    fake.broken = {"bad": UsageError(f"~/bad.toml: {HOSTILE}")}
    fake.new_models = [Path("/models/[$@click]\x1b[2J [b].gguf")]
    fake.status = replace(READY, profile="[/foo]", message=HOSTILE, model_path=f"/m/{HOSTILE}", engine_version=HOSTILE)
    fake.lines = [HOSTILE, f"0.00.001.000 E {HOSTILE}", "\x1b[2J" * 100]
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: app.dashboard.log_pane.line_count == 3)
        for _ in range(3):
            await shows(pilot, "[/foo]", "red")
            shown = text(pilot)
            assert not any(ord(char) < 32 and char != "\n" for char in shown)
            assert "\u202e" not in shown
            assert all(len(line) <= SIZE[0] for line in shown.splitlines())
            await pilot.press("j")
        await pilot.press("l", "slash", *"[INFO]")
        await until(pilot, lambda: "match" in str(app.dashboard.log_pane.border_subtitle))
        await pilot.press("escape", "y")
        assert app.is_running


async def test_hostile_answers_in_questions_and_toasts(fake: FakeServices) -> None:
    fake.status = replace(READY, profile="[/foo]\x1b[31m")
    async with on_dashboard(fake, notifications=True) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: "Stop [/foo]?" in text(pilot))
        await pilot.press("escape", "r")
        await until(pilot, lambda: "The profile [/foo] is no longer in the list" in text(pilot))
