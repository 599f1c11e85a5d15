"""Work beside the event loop, in threads that do not delay the exit of gpubox; work that is stopped, or cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from gpubox.errors import GpuboxError

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs ``work`` in a thread. Returns what it returns and raises what it raises.

    Unlike in asyncio.to_thread, the thread is a daemon: work that hangs does not keep gpubox from its end.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # the caller was cancelled
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, raised = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no one waits
            loop.call_soon_threadsafe(set_outcome, result, raised)

    try:
        _idle.pop().put(run)
    except IndexError:
        threading.Thread(target=_run_all, args=(run,), daemon=True, name="work").start()
    return await outcome


KEEP_SECONDS = 5.0
"""How long a thread waits for more work: the screen has some several times a second, and a new thread costs more."""
_idle: list[queue.SimpleQueue[Callable[[], None]]] = []
"""Of each thread that waits: where its next work is put."""
os.register_at_fork(after_in_child=_idle.clear)


def _run_all(run: Callable[[], None]) -> None:
    inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    while True:
        run()
        del run  # what it holds must not outlive it
        _idle.append(inbox)
        try:
            run = inbox.get(timeout=KEEP_SECONDS)
        except queue.Empty:
            try:
                _idle.remove(inbox)
            except ValueError:  # it was taken just now
                run = inbox.get()
            else:
                return


class Stopped(GpuboxError):
    """The owner stopped the work."""


class Stoppable:
    """Runs one piece of work at a time, which ``stop`` ends."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what ``work`` returns. Raises Stopped after ``stop``."""
        task = asyncio.create_task(work)
        self._task = task
        try:
            await asyncio.wait([task])  # with `await task` a cancellation of this one would look like a stop
            if task.cancelled():
                raise Stopped("It was stopped.")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])
            _ = task.cancelled() or task.exception()  # whoever was cancelled meanwhile does not ask for it
            self._task = None

    def stop(self) -> bool:
        """Returns whether it was running."""
        return self._task is not None and self._task.cancel()


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
