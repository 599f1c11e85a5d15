"""Runs inside the sandbox beside a program that stays: what connects to its ports is passed on to unix sockets.

boot.py runs its text with the name CONFIG before it locks the program in: that alone may connect to a unix socket. The
ports listen when the text is through. It must work alone, with Python 3.9 and few imports.
"""

import os

MYPY = False
if MYPY:
    from typing import Any
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}
_MAX_CONNECTIONS, _PIECE_BYTES = 256, 65536


class _End:
    """One of the two sockets of a connection."""

    def __init__(self, sock: "Any") -> None:
        self.sock, self.pending, self.watched, self.has_ended = sock, b"", 0, False
        self.other: Any = None


def _serve(listeners: "list[tuple[Any, str]]") -> None:
    """Passes bytes for ever. It takes more from one end only when the other has taken all that came before."""
    import _socket
    import select

    poll = select.epoll()
    ends: dict[int, _End] = {}
    doors = {sock.fileno(): (sock, path) for sock, path in listeners}
    for number in doors:
        poll.register(number, select.EPOLLIN)
    open_doors = True

    def watch(end: _End) -> None:
        wanted = 0 if end.has_ended or end.other.pending else select.EPOLLIN
        wanted |= select.EPOLLOUT if end.pending else 0
        if wanted != end.watched:
            number = end.sock.fileno()
            if not wanted:  # an end that is gone would be reported nevertheless
                poll.unregister(number)
            elif end.watched:
                poll.modify(number, wanted)
            else:
                poll.register(number, wanted)
            end.watched = wanted

    def close(end: _End) -> None:
        for one in (end, end.other):
            ends.pop(one.sock.fileno(), None)
            one.sock.close()

    def begin(sock: "Any", path: str) -> None:
        try:
            one = _End(_socket.socket(fileno=sock._accept()[0]))
            other = _End(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM))
            one.other, other.other = other, one
            for end in (one, other):
                end.sock.setblocking(False)
            other.sock.connect(path)
        except OSError:
            return  # both are closed with their last name
        for end in (one, other):
            ends[end.sock.fileno()] = end
            watch(end)

    def send(end: _End, data: bytes) -> None:
        try:
            end.pending = data[end.sock.send(data) :] if data else b""
        except BlockingIOError:
            end.pending = data
        if end.other.has_ended and not end.pending:
            end.sock.shutdown(_socket.SHUT_WR)

    def move(end: _End, events: int) -> None:
        if events & select.EPOLLOUT:
            send(end, end.pending)
        elif not end.other.pending:
            data = end.sock.recv(_PIECE_BYTES)
            end.has_ended = not data
            send(end.other, data)

    while True:
        for number, events in poll.poll():
            if number in doors:
                begin(*doors[number])
            elif number in ends:
                end = ends[number]
                try:
                    move(end, events)
                    finished = end.has_ended and end.other.has_ended and not (end.pending or end.other.pending)
                except BlockingIOError:
                    finished = False
                except OSError:
                    finished = True
                if finished:
                    close(end)
                else:
                    watch(end)
                    watch(end.other)
        if open_doors != (len(ends) < 2 * _MAX_CONNECTIONS):
            open_doors = not open_doors
            for number in doors:
                poll.modify(number, select.EPOLLIN if open_doors else 0)


def _begin() -> None:
    """Returns when all ports listen, in the process that becomes the program; the other is no child of it."""
    import _socket

    listeners = []
    for port, path in CONFIG["ports"].items():
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
        sock.setblocking(False)
        listeners.append((sock, path))
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        for sock, _ in listeners:
            sock.close()
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    _serve(listeners)


if CONFIG:
    _begin()
