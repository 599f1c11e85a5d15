"""The only writer of stdout. Raises GpuboxError if it cannot write."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gpubox.cli.terminal import sanitized_stdout
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.views.rows import Table

SCHEMA_VERSION = 1
MAX_CELL_CHARS = 400
_printed = False
"""Whether this command line has printed JSON."""


def begin_command() -> None:
    """Forgets the JSON of the last command line in this process."""
    global _printed
    _printed = False


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def emit(line: str = "") -> None:
    """Prints one line. A line break in ``line`` is shown as a symbol: a name cannot fake a second line."""
    emit_text(sanitize_line(line))


def emit_text(text: str) -> None:
    """Prints lines."""
    with _flushed():
        sanitized_stdout().write(f"{text}\n")


def emit_verbatim(text: str) -> None:
    """Prints the contents of a file unchanged; on a terminal they are sanitized."""
    with _flushed():
        sanitized_stdout().write_verbatim(f"{text}\n")


def width() -> int | None:
    """The columns of the terminal; ``None`` if stdout is a file or a pipe."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def emit_chunk(text: str) -> None:
    """Prints a part of a line at once."""
    with _flushed():
        sanitized_stdout().write(text)


def emit_json(values: Mapping[str, Any], *, one_line: bool = False) -> None:
    """Prints one JSON object with its ``schema_version``; ``one_line`` for streams."""
    global _printed
    _printed = True
    text = json.dumps({"schema_version": SCHEMA_VERSION, **values}, indent=None if one_line else 2)
    with _flushed():  # \x7f is the only control code that json.dumps leaves
        sanitized_stdout().write_untruncated(text.replace("\x7f", "\\u007f") + "\n")


def emit_result(shown: str | Table, values: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the outcome of a verb: one line or a table, or with ``as_json`` one JSON object."""
    if as_json:
        emit_json(values)
    elif isinstance(shown, Table):
        emit_table(shown)
    else:
        emit(shown)


def emit_error(error: GpuboxError) -> None:
    """Prints the error as a JSON object, unless the command has printed one already."""
    if not _printed:
        emit_json(error_values(error))


def error_values(error: GpuboxError | None) -> dict[str, Any]:
    """The keys that every outcome has in JSON; ``None`` for success."""
    return {
        "ok": error is None,
        "error": error.message if error else None,
        "hint": (error.hint or None) if error else None,
        "exit_code": int(error.code) if error else 0,
    }


def emit_table(table: Table) -> None:
    """Prints left-aligned columns, two spaces apart."""
    if not table.rows:
        if table.empty:
            emit(table.empty)
        return
    rows = [tuple(map(_cell_text, row)) for row in ([table.header, *table.rows] if table.header else table.rows)]
    widths = Table(rows).widths
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        emit("  ".join([*cells, row[-1]]).rstrip())


def discard() -> None:
    """Sends the rest of stdout to /dev/null. Else the buffer would fail again at exit and change the exit code."""
    with contextlib.suppress(OSError):  # stdout has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell_text(text: str) -> str:
    shown = sanitize_line(text)
    return shown if len(shown) <= MAX_CELL_CHARS else f"{shown[: MAX_CELL_CHARS - 1]}…"


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Raises BrokenPipeError if the reader is gone, GpuboxError if the disk is full."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise GpuboxError(f"The output cannot be written: {error.strerror}.") from None
