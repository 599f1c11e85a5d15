"""Lists, reads, edits and writes the files of a workspace for the model. Bounded in entries, bytes and time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpubox import units
from gpubox.agent import edits
from gpubox.agent.edits import FileChange
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import OwnerQuestion, Tool, ToolCall, ToolOutput, argument, arguments
from gpubox.agent.workspace import MAX_DEPTH, Workspace, decode_text, printable_path
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.line_diff import is_binary
from gpubox.sandbox.layers import LayerItem, Names
from gpubox.storage import read_json

MAX_ENTRIES = 500
"""Entries of one listing."""
MAX_FOLDER_ENTRIES = 5000
"""Entries of one folder that are read at all."""
MAX_LIST_SECONDS = 10.0
NOTE_CHARACTERS = 120
"""Of an output that is left for the note below it: a shortened output would lose its middle."""
SKIPPED_FOLDERS = (
    ".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", "target",
)  # fmt: skip
"""Neither listed by ``recursive`` nor searched."""
CANCEL_TIMEOUT_SECONDS = 10.0
"""How long a cancelled write is waited for."""


@dataclass(slots=True)
class Walk:
    """One walk through folders, and what it left out."""

    stop: threading.Event
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_LIST_SECONDS)
    skipped: list[str] = field(default_factory=list)
    ended_early: str = ""
    """Why the walk did not see everything; empty: it did."""

    def may_continue(self) -> bool:
        """False after ``stop`` or the deadline."""
        if not self.ended_early and self.stop.is_set():
            self.ended_early = "stopped"
        elif not self.ended_early and time.monotonic() > self.deadline:
            self.ended_early = f"incomplete: stopped after {MAX_LIST_SECONDS:.0f} s"
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
    walk = Walk(stop)
    lines: list[str] = []
    pending = _entries(workspace, workspace.parts(path), walk)
    while pending and walk.may_continue():
        if len(lines) == MAX_ENTRIES:
            walk.ended_early = f"only the first {MAX_ENTRIES} are shown"
            break
        names, line, is_folder = pending.pop()
        lines.append(line)
        if not recursive or not is_folder:
            continue
        inner = None
        if names[-1] not in SKIPPED_FOLDERS and len(names) < MAX_DEPTH:
            with contextlib.suppress(GpuboxError):
                inner = _entries(workspace, names, walk)
        if inner is None:
            walk.skipped.append("/".join(names))
        pending += inner or []
    return walk.report(lines or ["(empty)"])


def _entries(workspace: Workspace, names: Names, walk: Walk) -> list[tuple[Names, str, bool]]:
    """Path, line and "is a folder" of what is in one folder, the last first. Raises GpuboxError."""
    with workspace.folder(names) as folder:
        items = list(itertools.islice(folder.items(), MAX_FOLDER_ENTRIES + 1))
        if len(items) > MAX_FOLDER_ENTRIES:
            walk.skipped.append(f"{'/'.join(names) or '.'} after its first {MAX_FOLDER_ENTRIES} entries")
            items.pop()
        items.sort(key=lambda item: item.name, reverse=True)
        paths = [(*names, item.name) for item in items]
        return [
            (path, _entry_line("/".join(path), item), item.is_folder) for path, item in zip(paths, items, strict=True)
        ]


def _entry_line(path: str, item: LayerItem) -> str:
    path = printable_path(path)
    if item.is_folder:
        return f"{path}/"
    if item.is_link:
        with contextlib.suppress(OSError):
            return f"{path} -> {printable_path(item.link_target())} (a link, not followed)"
    return f"{path}  {item.status.st_size} bytes" if item.is_file else f"{path}  (not a regular file)"


def read_lines(workspace: Workspace, path: str, first: int, count: int, budget: int, *, numbers: bool = False) -> str:
    """Whole lines from ``first`` (from 1) on, in at most ``budget`` characters, and what follows. Raises GpuboxError.

    ``count``: at most so many lines; 0: all that fit. ``numbers``: each with its number.
    """
    data = workspace.read(workspace.parts(path))
    if is_binary(data):
        raise GpuboxError(f"{printable_path(path)} is not text: {units.small_size(len(data))} of binary data.")
    lines = decode_text(data)[0].split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        return "(empty)"
    if first > len(lines):
        raise GpuboxError(f"{printable_path(path)} has only {len(lines)} lines.")
    shown: list[str] = []
    remaining = budget - NOTE_CHARACTERS
    for number, line in enumerate(lines[first - 1 : first - 1 + count if count else None], first):
        text = f"{number}: {line}" if numbers else line
        text = _readable(text)
        remaining -= len(text) + 1
        if remaining < 0:
            if not shown:
                shown.append(text[: budget - NOTE_CHARACTERS] + f" … ({len(line)} characters in this line)")
            break
        shown.append(text)
    last = first - 1 + len(shown)
    if first > 1 or last < len(lines):
        following = f"; the next is line {last + 1}" if last < len(lines) else ""
        shown.append(f"(lines {first} to {last} of {len(lines)}{following})")
    return "\n".join(shown)


def _readable(line: str) -> str:
    """Without its carriage return; bytes that are no text become one character each."""
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in line.removesuffix("\r"))


Work = Callable[[ToolCall, threading.Event], ToolOutput]
"""The blocking work of one call. The event is set when the call is cancelled."""


class BlockingTool:
    """One tool whose work blocks: it runs in a thread, and a cancel ends it."""

    max_characters = AgentSettings().max_output_characters

    def __init__(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        work: Work,
        *,
        writes: bool = False,
        question: Callable[[ToolCall], OwnerQuestion] | None = None,
    ) -> None:
        self.name, self.description, self._work, self._question = name, description, work, question
        self.parameters, self.parallel_safe = parameters, not writes

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """Only those of the model: what is written lies in a layer, and the owner decides after the turn."""
        return self._question(call) if self._question else None

    async def run(self, call: ToolCall) -> ToolOutput:
        """Runs the call. A mistake of the model is an output, not an exception."""
        stop = threading.Event()
        started = time.monotonic()
        work = asyncio.ensure_future(run_in_thread(self._work, call, stop))
        try:
            output = await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work], timeout=CANCEL_TIMEOUT_SECONDS)
            if work.done() and not work.cancelled():
                work.exception()  # retrieved, or asyncio would log it
            raise
        except GpuboxError as error:
            output = ToolOutput(f"{error.message} {error.hint}".strip(), ok=False, ended_by="refused")
        return msgspec.structs.replace(output, seconds=time.monotonic() - started)


class Changes:
    """Writes what ``edit`` and ``write`` plan."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._told = b""
        """The last content that would not parse: who insists is not told again."""

    def make(self, change: FileChange, stop: threading.Event) -> ToolOutput:
        """Raises GpuboxError also where the file would no longer parse, unless it is meant so."""
        if not change.diff:
            return ToolOutput("The file already has exactly this content.")
        if (problem := edits.parse_problem(change)) and self._told != change.after:
            self._told = change.after
            raise GpuboxError(
                f"{change.path} would not parse: {problem}. Nothing was written.",
                "Correct the call; if it is meant so, repeat it.",
            )
        if stop.is_set():
            raise GpuboxError(f"{change.path} was not written: the call was stopped.")
        self._workspace.write(change.names, change.after)
        verb = "created" if change.before is None else "changed"
        return ToolOutput(
            f"{printable_path(change.path)} was {verb}: {len(change.after)} bytes.",
            files_changed=self._workspace.note_changes(),
            diff=edits.shorten_diff(change.diff),
        )


