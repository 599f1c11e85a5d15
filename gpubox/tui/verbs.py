"""What the verbs of the registry do. Mixed into the app: Textual looks for ``action_<id>`` there."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread
from gpubox.tui.rooms import Rooms

if TYPE_CHECKING:
    from gpubox.tui.operation_progress import OperationProgress
    from gpubox.tui.operations import OperationController
    from gpubox.tui.profile_entries import ProfileEntry


class Verbs(Rooms):
    """The actions. State and messages are in ``app.GpuboxApp``."""

    _leaving = 0
    """How often quitting was asked for while an operation is under way."""

    @cached_property
    def flow(self) -> OperationController:
        from gpubox.tui.operations import OperationController

        app: Any = self
        return OperationController(app)

    @property
    def told(self) -> OperationProgress | None:
        """The story of the operation under way or just over."""
        raise NotImplementedError

    def say(self, text: str, *, bad: bool = False) -> None:
        """A sentence that goes away by itself."""
        raise NotImplementedError

    def action_verb(self, verb: str) -> None:
        """Runs a verb of the registry, as its key does on the screen it belongs to."""
        self.bridge.run(partial(self._run_verb, verb), "verb")

    async def _run_verb(self, verb: str) -> None:
        from gpubox.tui.actions import ACTIONS_BY_ID, Scope

        where = ACTIONS_BY_ID[verb].where
        if verb == "back" and self.bench and self.screen is self.bench:
            self.bench.action_bench_back()
            return
        if where in (Scope.CHAT, Scope.BENCH):
            self.show_mode("chat" if where is Scope.CHAT else "bench")
            await self.run_action(f"screen.{verb}")
            return
        if where is not Scope.ANYWHERE:
            self.action_show_dashboard()
        await self.run_action(verb)

    def choose(self, entry: ProfileEntry, *, may_download: bool = False) -> None:
        """Enter on ``entry``. ``may_download``: the owner agreed already that its model is fetched."""
        self.bridge.run(partial(self.flow.choose, entry, may_download=may_download), "server")

    def action_switch(self) -> None:
        if self.dashboard.requests.rows.has_focus:
            self.dashboard.requests.rows.action_open()
        elif not self.dashboard.profiles.display:
            self.dashboard.alone("profiles")  # nothing is replaced by what nobody sees
        elif entry := self.dashboard.profiles.entry:
            self.choose(entry)

    def action_stop(self) -> None:
        self.bridge.run(partial(self.flow.stop, self.dashboard.profiles.entry), "server")

    def action_restart(self) -> None:
        self.bridge.run(self.flow.restart, "server")

    def action_toggle_shipped(self) -> None:
        if not self.dashboard.profiles.toggle_shipped():
            self.say("All profiles of the list are yours." if self.dashboard.profiles.entries else "No profiles yet.")

    def action_search(self) -> None:
        if not self.dashboard.profiles.display:
            self.dashboard.alone("profiles")
        self.dashboard.profiles.find()

    def action_filter_log(self) -> None:
        if not self.dashboard.log_pane.display:
            self.dashboard.alone("log")
        self.dashboard.log_pane.open_filter()

    def action_focus_profiles(self) -> None:
        self.dashboard.alone("profiles")

    def action_focus_memory(self) -> None:
        self.dashboard.alone("memory")

    def action_focus_requests(self) -> None:
        self.dashboard.alone("requests")

    def action_focus_log(self) -> None:
        self.dashboard.alone("log")

    def action_failed_log(self) -> None:
        self.bridge.run(self._show_failed_log, "failed-log", exclusive=True)

    async def _show_failed_log(self) -> None:
        from gpubox.tui.screens.failed_log import FailedLogScreen

        try:
            said, lines = await run_in_thread(self.bridge.services.failed_log)
        except GpuboxError as error:
            self.say(str(error))
            return
        self.push_screen(FailedLogScreen(said, lines))

    def action_focus_detail(self) -> None:
        self.dashboard.alone("detail")

    def action_copy(self) -> None:
        entry, shown = self.dashboard.detail.entry, self.dashboard.detail.shown
        if not (entry and entry.profile and shown):
            self.say("There is no command line to copy here.")
            return
        from gpubox.tui.dashboard.detail import shell_line

        self.copy_to_clipboard(shell_line(entry.profile, shown.argv))
        self.say(f"Copied the command line of {entry.name}. (Terminals that know OSC 52; tmux: set-clipboard on.)")

    def action_help(self) -> None:
        from gpubox.tui.actions import Scope
        from gpubox.tui.help_screen import HelpScreen

        first = {"chat": Scope.CHAT, "bench": Scope.BENCH}.get(self.current_mode, Scope.ANYWHERE)
        self.push_screen(HelpScreen(self.bridge.services.places(), first=first))

    async def action_back(self) -> None:
        if self.screen is not self.dashboard:
            return  # the other screens answer esc themselves
        if self.dashboard.back() or not self.bridge.busy or self.told is None:
            return
        if self.told.waits:
            self.bridge.services.cancel()
        elif self.told.can_cancel:
            self.bridge.run(self.flow.give_up, "ask")

    async def action_quit(self) -> None:
        """Leaves at once when nothing is under way; else when it is done, or at the second asking."""
        if not self.bridge.busy:
            self.exit(False)
            return
        self._leaving += 1
        if self.told and self.told.downloads:
            self.bridge.abandoned = True
            self.exit(False)
        elif self._leaving == 1:
            kind = self.told.kind if self.told else "operation"
            self.say(f"The {kind} is under way; gpubox closes when it is done. q again leaves at once.")
        else:
            self.leave_when_safe()

    def leave_when_safe(self) -> None:
        """Leaves where a server is loading that goes on by itself; never in the moment between two servers."""
        story = self.told
        if story and story.waits:
            self.bridge.services.cancel()
        elif story and story.safe_to_leave:
            self.exit(True)
        else:
            self.say("Between two servers: gpubox closes as soon as the new one is loading.")
