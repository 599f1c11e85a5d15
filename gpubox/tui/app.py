"""The screen's application: what every screen shares, and how it is opened and left."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.command import Provider
from textual.reactive import reactive
from textual.widgets import Input

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.tui import theme
from gpubox.tui.actions import ACTIONS_BY_ID, OPENS_INPUT, Scope, bindings
from gpubox.tui.bridge import ServiceBridge, Services
from gpubox.tui.dashboard.profiles import ProfilePane
from gpubox.tui.dashboard.screen import DashboardScreen
from gpubox.tui.messages import (
    LogLinesRead,
    OperationEnded,
    OperationUpdated,
    ProfileEntriesRead,
    ServerOverview,
    ServerOverviewChanged,
    SnapshotTaken,
)
from gpubox.tui.profile_entries import ProfileEntry
from gpubox.tui.sanitize_filter import SanitizeFilter
from gpubox.tui.verbs import Verbs
from gpubox.tui.widgets.requests_pane import RequestRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.filter import LineFilter
    from textual.screen import Screen

    from gpubox.tui.operation_progress import OperationProgress

PREVIEW_DELAY = 0.15
"""Seconds a row is highlighted before its engine is asked: scrolling through the list asks nobody."""
STALE_SECONDS = 2.0
"""Readings older than this are drawn as old ones."""


def _palette() -> type[Provider]:
    from gpubox.tui.palette import ActionProvider

    return ActionProvider


class GpuboxApp(Verbs):
    """Returns whether it was left in the middle of an operation."""

    TITLE = "gpubox"
    # The app's, not the screen's: a screen's own styles cost a second pass over all of them before the first paint.
    CSS_PATH = Path(__file__).parent / "screens" / "dashboard.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.ANYWHERE)]
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}
    DEFAULT_MODE = "dashboard"
    COMMAND_PALETTE_BINDING = ACTIONS_BY_ID["command_palette"].key
    ENABLE_COMMAND_PALETTE = True

    now: reactive[ServerOverview | None] = reactive(None, repaint=False)
    story: reactive[OperationProgress | None] = reactive(None, repaint=False)

    def __init__(self, services: Services, *, start: str | None = None) -> None:
        super().__init__()
        self._clean_text = SanitizeFilter()
        self.register_theme(theme.GPUBOX)
        # Not assigned, which would parse all styles twice before the first paint.
        self.set_reactive(type(self).theme, theme.GPUBOX.name)
        self.stylesheet.set_variables(self.get_css_variables())
        self.animation_level = "none"
        self.bridge = ServiceBridge(self, services)
        self.entries: tuple[ProfileEntry, ...] = ()
        self.dashboard = DashboardScreen(read_only=services.read_only, url=services.url)
        self.add_mode("dashboard", lambda: self.dashboard)
        self.add_mode("chat", self.open_chat)
        self.add_mode("bench", self.open_bench)
        self._start = start
        self._placed = False
        self.broken = ""
        """What broke the screen, where it did."""

    @property
    def told(self) -> OperationProgress | None:
        return self.story

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.DEFAULT_VARIABLES

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (self._clean_text, *super().get_line_filters())

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return ()  # the registry's verbs are the palette

    def on_mount(self) -> None:
        self._tick()
        self.set_interval(1.0, self._tick)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        if not gc.isenabled():  # it was off for the first paint
            gc.freeze()
            gc.enable()
        if not self.is_headless:
            quit_ = partial(self.bridge.run, self.action_quit, "quit")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, quit_)
        self.dashboard.fill()
        self.bridge.begin()
        self.bridge.run(self.watch_bench, "watch-bench")

    def _tick(self) -> None:
        self.dashboard.header.clock = f"{self.bridge.services.clock():%H:%M}"
        self.broadcast(self.now)
        taken = self.bridge.watch.taken_at
        if taken is not None:
            self.dashboard.show_stale(asyncio.get_running_loop().time() - taken > STALE_SECONDS)

    def say(self, text: str, *, bad: bool = False) -> None:
        """A sentence that goes away by itself."""
        self.notify(sanitize_line(text), severity="warning" if bad else "information", markup=False, timeout=6)

    def _fatal_error(self) -> None:
        # Textual would print a traceback; the owner gets one sentence and a file to report.
        import traceback

        error = sys.exc_info()[1] or self._exception
        self.broken = f"{type(error).__name__}: {error}"
        self.bridge.services.save_traceback("".join(traceback.format_exception(error)) if error else "")
        self._close_messages_no_wait()

    # -- what the bridge hears ----------------------------------------------------------------------

    @on(ServerOverviewChanged)
    def _now_read(self, message: ServerOverviewChanged) -> None:
        self.now = message.now
        self.dashboard.show_now(message.now)
        self.broadcast(message.now)
        self._place()

    @on(SnapshotTaken)
    def _snapshot_taken(self) -> None:
        if snapshot := self.bridge.watch.take():
            self.dashboard.show_snapshot(snapshot, self.bridge.watch.history)
            self.broadcast(self.now, snapshot)

    @on(events.AppBlur)
    def _blurred(self) -> None:
        self.dashboard.calm = True

    @on(events.AppFocus)
    def _focused(self) -> None:
        self.dashboard.calm = False

    async def on_unmount(self) -> None:
        await self.bridge.services.close()

    @on(ProfileEntriesRead)
    def _entries_read(self, message: ProfileEntriesRead) -> None:
        self.entries = message.entries
        self.dashboard.profiles.hides_shipped = self.bridge.hides_shipped
        self.dashboard.show_entries(message.entries)
        self._place()
        if self._start and self.now:
            self._open_with(self._start)

    @on(OperationUpdated)
    def _story_moved(self, message: OperationUpdated) -> None:
        from gpubox.server.events import Step, StepStarted
        from gpubox.tui.operation_progress import OperationProgress

        story = self.story or OperationProgress("", "")
        self.story = story.after(message.event)
        if isinstance(message.event, StepStarted) and message.event.step in (Step.LOAD, Step.RESTORE):
            self.dashboard.log_pane.note(f"── {message.event.step} {sanitize_line(message.event.profile)} ──")
        if self._leaving > 1:
            self.leave_when_safe()

    @on(OperationEnded)
    def _operation_ended(self) -> None:
        if self._leaving:
            self.exit(False)

    @on(LogLinesRead)
    def _log_read(self, message: LogLinesRead) -> None:
        self.dashboard.log_pane.write(message.lines)

    def watch_story(self, story: OperationProgress | None) -> None:
        if self.dashboard.is_mounted:
            self.dashboard.show_operation(story)

    def _place(self) -> None:
        """At the first sight of both, the highlight goes to what runs or ran."""
        if self._placed or not self.entries or self.now is None:
            return
        self._placed = True
        name = self._start or self.now.status.profile or self.now.last
        first = next((entry for entry in self.entries if entry.profile), self.entries[0])  # broken files come first
        self.dashboard.profiles.highlight(f"profile:{name}" if name else first.id)
        if self._start:
            self._open_with(self._start)

    def _open_with(self, name: str) -> None:
        entry = next((e for e in self.entries if e.name == name and e.kind != "model"), None)
        if entry:
            self._start = None
            self.choose(entry, may_download=True)  # `gpubox demo` says what it fetches

    @on(ProfilePane.EntryHighlighted)
    def _highlighted(self, message: ProfilePane.EntryHighlighted) -> None:
        if message.entry and message.entry.profile:
            self.bridge.run(partial(self._preview, message.entry), "preview", exclusive=True)
        else:
            self.workers.cancel_group(self, "preview")

    async def _preview(self, entry: ProfileEntry) -> None:
        preview, size = await self.bridge.preview(entry, PREVIEW_DELAY)
        self.dashboard.show_preview(entry, preview, size)

    # -- keys ---------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in OPENS_INPUT and isinstance(self.focused, Input))

    @on(ProfilePane.EntrySelected)
    def _chosen(self, message: ProfilePane.EntrySelected) -> None:
        self.choose(message.entry)

    @on(RequestRows.RowOpened)
    def _opened(self, message: RequestRows.RowOpened) -> None:
        from gpubox.tui.screens.request import RequestScreen

        self.push_screen(RequestScreen(message.value))


def run_app(
    paths: Paths,
    config: Config,
    url: str | None = None,
    start: str | None = None,
    *,
    replay: Path | None = None,
) -> None:
    """Opens the screen and returns when it is left; then says what keeps running.

    ``replay`` plays a recording instead of looking at this machine.
    """
    from gpubox.tui.local_services import LocalServices
    from gpubox.tui.terminal_exit import exit_on_hangup, exit_summary

    services = LocalServices(paths, config, url)
    if replay:
        from gpubox.tui.replay_services import open_recording

        services = open_recording(replay, paths, config)
    app = GpuboxApp(services, start=start)
    exit_on_hangup(app.bridge.ended)
    in_the_middle = app.run()
    if not in_the_middle:
        app.bridge.ended.wait()  # the screen broke in the middle: the operation comes to its end first
    if url is None and replay is None:
        sys.stdout.write(exit_summary(paths))
        sys.stdout.flush()
    if app.broken:
        raise GpuboxError(f"The screen broke: {app.broken}.", "What runs was not touched; please report it.")
    if in_the_middle:
        os._exit(0)  # the operation's thread would be waited for; its server goes on loading without us
