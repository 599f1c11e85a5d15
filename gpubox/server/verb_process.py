"""A verb of gpubox as a process, for programs that speak with another program over stdin and stdout.

It has its own stdout, is ended by a signal, and a switch outlives a front end that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from typing import Any

from gpubox.children import own_program
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import kill_group
from gpubox.json_rpc import MAX_LINE
from gpubox.sanitize import sanitize_line
from gpubox.storage import read_json

READ_SECONDS, EXIT_SECONDS = 120.0, 5.0
"""For a verb that changes nothing; for one that is interrupted."""


async def run_verb(*words: str, note: Callable[[str], None] | None = None) -> tuple[str, str]:
    """stdout and stderr of ``gpubox WORDS``. With ``note``, which gets each line of stderr, it has no limit of time.

    Cancelling it interrupts the verb as Ctrl-C does, and waits for its end.
    """
    title = f"`gpubox {' '.join(words)[:80]}`"
    try:
        process = await asyncio.create_subprocess_exec(
            *own_program("gpubox.cli.entry", *words), stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
            limit=MAX_LINE, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word
        raise GpuboxError(f"{title} cannot be run: {error}.") from None
    assert process.stdout and process.stderr

    async def lines(stderr: asyncio.StreamReader) -> str:
        said = []
        async for line in stderr:
            said.append(sanitize_line(line.decode("utf-8", "replace")).strip())
            if note:
                note(said[-1])
        return "\n".join(said)

    reading = asyncio.gather(process.stdout.read(), lines(process.stderr), process.wait())
    try:
        async with asyncio.timeout(None if note else READ_SECONDS):
            out, err, _ = await asyncio.shield(reading)
    except BaseException as error:
        if process.returncode is None:
            process.terminate()
        if not note and not (await asyncio.wait([reading], timeout=EXIT_SECONDS))[0]:
            kill_group(process.pid)
        while not reading.done():  # a switch brings the old server back, whoever cancels once more
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([reading])
        with contextlib.suppress(asyncio.CancelledError):  # of a loop that closes: nobody else asks for it
            reading.exception()
        if isinstance(error, TimeoutError):
            raise GpuboxError(f"{title} did not answer within {READ_SECONDS:g} s.") from None
        raise
    return out.decode("utf-8", "replace"), err


async def run_json_verb(*words: str, note: Callable[[str], None] | None = None) -> dict[str, Any]:
    """What ``gpubox WORDS``, one of them --json, printed. Raises GpuboxError if that is an error, or nothing."""
    out, err = await run_verb(*words, note=note)
    try:
        values: dict[str, Any] = read_json(out)
    except ValueError:
        raise GpuboxError(err or f"`gpubox {' '.join(words)[:80]}` printed nothing.") from None
    if values.get("ok") is False:
        raise GpuboxError(values["error"], values["hint"] or "", code=ExitCode(values["exit_code"]))
    return values
