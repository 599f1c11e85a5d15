"""Whole agents that stay: none gets out, lives on or moves while its copy is read; what they change is in the layer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.acp.relay import GATEWAY, Relay
from gpubox.errors import GpuboxError
from gpubox.sandbox import resident as resident_module
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.resident import Resident, start_resident
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import ResidentProgram
from gpubox.units import KIB, MIB
from tests.hostile.kernel_greed import PROGRAMS as PROGRAMS_OF_GREED
from tests.hostile.kernel_greed import SPREAD
from tests.hostile.programs import PROGRAMS, TRY, Hostile
from tests.hostile.resident_programs import OWN, RELAY, RESTLESS
from tests.hostile.test_hostile import kernel_bytes, name
from tests.hostile.test_runs import until
from tests.hostile.world import World
from tests.sampling import sampled

NOT_OF_RESIDENTS = {"own-loopback", "any-family", "udp", "stdin", "raise-limits", "one-long-line", "strange-output"}
"""It has a network of its own, a stdin that stays open, and no CPU limit."""
OF_RUNS = [p for p in PROGRAMS if not (p.policy or p.ended_by or p.name in NOT_OF_RESIDENTS)]
ECHO = "import sys\nfor line in sys.stdin: exec(line); print('done', flush=True)"


@pytest.fixture
async def walls(sandbox: Sandbox) -> Sandbox:
    if (await sandbox.confinement()).isolation != "bubblewrap":
        pytest.skip("only bubblewrap keeps a whole agent")
    return sandbox


def policy(world: World, **fields: Any) -> Policy:
    return Policy(workspace=world.workspace, resident=True, wall_seconds=math.inf, **fields)


@contextlib.asynccontextmanager
async def agent(
    sandbox: Sandbox, world: World, code: str, relay: Relay | None = None, **fields: Any
) -> AsyncIterator[Resident]:
    ways = (relay.folder, {RELAY: GATEWAY}) if relay else (None, {})
    argv = (find_interpreter().path, "-I", "-S", "-c", code)
    program = ResidentProgram(argv, (), world.chat / "home", {}, *ways)
    resident = await start_resident(sandbox, program, policy(world, **fields), world.chat)
    try:
        yield resident
    finally:
        await resident.close()
        assert resident.ended.is_set()


async def said(resident: Resident, line: str = "") -> str:
    if line:
        resident.writer.write(f"{line}\n".encode())
    async with asyncio.timeout(60):
        return (await resident.reader.readline()).decode()


async def all_output(resident: Resident) -> str:
    """What it printed until its first process ended, stderr too."""
    async with asyncio.timeout(60):
        await resident.ended.wait()
        return (await resident.reader.read()).decode("utf-8", "replace") + resident.last_words


@pytest.mark.parametrize("program", sampled([*OF_RUNS, *OWN]), ids=name)
async def test_a_hostile_agent_is_held(program: Hostile, walls: Sandbox, world: World) -> None:
    async with Relay(world.tcp.getsockname()) as relay, agent(walls, world, world.text(program), relay) as resident:
        await resident.begin_turn((world.top,))
        output = await all_output(resident)
        await resident.end_turn()

    assert "ESCAPED" not in output, output
    assert program.says is None or program.says in output, (output, resident.why)
    assert [harm for harm in world.harm() if harm != "tcp was reached" or program not in OWN] == []
    assert world.survivors() == []


def test_there_are_enough() -> None:
    assert len(OWN) >= 25
    assert len(OF_RUNS) >= 50


async def test_a_turn_begins_with_the_view_and_ends_in_the_layer(walls: Sandbox, world: World) -> None:
    (world.workspace / "mine").write_text("1")
    (world.workspace / "old").write_text("old")
    second = world.chat / "2/up"
    second.mkdir(parents=True)
    async with agent(walls, world, ECHO) as resident:
        await resident.begin_turn((world.top,))
        assert await said(resident, "print(open('mine').read(), end=' '); open('mine', 'w').write('2')") == "1 done\n"
        await said(resident, "import os; os.mkdir('d'); open('d/f', 'w').close(); os.unlink('old')")
        await resident.end_turn()
        assert world.changed() == {"d", "d/f", "mine", "old"}
        await resident.end_turn()
        await said(resident, "open('between', 'w').write('x')")
        (world.workspace / "mine").write_text("3")
        await resident.begin_turn((second,))  # the first turn is undone
        assert await said(resident, "print(open('mine').read(), sorted(os.listdir()), end=' ')") == (
            "3 ['door', 'mine', 'old'] done\n"
        )
        await resident.end_turn()
        assert list(second.iterdir()) == []
        await resident.begin_turn((second, world.top))
        assert await said(resident, "print(open('mine').read(), os.path.exists('d/f'), end=' ')") == "2 True done\n"
    assert (world.workspace / "mine").read_text() == "3"
    assert world.survivors() == []


async def test_it_may_watch_files_and_have_terminals_of_its_own(walls: Sandbox, world: World) -> None:
    """opencode hangs in a git repository where inotify fails, and Qwen Code runs no command without a terminal."""
    watch = (
        "import ctypes; libc = ctypes.CDLL(None); w = libc.inotify_init1(0); wd = libc.inotify_add_watch(w, b'.', 256)"
    )
    terminal = "import os, pty; pid, fd = pty.fork(); pid or os.execlp('tty', 'tty'); text = os.read(fd, 99); os.wait()"
    async with agent(walls, world, ECHO) as resident:
        await resident.begin_turn((world.top,))
        assert await said(resident, f"{watch}; print(wd, end=' ')") == "1 done\n"
        assert await said(resident, f"{terminal}; print(text, end=' ')") == "b'/dev/pts/0\\r\\n' done\n"


async def test_nothing_moves_while_its_copy_is_read(
    walls: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(folder: Path) -> dict[str, object]:
        state: dict[str, object] = {}
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                state[str(path)] = (status.st_mode, status.st_size, status.st_ctime_ns, status.st_ino)
        return state

    moved: list[object] = []

    def still(done: Any) -> Any:
        def check(copy: PrivateCopy) -> Any:
            before, read, _ = facts(copy.folder), [], moved.append
            for _ in range(20):
                time.sleep(0.005)
                read.append(facts(copy.folder))
            moved.extend(state for state in read if state != before)
            return done(copy)

        return check

    code = RESTLESS.replace("@OUTSIDE@", str(world.outside))
    async with agent(walls, world, code, processes=200) as resident:
        assert await said(resident) == "going\n"
        for method in ("synchronize", "harvest"):
            monkeypatch.setattr(PrivateCopy, method, still(getattr(PrivateCopy, method)))
        for _ in range(4):
            await resident.begin_turn((world.top,))
            assert await said(resident, "x") == "here\n"
            await resident.end_turn()
        assert await said(resident, "x") == "here\n", resident.why
    assert moved == []
    assert world.harm() == []
    assert world.survivors() == []


async def test_what_it_plants_at_home_does_no_harm_at_the_next_start(walls: Sandbox, world: World) -> None:
    plant = (
        "import os; os.chdir(os.environ['HOME'])\n"
        f"os.symlink('{world.outside}', 'out'); os.symlink('{world.secret}', 's')\n"
        "for name in ('.cargo', '.local', '.nvm', 'go', '.cache'): os.symlink('../../../../../../../..', name)\n"
        "for n in range(300): os.mkdir('d'); os.chdir('d')\nos.mkdir(os.environ['HOME'] + '/closed', 0)"
    )
    before = world.secret.stat()
    async with agent(walls, world, plant) as resident:
        assert await all_output(resident) == ""
    async with agent(walls, world, "import os; print(sorted(os.listdir(os.environ['HOME']))[-1])") as resident:
        assert await all_output(resident) == "s\n"
    after = world.secret.stat()
    assert (after.st_uid, after.st_mode, after.st_ctime_ns) == (before.st_uid, before.st_mode, before.st_ctime_ns)
    assert world.harm() == []


FILL = "for n in range(9999): open(f'@WHERE@/{n}', 'wb').write(bytes(@SIZE@))\ntime.sleep(60)"
HOME = "' + os.environ['HOME'] + f'"
IN_CHILDREN = next(program.code for program in PROGRAMS if program.name == "memory-in-children")
GREED: dict[str, tuple[str, dict[str, Any], str]] = {
    "memory": (IN_CHILDREN, {"memory_bytes": 256 * MIB}, "memory: "),
    "the copy": (FILL.replace("@WHERE@", "."), {"disk_bytes": 32 * MIB}, "disk: "),
    "its home": (FILL.replace("@WHERE@", HOME), {"disk_bytes": 32 * MIB}, "disk: "),
    "files at home": (FILL.replace("@WHERE@", HOME), {"disk_files": 1000}, "files: "),
    "files in /tmp": (FILL.replace("@WHERE@", "/tmp"), {"scratch_files": 1000}, "files: "),
} | {greedy: (SPREAD + PROGRAMS_OF_GREED[greedy], {}, "memory: ") for greedy in ("page tables", "socket pairs", "tcp")}


@pytest.mark.parametrize("greedy", GREED)
async def test_what_it_takes_is_bounded_and_the_owner_is_told(greedy: str, walls: Sandbox, world: World) -> None:
    code, limits, why = GREED[greedy]
    code = TRY + code.replace("@SIZE@", "1 << 20" if why == "disk: " else "0")
    before = kernel_bytes()
    async with agent(walls, world, code, **limits) as resident:
        async with asyncio.timeout(60):
            await resident.ended.wait()
    assert kernel_bytes() - before < 256 * MIB
    assert resident.why.startswith(why), resident.why
    assert world.survivors() == []


async def test_floods_and_deafness_cost_nothing_but_the_agent(walls: Sandbox, world: World) -> None:
    flood = (
        "import os\nif os.fork() == 0:\n    while True: os.write(2, b'\\x1b[2J\\xff' * 9999)\n"
        "while True: os.write(1, b'x' * 65536)"
    )
    async with agent(walls, world, flood) as resident:
        await resident.begin_turn((world.top,))
        await until(lambda: len(resident.last_words) > KIB)
        resident.writer.write(bytes(4 * MIB))  # nobody reads it
        await resident.end_turn()
        assert world.changed() == set()
        assert len(resident.last_words) < 32 * KIB and "\x1b" not in resident.last_words
    assert world.survivors() == []


async def test_it_ends_and_it_is_said_why(walls: Sandbox, world: World) -> None:
    async with agent(walls, world, "import sys; sys.exit('no model')") as resident:
        assert await all_output(resident) == "no model"
        assert (resident.why, resident.exit_code) == ("it ended with exit code 1", 1)
        await resident.begin_turn((world.top,))  # what is dead stands still
        await resident.end_turn()
        assert world.changed() == set()
    program = ResidentProgram(("/nowhere/agent",), (), world.chat / "home")
    missing = await start_resident(walls, program, policy(world), world.chat)
    assert "/nowhere/agent: No such file" in await all_output(missing)
    await missing.close()


async def test_its_port_leads_to_the_gateway_and_back(walls: Sandbox, world: World) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")  # its half is still open
        writer.close()

    code = f"""
