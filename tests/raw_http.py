"""An HTTP client that shares no code with gpubox: it says what came over the wire, byte by byte, and when.

It is the oracle of the gateway's tests and measurements. It reads one response at a time from a blocking socket and
notes whether that was whole (all bytes of its framing came) or cut.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 1024 * 1024


@dataclass(slots=True)
class Reply:
    """One response, as far as it came. Times are ``time.monotonic()``."""

    status: int = 0
    """0: no status line came."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """Names in lower case."""
    body: bytes = b""
    """Without the chunks' framing."""
    whole: bool = False
    """All bytes that its framing promised came."""
    left: bool = False
    """The client went away by itself."""
    error: str = ""
    """Why it is not whole."""
    sent_at: float = 0.0
    """The last byte of the request was handed to the kernel."""
    first_token_at: float = 0.0
    """The first event of a stream with text came; 0: none came."""
    token_times: list[float] = field(default_factory=list)
    """When each event with text came."""
    ended_at: float = 0.0

    def header(self, name: str) -> str:
        """The value of a header; empty without one."""
        return next((value for key, value in self.headers if key == name), "")

    def json(self) -> Any:
        """The body as JSON. Raises ValueError."""
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON of a stream's ``data:`` lines, without ``[DONE]`` and comments."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        return [json.loads(line) for line in lines]

    @property
    def text(self) -> str:
        """What the model said, streamed or not, in OpenAI's, Anthropic's or llama-server's shape."""
        if self.body[:1] == b"{":
            return said(self.json())
        return "".join(said(event) for event in self.events)

    @property
    def final(self) -> dict[str, Any]:
        """All fields of the answer's events in one: the last ``usage`` and ``timings`` win."""
        events = [self.json()] if self.body[:1] == b"{" else self.events
        return {key: value for event in events for key, value in event.items()}


def said(event: dict[str, Any]) -> str:
    """The text in one event or one whole answer."""
    choice = (event.get("choices") or [{}])[0]
    message = choice.get("delta") or choice.get("message") or {}
    parts = [message.get("reasoning_content"), message.get("content"), choice.get("text")]
    if not isinstance(event.get("content"), list):
        parts.append(event.get("content"))
    else:
        parts += [block.get("text") for block in event["content"]]
    if isinstance(event.get("delta"), dict):
        parts.append(event["delta"].get("text"))
    return "".join(part for part in parts if isinstance(part, str))


class Wire:
    """One connection to a server on loopback."""

    def __init__(self, port: int, timeout: float = 120.0) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._line = b""
        """The part of a stream's line that came."""
        self._came_at = 0.0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Raises OSError."""
        self.sock.sendall(data)

    def read(self, *, leave: Callable[[Reply], bool] = lambda _: False) -> Reply:
        """The next response. ``leave`` is asked after each piece; True closes the connection. Never raises."""
        reply, self._line = Reply(sent_at=time.monotonic()), b""
        try:
            self._read_into(reply, leave)
        except (OSError, ValueError, IndexError) as error:
            reply.error = reply.error or f"{type(error).__name__}: {error}"
        reply.ended_at = time.monotonic()
        if reply.left:
            self.sock.close()
        return reply

    def ended(self) -> bool:
        """Whether the other side closed, and sent nothing more before that."""
        try:
            return not self._buffer and not self.sock.recv(1)
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _read_into(self, reply: Reply, leave: Callable[[Reply], bool]) -> None:
        status, _, lines = self._until(b"\r\n\r\n").partition(b"\r\n")
        version, code, *_ = status.decode("latin-1").split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(f"not HTTP: {status[:80]!r}")
        reply.status = int(code)
        for line in lines.decode("latin-1").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                reply.headers.append((name.lower(), value.strip()))
        if reply.status in (204, 304) or 100 <= reply.status < 200:
            reply.whole = True
        elif reply.header("transfer-encoding").lower() == "chunked":
            self._read_chunks(reply, leave)
        elif length := reply.header("content-length"):
            while len(reply.body) < int(length) and not self._leaves(reply, leave):
                reply.body += self._some(int(length) - len(reply.body))
            reply.whole = len(reply.body) == int(length)
        else:
            while (piece := self._some(65536, at_end=b"")) and not self._leaves(reply, leave):
                reply.body += piece
            reply.whole = not reply.left

    def _read_chunks(self, reply: Reply, leave: Callable[[Reply], bool]) -> None:
        while not self._leaves(reply, leave):
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            if not size:
                while self._until(b"\r\n"):  # trailers
                    pass
                reply.whole = True
                return
            data = b""
            while len(data) < size:
                data += self._some(size - len(data))
            if self._until(b"\r\n"):
                raise ValueError("a chunk is longer than its size")
            reply.body += data
            self._note_tokens(reply, data)

    def _note_tokens(self, reply: Reply, data: bytes) -> None:
        if not reply.header("content-type").startswith("text/event-stream"):
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {") and said(json.loads(line[6:])):
                reply.token_times.append(self._came_at)
                reply.first_token_at = reply.first_token_at or self._came_at

    def _leaves(self, reply: Reply, leave: Callable[[Reply], bool]) -> bool:
        reply.left = reply.left or leave(reply)
        return reply.left

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > MAX_HEAD:
                raise ValueError("an endless line")
            self._fill()
        before, _, self._buffer = self._buffer.partition(mark)
        return before

    def _some(self, most: int, at_end: bytes | None = None) -> bytes:
        if not self._buffer:
            try:
                self._fill()
            except ConnectionError:
                if at_end is None:
                    raise
                return at_end
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def _fill(self) -> None:
        data = self.sock.recv(65536)
        self._came_at = time.monotonic()
        if not data:
            raise ConnectionError("the connection ended")
        self._buffer += data


def request_bytes(method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """One request as a well-behaved client writes it."""
    head = {"Host": "127.0.0.1", "Accept": "*/*"} | (headers or {})
    if body is not None:
        head = {"Content-Type": "application/json", "Content-Length": str(len(body))} | head
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + (body or b"")


def ask(
    port: int,
    path: str,
    values: dict[str, Any] | None = None,
    *,
    headers: dict[str, str] | None = None,
    leave: Callable[[Reply], bool] = lambda _: False,
    leave_seconds: float | None = None,
    timeout: float = 120.0,
) -> Reply:
    """One request on a connection of its own: GET without ``values``, else POST. Never raises.

    ``leave_seconds``: the client goes away when nothing came for that long. ``timeout``: the same, and it is an error.
    """
    body = None if values is None else json.dumps(values).encode()
    try:
        with Wire(port, timeout) as wire:
            wire.send(request_bytes("GET" if body is None else "POST", path, body, headers))
            if leave_seconds is None:
                return wire.read(leave=leave)
            wire.sock.settimeout(leave_seconds)
            reply = wire.read(leave=leave)
            reply.left = reply.left or not reply.whole
            return reply
    except OSError as error:
        return Reply(error=f"{type(error).__name__}: {error}", ended_at=time.monotonic())
