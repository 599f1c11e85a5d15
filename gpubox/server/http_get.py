"""HTTP GET and POST over connections of http.client. Polling needs no httpx, whose import is slow."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from urllib.parse import urlsplit

PART_BYTES = 64 * 1024
_CLOSED = ("RemoteProtocolError", "ReadError")
"""The errors of a kept connection that the server has closed: build 11434 closes it after each stream."""


_WORDS = {
    "ConnectError": "nothing accepts connections there", "ConnectTimeout": "it accepts no connection in time",
    "ReadTimeout": "no answer in time", "closed": "the connection is closed",
    **dict.fromkeys((*_CLOSED, "WriteError"), "the connection broke off"),
}  # fmt: skip


class NoResponse(Exception):
    """No answer came. ``kind`` is the name of httpx's exception for the same failure."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind

    @property
    def words(self) -> str:
        """Why, for the owner."""
        return _WORDS.get(self.kind, self.kind)


class ResponseTooLarge(NoResponse):
    """An answer of more than ``limit`` bytes. ``sentence`` says so to the owner."""

    def __init__(self, path: str, limit: int) -> None:
        self.sentence = f"{path} answers with more than {limit >> 20} MiB: that is not a llama-server"
        super().__init__(self.sentence)


class ConnectionPool:
    """Blocking requests to one server. Thread-safe: each request takes a free connection or opens one."""

    def __init__(self, base_url: str, headers: dict[str, str], timeout: float) -> None:
        """``timeout``: seconds for each read; a whole answer may take twice as long.

        Raises ValueError if ``base_url`` is not an http address.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it names no host")
        self._host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        self._port, self._path = parts.port, parts.path.rstrip("/")
        self._connection_type = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = headers
        self._timeout = timeout
        self._free: list[http.client.HTTPConnection] = []
        self._in_use: set[http.client.HTTPConnection] = set()
        self._closed = False

    def get(self, path: str, limit: int) -> tuple[int, bytes]:
        """Status and body of the answer to ``GET path``, at most ``limit`` bytes. Raises NoResponse."""
        end = time.monotonic() + 2 * self._timeout
        with contextlib.suppress(IndexError):
            kept = self._free.pop()
            try:
                return self._ask(kept, "GET", path, limit, end)
            except NoResponse as error:
                if error.kind not in _CLOSED or self._closed:
                    raise
        return self._ask(self._new_connection(), "GET", path, limit, end)

    def post(self, path: str, limit: int) -> tuple[int, bytes]:
        """As ``get``, for ``POST path``, over a connection of its own."""
        return self._ask(self._new_connection(), "POST", path, limit, time.monotonic() + 2 * self._timeout)

    def close(self) -> None:
        """Closes all connections; requests that wait for an answer fail."""
        self._closed = True
        while self._free:
            self._free.pop().close()
        for connection in tuple(self._in_use):
            with contextlib.suppress(OSError, AttributeError):  # its thread may be closing it now
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _new_connection(self) -> http.client.HTTPConnection:
        return self._connection_type(self._host, self._port, timeout=self._timeout)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, limit: int, end: float
    ) -> tuple[int, bytes]:
        keep = False
        self._in_use.add(connection)
        try:
            if connection.sock is None:
                try:
                    connection.connect()
                except OSError as error:
                    raise NoResponse("ConnectTimeout" if isinstance(error, TimeoutError) else "ConnectError") from None
            if self._closed:  # while it connected
                raise NoResponse("closed")
            connection.request(method, self._path + path, None, self._headers)
            response = connection.getresponse()
            answer = _read(response, path, limit, end)
            keep = not response.will_close
            return response.status, answer
        except TimeoutError:
            raise NoResponse("ReadTimeout") from None
        except (http.client.HTTPException, ValueError):  # ValueError: a length or a chunk size that is not a number
            raise NoResponse("RemoteProtocolError") from None
        except OSError:
            raise NoResponse("ReadError") from None
        finally:
            self._in_use.discard(connection)
            if keep and not self._closed:
                self._free.append(connection)
            else:
                connection.close()


def _read(response: http.client.HTTPResponse, path: str, limit: int, end: float) -> bytes:
    parts, size = [], 0
    while part := response.read1(PART_BYTES):
        size += len(part)
        if size > limit:
            raise ResponseTooLarge(path, limit)
        if time.monotonic() > end:  # http.client limits each read, not the whole answer
            raise TimeoutError
        parts.append(part)
    if response.length:  # read1 does not report a missing end
        raise http.client.IncompleteRead(b"")
    response.close()  # otherwise http.client believes that the connection is still in use
    return b"".join(parts)