import socket, threading
def one(n):
    data = bytes([n]) * (1 << 22)
    s = socket.create_connection(("127.0.0.1", {RELAY}))
    def send(): s.sendall(data); s.shutdown(socket.SHUT_WR)
    threading.Thread(target=send).start()
    back = b""
    while piece := s.recv(99999): back += piece
    if back == data + b"end": right.append(n)
right = []
threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(right))
"""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    way = Relay(server.sockets[0].getsockname())
    async with server, way as relay, agent(walls, world, code, relay, processes=256) as resident:
        assert await all_output(resident) == "20\n"


async def test_two_do_not_work_in_one_copy(walls: Sandbox, world: World) -> None:
    async with agent(walls, world, ECHO) as resident:
        with pytest.raises(GpuboxError, match="Another agent works"):
            async with agent(walls, world, ECHO):
                pass
        assert await said(resident, "pass") == "done\n"
    assert resident_module._working == set()


async def test_heavy_folders_stay_as_they_were_at_its_start(walls: Sandbox, world: World) -> None:
    (world.workspace / "node_modules").mkdir()
    (world.workspace / "node_modules/mine").write_text("1")
    async with agent(walls, world, ECHO) as resident:
        (world.workspace / ".venv").mkdir()
        (world.workspace / ".venv/mine").write_text("2")
        await resident.begin_turn((world.top,))
        read = "print(open('node_modules/mine').read(), open('.venv/mine').read(), end=' ')"
        assert await said(resident, read) == "1 2 done\n"
        await said(resident, "open('.venv/mine', 'w').write('3')")
        await resident.end_turn()
    assert world.changed() == {".venv", ".venv/mine"}


async def test_cancelling_leaves_it_going_and_closing_kills_it(walls: Sandbox, world: World) -> None:
    async with agent(walls, world, ECHO) as resident:
        for at in range(6):
            task = asyncio.create_task(resident.begin_turn((world.top,)))
            for _ in range(at):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert await said(resident, "pass") == "done\n"
        closing = asyncio.create_task(resident.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert world.survivors() == []


async def test_no_open_file_of_an_agent_is_left_behind(walls: Sandbox, world: World) -> None:
    async with agent(walls, world, ECHO):
        pass
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for code in (ECHO, "while True: print('x' * 9999)"):
        async with agent(walls, world, code) as resident:
            await resident.begin_turn((world.top,))
            await resident.end_turn()
    await asyncio.sleep(0)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


RUNNER = """
import asyncio, math
from pathlib import Path
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.resident import ResidentProgram, start_resident
from gpubox.sandbox.runner import Sandbox
code = "import os, time\\nos.fork()\\nos.setsid()\\nopen(f'here-{os.getpid()}', 'w').close()\\ntime.sleep(90)"
async def main():
    program = ResidentProgram((%r, "-c", code), (), Path(%r), {}, Path(%r), {18766: "gateway"})
    policy = Policy(workspace=Path(%r), resident=True, wall_seconds=math.inf)
    await start_resident(Sandbox(confinement=%r), program, policy, Path(%r))
    await asyncio.sleep(90)
