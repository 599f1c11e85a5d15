"""Start, switch, restart and stop: the questions to the owner, the download, then the Supervisor's operation.

One switch: ``dashboard/profiles.py`` (Enter) -> ``app.py`` -> here -> ``services.py`` -> Supervisor.switch.
Closing gpubox while one runs is answered here too: when it has ended, or during a load, which goes on by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpubox import units
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line
from gpubox.tui.dialogs import DialogAnswer, ask, confirm
from gpubox.tui.messages import OperationEnded, OperationUpdated
from gpubox.tui.operation_progress import DownloadStatus, OperationAborted, OperationProgress

if TYPE_CHECKING:
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.messages import ProfileEntry
    from gpubox.tui.operation_progress import OperationEvent

DOWNLOAD_REPORT_SECONDS = 0.2
T = TypeVar("T")
Emit = Callable[[Any], None]


class OperationController:
    """Runs one operation at a time, inside workers of the app, because it waits for the owner's answers."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge, self.app, self.services = bridge, bridge.app, bridge.services
        self._download_stopped = False
        self._quit_requests = 0
        """How often closing was asked for during an operation."""

    def begin(self, kind: str, profile: str) -> None:
        """Shows that an operation begins."""
        self.bridge.operation = OperationProgress(kind, profile)
        self.app.post_message(OperationUpdated(None))

    async def choose(self, entry: ProfileEntry, *, may_download: bool = False) -> None:
        """Acts on a selected row. ``may_download``: the owner has already agreed to the download."""
        if self.bridge.operation_running and self.bridge.operation and self.bridge.operation.is_waiting:
            await self._ask_waiting_again(self.bridge.operation)
        elif self.is_refused():
            return
        elif entry.kind == "broken" and entry.error:
            self.app.say(str(entry.error), bad=True)
        elif entry.kind == "model" and entry.model:
            await self._start_model(entry)
        elif entry.profile:
            await self._start(entry.profile, may_download)

    async def restart(self) -> None:
        """Restarts the active server, or starts again the profile that died."""
        if self.is_refused():
            return
        overview = self.bridge.overview
        name = (overview.status.profile or overview.last_profile) if overview else None
        if name is None:
            self.app.say("Nothing runs and nothing ran before. Enter starts the highlighted profile.")
            return
        if not self.bridge.entries:  # the screen has just opened
            await self.bridge.read_entries()
        profile = self._find_profile(name)
        if profile is None:
            self.app.say(f"The profile {name} is no longer in the list.", bad=True)
            return
        await self._ask_and_run("restart", profile, "restart")

    async def stop(self, entry: ProfileEntry | None) -> None:
        """Stops the highlighted companion if it runs, else the active server."""
        if self.is_refused():
            return
        overview = self.bridge.overview
        companion = entry.name if entry and overview and entry.name in overview.companions else None
        name = companion or (overview.status.profile if overview and overview.status.pid is not None else None)
        if overview is None or name is None:
            self.app.say("Nothing runs.")
            return
        busy = [] if companion else self._busy_slots()
        body = f"{_sentence(busy)} The request will be cut off." if busy else "It is idle."
        if not companion and overview.status.slots is None:
            body = "The server does not report whether it is busy."
        shown = sanitize_line(name)
        if await confirm(self.app, f"Stop {shown}?", body, f"stop {shown}", no="keep it running"):
            self.begin("stop", name)
            await self._run("stop", companion or "main", stop_now=False, allow_exposed=False)

    async def ask_cancel(self) -> None:
        """Asks whether to cancel the operation; the previous server then comes back."""
        operation = self.bridge.operation
        if operation is None or not self.bridge.operation_running:
            return
        if operation.is_waiting:
            self.services.cancel()
        if not operation.can_cancel:
            return
        kind = operation.kind
        body = "The previous server is restored." if kind != "start" else "No server runs then."
        title = f"Cancel the {kind} of {sanitize_line(operation.profile)}?"
        if await confirm(self.app, title, body, f"cancel the {kind}", no="continue") and self.bridge.operation_running:
            self.services.cancel()

    def is_refused(self) -> bool:
        """Whether nothing can be changed now; tells the owner why."""
        if self.bridge.refuses():
            return True
        operation = self.bridge.operation
        if self.bridge.trial:
            self.app.say(f"A trial of {self.bridge.trial} is under way: t shows it.")
        elif self.bridge.operation_running:
            self.app.say(f"{f'A {operation.kind}' if operation else 'An operation'} is already under way.")
        return bool(self.bridge.trial) or self.bridge.operation_running

    def _find_profile(self, name: str) -> Profile | None:
        entry = self.bridge.profile_entry(name)
        return entry.profile if entry else None

    async def _start(self, profile: Profile, may_download: bool) -> None:
        if profile.elsewhere:
            self.app.say(sanitize_line(profile.elsewhere))
            return
        overview = self.bridge.overview
        active = overview.status.profile if overview and overview.status.pid is not None else None
        beside = profile.companion or bool(overview and profile.name in overview.companions)
        kind = "switch" if active and not beside else "start"
        change = f"switch to {profile.name}" if kind == "switch" and active != profile.name else ""
        await self._ask_and_run(kind, profile, change, may_download=may_download)

    async def _ask_and_run(self, kind: str, profile: Profile, change: str, *, may_download: bool = False) -> None:
        """All questions before an operation, and the download, which tells what memory is needed. ``change``: what may
        cut off requests, in words; empty: nothing."""
        allow_exposed = await self.ask_exposed(profile)
        if allow_exposed is None:
            return
        downloads = await run_in_thread(self.services.needs_download, profile)
        if downloads:
            if not may_download and not await self._ask_download(profile, "start" if kind == "restart" else kind):
                return
            self.begin(kind, profile.name)
            if not await self._download(profile):
                return
        anyway = await self.ask_memory(profile)
        answer = await self.ask_busy(change) if anyway is not None and change else "wait"
        if anyway is not None and answer:
            self.begin(kind, profile.name)
            await self._run(kind, profile, stop_now=answer == "now", allow_exposed=allow_exposed, anyway=anyway)
        elif downloads:
            self._emit(OperationAborted(GpuboxError("The model is downloaded; nothing else was changed.")))

    async def _start_model(self, entry: ProfileEntry) -> None:
        """Makes a profile of a model, with the flags that make it fit, and starts it."""
        assert entry.model is not None
        profile = await run_in_thread(self.services.make_profile, entry.model, entry.name, entry.plan)
        self.bridge.run(partial(self.bridge.show_profile, profile.name), "entries", exclusive=True)
        self.app.say(f"The profile {profile.name} was made; e changes it.")
        await self._start(profile, may_download=False)

    # -- questions --------------------------------------------------------------------------------------

    async def ask_exposed(self, profile: Profile) -> bool | None:
        """Whether the owner allows an open port; False if none would be opened, ``None`` if the owner refused."""
        if not self.services.exposed_without_key(profile):
            return False
        body = (
            f"{sanitize_line(profile.name)} listens on {sanitize_line(profile.host)} and there is no API key: "
            "everybody who can reach this machine can use the model and see its prompts.\n\n"
            'Put a key into the api-key file (? shows its path), or set host = "127.0.0.1" in the profile.'
        )
        answers = (("n", "do not start it", "no"), ("o", "start it without a key", "open"))
        answer = await ask(self.app, "Open to the network without a key?", body, *answers)
        return True if answer == "open" else None

    async def _ask_download(self, profile: Profile, kind: str) -> bool:
        plan = await run_in_thread(self.services.plan_download, profile)
        size = units.file_size(plan.size_bytes) if plan.size_bytes else ""
        free = f" ({units.file_size(plan.free_bytes)} free)" if plan.free_bytes is not None else ""
        body = (
            f"{sanitize_line(profile.model)} is not on this machine yet. "
            f"{f'Its size is {size}' if size else 'Its size is not known'}. "
            f"It is saved in {sanitize_line(str(plan.folder))}{free}."
        )
        answers: list[DialogAnswer] = [("n", "not now", "no")]
        if plan.fits:
            answers.append(("d", f"download it, then {kind} {sanitize_line(profile.name)}", "yes"))
        else:
            body += "\n\nThe disk has too little space. Set HF_HOME to a folder on another disk."
        return await ask(self.app, f"Download {size or 'the model'}?", body, *answers) == "yes"

    async def ask_memory(self, profile: Profile) -> bool | None:
        """Whether he tries what would not fit; False if it fits or that is unknown; ``None``: not to start it."""
        error = await run_in_thread(self.services.memory_refusal, profile)
        if error is None:
            return False
        body = f"{sanitize_line(error.message)}\n\n{sanitize_line(error.hint)}".strip()
        answers = (("n", "do not start it", "no"), ("a", "start it anyway", "anyway"))
        return True if await ask(self.app, "It would not fit into memory", body, *answers) == "anyway" else None

    def _busy_slots(self) -> list[str]:
        overview = self.bridge.overview
        return [str(slot) for slot in (overview.status.slots or ()) if slot.busy] if overview else []

    async def ask_busy(self, change: str) -> str | None:
        """``wait`` or ``now``; ``None``: do not change anything. Does not ask if the server is idle."""
        busy = self._busy_slots()
        if not busy:
            return "wait"
        limit = units.rough_duration(self.services.config.wait_seconds)
        body = f"{_sentence(busy)} Requests that are cut off must be repeated. {self._cost(change)}".strip()
        change = sanitize_line(change)
        answers = (
            ("w", f"wait until it is idle ({limit} at most), then {change}", "wait"),
            ("n", f"{change} now", "now"),
            ("c", "leave it running", "cancel"),
        )
        name = self.bridge.overview.status.profile if self.bridge.overview else None
        title = f"{sanitize_line(name or 'The server')} is busy"
        answer = await ask(self.app, title, body, *answers)
        return None if answer == "cancel" else answer

    def _cost(self, change: str) -> str:
        """What ``change`` takes: the time of a load where one is known, and what becomes of the conversations."""
        status = self.bridge.overview.status if self.bridge.overview else None
        kept = self.services.config.kept_kv.enabled
        then = "are saved where its model allows it, and come back" if kept else "are lost, and are read again"
        if status is None or not status.load_seconds or change != "restart":
            return f"Conversations in its slots {then}."
        return f"The last load took {units.duration(status.load_seconds)}. Conversations in its slots {then}."

    async def _ask_waiting_again(self, operation: OperationProgress) -> None:
        """Asks the busy question again while the operation waits for slots."""
        to_profile = f" to {operation.profile}" if operation.kind == "switch" else ""
        answer = await self.ask_busy(f"{operation.kind}{to_profile}")
        if not (self.bridge.operation and self.bridge.operation.is_waiting) or answer == "wait":
            return
        self.services.cancel()
        while self.bridge.operation_running:
            await asyncio.sleep(0.02)
        profile = self._find_profile(operation.profile)
        if answer == "now" and profile and (allow_exposed := await self.ask_exposed(profile)) is not None:
            self.begin(operation.kind, profile.name)
            # its memory was checked before it waited
            await self._run(operation.kind, profile, stop_now=True, allow_exposed=allow_exposed, anyway=True)

    # -- running ----------------------------------------------------------------------------------------

    async def _run(
        self, kind: str, target: Profile | str, *, stop_now: bool, allow_exposed: bool, anyway: bool = False
    ) -> None:
        with contextlib.suppress(GpuboxError):  # its message is shown as the outcome
            await self.perform(
                lambda emit: self.services.operate(kind, target, stop_now, allow_exposed, emit, anyway=anyway)
            )

    async def _download(self, profile: Profile) -> bool:
        """Downloads the profile's model. Returns False if that failed."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        reported = float("-inf")
        self.bridge.operation_running, self._download_stopped = True, False

        def report(done: int, total: int | None, waiting: str) -> None:
            nonlocal reported
            if self._download_stopped:
                raise GpuboxError("The download was stopped.", "The next start resumes it.")
            now = loop.time()
            if now - reported >= DOWNLOAD_REPORT_SECONDS or done == total:
                reported = now
                self._emit(DownloadStatus(profile.name, done, total, now - started, waiting))

        self._emit(DownloadStatus(profile.name, 0, None, 0.0))
        try:
            await run_in_thread(self.services.download, profile, report)
        except GpuboxError as error:
            self._emit(OperationAborted(error))
            return False
        finally:
            self.bridge.operation_running = False
        return True

    async def perform(self, work: Callable[[Emit], T]) -> T:
        """Runs an operation in a thread: nothing that happens to the screen may turn it into a rollback.

        Its events, and an error, are shown as the progress of the app's operation. Raises GpuboxError.
        """

        def run() -> T:
            try:
                return work(self._emit)
            finally:
                self.bridge.operation_ended.set()

        self.bridge.operation_running = True
        self.bridge.operation_ended.clear()
        try:
            return await run_in_thread(run)
        except GpuboxError as error:
            self._emit(OperationAborted(error))
            raise
        finally:
            self.bridge.operation_running = False
            self.app.post_message(OperationEnded())
            await self.bridge.refresh()

    # -- closing gpubox ---------------------------------------------------------------------------------

    def quit(self) -> None:
        """Leaves when the operation has ended, at the second request as soon as that is safe."""
        self._quit_requests += 1
        operation = self.bridge.operation
        if operation and operation.is_downloading:
            self._download_stopped = True  # at its next report; the part on disk is kept
            self.app.exit(False)
        elif self._quit_requests == 1:
            kind = operation.kind if operation else "operation"
            self.app.say(f"The {kind} is under way; gpubox closes when it has ended. Press q again to close it now.")
        else:
            self._leave_if_safe()

    def updated(self, event: OperationEvent | None) -> None:
        """The operation begins (None) or made progress: leaves as soon as that is safe, if it was asked for twice."""
        if event is not None:
            self.bridge.operation = (self.bridge.operation or OperationProgress("", "")).with_event(event)
        if self._quit_requests > 1:
            self._leave_if_safe()

    def ended(self) -> None:
        """Leaves if it was asked for."""
        if self._quit_requests:
            self.app.exit(False)

    def _leave_if_safe(self) -> None:
        """Leaves if a server is loading, which continues by itself; never between two servers."""
        operation = self.bridge.operation
        if operation and operation.is_waiting:
            self.services.cancel()
        elif operation and operation.can_leave:
            self.app.exit(True)
        else:
            self.app.say("gpubox is between two servers. It closes as soon as the new one is loading.")

    def _emit(self, event: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the screen is gone; the operation continues without it
            self.app.post_message(OperationUpdated(event))


def _sentence(slots: list[str]) -> str:
    text = sanitize_line("; ".join(slots))
    return f"{text[:1].upper()}{text[1:]}." if text else ""
