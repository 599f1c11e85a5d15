"""A run's events on stderr: a line redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from gpubox import units
from gpubox.bench.events import (
    BenchEvent,
    FlagRaised,
    ItemFinished,
    ItemProgress,
    ItemStarted,
    Note,
    RunEnded,
    RunStarted,
    TargetServerEvent,
)
from gpubox.cli import diagnostics
from gpubox.cli.operations import OperationOutput

PLAIN_LINE_SECONDS = 10.0
"""How often a plain line says how far it is."""


class RunProgressOutput:
    """Shows one run."""

    def __init__(self) -> None:
        self.live = diagnostics.stderr_is_terminal()
        self._server = OperationOutput()
        self._line, self._left = "", ""
        self._said = time.monotonic()
        self._flags: set[tuple[str, str]] = set()

    def __call__(self, event: BenchEvent) -> None:
        match event:
            case RunStarted(run=run, done=done):
                goes_on = f", {done} of them done" if done else ""
                self._tell(f"run {run.id}: {run.items} items{goes_on}; Ctrl-C stops, `gpubox bench resume` goes on")
            case TargetServerEvent(event=inner):
                self._server(inner)
            case Note(text=text):
                self._tell(f"  {text}")
            case FlagRaised(flag=flag):
                if (flag.kind, flag.text) not in self._flags:  # the report counts them
                    self._flags.add((flag.kind, flag.text))
                    self._tell(f"  ! {flag.kind}: {flag.text}" + (f"  ({flag.item})" if flag.item else ""))
            case ItemStarted(item=item, number=number, total=total):
                self._line = f"  {number}/{total}  {item.id}{self._left}"
                self._draw("")
            case ItemProgress(text=text):
                self._draw(text)
            case ItemFinished():
                self._finished(event)
            case RunEnded():
                self._draw("", end=True)

    def _finished(self, event: ItemFinished) -> None:
        going_on = event.seconds_left and event.done < event.total
        self._left = f"  ~{units.duration(event.seconds_left)} left" if going_on else ""
        self._line = f"  {event.done}/{event.total}  {event.headline}{self._left}"
        if not event.result.ok and not event.result.skipped:
            self._tell(f"  ✗ {event.item.id}  {event.result.error}")
        self._draw("")
        now = time.monotonic()
        if not self.live and (now - self._said >= PLAIN_LINE_SECONDS or event.done == event.total):
            self._said = now
            diagnostics.note(self._line)

    def _draw(self, text: str, *, end: bool = False) -> None:
        if self.live:
            diagnostics.redraw("" if end else f"{self._line}  {text}")

    def _tell(self, text: str) -> None:
        if self.live:
            diagnostics.redraw("")
        diagnostics.note(text)
