"""The outcome of a run with every isolation, and how a run is ended from outside."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.sandbox import bubblewrap, layers, runner, spawn, workspace_run
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.units import MIB
from tests.guards import needs_open_python
from tests.hostile.world import World, snapshot

TIMEOUT_SECONDS = 30.0


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "exit_code", "output"),
    [
        ("print('hé')", 0, "hé\n"),
        ("import sys; sys.exit(3)", 3, ""),
        ("exit()", 0, ""),
        ("import os; os._exit(9)", 9, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("import sys; print('a'); print('b', file=sys.stderr); print('c')", 0, "a\nb\nc\n"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", 0, "\ufffd"),
        ("print(__name__, __file__ == __import__('sys').argv[0])", 0, "__main__ True\n"),
        ("print([name for name in dir() if name[0] != '_'])", 0, "[]\n"),
        ("", 0, ""),
    ],
)  # fmt: skip
async def test_exit_codes_and_output(sandbox: Sandbox, code: str, exit_code: int, output: str) -> None:
    outcome = await sandbox.run(code)

    assert (outcome.exit_code, outcome.signal, outcome.ended_by, outcome.output) == (exit_code, None, "", output)
    assert outcome.ok == (exit_code == 0)
    assert outcome.isolation == (await sandbox.confinement()).isolation


async def test_a_traceback_shows_the_program_and_nothing_else(sandbox: Sandbox) -> None:
    outcome = await sandbox.run("def f():\n    1 / 0\nf()")

    lines = outcome.output.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert outcome.output.count("  File ") == 2
    assert "boot" not in outcome.output


@pytest.mark.parametrize("code", ["def f(:\n", "\0", "print('\ud83d')"])
async def test_invalid_source(sandbox: Sandbox, code: str) -> None:
    outcome = await sandbox.run(code)

    assert outcome.signal is None
    assert "Error" in outcome.output or outcome.exit_code == 0
    assert "boot" not in outcome.output


@pytest.mark.parametrize(
    ("code", "name"), [("import os; os.abort()", "SIGABRT"), ("import ctypes; ctypes.string_at(0)", "SIGSEGV")]
)
async def test_a_signal_has_its_name(sandbox: Sandbox, code: str, name: str) -> None:
    outcome = await sandbox.run(code)

    assert (outcome.exit_code, outcome.signal, outcome.ended_by) == (None, name, "")


async def test_a_lack_of_memory_is_reported(sandbox: Sandbox) -> None:
    outcome = await sandbox.run("x = bytearray(1 << 40)")

    assert (outcome.exit_code, outcome.ended_by) == (1, "memory")


async def test_output_is_cut_where_the_policy_says(sandbox: Sandbox) -> None:
    outcome = await sandbox.run("while True: print('x' * 999)", Policy(output_bytes=5000))

    assert outcome.ended_by == "output"
    assert len(outcome.output) == 5000
    assert outcome.dropped_bytes > 0


async def test_what_is_changed_outlives_its_run_in_the_layer(sandbox: Sandbox, world: World) -> None:
    code = "open('m.py', 'w').write('X = 42'); import os; os.mkdir('d'); open('d/y', 'w'); os.remove('door')"
    first = await sandbox.run(code, world.policy())
    second = await sandbox.run("import m, os; print(m.X, sorted(os.listdir()))", world.policy())

    assert (first.output, world.changed()) == ("", {"d", "d/y", "door", "m.py"})
    assert layers.is_whiteout((world.top / "door").lstat())
    names = set(ast.literal_eval(second.output.partition(" ")[2]))
    assert (second.output.split()[0], names - {"sock", "dgram"}) == ("42", {"d", "m.py"})
    assert (world.top / "m.py").stat().st_uid == (spawn.layer_owner() or os.getuid())
    assert world.harm() == []


CHANGES = """
import os
print(open("mine.txt").read())
for change in (lambda: open("mine.txt", "a"), lambda: open("new.txt", "w"), lambda: os.remove("mine.txt"),
               lambda: os.rename("mine.txt", "x"), lambda: os.mkdir("d"), lambda: os.chmod("mine.txt", 0o777),
               lambda: os.truncate("mine.txt", 0), lambda: os.utime("mine.txt", (1, 1)),
               lambda: os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)):
    try:
        change()
        print("changed")
    except OSError as error:
        print("no")
