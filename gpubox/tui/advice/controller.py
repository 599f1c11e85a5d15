"""What the owner does with advice: look at it, try it, dismiss it. Inside workers, because it waits for answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from textual.app import App

    from gpubox.advisor.advice import Advice
    from gpubox.tui.advice.screen import AdviceScreen
    from gpubox.tui.app import GpuboxApp

NO_PROFILE = "Nothing runs, and no profile is highlighted."


def open_advice(app: App[Any]) -> None:
    """Shows the advice, as soon as it is there. ``app``: gpubox's own."""
    own = cast("GpuboxApp", app)
    own.bridge.run(AdviceController(own).show, "advice", exclusive=True)


class AdviceController:
    """The keys of the advice."""

    def __init__(self, app: GpuboxApp) -> None:
        self.app = app
        self._services = app.bridge.services

    async def show(self) -> None:
        """Shows the advice about what runs, else about the highlighted profile."""
        from gpubox.tui.advice.screen import AdviceScreen

        if self._services.read_only:
            self.app.say(self._services.read_only)
            return
        snapshot, entry = self.app.bridge.poller.newest, self.app.dashboard.profiles.entry
        running = bool(snapshot and snapshot.server.pid)
        name = "" if running else entry.name if entry and entry.profile else None
        if name is None:
            self.app.say(NO_PROFILE)
            return
        try:
            judged = await run_in_thread(self._services.advice, snapshot, name)
        except GpuboxError as error:
            self.app.say(str(error), bad=True)
            return
        if judged is None or not judged.profile:
            self.app.say(NO_PROFILE)
            return
        self.app.push_screen(AdviceScreen(judged, self, note=self.app.dashboard.header.note))
        self.app.broadcast()

    def dismiss(self, screen: AdviceScreen, advice: Advice) -> None:
        """Dismisses an advice for good, or shows it again."""
        screen.work(partial(self._dismiss, screen, advice), "advice")

    async def _dismiss(self, screen: AdviceScreen, advice: Advice) -> None:
        profile = screen.judged.profile
        judged = await run_in_thread(
            self._services.dismiss_advice, profile, advice.rule, not advice.dismissed, self.app.bridge.poller.newest
        )
        if judged is not None and screen.is_mounted:
            screen.show_advice(judged)
        screen.say(
            f"{advice.word} is shown again." if advice.dismissed
            else f"{advice.word} is dismissed for {profile}. a shows the dismissed ones."
        )  # fmt: skip
        await self.app.bridge.advice.poll()

    def try_advice(self, screen: AdviceScreen, advice: Advice) -> None:
        """Tries the change, as the editor does."""
        if advice.try_profile is None or not advice.changes:
            screen.say("There is no change to try.")
            return
        screen.work(partial(self._try, screen, advice), "advice")

    async def _try(self, screen: AdviceScreen, advice: Advice) -> None:
        from gpubox.engines.flag_changes import flag_key
        from gpubox.profiles.edit import key_path

        app = self.app
        if app.trial and app.trial.under_way:
            screen.say("A trial is under way: T shows it.")
            return
        profile = await run_in_thread(self._services.profile_named, advice.try_profile or "")
        workshop = app.workshop
        session = await run_in_thread(workshop.service.open_profile, profile)
        rows = {row.path: row for row in session.rows}
        for name, value in advice.changes.items():
            path = key_path(name)
            if path[0] == "flags":
                path = ("flags", flag_key(name, profile, session.capabilities))
            if path in rows:
                session.set(rows[path], value)
            else:
                session.changes[path] = value
        edit = await run_in_thread(workshop.service.edit, session.base, session.changes)
        if refusal := await run_in_thread(workshop.service.check, edit):
            screen.say(refusal, bad=True)
            return
        screen.dismiss(None)
        workshop.try_once(session, edit)
