"""gpubox launch --confined: an agent in a terminal and in real walls; what it changed waits in a chat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest

from gpubox.gateway.ledger import Ledger
from gpubox.hardware.process import descendants
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, may_mount, values
from tests.conftest import until
from tests.gateway_process import Gateway, paced_server, upstream_profile

pytestmark = pytest.mark.skipif(not may_mount(), reason="bubblewrap cannot mount here")

AGENT = """#!{python}
import json, os, signal, sys, termios, urllib.request

def ask():
    options = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])["provider"]["gpubox"]["options"]
    body = dict(model="paced", messages=[], max_tokens=2, pace=1000)
    headers = {{"Authorization": "Bearer " + options["apiKey"], "Content-Type": "application/json"}}
    request = urllib.request.Request(options["baseURL"] + "/chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=60).status

print("ready", *sys.argv[1:], os.getcwd(), os.environ["HOME"], termios.tcgetwinsize(0), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder; the agent, which does what is typed, is on PATH."""
    program = tmp_path / "bin/opencode"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine").write_text("1")
    return folder


@pytest.fixture
def gateway(paths: Paths) -> Iterator[Gateway]:
    with paced_server() as (port, _):
        upstream_profile(paths.config, "paced", port)
        running = Gateway()
        try:
            yield running
        finally:
            running.stop()


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Typed:
    """gpubox in a terminal of its own, and who sits at it."""

    def __init__(self, folder: Path, *words: str, start: Sequence[str] = ("-m", "gpubox")) -> None:
        self.near, self.far = os.openpty()
        termios.tcsetwinsize(self.near, (33, 77))
        self.before, self.seen = termios.tcgetattr(self.far), b""
        os.set_blocking(self.near, False)
        argv = [sys.executable, "-c", OWN_TERMINAL, *start, "launch", "opencode", "--confined", *words]
        self.process = subprocess.Popen(
            argv, cwd=folder, stdin=self.far, stdout=self.far, stderr=self.far, start_new_session=True
        )  # fmt: skip

    def until(self, text: bytes) -> None:
        """Reads on until ``text`` came, and forgets it and what came before it."""
        until(lambda: self._read(text))
        assert text in self.seen, self.seen.decode()
        self.seen = self.seen.partition(text)[2]

    def _read(self, text: bytes) -> bool:
        over = self.process.poll() is not None
        with suppress(OSError):
            self.seen += os.read(self.near, 65536)
            return text in self.seen
        return over

    def type(self, line: str, answer: str = "done") -> None:
        os.write(self.near, line.encode() + b"\r")
        self.until(f"\n{answer}\r\n".encode())

    def end(self) -> tuple[int, str]:
        """The exit code and the rest of the output. The terminal is as it was, and nothing runs on."""
        below = descendants(self.process.pid)
        until(lambda: self._read(b"never"))
        assert self.far < 0 or termios.tcgetattr(self.far) == self.before
        until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])
        self.close()
        return self.process.wait(), self.seen.decode()

    def close(self) -> None:
        """The terminal is gone."""
        for fd in (self.near, self.far):
            with suppress(OSError):
                os.close(fd)
        self.near = self.far = -1


def test_what_would_stop_it_for_good_is_not_passed_on_and_a_flood_is_shown(project: Path, gateway: Gateway) -> None:
    at = Typed(project)
    os.set_blocking(at.far, False)  # as a program before it may leave it
    at.until(b"ready")
    os.write(at.near, b"\x1a\x1b[122;5u\x1b[27;5;122~")
    at.type("[print('x' * 1000) for _ in range(3000)]")
    os.write(at.near, b"\x04")
    assert at.end()[0] == 0


def waiting(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [chat["name"] for chat in values(capfd, "chat", "ls")[1]["chats"]]


def test_it_works_in_a_copy_and_its_changes_wait_in_a_chat(
    project: Path, gateway: Gateway, paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    at = Typed(project, "--", "-x", "a b")
    at.until(b"ready -x a b /workspace /agent (33, 77)\r\n")
    at.type("print(ask(), open('mine').read()); open('mine', 'w').write('2'); open('new', 'w').write('3')")
    at.type("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])")
    termios.tcsetwinsize(at.near, (20, 50))
    at.type("signal.sigtimedwait([signal.SIGWINCH], 60); print(termios.tcgetwinsize(0))", "(20, 50)")
    os.write(at.near, b"sys.exit(7)\r")
    code, said = at.end()
    name = waiting(capfd)[0]

    assert (code, name) == (7, "opencode-project"), said
    assert f"It changed 2 files: `gpubox chat diff {name}`, `gpubox chat take {name}`." in said
    assert [(file.name, file.read_text()) for file in project.iterdir()] == [("mine", "1")]
    assert [line.client for line in Ledger(paths.ledger).requests(date.today())] == ["hosted-opencode"]
    assert gpubox(capfd, "chat", "take", name)[0] == 0
    assert {file.name: file.read_text() for file in project.iterdir()} == {"mine": "2", "new": "3"}


def test_it_needs_a_terminal(project: Path, gateway: Gateway, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = gpubox(capfd, "launch", "opencode", "--confined")
    assert code == 2
    assert "needs a terminal" in err


def test_its_home_lasts_and_a_chat_without_changes_does_not(
    project: Path, gateway: Gateway, capfd: pytest.CaptureFixture[str]
) -> None:
    for code in ("open('/agent/own', 'x').close()", "os.unlink('/agent/own')"):
        at = Typed(project)
        at.until(b"ready")
        at.type(code)
        os.write(at.near, b"\x04")
        assert at.end()[0] == 0
        assert waiting(capfd) == []


@pytest.mark.parametrize(
    ("how", "code"), {"ctrl-c": 130, "closed": None, "SIGTERM": 130, "SIGINT": 130, "SIGHUP": 129}.items()
)
def test_however_it_ends_what_it_changed_is_kept(
    how: str, code: int | None, project: Path, gateway: Gateway, capfd: pytest.CaptureFixture[str]
) -> None:
    at = Typed(project)
    at.until(b"ready")
    at.type("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    at.type("open('new', 'w').close()")
    match how:
        case "ctrl-c":
            os.write(at.near, b"\x03")
        case "closed":
            at.close()
        case _:
            for _ in range(2):
                at.process.send_signal(getattr(signal, how))
    ended, said = at.end()
    assert code in (ended, None), said
    assert code is None or "It changed 1 file: `gpubox chat diff opencode-project`" in said
    assert [change["path"] for change in values(capfd, "chat", "diff", "opencode-project")[1]["changes"]] == ["new"]


def test_what_stands_in_the_way_is_one_sentence(
    project: Path, gateway: Gateway, paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in (Path.home(), Path("/")):
        code, said = Typed(folder).end()
        assert (code, "as its workspace" in said) == (2, True), said
    (project.parent / "bin/opencode").write_text("#!/nowhere/python\n")
    code, said = Typed(project).end()
    assert code != 0
    assert waiting(capfd) == []


UNREADABLE = """
import sys
from gpubox.cli.main import run
from gpubox.errors import GpuboxError
from gpubox.sandbox.resident import Resident
async def end_turn(self):
    raise GpuboxError("The disk is full.")
Resident.end_turn = end_turn
sys.exit(run(sys.argv[1:]))
"""


def test_what_cannot_be_read_at_its_end_is_not_thrown_away(
    project: Path, gateway: Gateway, paths: Paths, capfd: pytest.CaptureFixture[str]
) -> None:
    at = Typed(project, start=("-c", UNREADABLE))
    at.until(b"ready")
    at.type("open('new', 'w').close()")
    os.write(at.near, b"\x04")
    code, said = at.end()
    assert code == 1
    assert "The disk is full." in said
    copy = paths.chats / "opencode-project.layers/agent"
    assert str(copy) in said
    assert list(copy.rglob("new"))
