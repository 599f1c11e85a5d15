"""The command palette: the verbs of the registry, and one line for each profile."""

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
    """Finds verbs and profiles by any letters of their name."""

    def _all(self) -> Iterator[tuple[str, str, Callable[[], None]]]:
        app = cast("GpuboxApp", self.app)
        for verb in ACTIONS:
            if verb.palette:
                yield verb.title, f"{verb.shown}  {verb.help}", partial(app.action_verb, verb.id)
        yield "Change the colours", "Another theme for this session", app.search_themes
        for entry in app.entries:
            if entry.profile:
                title = f"Switch to {sanitize_line(entry.name)}"
                yield title, sanitize_line(entry.words), partial(app.choose, entry)

    async def discover(self) -> Hits:
        for title, text, call in self._all():
            if not title.startswith("Switch to ") or title == ACTIONS[0].title:
                yield DiscoveryHit(Content(title), call, text=title, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, text, call in self._all():
            if (score := matcher.match(title)) > 0:
                yield Hit(score, matcher.highlight(title), call, text=title, help=text)
