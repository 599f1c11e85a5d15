"""The tools of a workspace: list, read and search files; write and edit them after the owner approved the diff."""

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

WRITE_PATIENCE_SECONDS = 10.0
"""A cancelled write is waited for so long; one that a disk holds up longer stops before it replaces the file."""
_PLANS = 16

_PATH = {"type": "string", "description": "Path relative to the workspace."}


class FileTool:
    """One tool whose work blocks: it runs in a thread, and a cancel ends it."""

    parallel_safe = True

    def __init__(self, workspace: Workspace, name: str, description: str, parameters: dict[str, Any]) -> None:
        self.workspace = workspace
        self.name = name
        self.description = description
        self.parameters = {
            "type": "object",
            "properties": parameters,
            "required": [key for key, value in parameters.items() if "default" not in value],
        }

    def diff(self, call: ToolCall) -> str:
        """Looking needs no approval."""
        return ""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Does the call. What the model did wrong is an output; cancelling it is."""
        stop = threading.Event()
        began = time.monotonic()
        work = asyncio.ensure_future(run_in_thread(self._do, call, stop))
        try:
            text, ok = await asyncio.shield(work), True
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work], timeout=WRITE_PATIENCE_SECONDS)
            if work.done() and not work.cancelled():
                work.exception()  # looked at, so that nobody complains of it
            raise
        except GpuboxError as error:
            text, ok = f"{error.message} {error.hint}".strip(), False
        return ToolOutput(
            text,
            ok=ok,
            seconds=time.monotonic() - began,
            ended_by="" if ok else "refused",
            files_changed=self._made(call, ok),
        )

    def _do(self, call: ToolCall, stop: threading.Event) -> str:
        raise NotImplementedError

    def _made(self, call: ToolCall, ok: bool) -> tuple[str, ...]:
        return ()


class ListFiles(FileTool):
    """``list_files``."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(
            workspace,
            "list_files",
            "List a folder of the workspace.",
            {
                "path": {**_PATH, "default": "."},
                "recursive": {"type": "boolean", "description": "Folders in it, too.", "default": False},
            },
        )

    def _do(self, call: ToolCall, stop: threading.Event) -> str:
        path, recursive = _text(call, "path", "."), _flag(call, "recursive")
        return browse.list_entries(self.workspace, path, recursive, stop)


class ReadFile(FileTool):
    """``read_file``."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(
            workspace,
            "read_file",
            "Read a text file of the workspace, all of it or some lines.",
            {
                "path": _PATH,
                "first_line": {"type": "integer", "description": "From 1.", "default": 1},
                "lines": {"type": "integer", "description": "How many.", "default": browse.LINES},
            },
        )

    def _do(self, call: ToolCall, stop: threading.Event) -> str:
        first, count = _whole(call, "first_line", 1), _whole(call, "lines", browse.LINES)
        return browse.read_lines(self.workspace, _text(call, "path"), max(1, first), max(1, count))


class SearchFiles(FileTool):
    """``search_files``."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(
            workspace,
            "search_files",
            "Find the lines of the workspace's text files that hold a text. Plain text, not a regular expression.",
            {
                "text": {"type": "string", "description": "What to find; case does not matter."},
                "path": {**_PATH, "default": "."},
                "glob": {"type": "string", "description": "Only files like this, such as *.py.", "default": ""},
            },
        )

    def _do(self, call: ToolCall, stop: threading.Event) -> str:
        text, glob = _text(call, "text"), _text(call, "glob", "")
        return browse.search(self.workspace, text, _text(call, "path", "."), glob[:200], stop)


class ChangeTool(FileTool):
    """A tool that writes one file. Only the very change that was shown as a diff is ever made."""

    parallel_safe = False

    def __init__(self, workspace: Workspace, name: str, description: str, parameters: dict[str, Any]) -> None:
        super().__init__(workspace, name, description, parameters)
        self._plans: OrderedDict[str, FileChange] = OrderedDict()

    def diff(self, call: ToolCall) -> str:
        """The change as a diff, its head and tail where it is long; empty where there is nothing to approve."""
        try:
            change = self._plan(call)
        except GpuboxError:
            return ""  # ``run`` says what is wrong
        if change.diff:
            self._plans[call.id] = change
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return edits.shorten_diff(change.diff)

    def _do(self, call: ToolCall, stop: threading.Event) -> str:
        change = self._plans.pop(call.id, None)
        if change is None:
            if self._plan(call).diff:
                raise GpuboxError("The file changed meanwhile, nothing was written.", "Call it again.")
            return "The file holds exactly this already."
        edits.apply_change(self.workspace, change, stop)
        return f"{change.path} was {'made' if change.before is None else 'changed'}: {len(change.after)} bytes."

    def _plan(self, call: ToolCall) -> FileChange:
        raise NotImplementedError

    def _made(self, call: ToolCall, ok: bool) -> tuple[str, ...]:
        return (_text(call, "path"),) if ok else ()


class WriteFile(ChangeTool):
    """``write_file``."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(
            workspace,
            "write_file",
            "Make a text file in the workspace, or replace one. The owner sees the change and may refuse it. "
            "Where a program finds the workspace read-only, this is how files are changed.",
            {"path": _PATH, "content": {"type": "string", "description": "The whole new content."}},
        )

    def _plan(self, call: ToolCall) -> FileChange:
        return edits.plan_write(self.workspace, _text(call, "path"), _text(call, "content"))


class EditFile(ChangeTool):
    """``edit_file``."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(
            workspace,
            "edit_file",
            "Replace a text that stands exactly once in a file. The owner sees the change and may refuse it.",
            {
                "path": _PATH,
                "old": {"type": "string", "description": "The text as it stands in the file."},
                "new": {"type": "string", "description": "What stands there instead."},
            },
        )

    def _plan(self, call: ToolCall) -> FileChange:
        return edits.plan_edit(self.workspace, _text(call, "path"), _text(call, "old"), _text(call, "new"))


def file_tools(workspace: Workspace) -> list[Tool]:
    """All of them, in the order in which the model reads of them."""
    kinds: list[Callable[[Workspace], Tool]] = [ListFiles, ReadFile, SearchFiles, WriteFile, EditFile]
    return [kind(workspace) for kind in kinds]


def _text(call: ToolCall, name: str, default: str | None = None) -> str:
    value = call.arguments.get(name, default)
    if not isinstance(value, str):
        raise GpuboxError(f"{call.name} needs {name!r}, a text.")
    return value


def _whole(call: ToolCall, name: str, default: int) -> int:
    value = call.arguments.get(name, default)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GpuboxError(f"{name!r} must be a whole number.")
    return value


def _flag(call: ToolCall, name: str) -> bool:
    return call.arguments.get(name) in (True, "true", "True", 1)