asyncio.run(main())
"""


async def test_kill_9_of_gpubox_takes_the_agent_with_it(walls: Sandbox, world: World) -> None:
    home, python = str(world.chat / "home"), find_interpreter().path
    where = (python, home, str(world.chat), str(world.workspace), await walls.confinement(), str(world.chat))
    with subprocess.Popen([sys.executable, "-c", RUNNER % where], start_new_session=True) as gpubox:  # noqa: ASYNC220
        await until(lambda: len(list(world.chat.rglob("here-*"))) >= 1)
        gpubox.send_signal(signal.SIGKILL)
    await until(lambda: world.survivors() == [])


IN_TERMINAL = """
import asyncio, math, sys
from pathlib import Path
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.resident import ResidentProgram, run_in_terminal, start_resident
from gpubox.sandbox.runner import Sandbox
code = '''
import fcntl, os, signal, sys, termios
def attempt(what, *arguments):
    try: what(*arguments)
    except OSError: print("held")
    else: print("ESCAPED")
assert os.isatty(0) and os.isatty(1) and os.isatty(2)
attempt(fcntl.ioctl, 0, termios.TIOCSTI, b"x")
attempt(os.open, "/dev/pts/0", os.O_RDWR)
print(termios.tcgetwinsize(0), file=open("/dev/tty", "w"), flush=True)
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
print(input("name? ").upper(), flush=True)
signal.pause()
'''
async def main():
    program = ResidentProgram((%r, "-c", code), (), Path(%r), terminal=True)
    policy = Policy(workspace=Path(%r), resident=True, wall_seconds=math.inf)
    resident = await start_resident(Sandbox(confinement=%r), program, policy, Path(%r))
    try:
        return await run_in_terminal(resident)
    finally:
        await resident.close()
