"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gpubox.errors import ExitCode, GpuboxError


def guarded(
    work: Callable[[], int], logs: Callable[[], Path], tell: Callable[[GpuboxError], None] = lambda error: None
) -> int:
    """The exit code of ``work``, its errors told to the owner and to ``tell``; no traceback leaves here."""
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


def note(text: str) -> None:
    """A remark beside the answer. A terminal that is gone does not stop what is being done."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def show_error(error: GpuboxError) -> None:
    """``gpubox: what happened`` and, on a line of its own, what to do."""
    note(f"gpubox: {error.message}")
    if error.hint:
        note(f"        {error.hint}")


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
        print(f"\r\x1b[2K{text[:width]}", end="", file=sys.stderr, flush=True)
