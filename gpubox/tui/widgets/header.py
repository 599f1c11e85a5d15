"""The one line that answers: what runs, is it well, where, and who can reach it."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from gpubox.sanitize import sanitize_line
from gpubox.tui.formatting import shorten
from gpubox.tui.glyphs import STATES
from gpubox.tui.messages import ServerOverview

GAP = "   "
CARD, READINGS, LOST = 15, 45, 97
AT_RIGHT = (CARD, READINGS, LOST)
"""Importance of the card's name and of its readings, which stand at the right beside the clock."""
STRONG = 90
"""From this importance on a part never gives way."""
NAMES = (30, 18, 12, 6, 0)
"""Cells of the profile's name, the narrower the terminal."""
LIVE_STATES = {"prefill", "thinking", "sleeping", "stuck"}
"""States of the moment that say more than ``ready`` and ``answering``."""
_BUILD = re.compile(r"\(build ([1-9]\d*)")


class StatusHeader(Widget):
    """One row. What matters least gives way first when the terminal is narrow; the exposure never does."""

    DEFAULT_CSS = "StatusHeader { height: 1; }"

    now: reactive[ServerOverview | None] = reactive(None)
    clock: reactive[str] = reactive("")
    note: reactive[str] = reactive("")
    """``attached, read only`` where gpubox does not own what it shows."""
    bench: reactive[str] = reactive("")
    """A run of a benchmark is at work: the traffic is (also) its."""
    activity: reactive[str] = reactive("")
    """What the server does, where that says more than its state."""
    cards: reactive[tuple[tuple[str, str], ...]] = reactive(())
    """Name and readings of the card: text and style."""
    stale: reactive[bool] = reactive(False)

    def render(self) -> RenderResult:
        width = self.size.width
        parts = next((found for cells in NAMES if _length(_strong(found := self._parts(cells))) <= width), None)
        parts = parts or _strong(self._parts(None))
        while len(parts) > 1 and _length(parts) + len(self.clock) + len(GAP) > width:
            weakest = min(range(len(parts)), key=lambda i: parts[i][0])
            if parts[weakest][0] >= STRONG:
                break
            del parts[weakest]
        at_right = [content for weight, content in parts if weight in AT_RIGHT]
        left = Content(GAP).join([content for weight, content in parts if weight not in AT_RIGHT])
        right = Content(GAP).join([*at_right, Content.styled(self.clock, "$quiet")])
        if left.cell_length + right.cell_length + 1 > width:
            return Content(GAP).join([left, *at_right]).truncate(width, ellipsis=True)
        return left.pad_right(width - left.cell_length - right.cell_length) + right

    def _parts(self, name_cells: int | None) -> list[tuple[int, Content]]:
        """Every part with its importance; the name in at most ``name_cells``, ``None``: neither name nor state."""
        parts = [(20, Content.styled("gpubox", "bold $primary"))]
        if self.now is None:
            return [*parts, (90, Content.styled("· looking", "$quiet"))]
        status = self.now.status
        glyph, colour, _ = STATES.get(status.state, ("?", "$warning", ""))
        model = PurePath(status.model_path or "").name
        name = status.profile or (model if self.note else "")
        word = status.state
        if status.up and self.activity in LIVE_STATES:
            from gpubox.tui.dashboard.throughput import STATES as STATES_NOW

            word = self.activity
            glyph, colour, _ = STATES_NOW[word]
        said: list[Any] = [(glyph, colour)]
        if name and name_cells:
            said += [" ", (shorten(sanitize_line(name), name_cells), "bold")]
        if name_cells is not None:
            said += [" ", (sanitize_line(word), colour)]
        parts.append((99, Content.assemble(*said)))
        if self.note:
            parts.append((95, Content.styled(self.note, "$accent")))
        if self.bench:
            parts.append((92, Content.styled(f"▶ {sanitize_line(self.bench)}", "$accent")))
        if status.profile and model:
            parts.append((10, Content.styled(shorten(sanitize_line(model), 36), "$quiet")))
        if status.engine_version:
            parts.append((30, Content.styled(_engine(status.engine_path, status.engine_version), "$quiet")))
        if status.base_url:
            parts.append((60, Content(sanitize_line(status.base_url.removeprefix("http://")))))
        if status.exposed:
            colour = "$error" if "no key" in status.exposed else "$warning"
            parts.append((98, Content.assemble(("▲ ", colour), (status.exposed, f"bold {colour}"))))
        if self.now.companions:
            parts.append((40, Content.styled(f"+ {sanitize_line(', '.join(self.now.companions))}", "$success")))
        if self.cards:
            dim = " dim" if self.stale else ""
            card, *readings = [(text, f"{style}{dim}".strip()) for text, style in self.cards]
            parts.append((CARD, Content.assemble(card)))
            if readings:
                weight = LOST if any("LOST" in text for text, _ in readings) else READINGS
                parts.append((weight, Content("  ").join([Content.assemble(reading) for reading in readings])))
        return parts


def _engine(path: str | None, version: str) -> str:
    """``llama-server b11434``: the binary's name and the build; the version where it was built without one."""
    name = PurePath(path or "").name.split(".")[0]
    build = _BUILD.search(version)
    shown = f"b{build[1]}" if build else version.split(" (")[0].removeprefix(name).strip()
    return sanitize_line(f"{name} {shown}".strip())


def _strong(parts: list[tuple[int, Content]]) -> list[tuple[int, Content]]:
    return [part for part in parts if part[0] >= STRONG]


def _length(parts: list[tuple[int, Content]]) -> int:
    return sum(content.cell_length for _, content in parts) + len(GAP) * (len(parts) - 1)
