"""The form that plans a run: kind, profile and options, what the run will do, and the equivalent command."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from gpubox.bench.kind import BenchOption
from gpubox.bench.kinds import all_kinds
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.bench.bench_runs import bench_words
from gpubox.tui.dialogs import Dialog, ask
from gpubox.tui.widgets.form import CycleField, FormRow

if TYPE_CHECKING:
    from gpubox.bench.report.model import RunSummary
    from gpubox.tui.bench.bench_runs import BenchRuns

OUTLINE_DELAY = 0.4
"""Seconds after the last change before the outline is read, because that starts a process."""
PROFILE, SECOND = "profile", "second"
"""The rows that choose one of the owner's profiles."""


@dataclass(frozen=True, slots=True)
class PlanField:
    """One row of the form: a choice if it has ``choices``, else a text."""

    name: str
    label: str
    about: str
    choices: tuple[tuple[str, str], ...] = ()
    """Values and their labels; the first is the default."""
    empty: str = ""
    """Placeholder of an empty text field."""
    option: BenchOption | None = None
    """The option of the command line; ``None`` for a profile."""


def plan_fields(name: str) -> list[PlanField]:
    """The rows of one kind: the profiles that it takes, then its options."""
    kind = all_kinds()[name]
    rows = [row for argument in kind.arguments for row in argument.rows]
    fields = [PlanField(key, label, about) for key, (label, about) in zip((PROFILE, SECOND), rows, strict=False)]
    options = [option for option in kind.options if option.in_form]
    return fields + [PlanField(o.label, o.label, o.help, o.choices, o.default or o.example, o) for o in options]


def plannable_kinds(*, url: bool = False) -> list[str]:
    """The kinds that have a form; with ``url`` only those that measure a server by its address."""
    return [kind.name for kind in all_kinds().values() if kind.takes_url or not url]


def bench_arguments(kind: str, values: Mapping[str, str], url: str | None = None) -> list[str]:
    """The arguments of ``gpubox bench``. With ``url`` they measure the server there instead of a profile."""
    arguments = [kind]
    for field in plan_fields(kind):
        value = values.get(field.name, "").strip()
        option = field.option
        if option is None:
            if url and field.name == PROFILE:
                arguments += ["--url", url]
            elif value and not url:
                arguments.append(value)
        elif value and option.type == "switch":
            arguments.append(value)
        elif value:
            for part in value.split() if option.repeated else [value]:
                arguments += [f"--{option.name}", part]
    return arguments


def bench_command_line(arguments: Sequence[str]) -> str:
    """The command line that does the same in a terminal."""
    return shlex.join(["gpubox", *bench_words(arguments)])


async def ask_longer_plan(app: App[Any], runs: BenchRuns, arguments: Sequence[str], run: RunSummary) -> str | None:
    """After the first sentence of a quick run, of ``arguments``: the preset of a longer plan, with the form's time."""
    from gpubox.bench.compare.words import about_time
    from gpubox.bench.kinds.speed.speed_report import LONGER_PRESETS

    if not run.headline:
        return None
    target = arguments[1 : arguments.index("--preset")]
    plans = [["speed", *target, *(["--preset", name] if name else [])] for name in LONGER_PRESETS]
    outlines = await asyncio.gather(*map(runs.outline, plans))
    rows = [
        (str(n), f"{name or 'all depths'}, about {about_time(outline.seconds or 0)}", f"plan-{name}")
        for n, (name, outline) in enumerate(zip(LONGER_PRESETS, outlines, strict=True), 1)
    ]
    body = f"{sanitize_line(run.headline)}.\n\nA longer plan tells more. A row opens it; nothing starts yet."
    answer = await ask(app, "Measured", body, ("n", "that is enough", "no"), *rows) or "no"
    return None if answer == "no" else answer.removeprefix("plan-")


