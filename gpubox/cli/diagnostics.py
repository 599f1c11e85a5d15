"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gpubox.cli.terminal import TerminalControl, sanitized_stderr, sanitized_streams
from gpubox.errors import ExitCode, GpuboxError
from gpubox.sanitize import sanitize_line

SENTENCE_CHARS = 2000
"""What is shown of an error's sentence: a server may have put a page into it."""


def guarded(
    work: Callable[[], int], logs: Callable[[], Path], tell: Callable[[GpuboxError], None] = lambda error: None
) -> int:
    """The exit code of ``work``, its errors told to the owner and to ``tell``; no traceback leaves here.

    All that is written meanwhile is cleaned.
    """
    with sanitized_streams():
        return _guarded(work, logs, tell)


def _guarded(work: Callable[[], int], logs: Callable[[], Path], tell: Callable[[GpuboxError], None]) -> int:
    try:
        return work()
    except GpuboxError as caught:
        error = caught
    except KeyboardInterrupt:
        error = interrupted()
    except Exception:
        error = bug(logs())
    with _undisturbed(error.code == ExitCode.INTERRUPTED), contextlib.suppress(OSError, GpuboxError):
        show_error(error)
        tell(error)
    return error.code


@contextlib.contextmanager
def _undisturbed(interrupted: bool) -> Iterator[None]:
    """Whoever presses Ctrl-C three times still reads one sentence."""
    if not interrupted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted() -> GpuboxError:
    """Ctrl-C or SIGTERM, as an error."""
    return GpuboxError("interrupted", code=ExitCode.INTERRUPTED)


def note(line: str) -> None:
    """A remark beside the answer, in one line. A terminal that is gone does not stop what is being done."""
    note_text(sanitize_line(line))


def note_text(text: str) -> None:
    """As ``note``, in several lines."""
    with contextlib.suppress(OSError):
        print(text, file=sanitized_stderr(), flush=True)


def show_error(error: GpuboxError) -> None:
    """``gpubox: what happened`` and, on a line of its own, what to do."""
    note(f"gpubox: {_sentence(error.message)}")
    if error.hint:
        note(f"        {_sentence(error.hint)}")


def _sentence(text: str) -> str:
    more = len(text) - SENTENCE_CHARS
    return text if more <= 0 else f"{text[:SENTENCE_CHARS]} … {more:,} more characters"


def bug(folder: Path) -> GpuboxError:
    """One sentence for the error being handled, which gpubox did not foresee; its traceback goes into ``folder``."""
    import traceback

    kind, error, _ = sys.exc_info()
    path = folder / "gpubox-error.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        where = f"The traceback is in {path}."
    except OSError:
        where = "It could not be written down."
    return GpuboxError(f"internal error: {kind.__name__ if kind else ''}: {error}", where)


def stderr_is_terminal() -> bool:
    """Whether a line may be redrawn in place."""
    return sys.stderr.isatty()


def redraw(text: str) -> None:
    """Replaces the current terminal line, cut to its width."""
    import shutil

    with contextlib.suppress(OSError):
        width = shutil.get_terminal_size().columns - 1
        stream = sanitized_stderr()
        stream.control(TerminalControl.CLEAR_LINE)
        print(sanitize_line(text)[:width], end="", file=stream, flush=True)
