"""The models screen: what is on this machine and on Hugging Face, what would fit, and the download of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from gpubox import units
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.planner.verdict import judge
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import OtherScreen
from gpubox.tui.dialogs import ask
from gpubox.tui.styled_lines import StyledLine, gauge, marked, pad_line, sanitize_to_width, styled_line, wrap_text
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import SingleLine, TitledPane
from gpubox.tui.workshop.editor_lines import device_lines
from gpubox.tui.workshop.model_finder import ModelFinder, ModelRow
from gpubox.views.marks import MEMORY
from gpubox.views.memory import short_words, solution_line
from gpubox.views.models import shards_text

if TYPE_CHECKING:
    from gpubox.models.find import LocalModel
    from gpubox.models.hub_download import HubDownload, HubProgress
    from gpubox.planner.finder import HubAnswer
    from gpubox.planner.plan import MemoryPlan
    from gpubox.tui.bridge import ServiceBridge

DRAW_SECONDS = 0.25
"""Between two drawings of a download's progress."""
HEADERS_AT_ONCE = 4
STOPPED = GpuboxError("The download is stopped. The downloaded part is kept.", "Enter resumes it.")
NAME_CELLS, SIZE_CELLS, PLACE_CELLS, WORDS_CELLS = 34, 8, 12, 24
LABEL_CELLS = 10
MAX_FILES, MAX_DEVICES = 8, 4
ESTIMATED = "~ the compute buffers are estimated; f lets llama-server compute them from the header, without a download"


class ModelRows(CursorRows[ModelRow]):
    """The rows. Enter downloads a quant, or makes a profile of what is here."""

    DEFAULT_CSS = "ModelRows { overflow-y: auto; scrollbar-size-vertical: 1; }"
    EMPTY_TEXT = "Nothing found. / searches this machine and Hugging Face."
    KEY = "key"
    CURSOR_STYLES = ("on $cursor", "on $line")

    def make_row(self, value: ModelRow, width: int) -> StyledLine:
        if value.kind == "heading":
            return styled_line((sanitize_to_width(value.title, width), "bold $secondary"))
        if value.kind == "repository" and value.repository:
            repository = value.repository
            facts = [repository.updated, "gated" if repository.gated else ""]
            if repository.downloads is not None:
                facts.insert(0, f"{repository.downloads:,} downloads")
            shown = "  ".join(filter(None, facts))
            return styled_line((sanitize_to_width(repository.name, width - 2), "bold"), "  ", (shown, "$quiet"))
        return _model_row(value, width)


def _model_row(row: ModelRow, width: int) -> StyledLine:
    mark, colour = ("◌", "$quiet") if row.planning else ("·", "$quiet")
    words, words_style = ("reading the header …", "$quiet") if row.planning else ("", "")
    if row.plan:
        mark, colour = marked(MEMORY[judge(row.plan).fit])
        words = short_words(row.plan)
    place = row.local.place if row.local else "on disk" if row.on_disk else shards_text(row.quant)
    place_cells = PLACE_CELLS if width >= 72 else 0
    if row.on_disk and not place_cells:
        words = f"on disk, {words}"
    beside = 6 + SIZE_CELLS + (place_cells + 2 if place_cells else 0)
    name_cells = max(12, min(NAME_CELLS, width - beside - WORDS_CELLS))
    name = pad_line(styled_line(sanitize_to_width(row.title, name_cells)), name_cells)
    placed = pad_line(styled_line((sanitize_to_width(place, place_cells), "$secondary")), place_cells)
    left = (*styled_line("  ", (mark, colour), " "), *name, (f"{units.file_size(row.size_bytes):>{SIZE_CELLS}}  ", ""))
    middle = (*placed, ("  ", "")) if place_cells else ()
    return (*left, *middle, (sanitize_to_width(words, max(0, width - beside - name_cells)), words_style))


def detail_lines(row: ModelRow | None, width: int) -> list[StyledLine]:
    """Everything about one row, its verdict first."""
    if row is None or row.kind == "heading":
        return _legend(width)
    lines = [_pair("model", row.key, width)] if row.quant else []
    if row.is_model:
        lines.append(_pair("size", units.file_size(row.size_bytes), width))
    if row.plan:
        lines += [*_verdict_lines(row.plan, width), (), *device_lines(row.plan, (), width, devices=MAX_DEVICES)]
        if row.plan.devices:
            lines += [*_wrapped(ESTIMATED if row.plan.is_estimated else "", "$quiet", width), ()]
    elif row.planning:
        lines += [styled_line(("Its header is being read …", "$quiet")), ()]
    return lines + _facts(row, width)


