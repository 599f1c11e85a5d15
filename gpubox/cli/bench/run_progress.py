"""The progress of a benchmark run on stderr: one line redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from gpubox.bench import events
from gpubox.bench.compare.words import about_time
from gpubox.bench.report.formatting import item_words
from gpubox.cli import diagnostics
from gpubox.cli.operations import OperationOutput

PLAIN_LINE_SECONDS = 10.0
"""The interval of progress lines where stderr is not a terminal."""


class RunProgressOutput:
    """Prints the events of one run."""

    def __init__(self) -> None:
        self._server = OperationOutput()
        self._line, self._seconds_left = "", ""
        self._last_line_at = time.monotonic()
        self._doubts: set[tuple[str, str]] = set()

    def __call__(self, event: events.BenchEvent) -> None:
        match event:
            case events.RunStarted(run=run, done=done):
                already = f", {done} of them done" if done else ""
                items = f": {run.items} measurements{already}" if run.items else ""  # known with the first item
                diagnostics.note(f"run {run.id}{items}; Ctrl-C stops it, `gpubox bench resume` continues")
            case events.TargetServerEvent(event=server_event):
                self._server(server_event)
            case events.Note(text=text):
                diagnostics.note(f"  {text}")
            case events.DoubtRaised(doubt=doubt):
                if (doubt.kind, doubt.text) not in self._doubts:  # the report counts repeats
                    self._doubts.add((doubt.kind, doubt.text))
                    diagnostics.note(
                        f"  ! {doubt.kind}: {doubt.text}" + (f"  ({item_words(doubt.item)})" if doubt.item else "")
                    )
            case events.ItemStarted(item=item, number=number, total=total):
                self._line = f"  {number}/{total}  {item_words(item.id)}{self._seconds_left}"
                diagnostics.redraw(self._line)
            case events.ItemProgress(text=text):
                diagnostics.redraw(f"{self._line}  {text}")
            case events.ItemFinished():
                self._item_finished(event)
            case events.RunEnded():
                diagnostics.redraw("")

    def _item_finished(self, event: events.ItemFinished) -> None:
        left = event.seconds_left if event.done < event.total else None
        self._seconds_left = f"  about {about_time(left)} left" if left else ""
        self._line = f"  {event.done}/{event.total}  {event.headline}{self._seconds_left}"
        if not event.result.ok and not event.result.skipped:
            diagnostics.note(f"  ✗ {item_words(event.item.id)}  {event.result.error}")
        diagnostics.redraw(self._line)
        now = time.monotonic()
        if not diagnostics.stderr_is_terminal() and (
            now - self._last_line_at >= PLAIN_LINE_SECONDS or event.done == event.total
        ):
            self._last_line_at = now
            diagnostics.note(self._line)
