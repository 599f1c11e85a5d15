"""The editor: every flag of the profile's engine, the command line, the planned memory and the engine's refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError, UsageError
from gpubox.profiles.edit import unchanged
from gpubox.profiles.loader import load_catalog
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import OPENS_INPUT, Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.dialogs import ask
from gpubox.tui.styled_lines import StyledLine, fit_by_priority, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.form import FilterLine
from gpubox.tui.widgets.lines import FittedLines, SingleLine, StatusLines
from gpubox.tui.workshop.edit_session import (
    OptionRow,
    describe_changes,
    editable_text,
    refused_names,
    search_rows,
)
from gpubox.tui.workshop.editor_lines import column_titles, command_lines, option_line, plan_lines
from gpubox.tui.workshop.profile_files import Assessment, WorkshopService

if TYPE_CHECKING:
    from gpubox.planner.plan import MemoryPlan
    from gpubox.profiles.edit import ProfileEdit
    from gpubox.telemetry.snapshot import DeviceMemory, Snapshot
    from gpubox.toml_edit import KeyPath
    from gpubox.tui.workshop.edit_session import EditSession

ASSESS_DELAY = 0.05
"""Seconds after a change before the command line and the plan are made, so that a key that is held down makes one."""
DRY_RUN_DELAY = 1.0
"""Seconds without a change before the engine is asked for what the plan does not know."""
REFUSALS_SHOWN = 3
KEPT_HERE = "Your changes are kept here: ^s saves them into the file as it is now."


class OptionRows(CursorRows[OptionRow]):
    """Name, value, default and help of each option."""

    DEFAULT_CSS = "OptionRows { scrollbar-size-vertical: 1; }"
    CURSOR_STYLES = ("on $line", "on $cursor")
    EMPTY_TEXT = "No flag of this engine contains that."
    KEY = "path"

    refused: frozenset[KeyPath] = frozenset()

    def __init__(self, open_row: Callable[[OptionRow], None]) -> None:
        """``open_row`` is called at Enter, not told by a message: what is typed next must reach the input."""
        super().__init__()
        self._open_row = open_row

    def action_open(self) -> None:
        if self.value is not None:
            self._open_row(self.value)

    def make_row(self, value: OptionRow, width: int) -> StyledLine:
        return option_line(value, value.path in self.refused, width)


class EditorOwner(Protocol):
    """Who opened the editor: knows what else is to be done with a profile."""

    @property
    def service(self) -> WorkshopService: ...

    def saved(self, name: str, path: str = "") -> None:
        """A profile is on disk."""

    async def ask_new_name(self, title: str, proposal: str, text: str) -> str | None:
        """Asks for a name and writes ``text`` under it."""

    def try_once(self, session: EditSession, edit: ProfileEdit) -> None:
        """Starts the trial of a changed profile."""


class EditorScreen(PushedScreen):
    """Edits one EditSession. Nothing is written before ctrl+s."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "OptionRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.EDITOR)]
    DEFAULT_CSS = """
    EditorScreen #edit-title { background: $footer-background; }
    EditorScreen #edit-body { height: 1fr; layout: vertical; }
    EditorScreen #edit-options {
        height: 1fr; width: 1fr; border: round $line; padding: 0 1; border-title-color: $quiet;
    }
    EditorScreen #edit-options:focus-within { border: round $line-focus; }
    EditorScreen #edit-about { height: auto; max-height: 6; color: $secondary; padding: 0 1; overflow: hidden; }
    EditorScreen #edit-search, EditorScreen #edit-value { background: $panel; height: 1; }
    EditorScreen #edit-value-line { height: 1; display: none; background: $panel; }
    EditorScreen #edit-value-name { width: auto; color: $accent; padding: 0 1; }
    EditorScreen #edit-value { width: 1fr; }
    EditorScreen #edit-facts { height: auto; max-height: 60%; }
    EditorScreen #edit-facts > * {
        border: round $line; border-title-color: $secondary; border-title-style: bold; padding: 0 1;
    }
    EditorScreen #edit-problems { padding: 0 1; }
    EditorScreen.-short #edit-options, EditorScreen.-short #edit-facts > * { border: none; border-top: solid $line; }
    EditorScreen.-short #edit-options:focus-within { border: none; border-top: solid $line-focus; }
    EditorScreen.-roomy #edit-body { layout: horizontal; }
    EditorScreen.-roomy #edit-options { width: 62%; height: 1fr; }
    EditorScreen.-roomy #edit-facts { width: 1fr; height: 1fr; max-height: 100%; }
    """

    def __init__(self, session: EditSession, owner: EditorOwner, *, note: str = "") -> None:
        super().__init__(Scope.EDITOR, note=note)
        self.session, self.owner, self.service = session, owner, owner.service
        self.assessment = Assessment()
        self.plan: MemoryPlan | None = None
        self.memory: tuple[DeviceMemory, ...] = ()
        """What the running server takes."""
        self.title_line, self.rows = SingleLine("edit-title"), OptionRows(self._open_row)
        self.search = FilterLine("edit-search", "any flag, or a word of its help", self.rows)
        self.value = Input(id="edit-value", compact=True, select_on_focus=True)
        self.value_name = Static("", id="edit-value-name", markup=False)
        self.value_line = Horizontal(id="edit-value-line")
        self.options = Vertical(id="edit-options")
        self.about = Static("", id="edit-about", markup=False)
        self.facts, self.command = FittedLines(), FittedLines()
        self.facts.border_title, self.command.border_title = "Memory", "Command line"
        self.problems = StatusLines("edit-problems")
        self._typed: OptionRow | None = None
        """The row whose value is being typed."""
        self._typing_problem = ""
        self._engine = session.changes.get(("engine",), session.profile.engine)

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.title_line
        with Vertical(id="edit-body"):
            with self.options:
                yield self.search
                yield self.rows
                with self.value_line:
                    yield self.value_name
                    yield self.value
                yield self.about
            with Vertical(id="edit-facts"):
                yield self.facts
                yield self.command
        yield self.problems
        yield self.keys

    def on_mount(self) -> None:
        self.problems.display = False
        self.changed()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.memory = snapshot.memory
        if self.is_mounted:
            self._draw_facts()

    # -- drawing --------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Shows the session as it is now."""
        self._fill()
        self.work(self._assess, "assess", exclusive=True)

    def _fill(self) -> None:
        rows = search_rows(self.session.rows, self.search.value) if self.search.value else self.session.rows
        self.rows.refused = refused_names(self.assessment.refusals, self.session.rows)
        self.rows.show_values(rows)
        self.rows.redraw()
        self._draw_title()
        self._draw_about()

    def _draw_title(self) -> None:
        self.options.border_title = Content(column_titles(self.rows.size.width))
        session, width = self.session, self.title_line.content_size.width
        name = styled_line(("edit ", "$quiet"), (sanitize_line(session.profile.name), "bold $primary"))
        changes = styled_line((sanitize_line(describe_changes(session.rows)), "$accent"))
        if not changes:
            copies = "shipped with gpubox: saving makes your own copy" if session.profile.shipped else "no changes"
            changes = styled_line((copies, "$quiet"))
        engine = sanitize_line(f"{session.engine}, {len(session.capabilities.options)} flags")
        self.title_line.show([fit_by_priority([(9, name), (8, changes), (1, ((engine, "$quiet"),))], width)])

    def _draw_about(self) -> None:
        row = self.rows.value
        text = ""
        if row:
            choices = "" if row.option is None or not row.option.allowed else f" [{', '.join(row.option.allowed)}]"
            text = f"{row.name}: {row.about}{choices}"
        self.about.update(Content.styled(sanitize_line(text), ""))

    def _draw_facts(self) -> None:
        plan, memory, no_color = self.plan, self.memory, self.app.no_color
        devices = 4 if self.has_class("-tall") else 1
        self.facts.put(lambda width: plan_lines(plan, memory, width, devices=devices, no_color=no_color))

    def _draw_assessment(self) -> None:
        words, rows = self.assessment.words, self._command_rows
        self.command.put(lambda width: command_lines(words, width, rows))
        self._draw_problems()
        self._fill()

    def _draw_problems(self) -> None:
        problems = [self._typing_problem, self.assessment.problem]
        refusals = [f"{flag}: {why}" for flag, why in self.assessment.refusals.items()]
        more = len(refusals) - REFUSALS_SHOWN
        problems += [*refusals[:REFUSALS_SHOWN], f"and {more} more" if more > 0 else ""]
        self.problems.show(
            [Content.assemble(("! ", "$error"), sanitize_line(problem)) for problem in problems if problem]
        )

    @property
    def _command_rows(self) -> int:
        return 30 if self.has_class("-roomy") else 7 if self.has_class("-tall") else 3

    async def _assess(self) -> None:
        await asyncio.sleep(ASSESS_DELAY)
        session = self.session
        engine = session.changes.get(("engine",), session.profile.engine)
        if engine != self._engine:
            self._engine = engine
            session.use_engine(*await run_in_thread(self.service.engine_options, str(engine or "")))
        profile, base, changes = session.profile, session.base, dict(session.changes)
        self.assessment = await run_in_thread(self.service.assess, profile, base, changes)
        self._draw_assessment()
        if (changed := self.assessment.profile) is None:
            return
        self.plan = await run_in_thread(self.service.plan, changed)
        self._draw_facts()
        unsure = self.plan and (self.plan.is_estimated or self.plan.doubts) and not self.plan.problem
        if unsure and not self.assessment.refusals:
            await asyncio.sleep(DRY_RUN_DELAY)
            self.plan = await run_in_thread(self.service.plan, changed, may_dry_run=True)
            self._draw_facts()

    # -- events ---------------------------------------------------------------------------------------

    def watch_focused(self) -> None:
        if self.is_mounted:
            self.keys.typing = isinstance(self.focused, Input)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_title)
        self.call_after_refresh(self._draw_facts)
        self.call_after_refresh(self._draw_assessment)

    @on(OptionRows.RowHighlighted)
    def _highlighted(self) -> None:
        self._draw_about()

    @on(Input.Changed, "#edit-search")
    def _searched(self) -> None:
        self._fill()
        if self.search.value:
            self.rows.move_cursor(0)

    def _open_row(self, row: OptionRow) -> None:
        if row.switch:
            self.step(1)
            return
        self._typed = row
        self.value_name.update(Content(sanitize_line(row.name)))
        self.value.value = editable_text(row.value)
        self.value.placeholder = row.default or (row.option.value or "" if row.option else "")
        self.value_line.display = True
        self.set_focus(self.value)

    @on(Input.Submitted, "#edit-value")
    def _typed_value(self) -> None:
        if self._typed is None:
            return
        try:
            self.session.set_text(self._typed, self.value.value)
        except UsageError as error:
            self._typing_problem = str(error)
            self._draw_problems()
            return
        self._close_value()
        self.changed()

    def _close_value(self) -> None:
        self._typed, self._typing_problem = None, ""
        self.value_line.display = False
        self._draw_problems()
        self.set_focus(self.rows)

    # -- actions --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in OPENS_INPUT and isinstance(self.focused, Input))

    def step(self, step: int) -> None:
        """Sets the next or previous value of the highlighted option."""
        row = self.rows.value
        if row and self.session.step(row, step):
            self.changed()
        elif row:
            self.say(f"{row.name} has no next value: press enter to type one.")

    def action_edit_more(self) -> None:
        self.step(1)

    def action_edit_less(self) -> None:
        self.step(-1)

    def action_edit_default(self) -> None:
        if row := self.rows.value:
            self.session.set(row, None)
            self.changed()

    def action_edit_undo(self) -> None:
        if self.session.undo():
            self.changed()
        else:
            self.say("Nothing to undo.")

    def action_edit_search(self) -> None:
        self.search.open()

    def action_edit_save(self) -> None:
        self.work(self._save, "save")

    def action_edit_try(self) -> None:
        self.work(self._try, "save")

    def action_edit_save_as(self) -> None:
        self.work(self._save_as, "save")

    def action_edit_back(self) -> None:
        if self._typed is not None:
            self._close_value()
        elif not self.search.close():
            self.work(self.leave, "leave", exclusive=True)

    async def leave(self) -> None:
        """Returns to the dashboard; asks first if changes would be lost."""
        if await self.may_leave() and self.is_current:
            self.dismiss(None)

    async def may_leave(self) -> bool:
        """Whether nothing would be lost, or the owner agrees to that."""
        if not self.session.unsaved:
            return True
        name = sanitize_line(self.session.profile.name)
        answers = (("n", "keep editing", "no"), ("s", "save them", "save"), ("d", "discard them", "discard"))
        changes = sanitize_line(describe_changes(self.session.rows))
        answer = await ask(self.app, f"Leave {name}?", f"Not saved: {changes}.", *answers)
        if answer == "save":
            await self._save()
        return answer == "discard" or (answer == "save" and not self.session.unsaved)

    async def _edit(self) -> ProfileEdit | None:
        """The edit of the session; ``None`` if the owner does not want what its engine refuses."""
        session = self.session
        edit = await run_in_thread(self.service.edit, session.base, dict(session.changes))
        if refusal := await run_in_thread(self.service.check, edit):
            answers = (("n", "keep editing", "no"), ("s", "save it as it is", "yes"))
            if await ask(self.app, "The engine refuses this", sanitize_line(refusal), *answers) != "yes":
                return None
        return edit

    async def _save(self) -> None:
        session = self.session
        if not session.unsaved:
            self.say("Nothing has changed.")
            return
        if (edit := await self._edit()) is None:
            return
        try:
            path = await run_in_thread(self.service.save, edit)
        except GpuboxError as error:
            await self._rebase()
            raise GpuboxError(error.message, KEPT_HERE) from None
        session.changes.clear()
        self.owner.saved(session.profile.name, str(path))
        if self.is_current:
            self.dismiss(None)

    async def _rebase(self) -> None:
        """Puts the changes on the file as it is now. A file that is gone or broken leaves them where they are."""
        try:
            catalog = await run_in_thread(load_catalog, self.service.paths)
            fresh = catalog.get(self.session.profile.name)
            base = await run_in_thread(unchanged, fresh, self.service.paths)
        except GpuboxError:
            return
        self.session.rebase(fresh, base)
        self.changed()

    async def _save_as(self) -> None:
        session = self.session
        edit = await run_in_thread(self.service.edit, session.base, dict(session.changes))
        name = await self.owner.ask_new_name("Save as a new profile", session.profile.name, edit.after)
        if name:
            session.changes.clear()
            self.owner.saved(name)
            if self.is_current:
                self.dismiss(None)

    async def _try(self) -> None:
        session = self.session
        if not session.unsaved:
            self.say("Nothing has changed that could be tried.")
            return
        edit = await run_in_thread(self.service.edit, session.base, dict(session.changes))
        if refusal := await run_in_thread(self.service.check, edit):
            raise UsageError(f"The engine refuses this: {refusal}")
        self.owner.try_once(session, edit)
