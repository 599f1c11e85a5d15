"""Changes of one file: what an edit or a write makes of it, and the diff. Blocking; run in a thread."""

from __future__ import annotations

import ast
import json
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpubox.agent.edit_match import place_edit, with_line_ends
from gpubox.agent.workspace import Workspace, decode_text, encode_text, printable_path
from gpubox.errors import GpuboxError
from gpubox.line_diff import is_binary, line_diff
from gpubox.sandbox.layers import Names

MAX_DIFF_LINES = 400
"""Of a longer diff only head and tail are shown."""
MAX_DIFF_CHARACTERS = 40_000
_MAX_DIFF_LINE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class FileChange:
    """The content of one file before and after. ``before`` is ``None`` for a new file."""

    names: tuple[str, ...]
    before: bytes | None
    after: bytes
    diff: str
    """For the screen; empty: nothing would change."""

    @property
    def path(self) -> str:
        """Relative to the workspace."""
        return "/".join(self.names)


def plan_write(workspace: Workspace, path: str, content: str) -> FileChange:
    """Replaces or creates the whole file, with the line ends and the encoding that it has. Raises GpuboxError."""
    names = _writable_names(workspace, path)
    before, encoding, content = None, "utf-8", _printable(content)
    try:
        before = workspace.read(names)
    except GpuboxError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    if before is not None and not is_binary(before):
        old, encoding = decode_text(before)
        content = with_line_ends(content, old)
        if any(character > "\xff" for character in content):
            encoding = "utf-8"
    return _file_change(names, before, encode_text(content, encoding, path))


def plan_edit(workspace: Workspace, path: str, replacements: Sequence[tuple[str, str]]) -> FileChange:
    """Makes each replacement (old text, new text) at its only place, one after the other. Raises GpuboxError."""
    names = _writable_names(workspace, path)
    before = workspace.read(names)
    if is_binary(before):
        raise GpuboxError(f"{printable_path(path)} is not text.")
    text, encoding = decode_text(before)
    for number, (old, new) in enumerate(replacements, 1):
        try:
            place = place_edit(text, old, _printable(new))
        except GpuboxError as error:
            which = f"Edit {number} of {len(replacements)}: " if len(replacements) > 1 else ""
            raise GpuboxError(f"{which}{error.message} {printable_path(path)} was not changed.", error.hint) from None
        text = text[: place.begin] + place.new + text[place.end :]
    return _file_change(names, before, encode_text(text, encoding, path))


def parse_problem(change: FileChange) -> str:
    """Why the file could not be read by its language any more, in a sentence; empty if it can, or could not before."""
    parse = _PARSERS.get(change.names[-1].rpartition(".")[2])
    if parse is None or (change.before is not None and _failure(parse, change.before)):
        return ""
    return _failure(parse, change.after)


def _parse_python(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its strings' escapes: they are the program's business
        ast.parse(data)


_PARSERS: Mapping[str, Callable[[bytes], object]] = {
    "py": _parse_python,
    "json": json.loads,
    "toml": lambda data: tomllib.loads(data.decode("utf-8")),
}
"""By the end of a file's name."""


def _failure(parse: Callable[[bytes], object], data: bytes) -> str:
    try:
        parse(data)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # JSON's and TOML's are ValueErrors
        where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{getattr(error, 'msg', '') or error}{where}"
    return ""


def shorten_diff(diff: str) -> str:
    """The diff, or its head and tail with a line between them that says how much is not shown."""
    lines = [_shorten_line(line) for line in diff.splitlines()]
    if len(lines) <= MAX_DIFF_LINES and sum(len(line) + 1 for line in lines) <= MAX_DIFF_CHARACTERS:
        return "\n".join(lines)
    head = _first_that_fit(lines)
    tail = _first_that_fit(reversed(lines[len(head) :]))[::-1]
    hidden = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"@@ {hidden} of {len(lines)} lines of this diff are NOT SHOWN @@", *tail])


def _first_that_fit(lines: Iterable[str]) -> list[str]:
    """The first lines, up to half of what may be shown."""
    fitting: list[str] = []
    remaining = MAX_DIFF_CHARACTERS // 2
    for line in lines:
        remaining -= len(line) + 1
        if remaining < 0 or len(fitting) == MAX_DIFF_LINES // 2:
            break
        fitting.append(line)
    return fitting


def _shorten_line(line: str) -> str:
    hidden = len(line) - _MAX_DIFF_LINE_CHARACTERS
    return line if hidden <= 0 else f"{line[:_MAX_DIFF_LINE_CHARACTERS]} @@ {hidden} characters NOT SHOWN @@"


def _writable_names(workspace: Workspace, path: str) -> Names:
    workspace.require_writable()
    names = workspace.parts(path)
    if not names or path.endswith("/"):
        raise GpuboxError(f"{printable_path(path) or '.'} is a folder: name a file.")
    return names


def _printable(text: str) -> str:
    """Without lone surrogates: a model may write one, and no file can have it."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _file_change(names: Names, before: bytes | None, after: bytes) -> FileChange:
    return FileChange(names, before, after, "" if before == after else diff_text("/".join(names), before, after))


def diff_text(path: str, before: bytes | None, after: bytes) -> str:
    """A unified diff, to be shown; ``before`` None: the file is new."""
    path = printable_path(path)
    header = f"--- {'/dev/null' if before is None else path}\n+++ {path}\n"
    if before is not None and is_binary(before):
        return f"{header}@@ the old content, {len(before)} bytes, is binary @@\n"
    diff = line_diff(before or b"", after)
    lines = [line for hunk in range(len(diff.hunks)) for line in (diff.header(hunk), *diff.lines(hunk))]
    return header + "\n".join(lines) + "\n"
