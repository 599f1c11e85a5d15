"""What Ctrl-C does: it exits silently at start, raises KeyboardInterrupt during work, and is ignored at exit.

This module is imported first. It imports only what Python has loaded already: importing ``signal`` and ``typing`` would
take as long as the start of Python, and during that time Ctrl-C prints a traceback.
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
    """Makes Ctrl-C exit silently until ``raise_on_interrupt``. An ignored SIGINT (nohup) stays ignored."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt from now on."""
    if _signal.getsignal(_signal.SIGINT) is _exit:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    sys.unraisablehook = _send_again


def ignore_interrupts() -> None:
    """Ignores Ctrl-C and SIGTERM while Python exits: they would change the exit code."""
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _send_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeats an interrupt that came during a finalizer, where Python cannot raise it."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import threading

    main = threading.main_thread().ident
    # A real signal: _thread.interrupt_main does not end a sleep or a read of the main thread.
    threading.Timer(0.01, _signal.pthread_kill, (main, _signal.SIGINT)).start()
