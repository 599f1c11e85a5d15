"""Where only Landlock and seccomp confine, nothing of the owner's is changed, whichever version the kernel has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.sandbox import landlock, seccomp, spawn
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.runner import Sandbox
from tests.guards import needs_open_python
from tests.hostile.shared_walls import NO_PROOF, OWNER, PROBES, program

pytestmark = [pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock"), needs_open_python]
LAST_ABI = 7
USER = 1_900_000_123 if os.geteuid() == 0 else None
"""Root's programs run as a user of their own: here the owner's objects belong to that user, so only the walls help."""


class Owner:
    """A process of the same user as the confined program, with a file, queues, semaphores, memory and a child."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mine"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OWNER, str(self.file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, user=USER, group=USER, extra_groups=[] if USER else None,
        )  # fmt: skip
        self.ids = self._line()
        self.program = program({"FILE": str(self.file)} | {name: str(value) for name, value in self.ids.items()})

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def state(self) -> dict[str, Any]:
        """All that a probe could have changed."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        self.process.communicate(timeout=30)


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    monkeypatch.setattr(spawn, "unused_uid", lambda: USER)
    with tempfile.TemporaryDirectory(prefix="gpubox-owner-") as folder:  # not below pytest's: the user may not enter it
        if USER:
            os.chown(folder, USER, USER)
        made = Owner(Path(folder))
        yield made
        made.close()


@pytest.mark.parametrize("abi", range(1, LAST_ABI + 1))
async def test_nothing_outside_is_changed(abi: int, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    if abi > landlock.version():
        pytest.skip(f"this kernel has Landlock {landlock.version()}")
    monkeypatch.setattr(landlock, "version", lambda: abi)
    before = owner.state()

    outcome = await Sandbox(confinement=Confinement("landlock")).run(owner.program)

    assert "ESCAPED" not in outcome.output, outcome.output
    assert outcome.output.count("held") == len(PROBES), outcome.output
    assert owner.state() == before


def test_the_probes_work_where_nothing_confines_them(owner: Owner) -> None:
    argv = [sys.executable, "-I", "-S", "-c", owner.program]
    done = subprocess.run(argv, capture_output=True, text=True, user=USER, group=USER, check=True, timeout=60)

    held = {name for name in PROBES if f"ESCAPED {name}\n" not in done.stdout}
    of_one_machine = set() if os.uname().machine == "x86_64" else {"utime", "futimesat"}
    assert held <= NO_PROOF | of_one_machine | ({"mq_unlink"} if not owner.ids["POSIX"] else set()), done.stdout


async def test_a_program_still_copies_and_locks_its_own_files() -> None:
    code = (
        "import fcntl, os, shutil, socket, subprocess, threading\n"
        "open('a', 'w').write('1'); shutil.copyfile('a', 'b'); os.replace('b', 'c'); open('c', 'r+').truncate(0)\n"
        "fcntl.lockf(open('a', 'r+'), fcntl.LOCK_EX); fcntl.flock(open('a'), fcntl.LOCK_EX)\n"
        "one, other = socket.socketpair(); one.setblocking(False); os.set_inheritable(one.fileno(), True)\n"
        "os.set_blocking(other.fileno(), False); os.dup(1); print(os.path.getsize('c'))\n"
        "print(subprocess.run(['/bin/cat', 'a'], capture_output=True, text=True).stdout)\n"
    )
    outcome = await Sandbox(confinement=Confinement("landlock")).run(code)

    assert outcome.output == "0\n1\n", outcome.output


@pytest.mark.parametrize("machine", seccomp.TABLES)
def test_calls_that_reach_by_path_or_number_are_in_the_table(machine: str) -> None:
    """A call that is missing from a table is allowed there."""
    numbers = seccomp.TABLES[machine][1]
    of_old = {"chmod", "chown", "lchown", "utime", "utimes", "futimesat"}
    ipc = {"msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop", "semctl"}
    ipc |= {"shmget", "shmat", "shmdt", "shmctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive"}

    assert seccomp.ATTRIBUTES - set(numbers) == (of_old if machine == "aarch64" else set())
    assert ipc <= set(numbers)
