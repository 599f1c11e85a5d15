"""The form that plans a run: kind, profile and options, what the run will do, and the equivalent command."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.bench.report_pane import KIND_SUMMARIES
from gpubox.tui.widgets.form import CycleField, FormRow

if TYPE_CHECKING:
    from gpubox.bench.plan_outline import PlanOutline
    from gpubox.tui.bench.service import BenchService

OUTLINE_DELAY = 0.4
"""Seconds after the last change before the outline is read, because that starts a process."""
OUTLINE_STARTS = 4
"""Server starts that the outline names."""
PROFILE, SECOND = "profile", "second"
"""Fields whose choices are the user's profiles."""


@dataclass(frozen=True, slots=True)
class PlanField:
    """One row of the form: a cycle field if it has ``choices``, otherwise a text field."""

    name: str
    label: str
    about: str
    option: str = ""
    """Option of the command line; empty: an argument. With a ``*`` at the end it is repeated for each word."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and their labels; the first is the default."""
    empty: str = ""
    """What an empty text field means."""


_PROFILE = PlanField(PROFILE, "profile", "what is measured")
_SET = PlanField("set", "--set", "as n-cpu-moe=20 mmap=false", "--set*", empty="as the profile has them")
PLAN_FIELDS: dict[str, tuple[PlanField, ...]] = {
    "speed": (
        _PROFILE,
        PlanField("preset", "protocol", "what is asked, how often", "--preset", (
            ("", "short to long, code, depths"), ("quick", "quick: short and code"),
            ("game", "game: 2,000 tokens, ten times"), ("lengths", "lengths: 128, 512, 2,048"),
            ("chat", "chat: 50 prompts, three seeds"),
        )),
        PlanField("depths", "depths", "tokens before the question", "--depths", empty="0,8192,32768"),
        PlanField("repeats", "repeats", "of each cell", "--repeats", empty="5"),
        PlanField("starts", "starts", "of each server", "--starts", empty="1"),
        PlanField("max-tokens", "max-tokens", "whatever the prompt", "--max-tokens", empty="as the prompt has it"),
        PlanField("llama-bench", "llama-bench", "the engine's own rows", "", (("", "where it is there"),
            ("--no-llama-bench", "left out"))),
    ),
    "ab": (
        PlanField(PROFILE, "A", "the one side"),
        PlanField(SECOND, "B", "none: A with a change"),
        _SET,
        PlanField("vary", "change", "one thing, on and off", "--vary", (
            ("", "none"), ("mtp", "MTP"), ("mmap", "mmap"), ("thinking", "thinking"), ("completion", "/v1/completions"),
        )),
        PlanField("starts", "starts", "of each side at most", "--starts", empty="6"),
        PlanField("prompts", "prompts", "of each domain", "--prompts", empty="4; 10 of one server"),
        PlanField("max-tokens", "max-tokens", "of each answer", "--max-tokens", empty="128"),
    ),
    "sweep": (
        _PROFILE,
        PlanField("over", "--over", "as n-cpu-moe=16..28:2", "--over*", empty="a flag and its values"),
        _SET,
        PlanField("by", "best at", "the number that counts", "--by",
            (("", "tg"), ("pp", "pp"), ("effective", "effective"))),
        PlanField("starts", "starts", "of each compared cell", "--starts", empty="4"),
        PlanField("finalists", "finalists", "compared after one start", "--finalists", empty="4"),
        PlanField("prompts", "prompts", "of each domain", "--prompts", empty="3"),
        PlanField("max-tokens", "max-tokens", "of each answer", "--max-tokens", empty="64"),
    ),
    "soak": (_PROFILE, PlanField("minutes", "minutes", "of an agent's load", "--minutes", empty="15")),
    "humaneval": (
        _PROFILE,
        PlanField("mode", "mode", "how each problem is asked", "--mode", (
            ("", "vanilla: as lm-eval"), ("chat", "chat: one answer"), ("agentic", "agentic: five rounds"),
            ("all", "all three, compared"),
        )),
        PlanField("limit", "problems", "of 164", "--limit", empty="164"),
        PlanField("parallel", "at a time", "problems in flight", "--parallel", empty="1"),
    ),
    "suite": (
        _PROFILE,
        PlanField("repeat", "repeats", "of each task; their mean", "--repeat", empty="1"),
        PlanField("max-tokens", "max-tokens", "of one answer", "--max-tokens", empty="4096; thinking: 8192"),
        PlanField("compat", "totals", "how they are made", "",
            (("", "of all tasks"), ("--compat", "as the article's"))),
    ),
}  # fmt: skip
"""By kind."""
URL_KINDS = {"speed", "soak", "humaneval", "suite"}
"""Kinds that take ``--url`` instead of a profile."""


def plannable_kinds(known: Sequence[str], *, url: bool = False) -> list[str]:
    """The known kinds that have a form; with ``url`` only those that can measure a server by its URL."""
    return [kind for kind in PLAN_FIELDS if kind in known and (not url or kind in URL_KINDS)]


