"""The line under the dashboard's header: what happens; while nothing does, the most urgent advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.content import Content

from gpubox.tui.widgets.status_lines import StatusLines

if TYPE_CHECKING:
    from gpubox.advisor.advisor import AdviceList

LEAST_ROWS = 16
"""With fewer rows there is none for advice."""


class StatusOrAdvice(StatusLines):
    """Shows phrases; without phrases one calm line of advice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._happening: tuple[Content, ...] = ()
        self._judged: AdviceList | None = None

    def show(self, phrases: Sequence[Content]) -> None:
        self._happening = tuple(phrases)
        self._show()

    def show_advice(self, judged: AdviceList | None) -> None:
        """Shows another advice, if nothing happens."""
        self._judged = judged
        self._show()

    def _show(self) -> None:
        super().show(self._happening or self._advice())

    def _advice(self) -> tuple[Content, ...]:
        if self._judged is None or self.app.size.height < LEAST_ROWS:
            return ()
        from gpubox.tui.advice.lines import advice_line

        line = advice_line(self._judged, (self.content_size.width or self.app.size.width - 2))
        return (Content.assemble(*line),) if line else ()

    def on_resize(self, event: events.Resize) -> None:
        self._show()
        super().on_resize(event)