def file_tools(workspace: Workspace) -> list[Tool]:
    """``list``, ``read``, ``edit`` and ``write`` in ``workspace``."""
    changes = Changes(workspace)

    def list_files(call: ToolCall, stop: threading.Event) -> ToolOutput:
        recursive = call.arguments.get("recursive") in (True, "true", "True", 1)
        return ToolOutput(list_entries(workspace, _text(call, "path", "."), recursive, stop))

    def read_file(call: ToolCall, stop: threading.Event) -> ToolOutput:
        first, count = _integer(call, "first_line", 1), _integer(call, "lines", 0)
        numbers = call.arguments.get("numbers") in (True, "true", "True", 1)
        path, budget = _text(call, "path"), read.max_characters
        return ToolOutput(read_lines(workspace, path, max(1, first), max(0, count), budget, numbers=numbers))

    def write_file(call: ToolCall, stop: threading.Event) -> ToolOutput:
        return changes.make(edits.plan_write(workspace, _text(call, "path"), _text(call, "content")), stop)

    def edit_file(call: ToolCall, stop: threading.Event) -> ToolOutput:
        return changes.make(edits.plan_edit(workspace, _text(call, "path"), _replacements(call)), stop)

    text, whole, flag = argument("string"), argument("integer"), argument("boolean")
    replacement = arguments(["old", "new"], old=text, new=text)
    read = BlockingTool(
        "read",
        "Read a text file, as many lines as fit.",
        arguments(["path"], path=text, first_line=whole, lines=whole, numbers=flag),
        read_file,
    )
    return [
        BlockingTool("list", "List a folder.", arguments(path=text, recursive=flag), list_files),
        read,
        BlockingTool(
            "edit",
            "Replace texts in a file. Each old text must occur once; copy it exactly.",
            arguments(["path", "edits"], path=text, edits=argument("array", items=replacement)),
            edit_file,
            writes=True,
        ),
        BlockingTool(
            "write",
            "Create a text file, or replace all of it.",
            arguments(["path", "content"], path=text, content=text),
            write_file,
            writes=True,
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
