"""What hostile programs must not reach: a victim process, listening sockets, files, the environment."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from tests.guards import OWNER
from tests.hostile.programs import TRY, Hostile

SHARED = ("/tmp", "/dev/shm", "/var/tmp", "/", "/usr", "/usr/bin", "/etc", "/dev", "/root", "/home", "/run", "/opt")


class World:
    """One for each test module. ``harm`` lists what a program did to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = secrets.token_hex(8)
        self.outside = self._folder("outside")
        self.workspace = self._folder("work")
        self.secret = self.outside / "secret"
        self.secret.write_text(self.token)
        self.secret.chmod(0o666)
        (self.workspace / "door").symlink_to(self.outside)
        self.chat = self.root / "chat"
        self.top = self.chat / "1/up"
        self.tcp = self._listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.udp = self._listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.unix = self._listening(socket.AF_UNIX, socket.SOCK_STREAM, str(self.workspace / "sock"))
        self.dgram = self._listening(socket.AF_UNIX, socket.SOCK_DGRAM, str(self.workspace / "dgram"))
        self.abstract = self._listening(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.token)
        self.victim = self._victim()
        self.reader = -1
        """Of the FIFO, where a program needs one."""
        self.before = snapshot(self.workspace)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        folder.chmod(0o777)
        return folder

    def _listening(self, family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
        sock = socket.socket(family, kind)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
        if family == socket.AF_UNIX and isinstance(address, str) and address.startswith("/"):
            Path(address).chmod(0o777)
        sock.setblocking(False)
        return sock

    def _victim(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)"],
            stdout=subprocess.PIPE,
            env={"TOKEN": self.token},
        )

    def text(self, program: Hostile) -> str:
        """The program with its placeholders replaced. Makes the FIFO if it needs one."""
        if "fifo" in program.name:
            os.mkfifo(self.workspace / "fifo")
            self.reader = os.open(self.workspace / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            (self.workspace / "fifo").chmod(0o666)
            self.before = snapshot(self.workspace)
        blanks = {
            "SECRET": self.secret, "OUTSIDE": self.outside, "HOME": OWNER.get("HOME", "/root"),
            "PORT": self.tcp.getsockname()[1], "UDP": self.udp.getsockname()[1],
            "ABSTRACT": self.token, "VICTIM": self.victim.pid, "TOKEN": self.token,
            "MARK": f"mark-{self.token}",
        }  # fmt: skip
        text = TRY + program.code
        for name, value in blanks.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def policy(self, **fields: Any) -> Policy:
        """Over this world's workspace, with a layer."""
        chosen: dict[str, Any] = {"workspace": self.workspace, "layers": (self.top,), "wall_seconds": 20.0} | fields
        return Policy(**chosen)

    async def run(self, sandbox: Sandbox, program: Hostile) -> Outcome:
        """Runs the program as a model's, over this world's workspace."""
        return await sandbox.run(self.text(program), self.policy(**program.policy))

    def changed(self) -> set[str]:
        """What has a name in the top layer, as a mount shows it."""
        return {str(path.relative_to(self.top)) for path in self.top.rglob("*")}

    def run_plainly(self, program: Hostile) -> str:
        """The output of the program without confinement. Its process group is killed."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self.text(program)],
            cwd=self.workspace, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, env={"TOKEN": self.token},
        )  # fmt: skip
        try:
            return process.communicate(timeout=60)[0].decode()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def harm(self) -> list[str]:
        """Everything that was changed."""
        damage = [] if self.victim.poll() is None else ["the victim is dead"]
        if self.secret.read_text() != self.token or self.secret.stat().st_nlink != 1:
            damage.append("the secret was changed")
        damage += [f"made outside: {p}" for p in self.outside.iterdir() if p != self.secret]
        damage += [f"made on the host: {f}" for f in SHARED if os.path.lexists(f"{f}/mark-{self.token}")]
        for name in ("tcp", "udp", "unix", "dgram", "abstract"):
            sock: socket.socket = getattr(self, name)
            with contextlib.suppress(BlockingIOError):
                sock.recv(1) if name in ("udp", "dgram") else sock.accept()
                damage.append(f"{name} was reached")
        if self.reader >= 0:
            with contextlib.suppress(BlockingIOError):
                if os.read(self.reader, 1):
                    damage.append("the FIFO was reached")
        if snapshot(self.workspace) != self.before:
            damage.append("the workspace was changed")
        for path in self.chat.rglob("*"):
            status = path.lstat()
            if status.st_mode & 0o6000 and path.is_file():
                damage.append(f"{path.name} has a set-user-ID bit")
            if path.is_file() and not path.is_symlink() and status.st_size > Policy().file_bytes:
                damage.append(f"{path.name} is longer than allowed")
        return damage

    def survivors(self) -> list[str]:
        """Processes that still refer to this world's workspace: by a mount, the environment, or their folder."""
        mark = os.fsencode(self.root)
        commands = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) in (os.getpid(), self.victim.pid):
                continue
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                seen = (folder / "mountinfo").read_bytes() + (folder / "environ").read_bytes()
                if state != "Z" and (mark in seen or os.fsencode((folder / "cwd").readlink()).startswith(mark)):
                    commands.append((folder / "cmdline").read_text())
        return commands

    def tidy(self) -> None:
        """Restores the first state."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1
        for path in self.workspace.iterdir():
            if path.name not in ("door", "sock", "dgram"):
                remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in [*self.outside.iterdir(), *(Path(f, f"mark-{self.token}") for f in SHARED)]:
            if path != self.secret:
                with contextlib.suppress(OSError):
                    path.unlink()
        self.secret.write_text(self.token)
        remove_tree(self.chat)
        self.top.mkdir(parents=True)
        self.before = snapshot(self.workspace)
        self.harm()
        if self.victim.poll() is not None:
            self._kill_victim()
            self.victim = self._victim()

    def _kill_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()
        assert self.victim.stdout is not None
        self.victim.stdout.close()

    def close(self) -> None:
        self._kill_victim()
        for sock in (self.tcp, self.udp, self.unix, self.dgram, self.abstract):
            sock.close()


def snapshot(folder: Path) -> dict[str, object]:
    """All that an owner could notice of what is in ``folder``; nothing is followed."""
    seen: dict[str, object] = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        facts = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns, status.st_ino)
        link = path.readlink() if path.is_symlink() else None
        text = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        seen[str(path.relative_to(folder))] = (facts, link, text, os.listxattr(path, follow_symlinks=False))
    return seen


@contextlib.contextmanager
def new_world() -> Iterator[World]:
    """A world in a folder that any user may reach, so that only the confinement keeps a program out."""
    with tempfile.TemporaryDirectory(prefix="gpubox-hostile-") as root:
        Path(root).chmod(0o755)
        world = World(Path(root))
        try:
            yield world
        finally:
            world.tidy()
            world.close()
