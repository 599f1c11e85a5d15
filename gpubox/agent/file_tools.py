"""The tools of a workspace: list, read and search files; write and edit them once the owner approved the diff."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from gpubox.agent import browse, edits
from gpubox.agent.edits import FileChange
from gpubox.agent.tools import Tool, ToolCall, ToolOutput
from gpubox.agent.workspace import Workspace
from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread

CANCEL_TIMEOUT_SECONDS = 10.0
"""How long a cancelled write is waited for. If the disk takes longer, the write ends before it replaces the file."""
_MAX_PLANNED_CHANGES = 16

_PATH = {"type": "string", "description": "Path relative to the workspace."}

Work = Callable[[ToolCall, threading.Event], str]
"""The blocking work of one call: its output as text. The event is set when the call is cancelled."""


class FileTool:
    """One tool whose work blocks: it runs in a thread, and a cancel ends it."""

    parallel_safe = True

    def __init__(self, name: str, description: str, arguments: dict[str, Any], work: Work) -> None:
        self.name = name
        self.description = description
        self.parameters = {
            "type": "object",
            "properties": arguments,
            "required": [key for key, schema in arguments.items() if "default" not in schema],
        }
        self._work = work

    def diff(self, call: ToolCall) -> str:
        """Empty: reading needs no approval."""
        return ""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Runs the call. A mistake of the model is an output, not an exception."""
        stop = threading.Event()
        started = time.monotonic()
        work = asyncio.ensure_future(run_in_thread(self._work, call, stop))
        try:
            text, ok = await asyncio.shield(work), True
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work], timeout=CANCEL_TIMEOUT_SECONDS)
            if work.done() and not work.cancelled():
                work.exception()  # retrieved, or asyncio would log it
            raise
        except GpuboxError as error:
            text, ok = f"{error.message} {error.hint}".strip(), False
        return ToolOutput(
            text,
            ok=ok,
            seconds=time.monotonic() - started,
            ended_by="" if ok else "refused",
            files_changed=self._written_files(call) if ok else (),
        )

    def _written_files(self, call: ToolCall) -> tuple[str, ...]:
        return ()


class ChangeTool(FileTool):
    """A tool that writes one file. It makes only the change whose diff was shown."""

    parallel_safe = False

    def __init__(
        self,
        name: str,
        description: str,
        arguments: dict[str, Any],
        workspace: Workspace,
        plan: Callable[[ToolCall], FileChange],
    ) -> None:
        super().__init__(name, description, arguments, self._apply)
        self._workspace, self._plan = workspace, plan
        self._shown: OrderedDict[str, FileChange] = OrderedDict()
        """The changes whose diff was shown, by call id."""

    def diff(self, call: ToolCall) -> str:
        """The change as a diff (of a long one head and tail); empty if there is nothing to approve."""
        try:
            change = self._plan(call)
        except GpuboxError:
            return ""  # ``run`` reports the problem
        if change.diff:
            self._shown[call.id] = change
            while len(self._shown) > _MAX_PLANNED_CHANGES:
                self._shown.popitem(last=False)
        return edits.shorten_diff(change.diff)

    def _apply(self, call: ToolCall, stop: threading.Event) -> str:
        change = self._shown.pop(call.id, None)
        if change is None:
            if self._plan(call).diff:
                raise GpuboxError("The file has changed meanwhile. Nothing was written.", "Call the tool again.")
            return "The file already has exactly this content."
        edits.apply_change(self._workspace, change, stop)
        verb = "created" if change.before is None else "changed"
        return f"{change.path} was {verb}: {len(change.after)} bytes."

    def _written_files(self, call: ToolCall) -> tuple[str, ...]:
        return (_text(call, "path"),)


def file_tools(workspace: Workspace) -> list[Tool]:
    """All tools of ``workspace``, in the order in which the model reads their descriptions."""

    def list_files(call: ToolCall, stop: threading.Event) -> str:
        recursive = call.arguments.get("recursive") in (True, "true", "True", 1)
        return browse.list_entries(workspace, _text(call, "path", "."), recursive, stop)

    def read_file(call: ToolCall, stop: threading.Event) -> str:
        first, count = _integer(call, "first_line", 1), _integer(call, "lines", browse.MAX_LINES)
        return browse.read_lines(workspace, _text(call, "path"), max(1, first), max(1, count))

    def search_files(call: ToolCall, stop: threading.Event) -> str:
        text, glob = _text(call, "text"), _text(call, "glob", "")
        return browse.search(workspace, text, _text(call, "path", "."), glob[:200], stop)

    def plan_write(call: ToolCall) -> FileChange:
        return edits.plan_write(workspace, _text(call, "path"), _text(call, "content"))

    def plan_edit(call: ToolCall) -> FileChange:
        return edits.plan_edit(workspace, _text(call, "path"), _text(call, "old"), _text(call, "new"))

    return [
        FileTool(
            "list_files",
            "List a folder of the workspace.",
            {
                "path": {**_PATH, "default": "."},
                "recursive": {"type": "boolean", "description": "Also list the subfolders.", "default": False},
            },
            list_files,
        ),
        FileTool(
            "read_file",
            "Read a text file of the workspace: as many lines as fit into one output, and which line is next.",
            {
                "path": _PATH,
                "first_line": {"type": "integer", "description": "First line to read, from 1.", "default": 1},
                "lines": {"type": "integer", "description": "How many lines to read.", "default": browse.MAX_LINES},
            },
            read_file,
        ),
        FileTool(
            "search_files",
            "Find the lines of the workspace's text files that contain a given string (no regular expression).",
            {
                "text": {"type": "string", "description": "What to find; case does not matter."},
                "path": {**_PATH, "default": "."},
                "glob": {
                    "type": "string",
                    "description": "Search only files that match this pattern, such as *.py.",
                    "default": "",
                },
            },
            search_files,
        ),
        ChangeTool(
            "write_file",
            "Create a text file in the workspace, or replace one. The owner sees the change and may refuse it. "
            "If programs find the workspace read-only, use this to change files.",
            {"path": _PATH, "content": {"type": "string", "description": "The whole new content."}},
            workspace,
            plan_write,
        ),
        ChangeTool(
            "edit_file",
            "Replace a text that occurs exactly once in a file. The owner sees the change and may refuse it.",
            {
                "path": _PATH,
                "old": {"type": "string", "description": "The text to replace, exactly as it is in the file."},
                "new": {"type": "string", "description": "The new text."},
            },
            workspace,
            plan_edit,
        ),
    ]


def _text(call: ToolCall, name: str, default: str | None = None) -> str:
    value = call.arguments.get(name, default)
    if not isinstance(value, str):
        raise GpuboxError(f"{call.name} needs {name!r}, a string.")
    return value


def _integer(call: ToolCall, name: str, default: int) -> int:
    value = call.arguments.get(name, default)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GpuboxError(f"{name!r} must be a whole number.")
    return value
