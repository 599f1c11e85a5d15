"""Ctrl-C at every moment: quiet while nothing is at stake, KeyboardInterrupt while work is done, nothing at the end.

Imported before everything else, and therefore imports nothing that is not there at once: ``signal`` and ``typing`` take
as long as all of Python's own start, in which it cannot be helped that Ctrl-C prints what Python prints.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130


def exit_on_interrupt() -> None:
    """Until ``hear``: Ctrl-C ends the process without a word. Where it is ignored (nohup) it stays so."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def hear() -> None:
    """From here on Ctrl-C and SIGTERM are a KeyboardInterrupt."""
    if _signal.getsignal(_signal.SIGINT) is _leave:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    sys.unraisablehook = _again


def deaf() -> None:
    """Python's own leaving takes a moment: one more Ctrl-C stops nothing then, and must not hide the exit code."""
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _again(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that came where Python cannot raise it (a finalizer) comes again a moment later."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import threading

    main = threading.main_thread().ident
    # A real signal, not _thread.interrupt_main: that one waits until a sleep or a read of the main thread is over.
    threading.Timer(0.01, _signal.pthread_kill, (main, _signal.SIGINT)).start()