def _legend(width: int) -> list[StyledLine]:
    marks = [row for mark in MEMORY.values() for row in _wrapped(mark.before(mark.meaning), marked(mark)[1], width)]
    words = "The verdict is for a new profile. gpubox reads the header only; it downloads no model."
    return [*marks, (), *_wrapped(words, "$quiet", width)]


def _facts(row: ModelRow, width: int) -> list[StyledLine]:
    pairs: list[tuple[str, str]] = []
    if row.local:
        pairs = [("file", str(row.local.path))]
        if row.local.shards > 1:
            pairs.append(("", f"and {row.local.shards - 1} more shards"))
    elif repository := row.repository:
        if row.quant:
            files = [file.name for file in row.quant.files]
            pairs += [("files" if index == 0 else "", name) for index, name in enumerate(files[:MAX_FILES])]
            if len(files) > MAX_FILES:
                pairs.append(("", f"and {len(files) - MAX_FILES} more"))
        else:
            pairs.append(("quants", f"{len(repository.quants)}"))
        extras = [("vision", file.name, file.size_bytes) for file in repository.projectors]
        extras += [("draft", draft.files[0].name, draft.size_bytes) for draft in repository.drafts]
        pairs += [(kind, f"{name}  {units.file_size(size)}") for kind, name, size in extras]
        pairs.append(("updated", repository.updated or units.UNKNOWN))
        if repository.gated:
            pairs.append(("access", "gated: ask its owner for access, then set HF_TOKEN"))
    return [_pair(label, text, width) for label, text in pairs]


def _pair(label: str, text: str, width: int) -> StyledLine:
    return styled_line((label.ljust(LABEL_CELLS), "$quiet"), (sanitize_to_width(text, width - LABEL_CELLS), ""))


def _verdict_lines(plan: MemoryPlan, width: int) -> list[StyledLine]:
    """The verdict, and what would make the model fit."""
    verdict = judge(plan)
    mark, colour = marked(MEMORY[verdict.fit])
    lines = _wrapped(f"{mark} {verdict.words}", colour, width)
    for solution in plan.solutions:
        lines += _wrapped(f"  {solution_line(solution)}", "", width)
    for note in (*plan.notes, *verdict.remarks):
        lines += _wrapped(f"  {note}", "$quiet", width)
    return lines + (_wrapped(f"unclear: {'; '.join(plan.doubts)}", "$warning", width) if plan.doubts else [])


def _wrapped(text: str, style: str, width: int) -> list[StyledLine]:
    indent = " " * (len(text) - len(text.lstrip()))
    return wrap_text(text.lstrip(), width, style, indent=indent, rest=f"{indent}  ") if text else []


