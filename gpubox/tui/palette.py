"""The command palette: the actions, and one line for each profile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpubox.tui.app import GpuboxApp


class ActionProvider(Provider):
    """Finds actions and profiles by any letters of their name."""

    def _commands(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        app = cast("GpuboxApp", self.app)
        for action in ACTIONS:
            if action.palette:
                yield action.title, f"{action.key_label}  {action.help}", partial(app.action_run_by_id, action.id)
        yield "Change the colours", "Choose another theme for this session", app.search_themes
        for entry in app.entries:
            if entry.profile:
                title = f"Switch to {sanitize_line(entry.name)}"
                yield title, sanitize_line(entry.summary), partial(app.choose, entry)

    async def discover(self) -> Hits:
        for title, text, call in self._commands():
            if not title.startswith("Switch to ") or title == ACTIONS[0].title:
                yield DiscoveryHit(Content(title), call, text=title, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, text, call in self._commands():
            if (score := matcher.match(title)) > 0:
                yield Hit(score, matcher.highlight(title), call, text=title, help=text)
