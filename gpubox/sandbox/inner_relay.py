"""Runs inside the sandbox beside a program that stays: what connects to its ports is passed on to unix sockets.

boot.py runs its text with the name CONFIG before it locks the program in: that alone may connect to a unix socket. The
ports listen when the text is through. It must work alone, with Python 3.9 and few imports.
"""

import _socket
import _thread
import os
from contextlib import suppress

MYPY = False
if MYPY:
    from typing import Any
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}
_MAX_CONNECTIONS, _PIECE_BYTES, _STACK_BYTES = 128, 65536, 1 << 18


def _pass_on(source: "Any", target: "Any", ended: "Any" = None) -> None:
    """Passes bytes to the end of ``source``, and that end; ``ended`` is called at last."""
    try:
        while True:
            data = source.recv(_PIECE_BYTES)
            if not data:
                break
            target.sendall(data)
        target.shutdown(_socket.SHUT_WR)
    except OSError:
        for sock in (source, target):
            with suppress(OSError):  # it is gone
                sock.shutdown(_socket.SHUT_RDWR)
    if ended:
        ended()


def _serve(listener: "Any", path: str) -> None:
    """Takes connections for ever, so many at a time."""
    room = [_thread.allocate_lock() for _ in range(_MAX_CONNECTIONS)]
    while True:
        free = next((lock for lock in room if lock.acquire(False)), None)
        if free is None:
            free = room[0]
            free.acquire()
        inner = _socket.socket(fileno=listener._accept()[0])
        outer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            outer.connect(path)
            _thread.start_new_thread(_pass_on, (inner, outer))
            _thread.start_new_thread(_pass_on, (outer, inner, free.release))
        except (OSError, RuntimeError):  # RuntimeError: no more threads
            free.release()
        del inner, outer  # else the last connection stays open until the next


def _begin() -> None:
    """Returns when all ports listen, in the process that becomes the program; the other is no child of it."""
    listeners = []
    for port, path in CONFIG["ports"].items():
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
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
    _thread.stack_size(_STACK_BYTES)
    for pair in listeners[1:]:
        _thread.start_new_thread(_serve, pair)
    _serve(*listeners[0])


if CONFIG:
    _begin()