def download_line(name: str, progress: HubProgress | None, width: int) -> StyledLine:
    """``↓ name:Q4_K_M ━━━── 3.1 GB of 17.3 GB  82 MB/s  ~3 min left``."""
    name = name.rsplit("/", 1)[-1]
    if progress is None:
        return styled_line(("↓ ", "$accent"), (sanitize_to_width(name, max(8, width - 20)), "bold"), (" …", "$quiet"))
    total = progress.total_bytes
    amount = f" {units.file_size(progress.done_bytes)}" + (f" of {units.file_size(total)}" if total else "")
    rate = f"  {units.file_size(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    left = f"  ~{units.rough_duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    note = "  checking what is here" if progress.phase == "check" else rate + left
    if progress.waiting:
        note = f"  {sanitize_to_width(progress.waiting, max(8, width - len(amount) - 34))}"
    name_cells = max(8, width - len(amount) - len(note) - 20)
    bar = gauge(progress.done_bytes / total, 14, "$accent") if total else ()
    shown = (sanitize_to_width(name, name_cells) + " ", "bold")
    return (*styled_line(("↓ ", "$accent"), shown), *bar, (amount, ""), (note, "$quiet"))


class ModelsScreen(OtherScreen):
    """A search line, the list, and the details of the row under the cursor. A download goes on in the background."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    AUTO_FOCUS = "ModelRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.MODELS), ("escape", "back", "Back")]
    DEFAULT_CSS = """
    ModelsScreen #finder-search { height: 1; padding: 0 1; background: $footer-background; }
    ModelsScreen #finder-line { background: $footer-background; }
    ModelsScreen #finder-body { height: 1fr; }
    ModelsScreen ModelRows { width: 3fr; border: round $line; padding: 0 1; }
    ModelsScreen ModelRows:focus { border: round $line-focus; }
    ModelsScreen TitledPane { width: 2fr; }
    ModelsScreen.-narrow #finder-body { layout: vertical; }
    ModelsScreen.-narrow ModelRows { width: 1fr; height: 1fr; }
    ModelsScreen.-narrow TitledPane { width: 1fr; height: 9; }
    """

    def __init__(self, finder: ModelFinder, bridge: ServiceBridge) -> None:
        super().__init__(Scope.MODELS, note=bridge.services.note)
        self.finder, self.bridge = finder, bridge
        self.search = Input(
            placeholder="/ words of a name, user/name, or the address of a page; enter searches", compact=True,
            id="finder-search",
        )  # fmt: skip
        self.rows, self.details, self.line = ModelRows(), TitledPane(), SingleLine("finder-line")
        self.rows.border_title = "Models"
        self.download: HubDownload | None = None
        """The download that runs."""
        self._name, self._progress = "", None  # type: tuple[str, HubProgress | None]
        self._stop = False

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.search
        with Horizontal(id="finder-body"):
            yield self.rows
            yield self.details
        yield self.line
        yield self.keys

    def on_mount(self) -> None:
        self.set_interval(DRAW_SECONDS, self._draw_progress)
        self._show_details()
        self._update_keys()
        self._start_search("")

    # -- the search -----------------------------------------------------------------------------------

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.set_focus(self.rows)
        self._start_search(self.search.value.strip())

    def _start_search(self, text: str) -> None:
        self.work(lambda: self._search(text), "finder-search", exclusive=True)

    async def _search(self, text: str) -> None:
        """Shows the models on this machine at once, those on the hub when they come, then each plan."""
        self._say_line(f"asking Hugging Face for {text!r} …" if text else "")
        local = await run_in_thread(self.finder.on_disk, text)
        self.rows.show_values(_local_rows(local))
        self._first_model()
        if text:
            answer = await run_in_thread(self.finder.on_hub, text)
            self.rows.show_values((*_local_rows(local), *_hub_rows(answer)))
            if not local:  # else the cursor stays where the owner has put it meanwhile
                self._first_model()
            self._say_line("  ".join(str(problem) for problem in answer.problems[:2]), bad=True)
            if not self.rows.values and not answer.problems:
                self._say_line(f"Nothing matches {text!r}. Use fewer words.")
        for row in (row for row in self.rows.values if row.kind == "local"):
            await self._plan(row.key, may_dry_run=False)
        for name in [row.key for row in self.rows.values if row.kind == "repository"]:
            await self._plan_repository(name)

    async def _plan_repository(self, name: str) -> None:
        """Plans the quants of a repository: one, whose vocabulary serves the others, then some at a time."""
        keys = [row.key for row in self.rows.values if row.quant and row.repository and row.repository.name == name]
        slots = asyncio.Semaphore(HEADERS_AT_ONCE)

        async def plan(key: str) -> None:
            async with slots:
                await self._plan(key, may_dry_run=False)

        if keys:
            await plan(keys[0])
            await asyncio.gather(*map(plan, keys[1:]))

    async def _plan(self, key: str, *, may_dry_run: bool) -> None:
        row = self._row(key)
        if row is None or (row.plan and not may_dry_run):
            return
        self._put(replace(row, planning=True, plan=None))
        plan = await run_in_thread(lambda: self.finder.plan(row, may_dry_run=may_dry_run))
        if now := self._row(key):
            self._put(replace(now, planning=False, plan=plan))

    def _row(self, key: str) -> ModelRow | None:
        return next((row for row in self.rows.values if row.key == key), None)

    def _put(self, row: ModelRow) -> None:
        """Replaces the row with this key."""
        self.rows.show_values(tuple(row if old.key == row.key else old for old in self.rows.values))
        if self.rows.value and self.rows.value.key == row.key:
            self._show_details()

    def _first_model(self) -> None:
        first = next((index for index, row in enumerate(self.rows.values) if row.is_model), 0)
        self.rows.move_cursor(first)
        self._show_details()
        self._update_keys()

    # -- drawing --------------------------------------------------------------------------------------

    @on(ModelRows.RowHighlighted)
    def _row_highlighted(self) -> None:
        self._show_details()
        self._update_keys()

    def _show_details(self) -> None:
        row = self.rows.value
        title = row.title if row and row.kind != "heading" else "Marks"
        self.details.put(title, lambda width: detail_lines(row, width))

    def _say_line(self, text: str, *, bad: bool = False) -> None:
        if self.is_mounted and not self.download:
            self.line.show([styled_line((sanitize_line(text), "$warning" if bad else "$quiet"))])

    def _draw_progress(self) -> None:
        if self.download and self.is_current:
            self.line.show([download_line(self._name, self._progress, self.line.content_size.width)])

    def _update_keys(self) -> None:
        row = self.rows.value
        hidden = set() if self.download else {"finder_stop"}
        if row is None or not row.is_model:
            hidden |= {"finder_open", "finder_profile", "finder_measure"}
        here = bool(row and (row.local or row.on_disk))
        self.keys.labels = {"finder_open": "new profile" if here else "download",
                            "menu": "menu: stop the download" if self.download else "menu"}  # fmt: skip
        if here:
            hidden |= {"finder_profile"}
        self.keys.hidden_actions = frozenset(hidden)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.keys.typing = event.widget is self.search

    # -- actions --------------------------------------------------------------------------------------

    def action_finder_search(self) -> None:
        self.set_focus(self.search)

    def action_back(self) -> None:
        """From the search line to the list, then to the dashboard."""
        if self.focused is self.search:
            self.set_focus(self.rows)
        else:
            self.app.switch_mode("dashboard")

    def action_finder_open(self) -> None:
        self.rows.action_open()

    @on(ModelRows.RowOpened)
    def _row_opened(self) -> None:
        row = self.rows.value
        if row is None or not row.is_model:
            return
        if row.local or row.on_disk:
            self.action_finder_profile()
        else:
            self._run(lambda: self._ask_download(row))

    def action_finder_profile(self) -> None:
        row = self.rows.value
        if row and row.is_model:
            self._run(lambda: self._make_profile(row))

    def action_finder_measure(self) -> None:
        row = self.rows.value
        if row and row.is_model:
            self._run(lambda: self._plan(row.key, may_dry_run=True))

    def action_finder_stop(self) -> None:
        if self.download:
            self._stop = True
        else:
            self.say("No download is under way.")

    def _run(self, work: Callable[[], Any]) -> None:
        self.work(work, "finder-action")

    async def _make_profile(self, row: ModelRow) -> None:
        profile = await run_in_thread(self.finder.new_profile, row)
        self.say(f"Made the profile {profile.name}; 1 shows it.")
        await self.bridge.show_profile(profile.name)

    # -- the download ---------------------------------------------------------------------------------

    async def _ask_download(self, row: ModelRow) -> None:
        """Asks with size and free disk, then downloads."""
        if self.download:
            self.say(f"{self._name} is being downloaded; the menu (x) stops it.")
            return
        from gpubox.models.hub_download import HubDownload

        assert row.repository and row.quant
        job = HubDownload(row.repository, row.quant.files)
        size, present = job.total_bytes, job.present_bytes
        folder, free = sanitize_line(str(job.cache)), units.file_size(job.free_bytes)
        body = f"It is saved in {folder}, where {free} are free."
        if present:
            body += f"\n\n{units.file_size(present)} of it are here already; gpubox downloads the rest."
        answers = [("n", "not now", "no")]
        if job.fits:
            body += "\n\nThe running server is not touched."
            answers.append(("d", "download it", "yes"))
        else:
            body += "\n\nThe disk has too little space. Set HF_HOME to a folder on another disk."
        title = f"Download {units.file_size(size) if size else 'the model'}?"
        if await ask(self.app, title, body, *answers) == "yes" and not self.download:
            await self._download(row, job)

    async def _download(self, row: ModelRow, download: HubDownload) -> None:
        self.download, self._name, self._progress, self._stop = download, row.key, None, False
        self._update_keys()
        self._draw_progress()

        def report(progress: HubProgress) -> None:  # in the download's thread
            self._progress = progress
            if self._stop:
                raise STOPPED

        try:
            await run_in_thread(self.finder.download, download, report)
        except GpuboxError as error:
            self.download = None
            self._say_line(str(error), bad=True)
            raise
        finally:
            self.download = None
            self._update_keys()
        self._say_line("")
        if now := self._row(row.key):
            self._put(replace(now, on_disk=True))
        self._update_keys()
        self.say(f"Downloaded {row.key}. Enter makes a profile of it.")


def _local_rows(models: list[LocalModel]) -> tuple[ModelRow, ...]:
    if not models:
        return ()
    rows = [ModelRow("local", str(model.path), model.name, local=model) for model in models]
    return (ModelRow("heading", "disk", "On this machine"), *rows)


def _hub_rows(answer: HubAnswer) -> list[ModelRow]:
    rows = [ModelRow("heading", "hub", "On Hugging Face")] if answer.repositories else []
    for repository in answer.repositories:
        rows.append(ModelRow("repository", repository.name, repository.name, repository=repository))
        for quant in repository.quants:
            key = repository.reference(quant)
            on_disk = key in answer.on_disk
            rows.append(ModelRow("quant", key, quant.label, repository=repository, quant=quant, on_disk=on_disk))
    return rows
