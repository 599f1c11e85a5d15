"""What happens when the owner asks for a change: the questions first, then download, then the operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line
from gpubox.server.events import Step
from gpubox.tui.dialogs import DialogAnswer, QuestionScreen
from gpubox.tui.operation_progress import OperationProgress
from gpubox.tui.profile_entries import ProfileEntry

if TYPE_CHECKING:
    from gpubox.tui.app import GpuboxApp


class OperationController:
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

    async def choose(self, entry: ProfileEntry, *, may_download: bool = False) -> None:
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
            await self.start(entry.profile, may_download=may_download)

    async def start(self, profile: Profile, *, may_download: bool = False) -> None:
        """Starts ``profile``, or replaces what runs by it. ``may_download``: the owner agreed to that already."""
        now = self.app.now
        active = now.status.profile if now and now.status.pid is not None else None
        kind = "switch" if active and not profile.companion else "start"
        allow = await self._allowed(profile)
        if allow is None:
            return
        stop_now = False
        if await self.bridge.needs_download(profile):
            if not may_download and not await self._agreed_to_download(profile, kind):
                return
        elif kind == "switch" and active != profile.name:
            answer = await self._ask_busy(f"switch to {profile.name}")
            if answer is None:
                return
            stop_now = answer == "now"
        await self._run(kind, profile, stop_now=stop_now, allow_exposed=allow)

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
            if await self.bridge.needs_download(entry.profile) and not await self._agreed_to_download(
                entry.profile, "start"
            ):
                return
            answer = await self._ask_busy("restart")
            if answer is not None:
                await self._run("restart", entry.profile, stop_now=answer == "now", allow_exposed=allow)

    async def stop(self, entry: ProfileEntry | None) -> None:
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
        answers = (DialogAnswer("n", "keep it running", "no"), DialogAnswer("y", f"stop {sanitize_line(name)}", "yes"))
        if await self.app.push_screen_wait(QuestionScreen(f"Stop {sanitize_line(name)}?", body, answers)) == "yes":
            self.app.story = OperationProgress("stop", name)
            await self.bridge.operate("stop", companion or "main")

    async def _run(self, kind: str, profile: Profile, *, stop_now: bool, allow_exposed: bool) -> None:
        self.app.story = OperationProgress(kind, profile.name)
        if await self.bridge.needs_download(profile) and not await self.bridge.fetch(profile):
            return
        await self.bridge.operate(kind, profile, stop_now=stop_now, allow_exposed=allow_exposed)

    async def _make_profile(self, entry: ProfileEntry) -> None:
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
        if not self.services.exposed_without_key(profile):
            return False
        body = (
            f"{sanitize_line(profile.name)} listens on {sanitize_line(profile.host)} and there is no API key: everybody who reaches "
            "this machine can use the model, and ask the server what it is working on.\n\n"
            'A key in the api-key file closes it (? says where that is); so does host = "127.0.0.1" in the profile.'
        )
        answers = (DialogAnswer("n", "do not start it", "no"), DialogAnswer("o", "start it open", "open"))
        answer = await self.app.push_screen_wait(QuestionScreen("Open to the network without a key?", body, answers))
        return True if answer == "open" else None

    async def _agreed_to_download(self, profile: Profile, kind: str) -> bool:
        planned = await self.bridge.plan_download(profile)
        size = units.file_size(planned.size_bytes) if planned.size_bytes else ""
        free = f" ({units.file_size(planned.free_bytes)} free)" if planned.free_bytes is not None else ""
        body = (
            f"{sanitize_line(profile.model)} is not here yet. {f'It has {size}' if size else 'Its size is not known'}. "
        )
        body += f"It goes to {sanitize_line(str(planned.folder))}{free}."
        answers = [DialogAnswer("n", "not now", "no")]
        if planned.fits:
            answers.append(DialogAnswer("d", f"download it, then {kind} {sanitize_line(profile.name)}", "yes"))
        else:
            body += "\n\nThat is too little room. HF_HOME names a folder on another disk."
        title = f"Download {size or 'the model'}?"
        return await self.app.push_screen_wait(QuestionScreen(title, body, answers)) == "yes"

    async def give_up(self) -> None:
        """Asks whether the operation under way is to be given up; what ran before then comes back."""
        story = self.app.story
        if story is None or not self.bridge.busy:
            return
        body = "What ran before comes back." if story.kind != "start" else "Nothing runs then."
        answers = (DialogAnswer("n", "go on", "no"), DialogAnswer("y", "give up", "yes"))
        title = f"Give up the {story.kind} of {sanitize_line(story.profile)}?"
        if await self.app.push_screen_wait(QuestionScreen(title, body, answers)) == "yes" and self.bridge.busy:
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
        limit = units.rough_duration(self.services.wait_seconds())
        body = f"{_sentence(busy)} Requests that are cut off have to be asked again."
        answers = (
            DialogAnswer("w", f"wait until it is idle ({limit} at most), then {sanitize_line(verb)}", "wait"),
            DialogAnswer("n", f"{sanitize_line(verb)} now", "now"),
            DialogAnswer("c", "leave it running", "cancel"),
        )
        name = self.app.now.status.profile if self.app.now else ""
        answer = await self.app.push_screen_wait(
            QuestionScreen(f"{sanitize_line(name or 'The server')} is busy", body, answers)
        )
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
            await self._run(story.kind, entry.profile, stop_now=True, allow_exposed=bool(allowed))


def _sentence(slots: list[str]) -> str:
    text = sanitize_line("; ".join(slots))
    return f"{text[:1].upper()}{text[1:]}." if text else ""