class PlanScreen(Dialog[list[str] | None]):
    """Returns the arguments of ``gpubox bench``, or ``None`` for esc."""

    DEFAULT_CSS = """
    PlanScreen > Vertical { width: 88; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; }
    PlanScreen #fields { height: auto; }
    PlanScreen #summary { color: $quiet; height: 1; margin-bottom: 1; }
    PlanScreen #outline { height: auto; min-height: 3; margin-top: 1; }
    PlanScreen #command { height: auto; color: $quiet; margin-top: 1; }
    """
    BINDINGS = [  # noqa: RUF012
        ("enter,ctrl+s", "accept", "Start"),
        ("down", "app.focus_next", "Next"),
        ("up", "app.focus_previous", "Previous"),
    ]

    def __init__(
        self, runs: BenchRuns, profiles: Sequence[str], active: str, tokens_per_second: float | None, *,
        kind: str = "", profile: str = "", preset: str = "",
    ) -> None:  # fmt: skip
        """``active``: the running profile; ``tokens_per_second``: what its server generates.

        ``kind``, ``profile`` and ``preset`` are chosen first, if there are such.
        """
        super().__init__()
        self.runs, self.profiles, self.active = runs, list(profiles), active
        self.tokens_per_second, self.preset = tokens_per_second, preset
        kinds = plannable_kinds(url=bool(runs.url))
        self.first_profile = next((name for name in (profile, active) if name in self.profiles), "")
        self.kind = CycleField("kind", [(name, name) for name in kinds], kind if kind in kinds else kinds[0])
        self.summary = Static("", id="summary", markup=False)
        self.outline, self.command = Static("", id="outline", markup=False), Static("", id="command", markup=False)
        self.fields = Vertical(id="fields")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "Plan a run", "⏎ starts the run, esc cancels"
            yield FormRow("kind", self.kind)
            yield self.summary
            yield self.fields
            yield self.outline
            yield self.command

    async def on_mount(self) -> None:
        self.set_focus(self.kind)  # Widget.focus() takes effect a moment later, and the first arrow key would be lost
        await self._show_kind()

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``gpubox bench`` that the form describes."""
        values = {row.field.name or "": row.field.value for row in self.fields.query(FormRow)}
        return bench_arguments(self.kind.value, values, self.runs.url)

    async def _show_kind(self) -> None:
        kind = self.kind.value
        self.summary.update(all_kinds()[kind].summary)
        self.outline.update(Content.styled("the run is being planned …", "$quiet"))  # not what the other kind does
        await self.fields.remove_children()
        await self.fields.mount(*(
            FormRow(field.label, self._input(field), field.about)
            for field in plan_fields(kind)
            if not (self.runs.url and field.name == SECOND)
        ))  # fmt: skip
        self._changed()

    def _input(self, field: PlanField) -> CycleField | Input:
        profiles = [(name, name) for name in self.profiles]
        if field.name == PROFILE and self.runs.url:
            return CycleField(field.name, [("", self.runs.url)], "")
        if field.name == PROFILE:
            choices = profiles or [("", "none")]
            return CycleField(field.name, choices, self.first_profile or choices[0][0])
        if field.name == SECOND:
            return CycleField(field.name, [("", "none"), *profiles], "")
        if field.choices:
            preset = self.preset if any(self.preset == value for value, _ in field.choices) else field.choices[0][0]
            return CycleField(field.name, field.choices, preset)
        return Input(name=field.name, placeholder=field.empty, compact=True, classes="value")

    @on(CycleField.Changed)
    async def _cycled(self, event: CycleField.Changed) -> None:
        event.stop()
        if event.field is self.kind:
            await self._show_kind()
        else:
            self._changed()

    @on(Input.Changed)
    def _changed(self) -> None:
        self.command.update(bench_command_line(self.arguments))
        self.run_worker(self._show_outline(self.arguments), group="outline", exclusive=True)

    @on(Input.Submitted)
    def action_accept(self) -> None:
        self.dismiss(self.arguments)

    async def _show_outline(self, arguments: list[str]) -> None:
        await asyncio.sleep(OUTLINE_DELAY)
        # The speed is known only for the running server.
        planned = [field.value for field in self.fields.query(CycleField) if field.name == PROFILE]
        known = self.runs.url or planned == [self.active]
        try:
            outline = await self.runs.outline(arguments)
        except GpuboxError as error:
            self.outline.update(Content.styled(sanitize_line(str(error)), "$warning"))
        else:
            sentences = outline.sentences(self.tokens_per_second if known else None)
            self.outline.update(Content(" ".join(sentences)))