print(open("/dev/null", "w").write("x"))
"""


@pytest.mark.parametrize("overlay", [True, False])
async def test_without_a_layer_a_workspace_is_only_read(
    overlay: bool, sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = (await sandbox.confinement()).isolation
    mine = world.workspace / "mine.txt"
    mine.write_text("mine")
    mine.chmod(0o666)
    fifo = world.workspace / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    before = snapshot(world.workspace)
    monkeypatch.setattr(workspace_run, "_obstacles", {} if overlay else {world.workspace: "a test"})
    if isolation == "landlock":
        with pytest.raises(GpuboxError, match="get around Landlock"):
            await sandbox.run(CHANGES, Policy(workspace=world.workspace))
        fifo.unlink()
        before = snapshot(world.workspace)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK) if isolation != "landlock" else None

    outcome = await sandbox.run(CHANGES, Policy(workspace=world.workspace))

    if reader:
        os.close(reader)
    assert snapshot(world.workspace) == before
    assert outcome.output.splitlines() == ["mine", *["no"] * 9, "1"]


async def test_every_program_in_a_layer_sees_what_the_owner_sees(world: World, sandbox: Sandbox) -> None:
    (world.workspace / "mine").write_text("1")
    code = "print(open('mine').read()); open('mine', 'w').write('2')"
    first = await sandbox.run(code, world.policy())
    (world.workspace / "other").write_text("new")
    again = await sandbox.run("print(open('mine').read(), open('other').read())", world.policy())

    assert (first.output, again.output) == ("1\n", "2 new\n")
    assert (world.workspace / "mine").read_text() == "1"


async def test_a_command_line_is_run_by_a_shell(world: World, sandbox: Sandbox) -> None:
    outcome = await sandbox.run("echo $((6 * 7)) > x && cat x; yes | head -1; exit 3", world.policy(), shell=True)

    assert (outcome.output, outcome.exit_code) == ("42\ny\n", 3)
    long = await sandbox.run("true " + "x" * 200_000 + "; echo here", world.policy(), shell=True)
    assert long.output == "here\n"


async def test_the_runs_of_one_layer_wait_for_each_other(world: World, sandbox: Sandbox) -> None:
    code = "import os, time\nopen('in', 'x').close(); time.sleep(0.1); os.remove('in'); print('alone')"
    outcomes = await asyncio.gather(*(sandbox.run(code, world.policy()) for _ in range(4)))

    assert [outcome.output for outcome in outcomes] == ["alone\n"] * 4


async def test_a_link_leads_nowhere(sandbox: Sandbox, world: World) -> None:
    (world.workspace / ".git").symlink_to(world.outside)
    code = "try: print(open('.git/secret').read())\nexcept OSError: print('held')"

    outcome = await sandbox.run(code, world.policy())

    assert outcome.output == "held\n"


async def test_an_owners_closed_folder_is_still_a_workspace(tmp_path: Path) -> None:
    confinement = await runner.probe(Config())
    if confinement.isolation is None:
        pytest.skip(confinement.problem)
    folder, top = tmp_path / "mine", tmp_path / "chat/1/up"
    folder.mkdir(mode=0o700)
    top.mkdir(parents=True)

    outcome = await Sandbox().run("open('f', 'w').write('1')", Policy(workspace=folder, layers=(top,)))

    assert (outcome.output, (top / "f").read_text(), list(folder.iterdir())) == ("", "1", [])


async def test_without_a_workspace_nothing_is_left(sandbox: Sandbox) -> None:
    await sandbox.run("open('left', 'w').write('x')")
    outcome = await sandbox.run("import os; print(os.listdir('.'))")

    assert outcome.output == "[]\n"


async def test_several_run_side_by_side(sandbox: Sandbox) -> None:
    outcomes = await asyncio.gather(*(sandbox.run(f"print({n})") for n in range(4)))

    assert [o.output for o in outcomes] == ["0\n", "1\n", "2\n", "3\n"]


async def test_cancelling_kills_everything(sandbox: Sandbox, world: World) -> None:
    code = "import os, time\nos.fork()\nopen(f'here-{os.getpid()}', 'w').close()\ntime.sleep(90)"
    task = asyncio.create_task(sandbox.run(code, world.policy(wall_seconds=80.0)))
    await until(lambda: len(list(world.chat.rglob("here-*"))) == 2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert world.survivors() == []
    assert (await sandbox.run("print(1)")).output == "1\n"


async def test_no_open_file_is_left_behind(sandbox: Sandbox, world: World) -> None:
    policy = world.policy()
    for _ in range(9):  # root's users take turns, each with a mapping that is kept
        await sandbox.run("print(1)", policy)
    gc.collect()  # what tests before this one left to it
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208

    await asyncio.gather(*(sandbox.run("print(1)", policy) for _ in range(8)))
    await sandbox.run("while True: print('x' * 999)", policy)

    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


RUNNER = """
import asyncio, sys
from pathlib import Path
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.runner import Sandbox
code = "import os, time\\nos.fork()\\nopen(f'here-{os.getpid()}', 'w').close()\\ntime.sleep(90)"
sandbox = Sandbox(confinement=%r)
asyncio.run(sandbox.run(code, Policy(workspace=Path(%r), layers=(Path(%r),), wall_seconds=80.0)))
"""


async def test_kill_9_of_gpubox_takes_the_program_with_it(sandbox: Sandbox, world: World) -> None:
    script = RUNNER % (await sandbox.confinement(), str(world.workspace), str(world.top))
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as gpubox:  # noqa: ASYNC220
        await until(lambda: len(list(world.chat.rglob("here-*"))) == 2)
        gpubox.send_signal(signal.SIGKILL)

    await until(lambda: world.survivors() == [])


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not probed yet, on a machine without bubblewrap."""
    monkeypatch.setattr(runner, "_known", {})
    monkeypatch.setattr(bubblewrap, "installed", lambda: [])


