"""A program over a workspace: the same changes by overlay and by copy; the owner's tools; the network when allowed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.sandbox import workspace_run
from gpubox.sandbox.layers import View
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from tests.guards import OWNER
from tests.hostile.world import World, snapshot
from tests.sampling import sampled

WORK = """
import os, random, shutil
rng = random.Random(@SEED@)
def paths():
    return [os.path.relpath(os.path.join(p, n), '.') for p, ds, fs in os.walk('.') for n in sorted(ds + fs)]
for step in range(40):
    some = [p for p in sorted(paths()) if not p.startswith(('door', 'sock', 'dgram'))]
    name = rng.choice(some + ['.']) if some else '.'
    inside = name if os.path.isdir(name) and not os.path.islink(name) else os.path.dirname(name) or '.'
    new = os.path.join(inside, rng.choice('abcdef'))
    try:
        match rng.randrange(10):
            case 0 | 1: open(new, 'w').write(str(step) * rng.randrange(2000))
            case 2: open(name, 'a').write('more')
            case 3: os.remove(name)
            case 4: shutil.rmtree(name) if name != '.' else None
            case 5: os.mkdir(new)
            case 6: os.symlink(rng.choice(['a', '../x', '/etc/hostname']), new)
            case 7: os.chmod(name, rng.choice([0o600, 0o755, 0o644])) if os.path.isfile(name) else None
            case 8: os.replace(name, new) if os.path.isfile(name) else None
            case 9: os.utime(name, (step, step)) if os.path.isfile(name) and not os.path.islink(name) else None
    except OSError:
        pass
