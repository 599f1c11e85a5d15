"""JSON-RPC 2.0, a message a line, over two streams: how agents (ACP) and tools (MCP) are spoken to, and answered.

The other end may be anything: garbage, half lines, floods, wrong ids, silence. Each of these ends as a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import IO, Any

from gpubox.errors import GpuboxError, UsageError
from gpubox.sanitize import sanitize_line
from gpubox.storage import json_line, read_json
from gpubox.units import KIB, MIB

MAX_LINE = 32 * MIB
"""The limit of the StreamReader of a Peer. A longer line ends the conversation."""
_MAX_GARBAGE = MIB
"""Bytes that are no message: many a program greets on stdout."""
_MAX_WAITING = 64
"""Requests of the other end that are answered at a time; further ones wait, and with them all that it says."""
_LINE_COST = KIB
"""What a line counts besides its bytes where there is a budget: a million empty lines must end, too."""
_NOTICE_SECONDS = 5.0
_AT_ONCE = 20
"""Lines taken in one go: the loop has other work, too."""
NO_MESSAGE, NO_SUCH_METHOD, BAD_PARAMETERS, INTERNAL_ERROR = -32700, -32601, -32602, -32603


class RpcError(GpuboxError):
    """A request was refused: raised by ``Peer.request``; a handler raises it to refuse one."""

    def __init__(self, message: str, rpc_code: int = INTERNAL_ERROR, data: Any = None) -> None:
        super().__init__(message)
        self.rpc_code, self.data = rpc_code, data


Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""(method, parameters) -> the result of a request. It may raise GpuboxError."""
Heed = Callable[[str, dict[str, Any]], None]
"""What takes a notification. It is called in the order of the lines, before what follows is read."""


