"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gpubox.errors import ExitCode, GpuboxError


def guarded(work: Callable[[], int], logs: Callable[[], Path]) -> int:
    """The exit code of ``work``, its errors told to the owner; no traceback leaves here."""
    try:
        return work()
    except GpuboxError as error:
        show_error(error)
        return error.code
    except KeyboardInterrupt:
        note("gpubox: interrupted")
        return ExitCode.INTERRUPTED
    except Exception:
        show_bug(logs())
        return ExitCode.FAILED


def note(text: str) -> None:
    """A remark beside the answer. A terminal that is gone does not stop what is being done."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def show_error(error: GpuboxError) -> None:
    """``gpubox: what happened`` and, on a line of its own, what to do."""
    note(f"gpubox: {error.message}")
    if error.hint:
        note(f"        {error.hint}")


def show_bug(folder: Path) -> None:
    """One sentence for an error that gpubox did not foresee; the traceback goes into a file in ``folder``."""
    import traceback

    kind, error, _ = sys.exc_info()
    path = folder / "gpubox-error.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        where = f"The traceback is in {path}."
    except OSError:
        where = "It could not be written down."
    show_error(GpuboxError(f"internal error: {kind.__name__ if kind else ''}: {error}", where))


def stderr_is_terminal() -> bool:
    """Whether a line may be redrawn in place."""
    return sys.stderr.isatty()


def redraw(text: str) -> None:
    """Replaces the current terminal line, cut to its width."""
    with contextlib.suppress(OSError):
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[2K{text[:width]}", end="", file=sys.stderr, flush=True)
