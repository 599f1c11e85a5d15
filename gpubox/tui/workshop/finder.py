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
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.dialogs import ask
from gpubox.tui.persistent_screen import PersistentScreen
from gpubox.tui.styled_lines import styled_line
from gpubox.tui.widgets.styled_lines import SingleLine
from gpubox.tui.workshop.finder_details import FinderDetails, detail_lines, download_line
from gpubox.tui.workshop.finder_rows import FinderRow, FinderRows

if TYPE_CHECKING:
    from gpubox.models.hub_download import HubDownload, HubProgress
    from gpubox.models.hub_search import HubRepository
    from gpubox.models.local_models import LocalModel
    from gpubox.planner.finder import HubAnswer
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.workshop.finder_service import FinderService

DRAW_SECONDS = 0.25
"""Between two drawings of a download's progress."""
HEADERS_AT_ONCE = 4
STOPPED = GpuboxError("The download is stopped. The downloaded part is kept.", "Enter resumes it.")


class FinderScreen(PersistentScreen):
    """A search line, the list, and the details of the row under the cursor. A download goes on in the background."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    AUTO_FOCUS = "FinderRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.MODELS), ("escape", "finder_back", "Back")]
    DEFAULT_CSS = """
    FinderScreen { layout: vertical; background: $background; color: $foreground; }
    FinderScreen #finder-search { height: 1; padding: 0 1; background: $footer-background; }
    FinderScreen #finder-line { background: $footer-background; }
    FinderScreen #finder-body { height: 1fr; }
    FinderScreen FinderRows { width: 3fr; border: round $line; padding: 0 1; }
    FinderScreen FinderRows:focus { border: round $line-focus; }
    FinderScreen FinderDetails { width: 2fr; }
    FinderScreen.-narrow #finder-body { layout: vertical; }
    FinderScreen.-narrow FinderRows { width: 1fr; height: 1fr; }
    FinderScreen.-narrow FinderDetails { width: 1fr; height: 8; }
    """

    def __init__(self, service: FinderService, *, note: str = "") -> None:
        super().__init__(Scope.MODELS, note=note)
        self.service = service
        self.search = Input(
            placeholder="/ words of a name, user/name, or the address of a page; enter searches", compact=True,
            id="finder-search",
        )  # fmt: skip
        self.rows, self.details, self.line = FinderRows(), FinderDetails(), SingleLine("finder-line")
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

    # -- updates from the app -------------------------------------------------------------------------

    def show_overview(self, overview: ServerOverview | None) -> None:
        """Nothing here depends on it; the header shows it."""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Nothing here depends on it; the header shows it."""

    # -- the search -----------------------------------------------------------------------------------

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.set_focus(self.rows)
        self._start_search(self.search.value.strip())

    def _start_search(self, text: str) -> None:
        async def search() -> None:
            await self._search(text)

        self.work(search, "finder-search", exclusive=True)

    async def _search(self, text: str) -> None:
        """Shows the models on this machine at once, those on the hub when they come, then each plan."""
        self._say_line(f"asking Hugging Face for {text!r} …" if text else "")
        local = await self.service.on_disk(text)
        self.rows.show_values(_local_rows(local))
        self._show_details()
        if text:
            answer = await self.service.on_hub(text)
            self.rows.show_values((*_local_rows(local), *self._hub_rows(answer)))
            self._say_line("  ".join(str(problem) for problem in answer.problems[:2]), bad=True)
            if not self.rows.values and not answer.problems:
                self._say_line(f"Nothing matches {text!r}. Use fewer words.")
        self._first_model()
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
        if row.local:
            plan = await self.service.plan_local(row.local, may_dry_run=may_dry_run)
        elif row.repository and row.quant:
            plan = await self.service.plan_quant(row.repository, row.quant, may_dry_run=may_dry_run)
        else:
            return
        if now := self._row(key):
            self._put(replace(now, planning=False, plan=plan))

    def _hub_rows(self, answer: HubAnswer) -> list[FinderRow]:
        rows = [FinderRow("heading", "hub", "On Hugging Face")] if answer.repositories else []
        for repository in answer.repositories:
            rows.append(FinderRow("repository", repository.name, repository.name, repository=repository))
            rows += self._quant_rows(repository, answer)
        return rows

    def _quant_rows(self, repository: HubRepository, answer: HubAnswer) -> list[FinderRow]:
        return [
            FinderRow(
                "quant", repository.reference(quant), quant.label, repository=repository, quant=quant,
                on_disk=repository.reference(quant) in answer.on_disk,
            )
            for quant in repository.quants
        ]  # fmt: skip

    def _row(self, key: str) -> FinderRow | None:
        return next((row for row in self.rows.values if row.key == key), None)

    def _put(self, row: FinderRow) -> None:
        """Replaces the row with this key."""
        self.rows.show_values(tuple(row if old.key == row.key else old for old in self.rows.values))
        if self.rows.value and self.rows.value.key == row.key:
            self._show_details()

    def _first_model(self) -> None:
        first = next((index for index, row in enumerate(self.rows.values) if row.kind in ("local", "quant")), 0)
        self.rows.move_cursor(first)
        self._show_details()
        self._update_keys()

    # -- drawing --------------------------------------------------------------------------------------

    @on(FinderRows.RowHighlighted)
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
        if row is None or row.kind not in ("local", "quant"):
            hidden |= {"finder_open", "finder_profile", "finder_measure"}
        here = bool(row and (row.local or row.on_disk))
        self.keys.labels = {"finder_open": "new profile" if here else "download"}
        if here:
            hidden |= {"finder_profile"}
        self.keys.hidden_actions = frozenset(hidden)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.keys.typing = event.widget is self.search

    # -- actions --------------------------------------------------------------------------------------

    def action_finder_search(self) -> None:
        self.set_focus(self.search)

    def action_finder_back(self) -> None:
        """From the search line to the list, then to the dashboard."""
        if self.focused is self.search:
            self.set_focus(self.rows)
        else:
            self.app.switch_mode("dashboard")

    def action_finder_open(self) -> None:
        self.rows.action_open()

    @on(FinderRows.RowOpened)
    def _row_opened(self) -> None:
        row = self.rows.value
        if row is None or row.kind not in ("local", "quant"):
            return
        if row.local or row.on_disk:
            self.action_finder_profile()
        else:
            self._run(lambda: self._ask_download(row))

    def action_finder_profile(self) -> None:
        row = self.rows.value
        if row and row.kind in ("local", "quant"):
            self._run(lambda: self._make_profile(row))

    def action_finder_measure(self) -> None:
        row = self.rows.value
        if row and row.kind in ("local", "quant"):
            self._run(lambda: self._plan(row.key, may_dry_run=True))

    def action_finder_stop(self) -> None:
        if self.download:
            self._stop = True
        else:
            self.say("No download is under way.")

    def _run(self, work: Callable[[], Any]) -> None:
        self.work(work, "finder-action")

    async def _make_profile(self, row: FinderRow) -> None:
        if row.local:
            profile = await self.service.profile_of_local(row.local, row.plan)
        elif row.repository and row.quant:
            profile = await self.service.profile_of_quant(row.repository, row.quant, row.plan)
        else:
            return
        app: Any = self.app
        self.say(f"Made the profile {profile.name}; 1 shows it.")
        app.highlight_profile(profile.name)
        await app.bridge.read_entries()
        app.highlight_profile(profile.name)

    # -- the download ---------------------------------------------------------------------------------

    async def _ask_download(self, row: FinderRow) -> None:
        """Asks with size and free disk, then downloads."""
        if self.download:
            self.say(f"{self._name} is being downloaded; x stops it.")
            return
        assert row.repository and row.quant
        prepared = await self.service.prepare_download(row.repository, row.quant)
        size, present = prepared.total_bytes, prepared.present_bytes
        folder, free = sanitize_line(str(prepared.download.cache)), units.file_size(prepared.free_bytes)
        body = f"It is saved in {folder}, where {free} are free."
        if present:
            body += f"\n\n{units.file_size(present)} of it are here already; gpubox downloads the rest."
        answers = [("n", "not now", "no")]
        if prepared.fits:
            body += "\n\nThe running server is not touched."
            answers.append(("d", "download it", "yes"))
        else:
            body += "\n\nThe disk has too little space. Set HF_HOME to a folder on another disk."
        title = f"Download {units.file_size(size) if size else 'the model'}?"
        if await ask(self.app, title, body, *answers) == "yes" and not self.download:
            await self._download(row, prepared.download)

    async def _download(self, row: FinderRow, download: HubDownload) -> None:
        self.download, self._name, self._progress, self._stop = download, row.key, None, False
        self._update_keys()
        self._draw_progress()

        def report(progress: HubProgress) -> None:  # in the download's thread
            self._progress = progress
            if self._stop:
                raise STOPPED

        try:
            await self.service.download(download, report)
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


def _local_rows(models: list[LocalModel]) -> tuple[FinderRow, ...]:
    if not models:
        return ()
    rows = [FinderRow("local", str(model.path), model.name, local=model) for model in models]
    return (FinderRow("heading", "disk", "On this machine"), *rows)
