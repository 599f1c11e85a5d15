"""Blocking work beside the event loop, in threads that do not delay the exit of gpubox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs ``work`` in a thread. Returns what it returns and raises what it raises.

    Unlike in asyncio.to_thread, the thread is a daemon: work that hangs does not keep gpubox running after the owner
    quits.
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

    threading.Thread(target=run, daemon=True, name=getattr(work, "__name__", "work")).start()
    return await outcome
