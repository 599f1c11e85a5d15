"""Lists, reads, searches and changes the files of a workspace for the model. Bounded in entries, bytes and time."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpubox import units
from gpubox.agent import edits
from gpubox.agent.edits import FileChange
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Tool, ToolCall, ToolOutput
from gpubox.agent.workspace import MAX_DEPTH, FolderEntry, Workspace, is_binary, list_folder, printable_path, read_at
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sandbox.layers import OPEN_FOLDER
from gpubox.storage import read_json

MAX_ENTRIES = 500
"""Entries of one listing."""
MAX_FOLDER_ENTRIES = 5000
"""Entries of one folder that are read at all."""
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
MAX_SEARCH_SECONDS = 10.0
MAX_MATCHES = 100
MAX_LINES = 400
"""Lines of one read."""
MAX_READ_CHARACTERS = AgentSettings().max_output_characters - 120
"""With the note below them, the lines of one read are not shortened: the model would not see which it lacks."""
_MAX_LINE_CHARACTERS = 400
_SKIPPED_FOLDERS = {
    ".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"
}  # fmt: skip


@dataclass(slots=True)
class Walk:
    """One walk through folders, and what it left out."""

    stop: threading.Event
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SEARCH_SECONDS)
    skipped: list[str] = field(default_factory=list)
    ended_early: str = ""
    """Why the walk did not see everything; empty: it did."""

    def may_continue(self) -> bool:
        """False after ``stop`` or the deadline."""
        if not self.ended_early and self.stop.is_set():
            self.ended_early = "stopped"
        elif not self.ended_early and time.monotonic() > self.deadline:
            self.ended_early = f"incomplete: stopped after {MAX_SEARCH_SECONDS:.0f} s"
        return not self.ended_early

    def report(self, lines: list[str]) -> str:
        """``lines`` as text, with notes about what was left out."""
        notes = [f"({self.ended_early})"] if self.ended_early else []
        if self.skipped:
            names = ", ".join(printable_path(path) for path in self.skipped[:5])
            notes.append(f"(skipped: {names}{' …' if len(self.skipped) > 5 else ''})")
        return "\n".join([*lines, *notes])


def list_entries(workspace: Workspace, path: str, recursive: bool, stop: threading.Event) -> str:
    """The entries of a folder, one per line. Raises GpuboxError."""
    names = workspace.parts(path)
    walk = Walk(stop)
    lines: list[str] = []
    with workspace.folder(names) as folder:
        for entry, _ in _entries(workspace, folder, names, walk, recursive=recursive):
            if len(lines) >= MAX_ENTRIES:
                walk.ended_early = f"only the first {MAX_ENTRIES} are shown"
                break
            lines.append(_entry_line(entry))
    return walk.report(lines or ["(empty)"])


def read_lines(workspace: Workspace, path: str, first: int, count: int) -> str:
    """Lines ``first`` (from 1) to ``first + count - 1`` of a text file, and the number of all. Raises GpuboxError."""
    data = workspace.read(workspace.parts(path))
    if is_binary(data):
        raise GpuboxError(f"{printable_path(path)} is not text: {units.file_size(len(data))} of binary data.")
    lines = data.decode("utf-8", errors="replace").splitlines()
    if not lines:
        return "(empty)"
    if first > len(lines):
        raise GpuboxError(f"{printable_path(path)} has only {len(lines)} lines.")
    shown: list[str] = []
    remaining = MAX_READ_CHARACTERS
    for line in lines[first - 1 : first - 1 + min(count, MAX_LINES)]:
        remaining -= len(line) + 1
        if remaining < 0:
            if not shown:
                shown.append(line[:MAX_READ_CHARACTERS] + f" … ({len(line)} characters in this line)")
            break
        shown.append(line)
    last = first - 1 + len(shown)
    if first > 1 or last < len(lines):
        following = f"; the next is line {last + 1}" if last < len(lines) else ""
        shown.append(f"(lines {first} to {last} of {len(lines)}{following})")
    return "\n".join(shown)


def search(workspace: Workspace, text: str, path: str, glob: str, stop: threading.Event) -> str:
    """The lines that contain ``text``, as ``path:line: text``; case does not matter.

    ``text`` is not a regular expression: one that backtracks would block the thread. Raises GpuboxError.
    """
    if not text or "\n" in text or len(text) > 500:
        raise GpuboxError("The text to search for must be one line of at most 500 characters.")
    names, needle = workspace.parts(path), text.casefold()
    walk, remaining_bytes = Walk(stop), MAX_SEARCHED_BYTES
    matches: list[str] = []
    with workspace.folder(names) as start:
        for entry, folder in _entries(workspace, start, names, walk, recursive=True):
            names_of_file = (entry.path, entry.path.rpartition("/")[2])
            if entry.kind != "file" or (glob and not any(fnmatch.fnmatchcase(name, glob) for name in names_of_file)):
                continue
            if entry.size_bytes > remaining_bytes:
                walk.ended_early = f"incomplete: stopped after {MAX_SEARCHED_BYTES // 2**20} MiB"
                break
            try:
                data, _ = read_at(folder, tuple(entry.path.split("/")))
            except GpuboxError:
                continue  # too large, or removed meanwhile
            remaining_bytes -= len(data)
            if is_binary(data):
                continue
            for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
                if needle in line.casefold():
                    matches.append(f"{printable_path(entry.path)}:{number}: {line.strip()[:_MAX_LINE_CHARACTERS]}")
            if len(matches) >= MAX_MATCHES:
                walk.ended_early = f"only the first {MAX_MATCHES} are shown"
                break
    return walk.report(matches[:MAX_MATCHES] or [f"No line contains {text!r}."])


def _entries(
    workspace: Workspace, folder: int, names: tuple[str, ...], walk: Walk, *, recursive: bool
) -> Iterator[tuple[FolderEntry, int]]:
    """The entries under the open folder ``folder``, each with the descriptor of its own folder."""
    entries, truncated = list_folder(folder, names, MAX_FOLDER_ENTRIES, workspace.device)
    if truncated:
        walk.skipped.append(f"{'/'.join(names) or '.'} after its first {MAX_FOLDER_ENTRIES} entries")
    for entry in entries:
        if not walk.may_continue():
            return
        yield entry, folder
        if not recursive or entry.kind != "folder":
            continue
        inner_names = (*names, entry.path.rpartition("/")[2])
        inner = -1
        if inner_names[-1] not in _SKIPPED_FOLDERS and entry.same_device and len(inner_names) < MAX_DEPTH:
            with contextlib.suppress(OSError):
                inner = os.open(inner_names[-1], OPEN_FOLDER, dir_fd=folder)
        if inner < 0:
            walk.skipped.append(entry.path)
            continue
        try:
            yield from _entries(workspace, inner, inner_names, walk, recursive=True)
        finally:
            os.close(inner)


def _entry_line(entry: FolderEntry) -> str:
    path = printable_path(entry.path)
    if entry.kind == "folder":
        return f"{path}/"
    if entry.kind == "link":
        return f"{path} -> {printable_path(entry.link_target)} (a link, not followed)"
    return f"{path}  {entry.size_bytes} bytes" if entry.kind == "file" else f"{path}  (not a regular file)"


CANCEL_TIMEOUT_SECONDS = 10.0
"""How long a cancelled write is waited for. If the disk takes longer, the write ends before it replaces the file."""
_MAX_PLANNED_CHANGES = 16


def _argument(kind: str, description: str, **default: Any) -> dict[str, Any]:
    """The JSON Schema of one argument; without ``default`` it must be given."""
    return {"type": kind, "description": description, **default}


_PATH = _argument("string", "Path relative to the workspace.")

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
        self._told = (b"", "")
        """The last content that would not parse, and the call that was told so: who insists is not told again."""

    def diff(self, call: ToolCall) -> str:
        """The change as a diff (of a long one head and tail); empty if there is nothing to approve."""
        try:
            change = self._checked(call)
        except GpuboxError:
            return ""  # ``run`` reports the problem
        if change.diff:
            self._shown[call.id] = change
            while len(self._shown) > _MAX_PLANNED_CHANGES:
                self._shown.popitem(last=False)
        return edits.shorten_diff(change.diff)

    def _checked(self, call: ToolCall) -> FileChange:
        """The planned change. Raises GpuboxError also where the file would no longer parse, unless it is meant so."""
        change = self._plan(call)
        content, told = self._told
        if (problem := edits.parse_problem(change)) and (content != change.after or told == call.id):
            self._told = (change.after, call.id)
            raise GpuboxError(
                f"{change.path} would not parse: {problem}. Nothing was written.",
                "Correct the call; if it is meant so, repeat it.",
            )
        return change

    def _apply(self, call: ToolCall, stop: threading.Event) -> str:
        change = self._shown.pop(call.id, None)
        if change is None:
            if self._checked(call).diff:
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
        return list_entries(workspace, _text(call, "path", "."), recursive, stop)

    def read_file(call: ToolCall, stop: threading.Event) -> str:
        first, count = _integer(call, "first_line", 1), _integer(call, "lines", MAX_LINES)
        return read_lines(workspace, _text(call, "path"), max(1, first), max(1, count))

    def search_files(call: ToolCall, stop: threading.Event) -> str:
        text, glob = _text(call, "text"), _text(call, "glob", "")
        return search(workspace, text, _text(call, "path", "."), glob[:200], stop)

    def plan_write(call: ToolCall) -> FileChange:
        return edits.plan_write(workspace, _text(call, "path"), _text(call, "content"))

    def plan_edit(call: ToolCall) -> FileChange:
        return edits.plan_edit(workspace, _text(call, "path"), _replacements(call))

    return [
        FileTool(
            "list_files",
            "List a folder of the workspace.",
            {
                "path": {**_PATH, "default": "."},
                "recursive": _argument("boolean", "Also list the subfolders.", default=False),
            },
            list_files,
        ),
        FileTool(
            "read_file",
            "Read a text file of the workspace: as many lines as fit into one output, and which line is next.",
            {
                "path": _PATH,
                "first_line": _argument("integer", "First line to read, from 1.", default=1),
                "lines": _argument("integer", "How many lines to read.", default=MAX_LINES),
            },
            read_file,
        ),
        FileTool(
            "search_files",
            "Find the lines of the workspace's text files that contain a given string (no regular expression).",
            {
                "text": _argument("string", "What to find; case does not matter."),
                "path": {**_PATH, "default": "."},
                "glob": _argument("string", "Search only files that match this pattern, such as *.py.", default=""),
            },
            search_files,
        ),
        ChangeTool(
            "write_file",
            "Create a text file in the workspace, or replace one. The owner sees the change and may refuse it. "
            "If programs find the workspace read-only, use this to change files.",
            {"path": _PATH, "content": _argument("string", "The whole new content.")},
            workspace,
            plan_write,
        ),
        ChangeTool(
            "edit_file",
            "Replace texts in a file, each of which occurs exactly once. The owner sees the change and may refuse it.",
            {
                "path": _PATH,
                "edits": {
                    "type": "array",
                    "description": "One after the other: old is a text as it is in the file, new what replaces it.",
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                        "required": ["old", "new"],
                    },
                },
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


def _replacements(call: ToolCall) -> list[tuple[str, str]]:
    """The edits of a call; a single one may stand in the call itself, and a list may be in a string."""
    given = call.arguments.get("edits", call.arguments)
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            given = read_json(given)
    pairs = []
    for item in given if isinstance(given, list) else [given]:
        match item:
            case {"old": str(old), "new": str(new)}:
                pairs.append((old, new))
            case _:
                raise GpuboxError(f"{call.name} needs 'edits', a list of objects with 'old' and 'new', two strings.")
    return pairs


def _integer(call: ToolCall, name: str, default: int) -> int:
    value = call.arguments.get(name, default)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GpuboxError(f"{name!r} must be a whole number.")
    return value
