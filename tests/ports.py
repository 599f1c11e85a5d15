"""Ports for the servers of the tests."""

from __future__ import annotations

import itertools
import os
import random
import socket

FIRST, EACH = 10_240, 2_048
"""Linux gives ports from 32768 on to whoever asks for any; eleven processes of the tests have 2,048 each below them."""
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 11
_steps = itertools.count(random.SystemRandom().randrange(EACH))  # another run on this machine begins elsewhere


def free_port() -> int:
    """A port that nothing holds now, and that the kernel gives to nobody before the test's own server takes it."""
    for step in itertools.islice(_steps, EACH):
        port = FIRST + _worker * EACH + step % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {FIRST + _worker * EACH} on")
