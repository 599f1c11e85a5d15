"""A gpubox that is killed at any call while it takes, drops, undoes or redoes: nothing is lost, and nothing stays."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gpubox.sandbox.steps import Steps
from tests.sampling import batches, sampled
from tests.unit.test_sandbox_steps import Tree, listed, names, tree, turn
from tests.unit.test_sandbox_steps_random import Plain, one_turn

_CALLS = "open mkdir rmdir rename replace unlink link symlink mknod chmod fchmod chown fchown utime fsync setxattr"
_KILLED = 77


def do_killed(act: Callable[[], object], at: int, *, other_disk: bool = False) -> bool:
    """Runs ``act`` in a child that dies at its call number ``at``. Returns whether it got there."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _die_at(at, other_disk=other_disk)
            act()
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, _KILLED), code
    return code == _KILLED


def _die_at(at: int, *, other_disk: bool) -> None:
    count = 0

    def wrap(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                os._exit(_KILLED)
            if other_disk and name == "rename" and named.get("dst_dir_fd") and not named.get("src_dir_fd"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            return real(*args, **named)

        return call

    for name in _CALLS.split():
        setattr(os, name, wrap(getattr(os, name), name))


class Box:
    """A workspace with the steps of a chat, which can be brought back to how they were."""

    def __init__(self, top: Path) -> None:
        self.top, self.kept = top / "box", top / "kept"
        self.workspace, self.folder = self.top / "project", self.top / "chat.layers"
        self.workspace.mkdir(parents=True)

    def open(self) -> Steps:
        return Steps(self.workspace, self.folder)

    def keep(self) -> None:
        shutil.rmtree(self.kept, ignore_errors=True)
        self._copy(self.top, self.kept)

    def bring_back(self) -> None:
        """As it was kept, in the same folder: another one at the path of the workspace is refused."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for entry in os.scandir(self.workspace):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else Path(entry.path).unlink()
        self._copy(self.kept, self.top)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        """With whiteouts, which copytree cannot."""
        target.mkdir(exist_ok=True)
        for entry in os.scandir(source):
            status = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                Box._copy(Path(entry.path), target / entry.name)
            elif entry.is_symlink() or entry.is_file():
                shutil.copy2(entry.path, target / entry.name, follow_symlinks=False)
            else:
                os.mknod(target / entry.name, status.st_mode, status.st_rdev)
        shutil.copystat(source, target)


def files_of(workspace: Path) -> Tree:
    """Times of folders left out: those of a first take are the time of the take."""
    return {path: entry if entry[2] is not None else entry[:3] for path, entry in tree(workspace).items()}


def act_on(box: Box, action: str) -> None:
    with closing(box.open()) as steps:
        if action == "take some":
            steps.take({path: None for path in sorted(change.path for change in steps.changes())[::2]})
        else:
            getattr(steps, action)()


ACTIONS = ["take", "take some", "drop", "undo", "redo"]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box(tmp_path)
    (box.workspace / "d").mkdir()
    for name in ("a", "b", "d/x", "d/y", "e"):
        (box.workspace / name).write_text(f"{name}\n" * 3)
    (box.workspace / "link").symlink_to("a")
    for path in [*box.workspace.rglob("*"), box.workspace]:
        os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)
    return box


def small_turn(steps: Steps) -> None:
    with turn(steps, "t1") as layer:
        layer.write(names("a"), b"new\n", 0o755)
        layer.remove(names("b"))
        layer.write(names("b/inner"), b"a folder now\n")
        layer.remove(names("d"))
        (layer.path / "d").unlink(missing_ok=True)
        (layer.path / "d").write_text("a file now\n")
        layer.write(names("n/m/z"), b"z\n")
        layer.remove(names("link"))


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill of a program loses nothing that the kernel has."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("points", batches(range(1, 1500), 0.03))
@pytest.mark.parametrize("other_disk", [False, True], ids=["one disk", "two disks"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_kill_at_each_call_of_a_small_step(box: Box, action: str, other_disk: bool, points: tuple[int, ...]) -> None:
    first = files_of(box.workspace), tree(box.workspace)
    with closing(box.open()) as steps:
        small_turn(steps)
        if action in ("undo", "redo"):
            steps.take()
        if action == "redo":
            steps.undo()
    box.keep()
    states = []
    for full in (box.bring_back, lambda: act_on(box, action)):
        full()
        states.append(files_of(box.workspace))
    chance = random.Random(action)
    for at in points:
        box.bring_back()
        reached = do_killed(lambda: act_on(box, action), at, other_disk=other_disk)
        if chance.random() < 0.2:
            do_killed(lambda: box.open().close(), chance.randrange(1, 40), other_disk=other_disk)
        with closing(box.open()) as steps:
            now = files_of(box.workspace)
            assert now in states, at
            assert set(listed(box.folder)) - {"lock", "steps.json"} == {
                f"{step.number:06}" for step in steps._book.steps
            }, at
            if now == states[0] and steps.can_undo and action in ("take", "take some", "drop"):
                assert [change.path for change in steps.changes()] or action == "drop"
            if steps.can_undo:
                steps.undo()
            assert tree(box.workspace) == first[1], at
            steps.redo()
        if not reached:
            break
    assert not reached or len(points) < 1499, "there are more calls than points"


@pytest.mark.parametrize("seed", sampled(range(300)))
def test_a_kill_at_a_random_call_of_a_random_step(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    box = Box(tmp_path)
    for name in ("a", "b", "c/a", "c/b/a"):
        (box.workspace / name).parent.mkdir(exist_ok=True, parents=True)
        (box.workspace / name).write_text("".join(f"{number}\n" for number in range(25)))
    first = tree(box.workspace)
    copy = Plain(tmp_path / "copy")
    shutil.copytree(box.workspace, copy.folder, symlinks=True)
    with closing(box.open()) as steps:
        for number in range(chance.randrange(1, 4)):
            one_turn(chance, steps, f"t{number}", copy)
            if chance.random() < 0.4:
                steps.take()
        action = chance.choice(ACTIONS)
        if action == "redo":
            steps.undo()
    before = files_of(box.workspace)
    box.keep()
    act_on(box, action)
    after = files_of(box.workspace)
    box.bring_back()
    other_disk = chance.random() < 0.3
    do_killed(lambda: act_on(box, action), chance.randrange(1, 150), other_disk=other_disk)
    for _ in range(chance.randrange(3)):
        do_killed(lambda: box.open().close(), chance.randrange(1, 60), other_disk=other_disk)
    with closing(box.open()) as steps:
        assert files_of(box.workspace) in (before, after)
        while steps.can_undo:
            steps.undo()
        assert tree(box.workspace) == first
        while steps.can_redo:
            steps.redo()
