# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Files that a program plants for the owner's tools are moved out before the tools run them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.sandbox import quarantine
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.quarantine import Quarantine
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.workspace_scan import remove_tree, scan
from tests.hostile.test_runs import RUNNER, until
from tests.hostile.world import World

PLANT = """
import os, shutil, time
def repository(folder, name=".git", extra=""):
    os.makedirs(f"{folder}/{name}/objects", exist_ok=True)
    os.makedirs(f"{folder}/{name}/refs", exist_ok=True)
    open(f"{folder}/{name}/HEAD", "w").write("ref: refs/heads/main")
    open(f"{folder}/{name}/config", "w").write(f"[core]\\n repositoryformatversion = 0\\n fsmonitor = touch @PROOF@; false\\n pager = touch @PROOF@\\n{extra}")
def write(path, text="x"):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)
"""
WAYS = {
    "at the top": ("repository('.')", {".git"}),
    "in a folder": ("repository('a/b/c')", {"a/b/c/.git"}),
    "in a folder that is seldom looked into": ("repository('node_modules/p'); repository('__pycache__')", {"node_modules", "__pycache__/.git"}),
    "in other letters": ("repository('.', '.GIT'); repository('s', '.g\\u200cit')", {".GIT", "s/.g\u200cit"}),
    "as a file": ("repository('.', 'x'); write('w/.git', 'gitdir: ../x')", {"w/.git", "x/HEAD", "x/config", "x/objects", "x/refs"}),
    "as a link": ("repository('.', 'x'); os.mkdir('w'); os.symlink('../x', 'w/.git')", {"w/.git", "x/HEAD", "x/config", "x/objects", "x/refs"}),
    "under another name": ("repository('.', 'notes', ' bare = false\\n worktree = .')", {"notes/HEAD", "notes/config", "notes/objects", "notes/refs"}),
    "as the workspace itself": ("repository('.', '.', ' bare = false\\n worktree = sub'); os.mkdir('sub')", {"HEAD", "config", "objects", "refs"}),
    "with its parts elsewhere": ("repository('.', 'x'); write('y/HEAD', 'ref: refs/heads/main'); write('y/commondir', '../x')", {"x/HEAD", "x/config", "x/objects", "x/refs", "y/HEAD", "y/commondir"}),
    "in a folder closed to its owner": ("repository('shut'); os.chmod('shut', 0)", {"shut/.git"}),
    "closed to its owner": ("repository('.'); os.chmod('.git', 0)", {".git"}),
    "moved there": ("repository('a', 'b'); os.rename('a/b', '.git')", {".git", "a/b/HEAD", "a/b/config", "a/b/objects", "a/b/refs"}),  # by when it is seen
    "by a child that is left behind": ("if os.fork() == 0:\n    time.sleep(0.3); repository('late'); time.sleep(60)\ntime.sleep(0.6)", {"late/.git"}),
    "settings": (
        "for path in ('.envrc', '.vscode/tasks.json', 'a/.idea/workspace.xml', '.husky/pre-commit', '.pre-commit-config.yaml', '.mise.toml', "
        "'a/sitecustomize.py', '.venv/bin/python', '.dir-locals.el', 'a/.exrc', '.claude/settings.json', 'opencode.json', '.npmrc', '.ENVRC'): write(path)",
        {".envrc", ".vscode", "a/.idea", ".husky", ".pre-commit-config.yaml", ".mise.toml", "a/sitecustomize.py", ".venv", ".dir-locals.el", "a/.exrc", ".claude", "opencode.json", ".npmrc", ".ENVRC"},
    ),
}  # fmt: skip


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The owner's quarantine."""
    folder = tmp_path / "quarantine"
    monkeypatch.setattr(quarantine, "default_quarantine_folder", lambda: folder)
    yield folder
    remove_tree(tmp_path)  # what was moved is closed to its owner


def programs(world: World, code: str) -> tuple[str, Path]:
    """The program, and the file that exists once a tool ran what it planted."""
    proof = world.root / "proof"
    proof.unlink(missing_ok=True)
    return PLANT.replace("@PROOF@", str(proof)) + code, proof


