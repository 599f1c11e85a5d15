"""The profile that an editor's session wants to be answered by. The server is switched with the next prompt.

Not at once: editors set the model of each session that they open, and others may be using the one that runs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gpubox import units
from gpubox.acp import shown
from gpubox.acp.editor import Editor
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.events import LoadProgress, ServerEvent, Step, StepDone, StepFailed, StepStarted, WaitingForSlots
from gpubox.server.instance import observe

_NOTHING = "-"
"""The profile where none runs."""


class ProfileChoice:
    """Of one session."""

    def __init__(self, paths: Paths, config: Config, editor: Editor, session: str) -> None:
        self._paths, self._config, self._editor, self._session = paths, config, editor, session
        self.wanted = ""
        """Empty: whatever runs."""
        self._step: Step | None = None
        """Of the running switch."""

    async def option(self) -> dict[str, Any]:
        """The profiles, as an option of the session."""
        running, catalog = self._running(), await asyncio.to_thread(load_catalog, self._paths)
        names = [name for name, each in sorted(catalog.profiles.items()) if name == each.name and not each.companion]
        current = self.wanted or running or _NOTHING
        names += [current] if current not in names else []
        options = [{"value": name, "name": name if name != _NOTHING else "(no server runs)"} for name in names]
        about = {"id": "model", "name": "Profile", "category": "model", "type": "select"}
        return {**about, "description": "It is switched to with your next prompt.", "currentValue": current,
                "options": options}  # fmt: skip

    async def want(self, name: str) -> None:
        """The next prompt is answered by the profile ``name``. Raises UsageError if there is none."""
        if name not in (_NOTHING, self._running()):
            name = (await asyncio.to_thread(load_catalog, self._paths)).get(name).name
        self.wanted = "" if name in (_NOTHING, self._running()) else name

    async def switch(self) -> None:
        """Switches to what is wanted, as a tool call that the owner sees. Raises GpuboxError: the old one answers on.

        He is asked where requests would be cut off, or it would not fit.
        """
        wanted, self.wanted = self.wanted, ""
        if not wanted or wanted == self._running():
            return
        call = shown.tool_call(shown.new_id(), f"Switch to {wanted}", "other")
        await self._editor.show(self._session, call)
        lines: list[str] = []
        anyway, wait, now = False, 0.0, False
        ended = "failed"
        try:
            while True:
                try:
                    await self._try(wanted, call["toolCallId"], lines, anyway=anyway, wait=wait, now=now)
                except GpuboxError as error:
                    if error.code == ExitCode.WOULD_NOT_FIT and not anyway:
                        options = {"anyway": "Start it anyway", "no": "Do not switch"}
                    elif self._step == Step.WAIT and not (wait or now):
                        options = {"wait": "Wait for them", "now": "Cut them off", "no": "Do not switch"}
                    else:
                        raise
                    asking = shown.tool_call(
                        call["toolCallId"], call["title"], "other", shown.shown_text(error.message)
                    )
                    chosen = await self._editor.choose(self._session, asking, options)
                    anyway, now = anyway or chosen == "anyway", chosen == "now"
                    wait = self._config.wait_seconds if chosen == "wait" else 0.0
                    if chosen in ("", "no"):
                        raise
                else:
                    ended = "completed"
                    return
        finally:
            await self._editor.show(self._session, shown.tool_update(call["toolCallId"], ended))

    async def _try(self, name: str, identity: str, lines: list[str], *, anyway: bool, wait: float, now: bool) -> None:
        """One try. ``lines``: its steps so far, the last one as it is now."""
        from gpubox.planner.supervisors import make_supervisor

        profile = (await asyncio.to_thread(load_catalog, self._paths)).get(name)
        changed = asyncio.Event()

        def heed(event: ServerEvent) -> None:
            self._step = event.step if isinstance(event, StepStarted) else self._step
            if text := _words(event):
                if lines and not lines[-1].startswith(("✓", "✗")):
                    lines.pop()
                lines.append(text)
                changed.set()

        async def tell() -> None:
            while await changed.wait():
                changed.clear()
                content = shown.shown_text("\n".join(lines))
                await self._editor.show(self._session, shown.tool_update(identity, "in_progress", content))

        telling = asyncio.create_task(tell())
        try:
            supervisor = make_supervisor(self._paths, self._config, MAIN_INSTANCE, heed, anyway=anyway)
            await supervisor.switch(profile, stop_now=now, wait=wait)
        finally:
            telling.cancel()
            await asyncio.wait([telling])

    def _running(self) -> str:
        running = observe(self._paths, MAIN_INSTANCE).running
        return running.launch.profile if running else ""


def _words(event: ServerEvent) -> str:
    match event:
        case StepStarted():
            return str(event.step)
        case LoadProgress():
            done = f"  {units.file_size(event.bytes_read)} of {units.file_size(event.bytes_total)}"
            return f"{event.stage}{done if event.bytes_total else ''}"
        case WaitingForSlots():
            return f"{event.profile} is busy: {'; '.join(event.slots)}"
        case StepDone():
            return f"✓ {event.step} {event.profile}  {event.note}".rstrip()
        case StepFailed():
            return f"✗ {event.step} {event.profile}: {event.sentence}"
        case _:
            return ""
