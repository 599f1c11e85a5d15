"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

from gpubox.cli import output
from gpubox.cli.terminal import TerminalControl, sanitized_stderr, sanitized_streams
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.sanitize import sanitize_line

MAX_SENTENCE_CHARS = 2000
"""An error may quote what a server answered, up to a whole page."""
_is_line_drawn = False
"""Whether the terminal's current line is one of ``redraw``."""


def run_guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """Returns the exit code of ``work``. Prints its errors, with ``as_json`` also as a JSON object on stdout.

    A traceback goes into a file in the log folder. Everything written meanwhile is sanitized.
    """
    with sanitized_streams():
        try:
            return work()
        except GpuboxError as caught:
            error = caught
        except KeyboardInterrupt:
            error = interrupted()
        except Exception:
            error = _internal_error()
        with _signals_ignored(error.code == ExitCode.INTERRUPTED), contextlib.suppress(OSError, GpuboxError):
            show_error(error)
            if as_json:
                output.emit_error(error)
        return error.code


@contextlib.contextmanager
def _signals_ignored(interrupted: bool) -> Iterator[None]:
    """After an interrupt, lets the error be printed even if Ctrl-C is pressed again."""
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
    warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that it kept from starting is no news
    return GpuboxError("interrupted", code=ExitCode.INTERRUPTED)


def note(line: str) -> None:
    """Writes one line to stderr. A closed terminal is no error: the work goes on."""
    note_text(sanitize_line(line))


def note_text(text: str) -> None:
    """Like ``note``, but keeps line breaks."""
    redraw("")
    with contextlib.suppress(OSError):
        print(text, file=sanitized_stderr(), flush=True)


def show_error(error: GpuboxError) -> None:
    """Prints what happened and, on a second line, what to do."""
    note(f"gpubox: {_sentence(error.message)}")
    if error.hint:
        note(f"        {_sentence(error.hint)}")


def _sentence(text: str) -> str:
    rest = len(text) - MAX_SENTENCE_CHARS
    return text if rest <= 0 else f"{text[:MAX_SENTENCE_CHARS]} … {rest:,} more characters"


def _internal_error() -> GpuboxError:
    """One sentence for the unexpected exception being handled; its traceback goes into a file."""
    import traceback

    from gpubox.paths import Paths
    from gpubox.storage import write_atomically

    kind, error, _ = sys.exc_info()
    path = Paths.default().logs / "gpubox-error.log"
    try:
        write_atomically(path, traceback.format_exc().encode(errors="replace"))
        hint = f"The traceback is in {path}."
    except OSError:
        hint = "The traceback could not be written."
    return GpuboxError(f"internal error: {kind.__name__ if kind else ''}: {error}", hint)


def stderr_is_terminal() -> bool:
    """Whether a line can be redrawn in place."""
    return sys.stderr.isatty()


def confirmed(question: str, refusal: str, *, yes: bool, as_json: bool = False) -> bool:
    """Whether the owner agrees: with ``--yes``, or at the terminal. Raises UsageError if nobody can be asked."""
    if yes:
        return True
    if as_json or not stderr_is_terminal():
        raise UsageError(refusal, "Add --yes.")
    import click

    return click.confirm(question, err=True)


def redraw(text: str) -> None:
    """Replaces the current terminal line by ``text``, cut to the terminal's width. The next note replaces it, too.

    Does nothing if stderr is no terminal.
    """
    global _is_line_drawn
    if not stderr_is_terminal() or not (text or _is_line_drawn):
        return
    import shutil

    _is_line_drawn = bool(text)
    with contextlib.suppress(OSError):
        width = shutil.get_terminal_size().columns - 1
        stream = sanitized_stderr()
        stream.control(TerminalControl.CLEAR_LINE)
        print(sanitize_line(text)[:width], end="", file=stream, flush=True)
