"""The line under the dashboard's header: what happens; while nothing does, the most urgent advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.content import Content

from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import QUIET
from gpubox.tui.widgets.lines import StatusLines

if TYPE_CHECKING:
    from gpubox.advisor.advisor import AdviceList
    from gpubox.gateway.gateway_status import GatewayStatus
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.operation_progress import OperationProgress

NEXT = (Content.assemble(("→ ", "$accent"), "connect your coding agent: ", ("o", "bold $primary"), "   ",
                         ("esc", "bold $primary"), (" hides this", "$quiet")),)  # fmt: skip
LEAST_ROWS = 16
"""With fewer rows there is none for advice."""


class StatusOrAdvice(StatusLines):
    """Shows phrases; without phrases the most urgent advice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._happening: tuple[Content, ...] = ()
        self._judged: AdviceList | None = None
        self.hint: tuple[Content, ...] = ()
        """What to do next; behind what happens, in place of advice."""

    def show(self, phrases: Sequence[Content]) -> None:
        self._happening = tuple(phrases)
        self._show()

    def show_hint(self, hint: tuple[Content, ...]) -> None:
        """Shows or removes the hint."""
        self.hint = hint
        self._show()

    def show_advice(self, judged: AdviceList | None) -> None:
        """Shows another advice, if nothing happens."""
        self._judged = judged
        self._show()

    def _show(self) -> None:
        super().show((*self._happening, *self.hint) or self._advice())

    def _advice(self) -> tuple[Content, ...]:
        if self._judged is None or self.app.size.height < LEAST_ROWS:
            return ()
        return advice_phrases(self._judged)

    def on_resize(self, event: events.Resize) -> None:
        self._show()
        super().on_resize(event)


def advice_phrases(judged: AdviceList) -> tuple[Content, ...]:
    """The most urgent advice, and how many more there are; empty if there is none."""
    shown = judged.shown
    if not shown:
        return ()
    first, more = shown[0], f"+{len(shown) - 1} more  " if len(shown) > 1 else ""
    word = ("→ ", "$accent"), (sanitize_line(first.word), "bold")
    return (
        Content.assemble(*word, "  ", (sanitize_line(first.sentence), QUIET)),
        Content.styled(f"{more}the menu (x) says why", QUIET),
    )


def status_phrases(
    overview: ServerOverview | None, operation: OperationProgress | None, gateway: GatewayStatus | None, trial: str, *,
    read_only: bool,
) -> list[Content]:  # fmt: skip
    """What happens: the trial, else what the gateway does, and the last operation or why nothing runs.

    A later crash is more important than the operation.
    """
    if trial:
        return [Content.assemble(("◌ ", "$accent"), sanitize_line(trial))]
    changing = operation is not None and not operation.ended
    gateway_acts = gateway is not None and bool(gateway.operations)
    phrases = _gateway_phrases(gateway, changing)
    if operation and (changing or not (gateway_acts or (overview and _is_outdated(operation, overview)))):
        from gpubox.tui.operation_progress import progress_parts

        return [*phrases, *progress_parts(operation)]
    status = overview.status if overview else None
    if status and status.operation and not gateway_acts:
        phrases.append(Content.assemble(("◌ ", "$accent"), "another gpubox: ", sanitize_line(status.operation)))
    if status and status.message:
        failed = status.state in ("crashed", "error", "unreachable")
        glyph = ("✗ ", "$error") if failed else ("○ ", "$quiet")
        phrases.append(Content.assemble(glyph, sanitize_line(status.message)))
        if overview and status.state == "crashed" and overview.last_profile and not read_only:
            phrases.append(Content.styled(f"r starts {sanitize_line(overview.last_profile)} again", "$accent"))
            if "out of VRAM" in status.message:
                phrases.append(Content.styled("t on its row tries it smaller", "$accent"))
    return phrases


def _gateway_phrases(gateway: GatewayStatus | None, changing: bool) -> list[Content]:
    """That the gateway holds all requests, and what it does to a server for whom."""
    phrases = []
    if gateway and gateway.paused:
        loud = (" ▐▐ PAUSED ", "bold reverse $warning")
        phrases.append(
            Content.assemble(loud, (" the gateway holds all requests; its menu (5, x) resumes it", "$warning"))
        )
    for operation in gateway.operations if gateway and not changing else ():
        from gpubox.tui.clients.client_lines import operation_text, step_text

        phrases.append(Content.assemble(("◌ ", "$accent"), "gateway: ", (operation_text(operation), "bold")))
        phrases.append(Content.styled(step_text(operation), "$quiet"))
    return phrases


def _is_outdated(operation: OperationProgress, overview: ServerOverview) -> bool:
    """Whether the server's state changed after the operation ended."""
    status = overview.status
    if status.state == "crashed" or status.operation:
        return True
    answered = operation.succeeded and operation.finished is not None and operation.finished.answering is not None
    return answered and status.state == "stopped" and bool(status.message)
