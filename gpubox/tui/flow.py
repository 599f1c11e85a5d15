"""What happens when the owner asks for a change: the questions first, then download, then the operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.profiles.model import Profile
from gpubox.server.events import Step
from gpubox.tui.entries import Entry
from gpubox.tui.screens.ask import Answer, AskScreen
from gpubox.tui.story import Story
from gpubox.tui.text import plain

if TYPE_CHECKING:
    from gpubox.tui.app import GpuboxApp


class Flow:
    """Runs inside workers of the app, because it waits for answers."""

    def __init__(self, app: GpuboxApp) -> None:
        self.app = app
        self.bridge, self.services = app.bridge, app.bridge.services

    def refused(self) -> bool:
        """Says why nothing can be changed now; whether that is so."""
        if self.services.read_only:
            self.app.say(self.services.read_only, bad=True)
        elif self.bridge.busy:
            story = self.app.story
            self.app.say(f"A {story.kind} is under way; one thing at a time." if story else "One thing at a time.")
        return bool(self.services.read_only) or self.bridge.busy

    async def choose(self, entry: Entry) -> None:
        """Enter on a row."""
        if self.bridge.busy and self._waiting():
            await self._wait_again()
        elif self.refused():
            return
        elif entry.kind == "broken" and entry.error:
            self.app.say(str(entry.error), bad=True)
        elif entry.kind == "model" and entry.model:
            await self._make_profile(entry)
        elif entry.profile:
            await self.start(entry.profile)

    async def start(self, profile: Profile) -> None:
        """Starts ``profile``, or replaces what runs by it."""
        now = self.app.now
        active = now.status.profile if now and now.status.pid is not None else None
        kind = "switch" if active and not profile.companion else "start"
        allow = await self._allowed(profile)
        if allow is None:
            return
        go_now = False
        if not await self.bridge.to_fetch(profile) and kind == "switch" and active != profile.name:
            answer = await self._ask_busy(f"switch to {profile.name}")
            if answer is None:
                return
            go_now = answer == "now"
        await self._run(kind, profile, go_now=go_now, allow_exposed=allow)

    async def restart(self) -> None:
        """Restarts what runs, or starts again what died."""
        if self.refused():
            return
        now = self.app.now
        name = (now.status.profile or now.last) if now else None
        entry = next((e for e in self.app.entries if e.profile and e.name == name), None)
        if name is None:
            self.app.say("Nothing runs and nothing ran before. Enter starts the highlighted profile.")
        elif entry is None or entry.profile is None:
            self.app.say(f"The profile {name} is not in the list any more.", bad=True)
        elif (allow := await self._allowed(entry.profile)) is not None:
            answer = await self._ask_busy("restart")
            if answer is not None:
                await self._run("restart", entry.profile, go_now=answer == "now", allow_exposed=allow)

    async def stop(self, entry: Entry | None) -> None:
        """Stops the highlighted companion, else the active server."""
        if self.refused():
            return
        now = self.app.now
        companion = entry.name if entry and now and entry.name in now.companions else None
        name = companion or (now.status.profile if now and now.status.pid is not None else None)
        if now is None or name is None:
            self.app.say("Nothing runs.")
            return
        busy = [] if companion else self._busy()
        body = f"{_sentence(busy)} It will be cut off." if busy else "It does nothing at the moment."
        if not companion and now.status.slots is None:
            body = "It does not say whether it is busy."
        answers = (Answer("n", "keep it running", "no"), Answer("y", f"stop {plain(name)}", "yes"))
        if await self.app.push_screen_wait(AskScreen(f"Stop {plain(name)}?", body, answers)) == "yes":
            self.app.story = Story("stop", name)
            await self.bridge.operate("stop", companion or "main")

    async def _run(self, kind: str, profile: Profile, *, go_now: bool, allow_exposed: bool) -> None:
        self.app.story = Story(kind, profile.name)
        if await self.bridge.to_fetch(profile) and not await self.bridge.fetch(profile):
            return
        await self.bridge.operate(kind, profile, go_now=go_now, allow_exposed=allow_exposed)

    async def _make_profile(self, entry: Entry) -> None:
        assert entry.model is not None
        try:
            profile = await self.bridge.make_profile(entry.model)
        except GpuboxError as error:
            self.app.say(str(error), bad=True)
            return
        self.app.say(f"Made the profile {profile.name}: {profile.path or ''}".rstrip(": "))
        self.app.dashboard.profiles.highlight(f"profile:{profile.name}")
        await self.bridge.read_entries()

    async def _allowed(self, profile: Profile) -> bool | None:
        """Whether an unguarded port was agreed to; ``None``: the owner said no."""
        if not self.services.exposed_unguarded(profile):
            return False
        body = (
            f"{plain(profile.name)} listens on {plain(profile.host)} and there is no API key: everybody who reaches "
            "this machine can use the model, and ask the server what it is working on.\n\n"
            'A key in the api-key file closes it (? says where that is); so does host = "127.0.0.1" in the profile.'
        )
        answers = (Answer("n", "do not start it", "no"), Answer("o", "start it open", "open"))
        answer = await self.app.push_screen_wait(AskScreen("Open to the network without a key?", body, answers))
        return True if answer == "open" else None

    async def give_up(self) -> None:
        """Asks whether the operation under way is to be given up; what ran before then comes back."""
        story = self.app.story
        if story is None or not self.bridge.busy:
            return
        body = "What ran before comes back." if story.kind != "start" else "Nothing runs then."
        answers = (Answer("n", "go on", "no"), Answer("y", "give up", "yes"))
        title = f"Give up the {story.kind} of {plain(story.profile)}?"
        if await self.app.push_screen_wait(AskScreen(title, body, answers)) == "yes" and self.bridge.busy:
            self.services.cancel()

    # -- busy slots ---------------------------------------------------------------------------------

    def _busy(self) -> list[str]:
        now = self.app.now
        return [str(slot) for slot in (now.status.slots or ()) if slot.busy] if now else []

    async def _ask_busy(self, verb: str) -> str | None:
        """``wait`` or ``now``; ``None``: leave it. Does not ask when nothing is busy."""
        busy = self._busy()
        if not busy:
            return "wait"
        limit = units.span(self.services.wait_seconds())
        body = f"{_sentence(busy)} Requests that are cut off have to be asked again."
        answers = (
            Answer("w", f"wait until it is idle ({limit} at most), then {plain(verb)}", "wait"),
            Answer("n", f"{plain(verb)} now", "now"),
            Answer("c", "leave it running", "cancel"),
        )
        name = self.app.now.status.profile if self.app.now else ""
        answer = await self.app.push_screen_wait(AskScreen(f"{plain(name or 'The server')} is busy", body, answers))
        return None if answer == "cancel" else answer

    def _waiting(self) -> bool:
        return self.app.story is not None and self.app.story.step is Step.WAIT

    async def _wait_again(self) -> None:
        """Asks again while the operation waits for busy slots."""
        story = self.app.story
        assert story is not None
        answer = await self._ask_busy(f"{story.kind} to {story.profile}" if story.kind == "switch" else story.kind)
        if not self._waiting() or answer == "wait":
            return
        self.services.cancel()
        await self.bridge.idle()
        entry = next((e for e in self.app.entries if e.profile and e.name == story.profile), None)
        if answer == "now" and entry and entry.profile and (allowed := await self._allowed(entry.profile)) is not None:
            await self._run(story.kind, entry.profile, go_now=True, allow_exposed=bool(allowed))


def _sentence(slots: list[str]) -> str:
    text = plain("; ".join(slots))
    return f"{text[:1].upper()}{text[1:]}." if text else ""