def bench_arguments(kind: str, values: Mapping[str, str], url: str | None = None) -> list[str]:
    """The arguments of ``gpubox bench``. With ``url`` the server there is measured instead of a profile."""
    arguments = [kind]
    for field in PLAN_FIELDS[kind]:
        value = values.get(field.name, "").strip()
        if field.name == PROFILE and url:
            arguments += ["--url", url]
        elif not value or (field.name == SECOND and url):
            continue
        elif field.option.endswith("*"):
            for word in value.split():
                arguments += [field.option[:-1], word]
        elif field.option:
            arguments += [field.option, value]
        else:
            arguments.append(value)
    return arguments


def bench_command_line(arguments: Sequence[str]) -> str:
    """The command that does the same in a terminal."""
    return shlex.join(["gpubox", "bench", *arguments])


def outline_sentences(outline: PlanOutline, tokens_per_second: float | None = None) -> list[str]:
    """What a run will do. ``tokens_per_second`` of the running server estimates the time of a run without history."""
    sentences = [f"{outline.items} items; no server is started or stopped."]
    if outline.starts:
        names = ", ".join(outline.starts[:OUTLINE_STARTS]) + (" ..." if len(outline.starts) > OUTLINE_STARTS else "")
        sentences = [f"{outline.items} items. Starts {names}; a server that already runs with these flags stays."]
        if outline.fresh:
            sentences = [f"{outline.items} items. {len(outline.starts)} fresh starts: {names}."]
        restored = outline.restored_profile
        sentences.append(f"Afterwards {restored} runs again." if restored else "Afterwards nothing runs, as now.")
    if outline.seconds:
        sentences.append(f"A run like this took {units.duration(outline.seconds)}.")
    elif outline.tokens and tokens_per_second:
        estimate = units.duration(outline.tokens / tokens_per_second)
        rate = units.rate(tokens_per_second)
        sentences.append(f"It takes ~{estimate}: about {outline.tokens:,.0f} tokens at {rate} tok/s.")
    else:
        sentences.append("There is no estimate of the time yet.")
    return sentences


class PlanScreen(ModalScreen[list[str] | None]):
    """Returns the arguments of ``gpubox bench``, or ``None`` for esc."""

    DEFAULT_CSS = """
    PlanScreen { align: center middle; background: $background 60%; }
    PlanScreen > Vertical {
        width: 88; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel;
        border: round $line-focus; border-title-color: $foreground; border-title-style: bold;
        border-subtitle-color: $quiet;
    }
    PlanScreen #fields { height: auto; }
    PlanScreen #summary { color: $quiet; height: 1; margin-bottom: 1; }
    PlanScreen #outline { height: auto; min-height: 3; margin-top: 1; }
    PlanScreen #command { height: auto; color: $quiet; margin-top: 1; }
    """
    BINDINGS = [  # noqa: RUF012
        ("escape", "dismiss(None)", "Cancel"),
        ("enter,ctrl+s", "accept", "Begin"),
        ("down", "app.focus_next", "Next"),
        ("up", "app.focus_previous", "Previous"),
    ]

    def __init__(
        self, service: BenchService, profiles: Sequence[str], active: str, tokens_per_second: float | None
    ) -> None:
        """``active``: the running profile; ``tokens_per_second``: what its server generates."""
        super().__init__()
        from gpubox.bench.benchmark import KINDS  # imports every kind of benchmark

        self.service, self.profiles, self.active = service, list(profiles), active
        self.tokens_per_second = tokens_per_second
        kinds = plannable_kinds(list(KINDS), url=bool(service.url))
        self.kind = CycleField("kind", [(kind, kind) for kind in kinds], kinds[0])
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
        """The arguments that the form stands for."""
        values = {field.field: field.value for field in self.fields.query(CycleField)}
        values |= {field.name or "": field.value for field in self.fields.query(Input)}
        return bench_arguments(self.kind.value, values, self.service.url)

    async def _show_kind(self) -> None:
        kind = self.kind.value
        self.summary.update(KIND_SUMMARIES[kind])
        await self.fields.remove_children()
        await self.fields.mount(*(
            FormRow(field.label, self._input(field), field.about)
            for field in PLAN_FIELDS[kind]
            if not (self.service.url and field.name == SECOND)
        ))  # fmt: skip
        self._changed()

    def _input(self, field: PlanField) -> CycleField | Input:
        profiles = [(name, name) for name in self.profiles]
        if field.name == PROFILE and self.service.url:
            return CycleField(field.name, [("", self.service.url)], "")
        if field.name == PROFILE:
            choices = profiles or [("", "none")]
            return CycleField(field.name, choices, self.active if self.active in self.profiles else choices[0][0])
        if field.name == SECOND:
            return CycleField(field.name, [("", "none"), *profiles], "")
        if field.choices:
            return CycleField(field.name, field.choices, field.choices[0][0])
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
        planned = [field.value for field in self.fields.query(CycleField) if field.field == PROFILE]
        known = self.service.url or planned == [self.active]
        try:
            outline = await self.service.outline(arguments)
        except GpuboxError as error:
            self.outline.update(Content.styled(sanitize_line(str(error)), "$warning"))
        else:
            sentences = outline_sentences(outline, self.tokens_per_second if known else None)
            self.outline.update(Content(" ".join(sentences)))
