"""The profile that an editor's session wants to be answered by. The server is switched with the next prompt.

Not at once: editors set the model of each session that they open, and others may be using the one that runs.
"""

from __future__ import annotations

from typing import Any

from gpubox.acp import shown
from gpubox.acp.editor import Editor
from gpubox.concurrency import run_in_thread
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.instance import observe
from gpubox.server.verb_process import run_json_verb

_NOTHING = "-"
"""The profile where none runs."""


class ProfileChoice:
    """Of one session."""

    def __init__(self, paths: Paths, editor: Editor, session: str) -> None:
        self._paths, self._editor, self._session = paths, editor, session
        self.wanted = ""
        """Empty: whatever runs."""

    async def option(self) -> dict[str, Any]:
        """The profiles, as an option of the session."""
        running, catalog = self._running(), await run_in_thread(load_catalog, self._paths)
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
            name = (await run_in_thread(load_catalog, self._paths)).get(name).name
        self.wanted = "" if name in (_NOTHING, self._running()) else name

    async def switch(self) -> None:
        """Switches to what is wanted, as a tool call that the owner sees. Raises GpuboxError: the old one answers on.

        It waits for requests that run. Cancelled, it brings the old server back first.
        """
        wanted, self.wanted = self.wanted, ""
        if not wanted or wanted == self._running():
            return
        call = shown.tool_call(shown.new_id(), f"Switch to {wanted}", "other")
        identity, lines, ended = call["toolCallId"], list[str](), "failed"

        def note(line: str) -> None:
            lines.append(line)
            content = shown.shown_text("\n".join(lines))
            self._editor.tell(self._session, shown.tool_update(identity, "in_progress", content))

        await self._editor.show(self._session, call)
        try:
            await run_json_verb(*self._paths.options, "switch", "--json", "--", wanted, note=note)
            ended = "completed"
        finally:
            await self._editor.show(self._session, shown.tool_update(identity, ended))

    def _running(self) -> str:
        running = observe(self._paths, MAIN_INSTANCE).running
        return running.launch.profile if running else ""