@pytest.mark.usefixtures("forgotten")
async def test_nothing_runs_without_isolation() -> None:
    with pytest.raises(GpuboxError, match="Code cannot be run here: bubblewrap is not installed") as caught:
        await Sandbox().run("print(1)")

    assert "apt install bubblewrap" in caught.value.hint
    assert 'weakest-isolation = "landlock"' in caught.value.hint


@pytest.mark.usefixtures("forgotten")
@needs_open_python
async def test_the_weakest_isolation_is_used_only_by_name() -> None:
    weak = await runner.probe(Config(weakest_isolation="none"))

    assert weak.isolation in ("landlock", "none")
    assert "bubblewrap is not installed" in weak.problem
    assert (await Sandbox(confinement=weak).run("print(1)")).isolation == weak.isolation


async def test_the_message_of_a_refused_bwrap_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(runner, "_known", {})
    monkeypatch.setattr(bubblewrap, "installed", lambda: [str(program)])

    confinement = await runner.probe(Config())

    assert confinement.isolation is None
    assert "setting up uid map: Permission denied" in confinement.problem


async def test_a_program_that_cannot_be_started() -> None:
    sandbox = Sandbox(confinement=Confinement("bubblewrap", program="/nowhere/bwrap"))

    with pytest.raises(GpuboxError, match="could not be started: No such file"):
        await sandbox.run("print(1)", Policy(memory_bytes=64 * MIB))
