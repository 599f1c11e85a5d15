"""Work that a signal cancels, and that cleans up before the process ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``work``. SIGTERM interrupts it like Ctrl-C; a lost terminal (SIGHUP) does not.

    Raises KeyboardInterrupt after an interrupt.
    """
    try:
        return asyncio.run(_cancel_on_signal(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancel_on_signal(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(number: int, frame: object) -> None:
        # A second signal cancels once more and does not kill: clean-up must finish.
        loop.call_soon_threadsafe(task.cancel)

    # Not loop.add_signal_handler: when the loop closes, SIGTERM would kill the process again.
    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: None)  # SIG_IGN would pass to a server
    try:
        return await work
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