print('done')
"""


def fill(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(30):
        path = folder / "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 4)))
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number}\n" * rng.randrange(500))
            path.chmod(rng.choice([0o644, 0o755]))
    (folder / "link").symlink_to("a")


def seen(folders: list[Path]) -> dict[str, object]:
    """Kind, mode, content and, but for links and folders, time of all that a program sees."""
    values: dict[str, object] = {}
    for names, item in View(folders).walk():
        content: object = None
        if item.is_link:
            content = item.link_target()
        elif item.is_file:
            fd = os.open(item.name, os.O_RDONLY, dir_fd=item.folder)
            with os.fdopen(fd, "rb") as file:
                content = file.read()
        if not (item.is_link or item.is_file or item.is_folder):
            continue  # the world's sockets, which no copy has
        mode = None if item.is_link else stat.S_IMODE(item.status.st_mode)
        values["/".join(names)] = (stat.S_IFMT(item.status.st_mode), mode, content)
    return values


@pytest.mark.parametrize("seed", sampled(list(range(40))))
async def test_a_copy_is_harvested_to_what_an_overlay_holds(
    seed: int, sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (await sandbox.confinement()).isolation != "bubblewrap":
        pytest.skip("it has no overlay")
    fill(world.workspace, seed)
    before = snapshot(world.workspace)
    layers: dict[str, tuple[Path, ...]] = {}
    for way in ("overlay", "copy"):
        layers[way] = tuple(world.chat / way / name / "up" for name in ("2", "1"))
        for layer in layers[way]:
            layer.mkdir(parents=True)
        monkeypatch.setattr(workspace_run, "_obstacles", {world.chat / way: "a test"} if way == "copy" else {})
        for turn, number in ((layers[way][1:], seed), (layers[way], seed + 1000), (layers[way], seed + 2000)):
            outcome = await sandbox.run(WORK.replace("@SEED@", str(number)), world.policy(layers=turn))
            assert outcome.output == "done\n", outcome

    assert seen([*layers["copy"], world.workspace]) == seen([*layers["overlay"], world.workspace])
    assert snapshot(world.workspace) == before


async def test_what_the_owner_changes_meanwhile_is_in_the_copy(
    sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_run, "_obstacles", {world.chat: "a test"})
    mine = world.workspace / "mine"
    mine.write_text("old!")
    before = mine.stat()
    read = "print(open('mine').read(), sorted(os.listdir()) if 'os' in dir() else '')"
    assert (await sandbox.run(read, world.policy())).output == "old! \n"

    mine.write_text("new!")
    os.utime(mine, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same size and time
    assert (await sandbox.run(read, world.policy())).output == "new! \n"
    mine.unlink()
    gone = await sandbox.run("import os; print(os.path.exists('mine'))", world.policy())
    assert gone.output == "False\n"
    assert world.changed() == set()


async def test_heavy_folders_are_read_only_in_a_copy_and_it_is_said(
    sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (await sandbox.confinement()).isolation != "bubblewrap":
        pytest.skip("it has no mounts")
    monkeypatch.setattr(workspace_run, "_obstacles", {world.chat: "a test"})
    (world.workspace / "node_modules/left").mkdir(parents=True)
    (world.workspace / "node_modules/left/index.js").write_text("1")
    outcome = await sandbox.run("cat node_modules/left/index.js; echo > node_modules/x", world.policy(), shell=True)

    assert outcome.output.startswith("1") and "Read-only" in outcome.output
    assert outcome.notes == ("node_modules: read-only, because programs work in a copy of the workspace (a test).",)
    assert not (world.chat / "copy/node_modules/left").exists()


async def test_a_bubblewrap_without_overlays_works_in_a_copy(sandbox: Sandbox, world: World) -> None:
    confinement = await sandbox.confinement()
    if confinement.isolation != "bubblewrap":
        pytest.skip("it is no bubblewrap")
    old = world.root / "old-bwrap"  # as Debian 12's
    old.write_text(
        "#!/bin/sh\nif tr '\\0' '\\n' < /dev/fd/$2 | grep -q -e --overlay -e --tmp-overlay; then\n"
        "echo 'bwrap: Unknown option --overlay-src' >&2; exit 1; fi\n"
        f'exec {confinement.program} "$@"\n'
    )
    old.chmod(0o755)
    with_old = Sandbox(confinement=replace(confinement, program=str(old)))
    outcome = await with_old.run("echo 1 > new; rm door", world.policy(), shell=True)
    only_read = await with_old.run("echo 1 > new", Policy(workspace=world.workspace), shell=True)

    assert (outcome.exit_code, world.changed()) == (0, {"new", "door"})
    assert "Read-only" in only_read.output
    assert world.harm() == []
    old.unlink()


@pytest.fixture
def answers() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server.getsockname()[1]


async def test_only_a_run_that_may_has_the_network(sandbox: Sandbox, world: World, answers: int) -> None:
    code = f"import socket; socket.create_connection(('127.0.0.1', {answers}), 5); print('connected')"
    off = await sandbox.run(code, world.policy())
    on = await sandbox.run(code, world.policy(network=True))
    unix = await sandbox.run("import socket; socket.socket(socket.AF_UNIX)", world.policy(network=True))

    assert off.exit_code == 1
    assert on.output == "connected\n"
    assert "PermissionError" in unix.output
    files = await sandbox.run("cat /etc/hosts > /dev/null && echo read", world.policy(network=True), shell=True)
    assert files.output == "read\n"


TOOLS = {
    "cc": ("int main(){return 0;}", "cc -O1 t.c -o t && ./t && echo fine"),
    "make": ("", "printf 'all:\\n\\t@echo fine\\n' > Makefile && make"),
    "git": ("", "git init -q r && git -C r -c user.name=a -c user.email=b commit -q --allow-empty -m x && echo fine"),
    "node": ("", "node -e 'require(\"child_process\").execSync(\"true\"); console.log(\"fine\")'"),
    "cargo": ("", "cargo init -q --vcs none c && cd c && cargo run -q | sed 's/Hello, world!/fine/'"),
    "go": ("", "mkdir g && cd g && printf 'package main\\nfunc main() { println(\"fine\") }\\n' > m.go && go run m.go"),
    "java": ("", "printf 'class T { public static void main(String[] a) { System.out.println(\"fine\"); } }' > T.java"
                 " && java T.java"),
}  # fmt: skip


SETS_MODES = ("cc", "cargo", "git", "go")
"""They fail where no program may set permissions."""


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_owners_tools_work(
    tool: str, sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    confinement, home = await sandbox.confinement(), OWNER.get("HOME", "/root")
    path = shutil.which(tool)
    if not path or (path.startswith(home) and os.geteuid() == 0 and not confinement.as_root):
        pytest.skip(f"no {tool} that the user of the program can run")
    if confinement.isolation == "landlock" and tool in SETS_MODES:
        pytest.skip("Landlock")
    monkeypatch.setenv("HOME", home)
    (world.workspace / "t.c").write_text(TOOLS[tool][0])
    policy = Policy.for_commands(world.workspace, (world.top,), seconds=120)
    outcome = await sandbox.run(TOOLS[tool][1], policy, shell=True)

    assert outcome.output.endswith("fine\n"), outcome
    assert outcome.exit_code == 0


async def test_a_virtual_environment_of_the_owner_works(sandbox: Sandbox, world: World) -> None:
    python = "/usr/bin/python3"
    if not shutil.which(python):
        pytest.skip("there is no Python of the system")
    subprocess.run([python, "-m", "venv", "--without-pip", str(world.workspace / ".venv")], check=True)  # noqa: ASYNC221
    packages = next((world.workspace / ".venv/lib").glob("python*/site-packages"))
    (packages / "mine.py").write_text("X = 42")
    tool = world.workspace / ".venv/bin/tool"
    tool.write_text(f"#!{world.workspace}/.venv/bin/python\nimport mine; print(mine.X)\n")
    tool.chmod(0o755)

    program = await sandbox.run("import mine, sys; print(mine.X, sys.argv)", world.policy())
    command = await sandbox.run("tool; python -c 'import mine; print(mine.X)'", world.policy(), shell=True)

    assert program.output.startswith("42 ["), program.output
    assert command.output == "42\n42\n" or command.isolation == "landlock", command.output


async def test_more_memory_than_allowed_ends_the_run(sandbox: Sandbox, world: World) -> None:
    code = (
        "import mmap\nkeep = [mmap.mmap(-1, 64 << 20) for _ in range(9)]\n"
        "for m in keep: m.write(bytes(64 << 20))\nprint('ESCAPED')"
    )
    outcome = await sandbox.run(code, world.policy(memory_bytes=256 << 20))
    assert (outcome.ended_by, "ESCAPED" in outcome.output) == ("memory", False), outcome


async def test_address_space_alone_is_not_memory(sandbox: Sandbox, world: World) -> None:
    code = (
        "import mmap; m = mmap.mmap(-1, 64 << 30, prot=0, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "print(len(m) >> 30)"
    )
    assert (await sandbox.run(code, world.policy())).output == "64\n"


async def test_a_workspace_that_cannot_be_used_is_said(sandbox: Sandbox, world: World) -> None:
    with pytest.raises(GpuboxError, match="through a link"):
        await sandbox.run("", world.policy(workspace=world.workspace / "door"))