def init(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def status(folder: Path) -> str:
    argv = ["git", "-c", "safe.directory=*", "status", "--short"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout


def use_git_everywhere(folder: Path) -> None:
    """As for an owner whose shell prompt shows the branch."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]
    for path in folders:
        for argv in (["status"], ["log"]):
            subprocess.run(["git", *argv], cwd=path, env=env, capture_output=True, check=False)


def count(place: Path) -> int:
    return len([path for path in place.glob("2*/*") if path.name != "from.txt"])


def origins(place: Path) -> str:
    """Where what was moved out had been, as the owner reads it."""
    return "".join(path.read_text() for path in place.glob("2*/from.txt"))


def names(outcome: Outcome) -> set[str]:
    return {text.rpartition(" (")[0] for text in outcome.quarantined}


def test_git_runs_what_a_repository_says(world: World) -> None:
    """Otherwise the tests below could not fail."""
    for way in ("at the top", "under another name", "as the workspace itself", "as a file"):
        world.tidy()
        code, proof = programs(world, WAYS[way][0])
        subprocess.run([sys.executable, "-c", code], cwd=world.workspace, check=True)
        use_git_everywhere(world.workspace)
        assert proof.exists(), way
    world.tidy()


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_planted_is_moved_out(way: str, sandbox: Sandbox, world: World, place: Path) -> None:
    code, proof = programs(world, WAYS[way][0])

    outcome = await sandbox.run(code, Policy(workspace=world.workspace))
    use_git_everywhere(world.workspace)

    # It may be moved out while the program is still writing it, so some parts may be missing.
    assert names(outcome) and names(outcome) <= WAYS[way][1], outcome.output
    assert scan(world.workspace).auto_run == []
    assert outcome.not_quarantined == ()
    assert not proof.exists()
    assert outcome.quarantine == str(place)
    assert count(place) == len(outcome.quarantined)


@pytest.mark.parametrize("depth", [130, 3000])
async def test_folders_too_deep_to_search_are_moved_out(
    depth: int, sandbox: Sandbox, world: World, place: Path
) -> None:
    code, _ = programs(world, f"for _ in range({depth}): os.mkdir('d'); os.chdir('d')\nrepository('.')")

    try:
        outcome = await sandbox.run(code, Policy(workspace=world.workspace))
    finally:  # nothing else could remove them
        remove_tree(world.workspace / "d")
        remove_tree(place)

    assert len(outcome.quarantined) == 1 and outcome.quarantined[0].endswith("(folders deeper than 128)")


ENDLESS = """
if os.fork() == 0:
    while True:
        for folder in ("a", "b"):
            try: repository(folder)
            except OSError: pass  # it was moved out while it was being written
while not os.path.exists("a/.git"): time.sleep(0.01)
while True: print("x" * 9999)
"""


async def test_a_program_that_plants_until_it_is_ended_leaves_nothing(
    sandbox: Sandbox, world: World, place: Path
) -> None:
    code, proof = programs(world, ENDLESS)

    outcome = await sandbox.run(code, Policy(workspace=world.workspace))
    use_git_everywhere(world.workspace)

    assert outcome.ended_by == "output"
    assert names(outcome) and names(outcome) <= {"a/.git", "b/.git"}
    assert scan(world.workspace).auto_run == []
    assert not proof.exists()


async def test_it_is_moved_out_while_the_program_still_runs(sandbox: Sandbox, world: World, place: Path) -> None:
    code, _ = programs(world, "repository('a'); time.sleep(60)")
    task = asyncio.create_task(sandbox.run(code, Policy(workspace=world.workspace)))

    await until(lambda: (world.workspace / "a").exists() and any(place.glob("2*/1-.git")))
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not (world.workspace / "a/.git").exists()


OWN = """
def tried(what, *words):
    try: what(*words); print("changed", words)
    except OSError as error: print("no")
for folder in ("", "sub/", "deep/er/"):
    tried(write, folder + ".git/hooks/post-checkout"); tried(write, folder + ".git/config"); tried(shutil.rmtree, folder + ".git")
    tried(os.rename, folder + ".git", folder + "x")
tried(write, "tree/.git", "gitdir: ../x"); tried(os.unlink, "tree/.git")
tried(write, ".envrc"); tried(os.rename, ".envrc", "e"); tried(write, ".vscode/tasks.json")
tried(os.rmdir, ".git/hooks"); tried(os.rename, ".git/hooks", "x"); tried(os.chmod, ".git/hooks", 0o777); tried(os.symlink, "/etc", ".git")
for process in ("self", "1"):
    try: open_files = [os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
    except OSError: continue
    if any("git" in path for path in open_files): print("left open")
os.rename("sub", "elsewhere"); repository("sub")
os.rename("deep/er", "deep/est"); repository("deep/er")
write("mine.txt", "written")
"""


async def test_the_owners_own_are_only_read_and_not_replaced(sandbox: Sandbox, world: World, place: Path) -> None:
    for folder in ("", "sub", "deep/er"):
        init(world.workspace / folder)
    for name, text in ((".envrc", "mine"), (".vscode/tasks.json", "mine"), ("tree/.git", "gitdir: ../sub/.git")):
        (world.workspace / name).parent.mkdir(exist_ok=True)
        (world.workspace / name).write_text(text)
    open_to_all(world.workspace)
    code, proof = programs(world, OWN)

    outcome = await sandbox.run(code, Policy(workspace=world.workspace))

    if outcome.isolation != "bubblewrap":
        assert {text.rpartition(" (")[0] for text in outcome.not_quarantined} >= {".git", ".envrc", ".vscode"}
        return
    assert set(outcome.output.splitlines()) == {"no"}, outcome.output
    assert names(outcome) == {"sub/.git", "deep/er/.git"}
    assert "sub/.git" in origins(place)
    assert (world.workspace / "elsewhere/.git/config").exists() and (world.workspace / "deep/est/.git").exists()
    assert (world.workspace / ".envrc").read_text() == "mine"
    assert (world.workspace / "mine.txt").read_text() == "written"
    use_git_everywhere(world.workspace)
    assert not proof.exists()


def open_to_all(folder: Path) -> None:
    """So that only the confinement keeps out a program of another user."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o777)


async def test_a_workspace_under_git_stays_one(sandbox: Sandbox, world: World, place: Path) -> None:
    init(world.workspace)
    open_to_all(world.workspace)

    code = "import os\nprint(os.path.exists('.git/HEAD'))\nopen('a.py', 'w').write('1')\nopen('.gitignore', 'w').write('x')"
    outcome = await sandbox.run(code, Policy(workspace=world.workspace))

    assert (outcome.output, outcome.quarantined, outcome.not_quarantined) == ("True\n", (), ())
    assert outcome.files_changed == (".gitignore", "a.py")
    assert "?? a.py" in status(world.workspace)


async def test_the_next_gpubox_moves_out_what_a_killed_one_left(sandbox: Sandbox, world: World, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "state/gpubox/quarantine"
    script = (RUNNER % (await sandbox.confinement(), str(world.workspace))).replace("os.fork()", "os.mkdir('.git')")
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as gpubox:  # noqa: ASYNC220
        await until(lambda: any(place.glob("2*/1-.git")))
        (world.workspace / ".git").mkdir()  # as the program would just before the kill
        gpubox.send_signal(signal.SIGKILL)
    await until(lambda: world.survivors() == [])
    (world.workspace / ".git").mkdir(exist_ok=True)

    quarantine.recover_interrupted(place)

    assert not (world.workspace / ".git").exists()
    assert not list((place / "running").iterdir())


def test_on_another_disk_it_is_made_inaccessible_in_place(world: World) -> None:
    (world.workspace / "a").mkdir()
    running = Quarantine.begin(world.workspace, can_protect=True, folder=Path("/proc/no/such"))
    (world.workspace / "a/.git").mkdir()
    running.finish()

    assert [file.path for file in running.moved] == ["a/.git"]
    (left,) = (world.workspace / "a").iterdir()
    assert left.name.startswith("gpubox-quarantine-") and left.stat().st_mode & 0o777 == 0


def test_a_swapped_folder_leads_nowhere_else(world: World, place: Path) -> None:
    """A link to a folder of the owner's is not followed, however deep it lies."""
    (world.outside / ".git").mkdir()
    running = Quarantine.begin(world.workspace, can_protect=True, folder=place)
    (world.workspace / "a").symlink_to(world.outside)
    running.finish()

    assert (world.outside / ".git").exists() and running.moved == []
    (world.outside / ".git").rmdir()