sys.exit(asyncio.run(main()))
"""


async def test_in_a_terminal_it_is_typed_to_and_interrupted(walls: Sandbox, world: World) -> None:
    near, far = os.openpty()
    termios.tcsetwinsize(near, (33, 77))
    before = termios.tcgetattr(far)
    chat = str(world.chat)
    script = IN_TERMINAL % (
        find_interpreter().path, f"{chat}/home", str(world.workspace), await walls.confinement(), chat
    )  # fmt: skip
    argv = [sys.executable, "-c", script]
    seen = b""
    with subprocess.Popen(argv, stdin=far, stdout=far, stderr=far, start_new_session=True) as gpubox:  # noqa: ASYNC220
        os.set_blocking(near, False)

        def says(text: bytes) -> bool:
            nonlocal seen
            with contextlib.suppress(BlockingIOError):
                seen += os.read(near, 65536)
            return text in seen or gpubox.poll() is not None

        await until(lambda: says(b"name? "))
        os.write(near, b"smith\r")
        await until(lambda: says(b"SMITH"))
        os.write(near, b"\x03")
        await until(lambda: says(b"never") or gpubox.poll() is not None)
    assert gpubox.returncode == 7, seen
    assert b"(33, 77)" in seen and b"SMITH" in seen and seen.count(b"held") == 2 and b"ESCAPED" not in seen, seen
    assert termios.tcgetattr(far) == before
    for fd in (near, far):
        os.close(fd)
    assert world.survivors() == []


async def test_only_bubblewrap_keeps_an_agent(sandbox: Sandbox, world: World) -> None:
    if (await sandbox.confinement()).isolation == "bubblewrap":
        pytest.skip("it does")
    with pytest.raises(GpuboxError, match="only in bubblewrap"):
        async with agent(sandbox, world, ECHO):
            pass
