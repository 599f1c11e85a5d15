"""A run as a form: kind, profile, options; what it will do; the command that does the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpubox.bench.benchmark import KINDS
from gpubox.bench.options import KIND_SUMMARIES
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.bench.form import (
    PLAN_FIELDS,
    PROFILE,
    SECOND,
    PlanField,
    bench_arguments,
    bench_command_line,
    plannable_kinds,
)

if TYPE_CHECKING:
    from gpubox.tui.bench.service import BenchService

OUTLINE_DELAY = 0.4
"""After the last change: a plan is asked of gpubox in another process."""


class OptionCycle(Static, can_focus=True):
    """A value out of a few: space and the arrows go on."""

    class Turned(Message):
        """Another value."""

    def __init__(self, name: str, choices: Sequence[tuple[str, str]], at: int = 0) -> None:
        super().__init__(markup=False, classes="value")
        self.field, self.choices, self.at = name, list(choices), at
        self._show()

    @property
    def value(self) -> str:
        return self.choices[self.at][0] if self.choices else ""

    def _show(self) -> None:
        word = sanitize_line(self.choices[self.at][1]) if self.choices else "none"
        self.update(Content.assemble(("‹ ", "$quiet"), word, (" ›", "$quiet")))

    def turn(self, by: int) -> None:
        """Goes on by so many."""
        if self.choices:
            self.at = (self.at + by) % len(self.choices)
            self._show()
            self.post_message(self.Turned())

    def on_key(self, event: events.Key) -> None:
        if event.key in ("space", "right", "left"):
            event.stop()
            self.turn(-1 if event.key == "left" else 1)

    def on_click(self) -> None:
        self.turn(1)


class PlanScreen(ModalScreen[list[str] | None]):
    """Returns the words of ``gpubox bench``; ``None`` for esc."""

    DEFAULT_CSS = """
    PlanScreen { align: center middle; background: $background 60%; }
    PlanScreen > Vertical {
        width: 88; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet;
    }
    PlanScreen Horizontal { height: 1; }
    PlanScreen #rows { height: auto; }
    PlanScreen .label { width: 12; color: $secondary; }
    PlanScreen .value { width: 35; height: 1; background: $line; margin-right: 1; padding: 0 1; }
    PlanScreen Static.value, PlanScreen .about { text-wrap: nowrap; text-overflow: ellipsis; }
    PlanScreen .value:focus { background: $cursor; text-style: bold; }
    PlanScreen .about { width: 1fr; color: $quiet; }
    PlanScreen #kind { color: $quiet; height: 1; margin-bottom: 1; }
    PlanScreen #outline { height: auto; min-height: 3; margin-top: 1; }
    PlanScreen #command { height: auto; color: $quiet; margin-top: 1; }
    """
    BINDINGS = [  # noqa: RUF012
        ("escape", "dismiss(None)", "Cancel"),
        ("enter,ctrl+s", "take", "Begin"),
        ("down", "app.focus_next", "Next"),
        ("up", "app.focus_previous", "Previous"),
    ]

    def __init__(self, service: BenchService, profiles: Sequence[str], active: str, rate: float | None) -> None:
        """``rate``: tok/s of what runs."""
        super().__init__()
        self.rate = rate
        self.service, self.profiles, self.active = service, list(profiles), active
        self.kind = OptionCycle("kind", [(kind, kind) for kind in plannable_kinds(list(KINDS), url=bool(service.url))])
        self.about = Static("", id="kind", markup=False)
        self.outline, self.line = Static("", id="outline", markup=False), Static("", id="command", markup=False)
        self.rows = Vertical(id="rows")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "Plan a run", "⏎ begins, esc leaves it"
            with Horizontal():
                yield Static("kind", classes="label", markup=False)
                yield self.kind
            yield self.about
            yield self.rows
            yield self.outline
            yield self.line

    async def on_mount(self) -> None:
        self.set_focus(self.kind)  # not Widget.focus(), which waits a turn: the first arrow would only come here
        await self._lay_out()

    @property
    def words(self) -> list[str]:
        """What stands in the form."""
        turned = {one.field: one.value for one in self.rows.query(OptionCycle)}
        written = {one.name or "": one.value for one in self.rows.query(Input)}
        return bench_arguments(self.kind.value, turned | written, self.service.url)

    async def _lay_out(self) -> None:
        kind = self.kind.value
        self.about.update(KIND_SUMMARIES[kind])
        await self.rows.remove_children()
        await self.rows.mount(
            *(self._row(row) for row in PLAN_FIELDS[kind] if not (self.service.url and row.name == SECOND))
        )
        self._changed()

    def _row(self, row: PlanField) -> Horizontal:
        value: OptionCycle | Input
        if row.name == PROFILE:
            names = [(name, name) for name in self.profiles] if not self.service.url else [("", self.service.url)]
            at = self.profiles.index(self.active) if self.active in self.profiles and not self.service.url else 0
            value = OptionCycle(row.name, names, at)
        elif row.name == SECOND:
            value = OptionCycle(row.name, [("", "none"), *((name, name) for name in self.profiles)])
        elif row.choices:
            value = OptionCycle(row.name, row.choices)
        else:
            value = Input(name=row.name, placeholder=row.empty, compact=True, classes="value")
        return Horizontal(
            Static(row.label, classes="label", markup=False), value, Static(row.about, classes="about", markup=False)
        )

    @on(OptionCycle.Turned)
    async def _turned(self, event: OptionCycle.Turned) -> None:
        event.stop()
        if event._sender is self.kind:
            await self._lay_out()
        else:
            self._changed()

    @on(Input.Changed)
    def _changed(self) -> None:
        self.line.update(bench_command_line(self.words))
        self.run_worker(self._ask(self.words), group="outline", exclusive=True)

    @on(Input.Submitted)
    def action_take(self) -> None:
        self.dismiss(self.words)

    def _rate(self) -> float | None:
        """Of the profile that is planned for: only that of the one that runs is known."""
        chosen = [row.value for row in self.rows.query(OptionCycle) if row.field == PROFILE]
        return self.rate if self.service.url or chosen == [self.active] else None

    async def _ask(self, words: list[str]) -> None:
        await asyncio.sleep(OUTLINE_DELAY)
        try:
            said = Content(" ".join((await self.service.outline(words)).sentences(self._rate())))
        except GpuboxError as error:
            said = Content.styled(sanitize_line(str(error)), "$warning")
        self.outline.update(said)
