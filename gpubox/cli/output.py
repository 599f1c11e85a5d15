"""The only writer of stdout. What it cannot write is a GpuboxError."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpubox.cli.terminal import sanitized_stdout
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line

SCHEMA_VERSION = 1
CELL_CHARS = 400
"""What a table shows of one cell."""
_printed = False
"""Whether this command line has printed JSON."""


def begin() -> None:
    """Called once for each command line."""
    global _printed
    _printed = False


def is_terminal() -> bool:
    """Whether the owner reads stdout as it comes."""
    return sys.stdout.isatty()


def emit(line: str = "") -> None:
    """One line for the owner, whatever stands in it: a name with a line break cannot make a second one."""
    emit_text(sanitize_line(line))


def emit_text(text: str) -> None:
    """Lines for the owner."""
    with _told():
        sanitized_stdout().write(f"{text}\n")


def emit_verbatim(text: str) -> None:
    """Lines that are the contents of a file: as they stand, but on a terminal."""
    with _told():
        sanitized_stdout().write_verbatim(f"{text}\n")


def width() -> int | None:
    """The columns of the terminal that stdout is; ``None`` elsewhere, where lines may be as long as they are."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def emit_chunk(text: str) -> None:
    """More of a text that goes on, at once."""
    with _told():
        sanitized_stdout().write(text)


def emit_json(values: Mapping[str, Any], *, one_line: bool = False) -> None:
    """One JSON object with its ``schema_version``; ``one_line`` for streams."""
    global _printed
    _printed = True
    text = json.dumps({"schema_version": SCHEMA_VERSION, **values}, indent=None if one_line else 2)
    with _told():
        sanitized_stdout().write_untruncated(
            text.replace("\x7f", "\\u007f") + "\n"
        )  # the one control code JSON leaves raw


def emit_error(error: GpuboxError) -> None:
    """The error as the one JSON object of a verb called with --json, unless that has printed its own."""
    if not _printed:
        emit_json(error_values(error))


def error_values(error: GpuboxError | None) -> dict[str, Any]:
    """What every JSON object of an outcome has; ``None``: it went well."""
    return {
        "ok": error is None,
        "error": error.message if error else None,
        "hint": (error.hint or None) if error else None,
        "exit_code": int(error.code) if error else 0,
    }


def emit_table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Left-aligned columns, two spaces apart; the last one is never padded."""
    table = [[_cell(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    if not table:
        return
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        emit("  ".join([*cells, row[-1]]).rstrip())


def discard() -> None:
    """Nothing more is written: what is still buffered would fail again at exit, and change the exit code."""
    with contextlib.suppress(OSError):  # a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell(text: str) -> str:
    shown = sanitize_line(text)
    return shown if len(shown) <= CELL_CHARS else f"{shown[: CELL_CHARS - 1]}…"


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raises BrokenPipeError where the reader left, GpuboxError where the disk is full."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise GpuboxError(f"The output cannot be written: {error.strerror}.") from None
