"""The Textual app: creates the screens, passes messages of the bridge to them, and performs the app-wide actions."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.binding import BindingType

from gpubox.clock import utc_now
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui import messages, theme
from gpubox.tui.actions import ACTIONS_BY_ID, Scope, action_name, bindings, menu_actions
from gpubox.tui.appearance import Appearance
from gpubox.tui.background import BackgroundKnown
from gpubox.tui.base_screen import PersistentScreen, PushedScreen
from gpubox.tui.bridge import ServiceBridge
from gpubox.tui.dashboard.log import show_failed_log
from gpubox.tui.dashboard.operation_line import NEXT
from gpubox.tui.dashboard.profiles import ProfilePane
from gpubox.tui.dashboard.screen import DashboardScreen
from gpubox.tui.dashboard.welcome import FIND
from gpubox.tui.survival import SanitizeFilter, SurvivingApp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.filter import LineFilter

    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.bench_screen import BenchScreen
    from gpubox.tui.chat.chat_screen import ChatScreen
    from gpubox.tui.clients.clients_screen import ClientsScreen
    from gpubox.tui.clients.gateway_actions import GatewayController
    from gpubox.tui.operations import OperationController
    from gpubox.tui.services import LocalServices
    from gpubox.tui.workshop.models_screen import ModelsScreen
    from gpubox.tui.workshop.profile_actions import WorkshopController

PREVIEW_DELAY = 0.15
"""Seconds a row is highlighted before its engine is asked, so that scrolling asks no engine."""
STALE_SECONDS = 4.0
"""Readings older than this are drawn dim."""
BENCH_POLL_SECONDS = 1.0
KEEP_SECONDS = 5.0
"""At most so often what is shown is kept for the next first frame."""
MODES = {Scope.LIST: "dashboard", Scope.DASHBOARD: "dashboard", Scope.CHAT: "chat", Scope.BENCH: "bench",
         Scope.MODELS: "models", Scope.CLIENTS: "clients"}  # fmt: skip


class GpuboxApp(SurvivingApp):
    """``run`` returns whether the owner left during an operation."""

    TITLE = "gpubox"
    # The app's, not the screen's: styles of a screen are parsed in a second pass before the first paint.
    CSS_PATH = Path(__file__).parent / "dashboard" / "dashboard.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.ANYWHERE)]
    DEFAULT_MODE = "dashboard"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, services: LocalServices, *, start: str | None = None) -> None:
        """``start`` names a profile to start as soon as the screen is up."""
        super().__init__()
        self._sanitize_filter = SanitizeFilter()
        self.bridge = ServiceBridge(self, services)
        self.appearance = Appearance(self.bridge)
        # Without the watcher, which would parse all styles twice before the first paint.
        self.set_reactive(type(self).theme, self.appearance.wanted_theme)
        self.stylesheet.set_variables(self.get_css_variables())
        self.animation_level = "none"
        remembered = self.appearance.remembered
        self.dashboard = DashboardScreen(note=services.note, url=services.url, remembered=remembered)
        self.dashboard._css_update_count = self._css_update_count  # else all styles are parsed twice more
        if last := services.last_seen():
            self.dashboard.show_last(last, services.clock())
        for name in dict.fromkeys(MODES.values()):
            self.add_mode(name, partial(getattr, self, name))
        self._start = start
        self._first_highlighted = False
        self._hint_read = False

    @cached_property
    def operations(self) -> OperationController:
        from gpubox.tui.operations import OperationController  # imports gpubox.server: not before the first paint

        return OperationController(self.bridge)

    @cached_property
    def workshop(self) -> WorkshopController:
        from gpubox.tui.workshop.profile_actions import WorkshopController

        return WorkshopController(self.bridge, self.operations, self.dashboard.profiles)

    @cached_property
    def gateway_controller(self) -> GatewayController:
        from gpubox.tui.clients.gateway_actions import GatewayController

        return GatewayController(self.bridge, self.bridge.services.gateway_service())

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variables(dark=self.current_theme.dark)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (self._sanitize_filter, *super().get_line_filters())

    def on_mount(self) -> None:
        self._tick()
        self.set_interval(1.0, self._tick)

    @on(messages.ScreenDrawn)
    def _after_first_paint(self) -> None:
        if not self.is_headless:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
        self.bridge.start(self._after_first_figures)

    def _after_first_figures(self) -> None:
        """Starts what the first figures must not wait for; they are drawn, or long in coming."""
        self.dashboard.mount_content()
        self.appearance.ask_background(self._driver)
        wanted = {*MODES.values()} - {self.current_mode}  # else it is open already
        if self._start is None and (screen := self.appearance.remembered.screen) in wanted:
            self.action_show(screen)
        poller = self.bridge.poller
        if poller.newest and poller.history:
            self.dashboard.show_snapshot(poller.newest, poller.history)
        self.set_interval(KEEP_SECONDS, lambda: self.appearance.keep_last_seen(self.dashboard.last_seen(utc_now())))
        self.call_later(self.take_keys)
        if not gc.isenabled():  # the screen verb disables it for the start
            gc.freeze()
            gc.enable()
        self.bridge.run(self._poll_bench, "poll-bench")
        self.bridge.run(partial(self.dashboard.history.run, self.bridge.services), "poll-history")
        self.bridge.run(self.bridge.recover_trial, "recover-trial")

    async def on_unmount(self) -> None:
        if seen := self.dashboard.last_seen(utc_now()):
            await run_in_thread(self.bridge.services.keep_last_seen, seen)
        await self.bridge.poller.close()
        await self.bridge.services.close()

    def _tick(self) -> None:
        self.dashboard.header.clock = f"{self.bridge.services.clock():%H:%M}"
        self.broadcast()
        taken_at = self.bridge.poller.taken_at
        if taken_at is not None:
            self.dashboard.show_stale(asyncio.get_running_loop().time() - taken_at > STALE_SECONDS)

    def say_failure(self, text: str, details: str) -> None:
        self.bridge.services.save_traceback(details)
        if text:
            self.say(text, bad=True)

    # -- the other screens, each made when it is first shown -----------------------------------------

    @cached_property
    def chat(self) -> ChatScreen:
        from gpubox.tui.chat.chat_screen import ChatScreen

        return ChatScreen(self.bridge.services.chat_service(), note=self.bridge.services.note)

    @cached_property
    def bench(self) -> BenchScreen:
        from gpubox.tui.bench.bench_screen import BenchScreen

        return BenchScreen(self.bridge.services.bench_service(), self.bridge)

    @cached_property
    def models(self) -> ModelsScreen:
        from gpubox.tui.workshop.models_screen import ModelsScreen

        return ModelsScreen(self.bridge.services.finder_service(), self.bridge)

    @cached_property
    def clients(self) -> ClientsScreen:
        from gpubox.tui.clients.clients_screen import ClientsScreen

        services = self.bridge.services
        address = "" if services.read_only else "{}:{}".format(*services.gateway_service().address())
        screen = ClientsScreen(self.bridge, self.gateway_controller, address=address, shown=not services.read_only)
        screen.show_gateway(self.bridge.gateway.view)
        return screen

    def _opened(self) -> list[Any]:
        """The screens beside the dashboard: those that were opened, and those that are pushed on top."""
        opened = [self.__dict__[name] for name in ("chat", "bench", "models", "clients") if name in self.__dict__]
        return [*opened, *(screen for screen in self.screen_stack if isinstance(screen, PushedScreen))]

    def broadcast(self, snapshot: Snapshot | None = None) -> None:
        """Passes the overview and new readings to the other screens."""
        for screen in self._opened():
            screen.header.copy_values(self.dashboard.header)
            screen.show_overview(self.bridge.overview)
            if snapshot:
                screen.show_snapshot(snapshot)

    async def _poll_bench(self) -> None:
        """Shows the active benchmark run in every header, and its progress on the Bench screen."""
        services = self.bridge.services
        recording = bool(services.read_only) and not services.url  # what runs on this machine is not part of it
        while True:
            run = None
            with contextlib.suppress(GpuboxError):
                run = await services.bench_service().active()
            trial = await run_in_thread(services.trial_profile)
            self.dashboard.header.trial = self.bridge.trial or trial or ""
            if not recording:
                self.dashboard.header.bench = f"bench {run.info.plan.kind} {run.count}" if run else ""
                self.broadcast()
            if "bench" in self.__dict__ and (run or self.bench.live):
                self.bench.show_run(run)
            await asyncio.sleep(BENCH_POLL_SECONDS if run else 2 * BENCH_POLL_SECONDS)

    @on(messages.TrialChanged)
    def _trial_changed(self, message: messages.TrialChanged) -> None:
        self.dashboard.header.trial = self.bridge.trial
        self.dashboard.show_trial(message.summary)
        self.broadcast()

    def action_workshop(self, action: str) -> None:
        self.action_show("dashboard")
        self.bridge.run(partial(self.workshop.act, action), "workshop")

    # -- messages of the bridge -------------------------------------------------------------------------

    @on(messages.ScreenOpened)
    def _screen_opened(self) -> None:
        self.broadcast()

    @on(messages.ServerOverviewChanged)
    def _overview_changed(self) -> None:
        assert self.bridge.overview is not None
        self.dashboard.only_watches = self.bridge.services.only_watches
        self.dashboard.show_overview(self.bridge.overview)
        self.broadcast()
        self._highlight_first()
        if self.bridge.overview.status.up and not self._hint_read:
            self._hint_read = True
            self.bridge.run(self._read_hint, "hint")
        self.bridge.run(self._read_undo, "undo", exclusive=True)

    async def _read_hint(self) -> None:
        if await run_in_thread(self.bridge.services.wants_client):
            self.dashboard.status.show_hint(NEXT)

    @on(messages.ClientConnected)
    def _end_hint(self) -> None:
        if self.dashboard.status.hint:
            self.dashboard.status.show_hint(())
            self.bridge.run(partial(run_in_thread, self.bridge.services.end_connect_hint), "hint")

    @on(messages.GatewayChanged)
    def _gateway_changed(self) -> None:
        for screen in (self.dashboard, *self._opened()):
            screen.show_gateway(self.bridge.gateway.view)
        self.broadcast()

    def action_gateway(self, action: str) -> None:
        self.bridge.run(partial(self.gateway_controller.act, action), "gateway")

    def on_advice_changed(self) -> None:
        self.dashboard.status.show_advice(self.bridge.advice.advice)

    @on(messages.SnapshotTaken)
    def _snapshot_taken(self) -> None:
        if taken := self.bridge.poller.take():
            self.dashboard.show_snapshot(*taken)
            self.broadcast(taken[0])
            if not self.bridge.figures_drawn.is_set():
                self.call_after_refresh(self.bridge.figures_drawn.set)

    @on(messages.ProfileEntriesRead)
    def _entries_read(self) -> None:
        self.dashboard.profiles.hides_shipped = self.bridge.hides_shipped
        self.dashboard.profiles.looked = self.bridge.looked_for_models
        self.dashboard.profiles.entries = self.bridge.entries
        self._highlight_first()
        if not self.bridge.rows_drawn.is_set():
            self.call_after_refresh(self.bridge.rows_drawn.set)
        self.bridge.run(self._read_undo, "undo", exclusive=True)

    async def _read_undo(self) -> None:
        services = self.bridge.services
        steps = [] if services.read_only else await run_in_thread(services.workshop_service().undo_steps)
        self.dashboard.show_undo(steps[0].text if steps else "")

    @on(messages.LogLinesRead)
    def _log_lines_read(self, message: messages.LogLinesRead) -> None:
        self.dashboard.log_pane.write(message.lines)

    @on(events.AppBlur)
    @on(events.AppFocus)
    def _focus_changed(self, event: events.Event) -> None:
        self.dashboard.throttled = isinstance(event, events.AppBlur)

    @on(messages.ProfileWanted)
    def _profile_wanted(self, message: messages.ProfileWanted) -> None:
        self.dashboard.profiles.highlight(f"profile:{message.name}")

    def _highlight_first(self) -> None:
        """Once profiles and overview are known: highlights what runs or ran, and starts the profile of ``start``."""
        entries, overview = self.bridge.entries, self.bridge.overview
        if not entries or overview is None:
            return
        if not self._first_highlighted:
            self._first_highlighted = True
            name = self._start or overview.status.profile or overview.last_profile
            first = next((entry for entry in entries if entry.profile), entries[0])  # not a broken file
            if name or not self.dashboard.profiles.asks:  # else the first choice is the one
                self.dashboard.profiles.highlight(f"profile:{name}" if name else first.id)
        if self._start and (entry := next((e for e in entries if e.name == self._start and e.kind != "model"), None)):
            self._start = None
            self.choose(entry, may_download=True)  # `gpubox demo` has named the download already

    @on(ProfilePane.EntryHighlighted)
    def _entry_highlighted(self, message: ProfilePane.EntryHighlighted) -> None:
        if message.entry and message.entry.profile:
            self.bridge.run(partial(self._preview, message.entry), "preview", exclusive=True)
        else:
            self.workers.cancel_group(self, "preview")

    async def _preview(self, entry: messages.ProfileEntry) -> None:
        preview, model_bytes = await self.bridge.preview(entry, PREVIEW_DELAY)
        self.dashboard.show_preview(entry, preview, model_bytes)

    # -- operations -------------------------------------------------------------------------------------

    @on(ProfilePane.EntrySelected)
    def _entry_selected(self, message: ProfilePane.EntrySelected) -> None:
        entry = message.entry
        if entry.id == FIND.id:
            self.action_show("models")
            self.models.action_finder_search()
        elif entry.kind == "choice":
            self.action_workshop("new_profile")
        else:
            self.choose(entry, may_download=bool(entry.text))  # its row has named the download

    def choose(self, entry: messages.ProfileEntry, *, may_download: bool = False) -> None:
        """Starts or switches to an entry. ``may_download``: the owner has already agreed to the download."""
        self.bridge.run(partial(self.operations.choose, entry, may_download=may_download), "server")

    def action_stop(self) -> None:
        self.bridge.run(partial(self.operations.stop, self.dashboard.profiles.entry), "server")

    def action_restart(self) -> None:
        self.bridge.run(self.operations.restart, "server")

    @on(messages.OperationUpdated)
    def _operation_updated(self, message: messages.OperationUpdated) -> None:
        from gpubox.server.events import Step, StepStarted

        event = message.event
        self.operations.updated(event)
        if self.dashboard.is_mounted:
            self.dashboard.show_operation(self.bridge.operation)
        if isinstance(event, StepStarted) and event.step in (Step.LOAD, Step.RESTORE):
            self.dashboard.log_pane.note(f"── {event.step} {sanitize_line(event.profile)} ──")

    @on(messages.OperationEnded)
    def _operation_ended(self) -> None:
        self.operations.ended()

    # -- actions ----------------------------------------------------------------------------------------

    def action_run_by_id(self, action_id: str) -> None:
        """Runs an action from the table as its key does, on the screen it belongs to: for palette and key bar."""
        self.bridge.run(partial(self._run_by_id, action_id), "action")

    async def _run_by_id(self, action_id: str) -> None:
        action = ACTIONS_BY_ID[action_id]
        if action.scope not in (self._top.keys.scope, Scope.ANYWHERE) and isinstance(self._top, PushedScreen):
            self.say("esc closes this screen first.")
            return
        if MODES.get(action.scope, self.current_mode) != self.current_mode:
            self.action_show(MODES[action.scope])
        name = action_name(action)
        on_screen = hasattr(self.screen, f"action_{name.partition('(')[0]}")
        await self.run_action(f"screen.{name}" if on_screen else name)

    def action_show(self, mode: str) -> None:
        """Brings a screen to the front; in the chat again: moves the focus to the prompt."""
        if self._refuses(mode):
            return
        if self.current_mode != mode and len(self.screen_stack) == 1:
            if self.takes_keys:  # an old message is not about this screen; one of the start is still new
                self.clear_notifications()
            self.switch_mode(mode)
            self.appearance.remember(screen=mode)
            self.takes_keys = True  # what they can be about there is there
            self.broadcast()
        elif mode == "chat" == self.current_mode and self.screen is self.chat:
            self.chat.action_chat_write()

    def _refuses(self, mode: str) -> bool:
        """Says so if another machine is watched, and the screen is of this one."""
        only_here = self.bridge.services.only_watches and mode not in ("dashboard", "clients")
        return only_here and self.bridge.refuses()

    def action_tune(self) -> None:
        if not self.bridge.refuses():
            self.action_show("bench")
            self.bench.tune(self.dashboard.profiles.entry)

    def action_advice(self) -> None:
        self.bridge.run(self._show_advice, "advice", exclusive=True)

    async def _show_advice(self) -> None:
        from gpubox.tui.advice import show_advice

        await show_advice(self.workshop)

    def action_bench_speed(self) -> None:
        if not self._refuses("bench"):
            self.action_show("bench")
            self.bench.action_bench_measure()

    def action_failed_log(self) -> None:
        self.bridge.run(partial(show_failed_log, self.bridge), "failed-log", exclusive=True)

    @property
    def _top(self) -> PersistentScreen:
        """The uppermost screen, below all dialogs."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, PersistentScreen))

    def action_help(self) -> None:
        from gpubox.tui.help_screen import HelpScreen

        self.push_screen(HelpScreen(self.bridge.services.file_locations(), first=self._top.keys.scope))

    def action_menu(self) -> None:
        from gpubox.tui.palette import MenuScreen

        title, panes = self._top.menu_panes()
        bar = self._top.keys
        actions = [a for a in menu_actions(bar.scope, panes) if bar.offers(a)]
        if actions:
            self.push_screen(MenuScreen(title, actions), lambda row: self.action_run_by_id(row) if row else None)

    def action_command_palette(self) -> None:
        self.bridge.run(self._palette, "palette", exclusive=True)

    async def _palette(self) -> None:
        """Asks what to do, and does it."""
        from gpubox.tui.palette import ask_palette

        chosen = await ask_palette(self.bridge, self._top)
        kind, _, name = chosen.partition(":")
        if kind == "profile":
            if entry := self.bridge.profile_entry(name):
                self.choose(entry)
        elif chosen:
            await self._run_by_id(chosen)

    def action_change_theme(self) -> None:
        self.bridge.run(self.appearance.ask_theme, "palette", exclusive=True)

    @on(BackgroundKnown)
    def _background_known(self, message: BackgroundKnown) -> None:
        self.appearance.background_known(light=message.light)

    @on(messages.ChoiceMade)
    def _choice_made(self, message: messages.ChoiceMade) -> None:
        self.appearance.remember(**message.values)

    async def action_back(self) -> None:
        if self.screen is not self.dashboard:
            return  # the other screens handle esc themselves
        if self.dashboard.go_back():
            return
        if self.bridge.operation_running:
            self.bridge.run(self.operations.ask_cancel, "ask")
        else:
            self._end_hint()

    async def action_quit(self) -> None:
        """Leaves; asks first if changes of a profile or a trial would be lost."""
        if "workshop" in self.__dict__ and self.workshop.must_ask:
            self.bridge.run(self._ask_quit, "quit", exclusive=True)
        else:
            self.leave()

    def leave(self) -> None:
        """Leaves at once if no operation runs; else when it has ended, or at the second request."""
        if self.bridge.operation_running:
            self.operations.quit()
        else:
            self.exit(False)

    async def _ask_quit(self) -> None:
        if await self.workshop.may_quit():
            self.leave()
