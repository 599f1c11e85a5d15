"""What of the sentences on the screen cannot be read: cut, left out, or below the end of a widget that does not scroll.

A sentence says a state, a reason, a verdict or a hint. Names, paths, figures and command lines may be cut.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static, TextArea

from gpubox.tui import styled_lines
from gpubox.tui.base_screen import KeyBar
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import StyledLines

SMALL_WORDS = set(re.findall(r"\w+", """
    a an and are as at because been but by can cannot for from has have in is it its more no none not nothing of on or
    so than that the then there they this to until was what when which while will with you your
"""))  # fmt: skip
Cut = tuple[str, str]
"""A text, and what of it (or of its line) stands on the screen."""
CUTS: deque[Cut] = deque(maxlen=4000)


def plain(line: StyledLine) -> str:
    return "".join(text for text, _ in line)


def is_sentence(text: str) -> bool:
    """Whether ``text`` is prose: at least four words, and one of them is none of a name."""
    words = re.findall(r"(?<![\w./_-])[a-z’']+(?![\w/_-])", text.lower())
    return len(words) >= 4 and bool(SMALL_WORDS & set(words))


def record_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all that cuts a text says so."""
    CUTS.clear()

    def truncate_line(line: StyledLine, width: int) -> StyledLine:
        shown = truncate(line, width)
        if shown is not line and plain(shown) != plain(line):
            CUTS.extend((text, last(plain(shown))) for text, _ in line if text not in plain(shown))
        return shown

    def sanitize_to_width(text: str | None, width: int) -> str:
        return one(text or "", to_width(text, width))

    def shorten(text: str, width: int) -> str:
        return one(text, short(text, width))

    def one(text: str, shown: str) -> str:
        if shown.endswith("…") and not text.endswith("…"):
            CUTS.append((text, last(shown)))
        return shown

    def fit_by_priority(parts: Any, width: int, gap: str = styled_lines.GAP) -> StyledLine:
        line = fit(parts, width, gap)
        CUTS.extend((plain(part), plain(line)) for _, part in parts if part and plain(part) not in plain(line))
        return line

    def strip(self: StyledLines, line: StyledLine, width: int, base: str = "") -> Any:
        if cell_len(plain(line).rstrip()) > width:
            CUTS.append((plain(line), plain(line)[:width].rstrip()))
        return made(self, line, width, base)

    truncate, to_width, short, fit, made = (
        styled_lines.truncate_line, styled_lines.sanitize_to_width, styled_lines.shorten, styled_lines.fit_by_priority,
        StyledLines.strip,
    )  # fmt: skip
    monkeypatch.setattr(StyledLines, "strip", strip)
    everywhere(monkeypatch, truncate, truncate_line)
    everywhere(monkeypatch, to_width, sanitize_to_width)
    everywhere(monkeypatch, short, shorten)
    everywhere(monkeypatch, fit, fit_by_priority)


def everywhere(monkeypatch: pytest.MonkeyPatch, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("gpubox.tui") and getattr(module, old.__name__, None) is old:
            monkeypatch.setattr(module, old.__name__, new)


def last(shown: str) -> str:
    """The end of what is shown: it identifies the place."""
    return shown.strip()[-24:]


def unread(pilot: Pilot[Any], strips: list[Strip]) -> list[str]:
    """The sentences that cannot be read on the screen, which consists of ``strips``.

    A row of a list has one line. What is cut there must stand whole beside it, or below, while the cursor is on it.
    """
    widgets = [each for each in pilot.app.screen.query("*") if each.is_on_screen and not each.displayed_children]
    texts, looked_at = [], []
    for widget in widgets:
        x, y, width, height = widget.region
        rows = [strip.crop(x, x + width).text for strip in strips[y : y + height]]
        texts.append(squeezed(" ".join(rows)))
        if isinstance(widget, CursorRows):
            at = widget.content_region.y - y + widget.cursor - widget.scroll_offset.y
            rows = rows[at : at + 1] if widget.values else rows
        elif isinstance(widget, OptionList) and widget.highlighted is not None:
            at = widget.content_region.y - y + widget.highlighted - widget.scroll_offset.y
            rows = rows[at : at + 1]
        looked_at += rows
    found = [text for text, shown in CUTS if is_sentence(text) and shown and any(shown in row for row in looked_at)]
    for widget in widgets:
        found += filter(is_sentence, below_the_end(widget))
    return [text for text in dict.fromkeys(found) if not any(squeezed(text) in whole for whole in texts)]


def squeezed(text: str) -> str:
    """``text`` without frames and scroll bars, with single spaces."""
    return " ".join(re.sub("[│╭╮╰╯─▁▂▃▄▅▆▇█]", " ", text).split())


def below_the_end(widget: Widget) -> list[str]:
    """The rows of a widget that no scrolling brings into view."""
    if not widget.is_on_screen or not isinstance(widget, StyledLines | Static | KeyBar):
        return []
    if any(node.max_scroll_y > 0 for node in widget.ancestors_with_self if isinstance(node, Widget)):
        return []
    height = widget.content_region.intersection(widget.screen.find_widget(widget).clip).height
    if isinstance(widget, StyledLines):
        return [plain(line) for line in widget.drawn[height:]]
    content = widget.render()
    wrapped = content.wrap(max(1, widget.content_size.width)) if hasattr(content, "wrap") else []
    return [line.plain for line in wrapped[height:]]


def covered(pilot: Pilot[Any]) -> list[Widget]:
    """Inputs, and what has the focus, where a message lies over them."""
    screen = pilot.app.screen
    bars = [bar.region for bar in screen.query(KeyBar) if bar.notices]
    kept = [widget for widget in screen.query("*") if isinstance(widget, Input | TextArea) or widget is screen.focused]
    return [widget for widget in kept if widget.is_on_screen and any(bar.overlaps(widget.region) for bar in bars)]
