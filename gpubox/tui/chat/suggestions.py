"""The list above the prompt box: what can be completed in it, commands behind a slash, files behind an ``@``."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content

from gpubox.agent.files_named import being_named, with_name
from gpubox.concurrency import run_in_thread
from gpubox.tui.actions import Action, slash_actions
from gpubox.tui.styled_lines import StyledLine, sanitize_to_width, shorten, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.views.changes import count

if TYPE_CHECKING:
    from gpubox.agent.events import AgentCommand

ROWS = 12
NAMES_SECONDS = 5.0
"""The names of the workspace are read again after so long."""
TITLE_CELLS, TITLE_CELLS_MAX = 11, 30
NAMES_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One row: what is inserted, and what it does."""

    text: str
    """With a space at its end it is not sent yet: more has to be typed."""
    about: str = ""


def commands(typed: str) -> list[Action]:
    """The commands that begin with ``typed``, then those whose title or other names have it."""
    actions = slash_actions().values()
    begin = [action for action in actions if action.slash.startswith(typed)]
    named = [a for a in actions if a not in begin and len(typed) > 2 and typed in f"{a.title} {a.words}".lower()]
    return begin + named


def agent_commands(typed: str, offered: Sequence[AgentCommand], agent: str) -> list[Suggestion]:
    """Those of a hosted agent that have ``typed``. Where gpubox has a command of this name, ``//`` reaches the agent's.

    Their names are typed: one that is not plain text is left out.
    """
    ours, rows = slash_actions(), []
    for command in offered:
        name = f"{'/' * (command.name in ours)}{command.name}"
        if re.fullmatch(r"[\w.:-]{1,60}", command.name) and typed in name:
            wants = f"{command.hint}: " if command.hint else ""
            about = sanitize_to_width(" ".join(f"{agent}: {wants}{command.description}".split()), 400)
            rows.append(Suggestion(f"/{name}{' ' * bool(command.hint)}", about))
    return rows


def best_names(query: str, names: Sequence[str]) -> list[str]:
    """The names that fit ``query``, the best first."""
    from textual.fuzzy import Matcher

    if not query:
        return list(names[:NAMES_SHOWN])
    letters = re.compile(".*?".join(map(re.escape, query)), re.IGNORECASE)  # a match of all names takes seconds
    fits = [name for name in names if letters.search(name)]
    lowered = query.lower()
    near = heapq.nsmallest(400, fits, key=lambda name: (lowered not in name.lower(), len(name)))
    matcher = Matcher(query)
    return heapq.nsmallest(NAMES_SHOWN, near, key=lambda name: (-matcher.match(name), len(name), name))


class Suggestions(CursorRows[Suggestion], can_focus=False):
    """Shown while there is something to complete. The prompt box keeps the focus and moves the cursor."""

    DEFAULT_CSS = """
    Suggestions {
        display: none; border: round $line-focus; padding: 0 1; border-title-color: $foreground;
        border-subtitle-color: $quiet; box-sizing: content-box;
    }
    """
    KEY = "text"
    CURSOR_STYLES = ("on $cursor", "on $cursor")

    def __init__(
        self, read_names: Callable[[], Awaitable[list[str]]], offered: Callable[[str], list[Suggestion]]
    ) -> None:
        """``read_names`` returns the names of the workspace, ``offered`` a hosted agent's commands that fit a text."""
        super().__init__()
        self._offered = offered
        self._read_names = read_names
        self._names: list[str] = []
        self._names_at = float("-inf")
        self._closed_at = ""
        """The text in which the owner closed the list: it stays closed until he types on."""

    def make_row(self, value: Suggestion, width: int) -> StyledLine:
        if not value.about:
            return styled_line(sanitize_to_width(value.text, width))
        cells = min(TITLE_CELLS_MAX, max(TITLE_CELLS, *(len(each.text) + 2 for each in self.values)))
        about, text = shorten(value.about, max(0, width - cells)), sanitize_to_width(value.text, cells - 1)
        return styled_line((text.ljust(cells), "bold $primary"), (about, "$secondary"))

    def offer(self, text: str, before: str) -> None:
        """Shows what fits the prompt ``text``, of which ``before`` stands before the cursor."""
        if text == self._closed_at:
            return
        self._closed_at = ""
        if before == text and (typed := re.fullmatch(r"/(/?[^\s/]*)", text)):
            ours = [Suggestion(f"/{action.slash}", action.title) for action in commands(typed[1])]
            rows = ours + self._offered(typed[1])
            self._show(
                "command", sorted(rows, key=lambda row: (row.text.strip() != text, not row.text.startswith(text)))
            )
        elif (query := being_named(before)) is not None:
            self.run_worker(self._offer_names(query), exclusive=True)
        else:
            self.close()

    async def _offer_names(self, query: str) -> None:
        if time.monotonic() - self._names_at > NAMES_SECONDS:
            self._names = await self._read_names()
            self._names_at = time.monotonic()
        names = await run_in_thread(best_names, query, self._names)
        self._show("file", [Suggestion(name) for name in names])

    def _show(self, noun: str, suggestions: list[Suggestion]) -> None:
        self.border_title, self.border_subtitle = Content(count(len(suggestions), noun)), "tab completes  esc closes"
        self.display = bool(suggestions)
        self.styles.height = min(ROWS, max(1, self.app.size.height // 3), max(1, len(suggestions)))
        self.cursor = 0
        self.show_values(tuple(suggestions))
        self.move_cursor(0)

    def close(self, text: str = "") -> None:
        """Hides the list; ``text``: the owner closed it while the prompt was this."""
        self.workers.cancel_node(self)
        self._closed_at, self.display = text, False

    def completed(self, before: str) -> str:
        """``before`` with the row under the cursor instead of what was typed."""
        if not (value := self.value):
            return before
        return value.text if value.about else with_name(before, value.text)
