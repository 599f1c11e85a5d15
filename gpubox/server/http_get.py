"""GET of one server over kept connections of http.client: what is polled needs neither httpx nor its import time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from urllib.parse import urlsplit

PART_BYTES = 64 * 1024
_CLOSED = ("RemoteProtocolError", "ReadError")
"""What comes of a kept connection that the server closed meanwhile: build 11434 does so after each stream."""


class NoResponse(Exception):
    """No answer came. ``kind`` is httpx's word for why."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class ResponseTooLarge(NoResponse):
    """An answer of more bytes than are read. Its text is one sentence for the owner."""

    def __init__(self, path: str, limit: int) -> None:
        self.sentence = f"{path} answers with more than {limit >> 20} MiB: that is no llama-server's"
        super().__init__(self.sentence)


class ServerAddress:
    """Where a server listens. Raises ValueError where ``base_url`` is no http address."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it names no host")
        host = parts.hostname
        self.host = host if host.isascii() else host.encode("idna").decode()
        self.port = parts.port
        self.secure = parts.scheme == "https"
        self.folder = parts.path.rstrip("/")


class ConnectionPool:
    """Blocks. May be used by several threads; each request takes a connection that is free, or a new one."""

    def __init__(self, address: ServerAddress, headers: dict[str, str], timeout: float) -> None:
        """``timeout``: seconds for each read; twice as long for a whole answer."""
        self._address = address
        self._headers = headers
        self._timeout = timeout
        self._free: list[http.client.HTTPConnection] = []
        self._in_use: set[http.client.HTTPConnection] = set()
        self._closed = False

    def get(self, path: str, limit: int) -> tuple[int, bytes]:
        """Status and body of the answer to ``GET path``, at most ``limit`` bytes of it. Raises Unanswered."""
        end = time.monotonic() + 2 * self._timeout
        with contextlib.suppress(IndexError):
            kept = self._free.pop()
            try:
                return self._get(kept, path, limit, end)
            except NoResponse as error:
                if error.kind not in _CLOSED or self._closed:
                    raise
        kind = http.client.HTTPSConnection if self._address.secure else http.client.HTTPConnection
        return self._get(kind(self._address.host, self._address.port, timeout=self._timeout), path, limit, end)

    def close(self) -> None:
        """Closes its connections; who waits for an answer over one has none."""
        self._closed = True
        while self._free:
            self._free.pop().close()
        for connection in tuple(self._in_use):
            with contextlib.suppress(OSError, AttributeError):  # its thread is closing it at this moment
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _get(self, connection: http.client.HTTPConnection, path: str, limit: int, end: float) -> tuple[int, bytes]:
        kept = False
        self._in_use.add(connection)
        try:
            if connection.sock is None:
                try:
                    connection.connect()
                except OSError as error:
                    raise NoResponse("ConnectTimeout" if isinstance(error, TimeoutError) else "ConnectError") from None
            if self._closed:  # while it connected
                raise NoResponse("closed")
            connection.request("GET", self._address.folder + path, headers=self._headers)
            response = connection.getresponse()
            body = _read(response, path, limit, end)
            kept = not response.will_close
            return response.status, body
        except TimeoutError:
            raise NoResponse("ReadTimeout") from None
        except (http.client.HTTPException, ValueError):  # ValueError: a length or a chunk that is no number
            raise NoResponse("RemoteProtocolError") from None
        except OSError:
            raise NoResponse("ReadError") from None
        finally:
            self._in_use.discard(connection)
            if kept and not self._closed:
                self._free.append(connection)
            else:
                connection.close()


def _read(response: http.client.HTTPResponse, path: str, limit: int, end: float) -> bytes:
    parts, size = [], 0
    while part := response.read1(PART_BYTES):
        size += len(part)
        if size > limit:
            raise ResponseTooLarge(path, limit)
        if time.monotonic() > end:  # http.client limits each read, not the whole
            raise TimeoutError
        parts.append(part)
    if response.length:  # read1 does not say that the end is missing
        raise http.client.IncompleteRead(b"")
    response.close()  # else http.client takes the connection to be still in use
    return b"".join(parts)