class Peer:
    """One end. ``run`` must run beside the requests; ``close`` it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Answer,
        heed: Heed,
        *,
        title: str,
        serves: bool = False,
        budget: int = 0,
    ) -> None:
        """``title``: what the other end is called in sentences. ``reader`` should have the limit MAX_LINE.

        ``serves``: the other end is the client, and is told of a line that cannot be read. ``budget``: so many bytes
        may come from one request of this end to the next; more ends the conversation; 0: without end.
        """
        self._reader, self._writer, self._answer, self._heed, self._title = reader, writer, answer, heed, title
        self._serves, self._budget, self._spent = serves, budget, 0
        self._last_id, self._pending = 0, dict[str, tuple[str, asyncio.Future[Any]]]()
        self._answering: dict[asyncio.Task[None], Any] = {}
        """With the id of the request, which a client may use twice."""
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._garbage = 0
        self.problem = ""
        """Why nothing more comes, as a sentence; empty while ``run`` runs."""
        self.strange: deque[str] = deque(maxlen=5)
        """The last lines that were no messages, for the owner."""

    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float | None = None, withdraw: str = ""
    ) -> Any:
        """The result. Raises RpcError if it is refused, GpuboxError if no answer comes, or none within ``seconds``.

        ``withdraw``: the notification with the ``requestId`` that says it if this is cancelled; some protocols have
        another way.
        """
        self._last_id += 1
        self._spent = self._garbage = 0
        number = str(self._last_id)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.problem:
            raise GpuboxError(self.problem)
        self._pending[number] = (method, answered)
        try:
            async with asyncio.timeout(seconds):
                await self._send({"id": self._last_id, "method": method, "params": params})
                return await answered
        except TimeoutError:
            raise GpuboxError(f"{self._title} did not answer {method} within {seconds:g} s.") from None
        except asyncio.CancelledError:
            if withdraw:
                self.tell(withdraw, {"requestId": int(number)})
            raise
        finally:
            del self._pending[number]

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells the other end. Nothing comes back, and nothing is raised if it is gone or does not read."""
        with contextlib.suppress(GpuboxError, TimeoutError):
            async with asyncio.timeout(_NOTICE_SECONDS):
                await self._send({"method": method, "params": params})

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """As ``notify``, and waits for nothing: for few and small ones, where nothing can be awaited."""
        with contextlib.suppress(OSError, RuntimeError):
            self._write({"method": method, "params": params})

    async def run(self) -> str:
        """Reads until the other end closes, or until what it writes is no JSON-RPC. Returns why, a sentence."""
        try:
            self.problem = await self._read()
        finally:
            self.problem = self.problem or f"The conversation with {self._title} was ended."
            for _, answered in self._pending.values():
                if not answered.done():
                    answered.set_exception(GpuboxError(self.problem))
                    answered.exception()  # who waits gets it; nobody may wait
            for task in [*self._answering]:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)
        return self.problem

    def cancel_answer(self, request_id: Any) -> None:
        """Gives up the answer to a request of the other end, by its id."""
        for task, number in self._answering.items():
            if number == request_id:
                task.cancel()

    def close(self) -> None:
        """Closes what is written to, once that is through. May be called twice."""
        self._writer.close()

    async def _read(self) -> str:
        for number in count(1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return self._too_much or f"{self._title} wrote a line of more than {MAX_LINE // MIB} MiB."
            except asyncio.IncompleteReadError as rest:
                return f"{self._title} ended in the middle of a line." if rest.partial else f"{self._title} ended."
            except OSError as error:
                return f"{self._title} cannot be read: {error.strerror}."
            self._spent += len(line) + _LINE_COST
            if 0 < self._budget < self._spent:
                return self._too_much
            try:
                message = read_json(line)
            except ValueError:
                message = None
            if not isinstance(message, dict) or not await self._take(message):
                self._garbage += len(line)
                self.strange.append(sanitize_line(line[:200].decode("utf-8", "replace").strip()))
                if self._garbage > _MAX_GARBAGE:
                    return f"{self._title} writes what is no JSON-RPC: {self.strange[-1][:80]}"
                if self._serves:
                    await self._fail(None, NO_MESSAGE, "This line is no JSON-RPC message.")
        raise AssertionError

    @property
    def _too_much(self) -> str:
        return f"{self._title} wrote more than {self._budget // MIB} MiB and no answer." if self._budget else ""

    async def _take(self, message: dict[str, Any]) -> bool:
        """Whether it was a message."""
        method, params, number = message.get("method"), message.get("params"), message.get("id")
        if isinstance(method, str):
            values = params if isinstance(params, dict) else {}
            if "id" not in message:
                self._heed(method, values)
                return True
            if self._budget and self._room.locked():
                return True  # it asks and asks, and reads no answer
            await self._room.acquire()
            task = asyncio.create_task(self._reply(number, method, values))
            self._answering[task] = number
            task.add_done_callback(self._answered)
            return True
        _, answered = self._pending.get(str(number), ("", None))
        if answered is None:
            return "result" in message or "error" in message  # a late answer: who asked is gone
        if not answered.done():
            if (refusal := message.get("error")) is None:
                answered.set_result(message.get("result"))
            else:
                answered.set_exception(self._refused(self._pending[str(number)][0], refusal))
        return True

    def _refused(self, method: str, refusal: Any) -> RpcError:
        values = refusal if isinstance(refusal, dict) else {"message": refusal}
        code, data, more = values.get("code"), values.get("data"), ""
        if isinstance(data, dict):
            more = str(data.get("message") or data.get("details") or "")
        elif isinstance(data, str):
            more = data
        why = sanitize_line(f"{values.get('message')}{f' ({more})' if more else ''}"[:2000])
        return RpcError(f"{self._title} refused {method}: {why}", code if isinstance(code, int) else 0, data)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        del self._answering[task]
        if not task.cancelled() and (error := task.exception()):
            asyncio.get_running_loop().call_exception_handler({"message": "JSON-RPC", "exception": error, "task": task})

    async def _reply(self, number: Any, method: str, params: dict[str, Any]) -> None:
        try:
            result = await self._answer(method, params)
        except RpcError as error:
            await self._fail(number, error.rpc_code, error.message, error.data)
        except GpuboxError as error:
            await self._fail(number, INTERNAL_ERROR, " ".join(filter(None, (error.message, error.hint))))
        except Exception as error:  # of this program: the other end must not wait for ever
            await self._fail(number, INTERNAL_ERROR, f"gpubox failed: {type(error).__name__}.")
            raise
        else:
            with contextlib.suppress(GpuboxError):  # it is gone
                await self._send({"id": number, "result": result})

    async def _fail(self, number: Any, code: int, message: str, data: Any = None) -> None:
        more = {} if data is None else {"data": data}
        with contextlib.suppress(GpuboxError):
            await self._send({"id": number, "error": {"code": code, "message": message, **more}})

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._write(message)
            await self._writer.drain()
        except (OSError, RuntimeError):  # RuntimeError: the transport is closing
            raise GpuboxError(self.problem or f"{self._title} takes nothing more.") from None

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._writer.is_closing():  # asyncio would only log it
            raise RuntimeError
        self._writer.write(json_line({"jsonrpc": "2.0", **message}) + b"\n")


async def pipe_streams(reading: IO[bytes], writing: IO[bytes]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams of two ends of pipes, sockets or terminals. Raises OSError if one is a plain file."""
    loop = asyncio.get_running_loop()
    one, other = os.fstat(reading.fileno()), os.fstat(writing.fileno())
    if stat.S_ISSOCK(one.st_mode) and one.st_ino == other.st_ino:
        # both ways (inetd, socat): as two pipes, the writing end would take what comes for a hang-up
        return await asyncio.open_connection(sock=socket.socket(fileno=os.dup(reading.fileno())), limit=MAX_LINE)
    reader = asyncio.StreamReader(limit=MAX_LINE)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, writing)
    except ValueError as error:
        raise OSError(0, str(error)) from None
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def own_streams(hint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """This process's stdin and stdout; what anything prints goes to stderr from now on.

    Raises UsageError with ``hint`` if they are files, or a terminal: no program is at their other end.
    """
    try:
        reading, writing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        if stat.S_ISCHR(os.fstat(0).st_mode):  # a terminal, or /dev/null
            raise OSError
        os.dup2(2, 1)
        return await pipe_streams(reading, writing)
    except OSError:
        raise UsageError("This speaks to a program that starts it: stdin and stdout are no pipes.", hint) from None
