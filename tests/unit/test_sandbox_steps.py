"""Turns, takes, drops, undo and redo over a workspace, against a model of it in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.changes import Change, describe, unified
from gpubox.sandbox.layers import TopLayer, remove_tree
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import MAX_OPEN_LAYERS, Steps, now_ns

Tree = dict[str, tuple[object, ...]]


def tree(top: Path, *, times: bool = True) -> Tree:
    """Every path below ``top`` with all that must come back."""
    entries: Tree = {}
    for folder, names, files in os.walk(top):
        for name in [*names, *files, ""] if folder == str(top) else [*names, *files]:
            path = Path(folder, name)
            status = path.lstat()
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            entries[os.path.relpath(path, top)] = (
                stat.S_IFMT(status.st_mode),
                stat.S_IMODE(status.st_mode),
                content,
                status.st_mtime_ns if times else 0,
                status.st_uid,
            )
    return entries


def listed(folder: Path) -> list[str]:
    """The names in it."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "a.txt").write_text("".join(f"line {number}\n" for number in range(40)))
    (folder / "src/b.py").write_text("b = 1\n")
    (folder / "src/b.py").chmod(0o644)
    (folder / "src/data.bin").write_bytes(b"\0\1\2")
    (folder / "link").symlink_to("a.txt")
    for path in (folder / "a.txt", folder / "src/b.py", folder / "src", folder):
        os.utime(path, ns=(10**18, 10**18 + 7))
    return folder


@pytest.fixture
def steps(workspace: Path, tmp_path: Path) -> Iterator[Steps]:
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        yield steps
    remove_tree(steps.folder)  # some are too deep for pytest


def nest(folder: Path, depth: int) -> None:
    """Makes folders in folders in ``folder``, by descriptors: no path is that long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", 0o700, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@contextmanager
def turn(steps: Steps, turn_id: str = "t1") -> Iterator[TopLayer]:
    """What is written inside is the turn's layer."""
    steps.begin_turn(turn_id)
    yield TopLayer(steps.view())
    steps.note_changes()
    steps.end_turn()


def paths(steps: Steps) -> list[str]:
    return [change.path for change in steps.changes()]


def change_of(steps: Steps, path: str) -> Change:
    return next(change for change in steps.changes() if change.path == path)


def names(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))


def test_the_owner_sees_what_a_turn_changed_and_his_folder_stays(workspace: Path, steps: Steps) -> None:
    before = tree(workspace)
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n", 0o755)
        layer.write(names("new/deep/c.py"), b"c = 3\n")
        layer.remove(names("src/data.bin"))
    assert tree(workspace) == before
    kinds = {change.path: (change.kind, change.added, change.removed) for change in steps.changes()}
    assert kinds == {
        "new/deep/c.py": ("new", 1, 0),
        "src/b.py": ("changed", 1, 1),
        "src/data.bin": ("removed", 0, 0),
    }
    assert unified(change_of(steps, "src/b.py")) == (
        "src/b.py: mode 644 -> 755\n--- src/b.py\n+++ src/b.py\n@@ -1,1 +1,1 @@\n-b = 1\n+b = 2\n"
    )


def test_a_take_and_its_undo_and_redo_are_equal_byte_for_byte(workspace: Path, steps: Steps) -> None:
    before = tree(workspace)
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n", 0o755)
        layer.write(names("new/deep/c.py"), b"c = 3\n")
        layer.remove(names("link"))
        layer.remove(names("src/data.bin"))
    written = (steps.layers()[0] / "src/b.py").stat().st_mtime_ns
    assert steps.take().taken == ("link", "new/deep/c.py", "src/b.py", "src/data.bin")
    after = tree(workspace)
    assert after["src/b.py"][1:4] == (0o755, b"b = 2\n", written)
    assert "link" not in after and not steps.changes() and not steps.layers()
    assert steps.undo().turns == ("t1",)
    assert tree(workspace) == before
    assert steps.redo().files == ("link", "new", "new/deep", "new/deep/c.py", "src/b.py", "src/data.bin")
    assert tree(workspace) == after


def test_some_hunks_are_taken_and_the_others_stay_open(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        text = (workspace / "a.txt").read_text().replace("line 3\n", "LINE 3\n").replace("line 30\n", "")
        layer.write(names("a.txt"), text.encode())
    assert len(change_of(steps, "a.txt").hunks) == 2
    steps.take({"a.txt": frozenset({1})})
    assert "LINE 3" not in (workspace / "a.txt").read_text() and "line 30\n" not in (workspace / "a.txt").read_text()
    (hunk,) = change_of(steps, "a.txt").hunks
    assert hunk.lines[3:5] == ("-line 3", "+LINE 3")
    steps.take()
    assert (workspace / "a.txt").read_text() == text


def test_hunks_keep_carriage_returns_other_encodings_and_a_missing_last_line_break(
    workspace: Path, steps: Steps
) -> None:
    middle = b"".join(b"same %d\r\n" % number for number in range(20))
    (workspace / "odd").write_bytes(b"\xe9t\xe9\r\n" + middle + b"end")
    with turn(steps) as layer:
        layer.write(names("odd"), b"\xe9t\xe9!\r\n" + middle + b"end\n")
    assert change_of(steps, "odd").hunks[1].lines[-3:] == (
        " same 19\u240d",
        "-end\n\\ No newline at end of file",
        "+end",
    )
    steps.take({"odd": frozenset({0})})
    assert (workspace / "odd").read_bytes() == b"\xe9t\xe9!\r\n" + middle + b"end"
    steps.take()
    assert (workspace / "odd").read_bytes() == b"\xe9t\xe9!\r\n" + middle + b"end\n"


@pytest.mark.parametrize("path", ["src/b.py", "src/data.bin", "link", "fresh"])
def test_what_the_owner_changed_meanwhile_is_never_overwritten(workspace: Path, steps: Steps, path: str) -> None:
    with turn(steps) as layer:
        if path == "src/data.bin":
            layer.remove(names(path))
        else:
            if path == "link":
                layer.remove(names(path))
            layer.write(names(path), b"the model's\n")
        layer.write(names("other"), b"\n")
    (workspace / path).unlink(missing_ok=True)
    (workspace / path).write_bytes(b"the owner's\n")
    assert change_of(steps, path).conflict
    result = steps.take()
    assert result.taken == ("other",) and [change.path for change in result.left] == [path]
    assert (workspace / path).read_bytes() == b"the owner's\n"
    assert steps.take({path: None}).taken == ()


def test_a_change_with_the_size_and_the_time_of_before_is_seen(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
    time = (workspace / "src/b.py").stat().st_mtime_ns
    (workspace / "src/b.py").write_text("b = 9\n")
    os.utime(workspace / "src/b.py", ns=(time, time))
    assert change_of(steps, "src/b.py").conflict


def test_the_same_content_again_is_no_conflict(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
    (workspace / "src/b.py").unlink()
    (workspace / "src/b.py").write_text("b = 1\n")  # as git does when the owner goes to another branch and back
    (workspace / "src/b.py").chmod(0o644)
    assert steps.take().taken == ("src/b.py",)


def test_what_changed_while_the_program_ran_is_a_conflict_at_once(workspace: Path, steps: Steps) -> None:
    steps.begin_turn("t1")
    began = (workspace / "src/b.py").stat().st_ctime_ns - 1
    TopLayer(steps.view()).write(names("src/b.py"), b"b = 2\n")
    steps.note_changes(began)
    steps.end_turn()
    assert change_of(steps, "src/b.py").conflict
    steps.drop({"src/b.py": None})
    with turn(steps, "t2") as layer:  # once more, now that the program saw the owner's
        layer.write(names("src/b.py"), b"b = 3\n")
    assert steps.take().taken == ("src/b.py",)


def test_what_runs_by_itself_needs_its_own_yes(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        for path in (".git/hooks/pre-commit", "pkg/HEAD", "pkg/objects/x", "pkg/refs/y", ".envrc", "ok.py"):
            layer.write(names(path), b"x\n", 0o755)
    reasons = {change.path: change.runs_by_itself for change in steps.changes()}
    assert [path for path in reasons if not reasons[path]] == ["ok.py"]
    assert steps.take().taken == ("ok.py",)
    assert steps.take(allow=[".envrc"]).taken == (".envrc",)
    assert listed(workspace) == [".envrc", "a.txt", "link", "ok.py", "src"]
    steps.take(allow=paths(steps))
    assert (workspace / ".git/hooks/pre-commit").stat().st_mode & 0o777 == 0o755
    assert not steps.layers()


def test_what_is_dropped_no_longer_hides_the_owners_files(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
        layer.write(names("keep"), b"k\n")
        layer.remove(names("src/data.bin"))
    steps.drop({"src/b.py": None, "src/data.bin": None})
    assert paths(steps) == ["keep"]
    (workspace / "src/b.py").write_text("b = 7\n")
    assert paths(steps) == ["keep"]
    with steps.view().folder(("src",)) as folder:
        assert folder.find("b.py").status.st_size == 6 and folder.find("data.bin")  # type: ignore[union-attr]
    steps.drop()
    assert not steps.changes() and not steps.layers()
    steps.undo()
    steps.redo()
    assert not steps.changes()


def test_some_hunks_are_dropped(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        text = (workspace / "a.txt").read_text().replace("line 3\n", "LINE 3\n").replace("line 30\n", "")
        layer.write(names("a.txt"), text.encode())
    steps.drop({"a.txt": frozenset({0})})
    (hunk,) = change_of(steps, "a.txt").hunks
    assert "-line 30" in hunk.lines
    steps.take()
    assert "line 3\n" in (workspace / "a.txt").read_text()


def test_a_folder_in_the_place_of_a_file_and_the_other_way_round(workspace: Path, steps: Steps) -> None:
    before = tree(workspace)
    with turn(steps) as layer:
        layer.remove(names("a.txt"))
        layer.write(names("a.txt/inner/x"), b"x\n")
        for path in ("src/b.py", "src/data.bin"):
            layer.remove(names(path))
        shutil.rmtree(layer.path / "src")
        (layer.path / "src").write_text("a file now\n")
    with turn(steps, "t2") as layer:
        layer.write(names("a.txt/inner/y"), b"y\n")
    assert set(paths(steps)) == {"a.txt", "a.txt/inner/x", "a.txt/inner/y", "src", "src/b.py", "src/data.bin"}
    assert len(steps.take({"a.txt/inner/x": None}).taken) == 3
    assert set(paths(steps)) == {"src", "src/b.py", "src/data.bin"}
    steps.take()
    assert (workspace / "src").read_text() == "a file now\n" and (workspace / "a.txt/inner/y").exists()
    after = tree(workspace)
    steps.undo("t1")
    assert tree(workspace) == before
    steps.redo()
    steps.redo()
    assert tree(workspace) == after


def test_a_removed_folder_comes_back_with_modes_and_times(workspace: Path, steps: Steps) -> None:
    (workspace / "src/inner").mkdir(mode=0o750)
    (workspace / "src/inner/x").write_text("x")
    os.utime(workspace / "src/inner", ns=(1, 1))
    before = tree(workspace)
    with turn(steps) as layer:
        layer.remove(names("src"))
    assert paths(steps) == ["src/b.py", "src/data.bin", "src/inner/x"]
    steps.take()
    assert not (workspace / "src").exists()
    steps.undo()
    assert tree(workspace) == before
    with turn(steps, "t2") as layer:
        layer.remove(names("src"))
    steps.drop({"src/b.py": None})
    assert paths(steps) == ["src/data.bin", "src/inner/x"]
    assert not steps.view().status(("src", "inner"))


def test_a_folder_that_the_owner_put_something_into_stays(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.remove(names("src"))
    (workspace / "src/mine").write_text("mine")
    assert change_of(steps, "src/mine").conflict
    steps.take()
    assert listed(workspace / "src") == ["mine"]


def test_special_files_are_never_taken_and_setuid_bits_are_dropped(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        os.mkfifo(layer.path / "pipe")
        layer.write(names("tool"), b"x\n", 0o755)
        (layer.path / "tool").chmod(0o4755)
        (layer.path / "full").symlink_to("/etc/passwd")
    assert paths(steps) == ["full", "tool"]
    result = steps.take()
    assert result.taken == ("tool",) and "setuid" in result.notes[0]
    assert (workspace / "tool").stat().st_mode & 0o7777 == 0o755
    assert change_of(steps, "full").runs_by_itself == "a link out of the workspace"


def test_no_link_is_followed(workspace: Path, steps: Steps, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
        layer.write(names("src/new"), b"n\n")
    (workspace / "src").rename(tmp_path / "moved")
    (workspace / "src").symlink_to(outside)
    assert steps.take().taken == ()
    assert not list(outside.iterdir())


def test_undo_refuses_where_the_owner_went_on_and_keeps_on_request(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
        layer.write(names("other"), b"o\n")
    steps.take()
    (workspace / "src/b.py").write_text("b = 3\n")
    before = tree(workspace)
    with pytest.raises(GpuboxError, match=r"You changed src/b\.py since: nothing was undone"):
        steps.undo()
    assert tree(workspace) == before
    assert steps.undo(keep=["src/b.py"]).kept == ("src/b.py",)
    assert (workspace / "src/b.py").read_text() == "b = 3\n" and not (workspace / "other").exists()
    assert steps.redo().files == ("other",)
    assert (workspace / "src/b.py").read_text() == "b = 3\n"


def test_what_is_kept_at_an_undo_leaves_the_others_their_own_content(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        for path in ("a.txt", "c", "src/b.py", "src/data.bin"):
            layer.write(names(path), f"{path}\n".encode())
    before = tree(workspace, times=False)
    steps.take()
    (workspace / "a.txt").write_text("mine\n")
    steps.undo(keep=["a.txt"])
    mine = before | {"a.txt": tree(workspace, times=False)["a.txt"]}
    assert tree(workspace, times=False) == mine
    steps.redo()
    assert (workspace / "src/b.py").read_text() == "src/b.py\n" and (workspace / "c").read_text() == "c\n"
    (workspace / "c").write_text("mine, too\n")
    steps.undo(keep=["c"])
    assert tree(workspace, times=False) == mine | {"c": tree(workspace, times=False)["c"]}


def test_undo_works_after_a_restart_and_a_new_turn_forgets_what_was_undone(workspace: Path, tmp_path: Path) -> None:
    folder, before = tmp_path / "chat.layers", tree(workspace)
    with closing(Steps(workspace, folder)) as steps:
        with turn(steps) as layer:
            layer.write(names("src/b.py"), b"b = 2\n")
        steps.take()
        with turn(steps, "t2") as layer:
            layer.write(names("src/b.py"), b"b = 3\n")
        steps.take()
    with pytest.raises(GpuboxError, match="open"), closing(Steps(workspace, folder)), closing(Steps(workspace, folder)):
        pass
    with closing(Steps(workspace, folder)) as steps:
        assert steps.can_undo == "t2"
        assert steps.undo("t1").turns == ("t2", "t1")
        assert tree(workspace) == before and steps.can_redo == "t1"
        with turn(steps, "t3"):
            pass
        assert not steps.can_redo
        assert listed(folder) == ["000005", "lock", "steps.json"]
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(UsageError):
            steps.redo()


def test_a_turn_that_a_kill_cut_off_is_open_for_a_decision(workspace: Path, tmp_path: Path) -> None:
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        steps.begin_turn("t1")
        TopLayer(steps.view()).write(names("new"), b"n\n")
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        assert paths(steps) == ["new"]
        assert steps.take().taken == ("new",)


def test_too_many_open_turns_are_refused(steps: Steps) -> None:
    for number in range(MAX_OPEN_LAYERS):
        with turn(steps, f"t{number}") as layer:
            layer.write((f"f{number}",), b"\n")
    with pytest.raises(GpuboxError, match="40 turns wait for your decision"):
        steps.begin_turn("one more")
    with_empty = len(steps.layers())
    steps.drop({"f0": None})
    with turn(steps, "again"):
        pass
    assert (with_empty, len(steps.layers())) == (40, 1)


def test_old_turns_are_forgotten(workspace: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.sandbox.steps.MAX_TURNS", 3)
    for number in range(6):
        with turn(steps, f"t{number}") as layer:
            layer.write(names("src/b.py"), b"b = %d\n" % (number + 10))
        steps.take()
    assert len([name for name in listed(steps.folder) if name.isdigit()]) == 6
    steps.undo("t3")
    assert (workspace / "src/b.py").read_text() == "b = 12\n" and not steps.can_undo


def test_note_changes_says_what_is_new(steps: Steps) -> None:
    steps.begin_turn("t1")
    layer = TopLayer(steps.view())
    layer.write(names("src/b.py"), b"b = 2\n")
    layer.write(names("pkg/__pycache__/x.pyc"), b"")
    assert steps.note_changes() == ("pkg/", "src/b.py")
    assert steps.note_changes() == ()
    layer.remove(names("src/b.py"))
    layer.write(names("x"), b"")
    assert steps.note_changes() == ("src/b.py (removed)", "x")
    layer.remove(names("x"))
    assert steps.note_changes() == ("x (removed)",)


def test_what_real_programs_do_on_the_mount(workspace: Path, tmp_path: Path) -> None:
    (workspace / "tree/inner").mkdir(parents=True)
    (workspace / "tree/inner/x").write_text("x\n")
    before = tree(workspace)
    with closing(Steps(workspace, tmp_path / "real.layers", layer_owner())) as steps:

        def run(command: str) -> None:
            began = now_ns()
            policy = Policy(workspace=workspace, layers=steps.layers())
            outcome = asyncio.run(Sandbox(Config()).run(command, policy, shell=True))
            assert outcome.ok, outcome
            steps.note_changes(began)

        steps.begin_turn("t1")
        run("echo more >> a.txt; rm src/b.py; rm -r tree; mkdir tree; echo y > tree/y; mv src/data.bin moved")
        run("rm a.txt; mkdir a.txt; echo z > a.txt/z; ln -s moved shortcut; mkfifo pipe; touch -d @5 tree/y")
        steps.end_turn()
        steps.begin_turn("t2")
        run("test ! -e src/b.py && test ! -e tree/inner && cat a.txt/z && echo two > two && rm -r tree")
        steps.end_turn()
        assert tree(workspace) == before
        assert {change.path: change.kind for change in steps.changes()} == {
            "a.txt": "folder", "a.txt/z": "new", "moved": "new", "shortcut": "link", "src/b.py": "removed",
            "src/data.bin": "removed", "tree/inner/x": "removed", "two": "new",
        }  # fmt: skip
        steps.take({"moved": None, "a.txt": None})
        steps.begin_turn("t3")
        run("test -f a.txt/z && test ! -e src/b.py && test -L shortcut && test ! -e tree && cat two && echo 3 > two")
        steps.end_turn()
        steps.take(allow=["shortcut"])
        assert sorted(tree(workspace, times=False)) == [
            ".",
            "a.txt",
            "a.txt/z",
            "link",
            "moved",
            "shortcut",
            "src",
            "two",
        ]
        assert (workspace / "two").read_text() == "3\n"
        after = tree(workspace)
        steps.undo("t1")
        assert tree(workspace) == before
        while steps.can_redo:
            steps.redo()
        assert tree(workspace) == after


@pytest.mark.parametrize("action", ["take", "undo", "redo"])
def test_an_error_in_the_middle_leaves_all_files_as_they_were(
    workspace: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    with turn(steps) as layer:
        for path in ("a.txt", "src/b.py", "src/data.bin", "z/new"):
            layer.write(names(path), b"new\n")
    if action != "take":
        steps.take()
    if action == "redo":
        steps.undo()
    before, left = tree(workspace), paths(steps)
    real, count = os.rename, 0

    def full(*args: object, **named: object) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*args, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(GpuboxError, match=r"No space left on device\. All files are as they were"):
            getattr(steps, action)()
    assert tree(workspace) == before
    assert paths(steps) == left
    getattr(steps, action)()
    assert (workspace / "z/new").exists() == (action != "undo")


def test_folders_of_any_depth_and_modes_end_nothing(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("ok"), b"ok\n")
        layer.write(names("deep/x"), b"x\n")
        nest(layer.path / "deep", 3000)
        layer.write(names("dark/x"), b"x\n", 0)
        (layer.path / "dark").chmod(0)
        layer.write(names("mute"), b"mute\n", 0)
    assert "ok" in paths(steps)
    steps.take({"ok": None, "mute": None})
    assert (workspace / "mute").stat().st_mode & 0o777 == 0o400
    steps.undo()
    assert not (workspace / "ok").exists()


def test_forty_layers_of_deep_folders_need_few_descriptors(workspace: Path, steps: Steps, tmp_path: Path) -> None:
    for number in range(MAX_OPEN_LAYERS):
        with turn(steps, f"t{number}") as layer:
            layer.write(("deep", f"f{number}"), b"x\n")
            nest(layer.path / "deep", 12)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 4 * MAX_OPEN_LAYERS, limit[1])
    )
    try:
        files = {f"deep/f{number}" for number in range(MAX_OPEN_LAYERS)}
        assert files < set(paths(steps))
        assert sum(1 for _ in steps.view().walk()) > 12
        copy = PrivateCopy(Policy(workspace, steps.layers()), tmp_path / "copy", None, heavy=False)
        copy.synchronize()
        nest(copy.folder / "src", 12)
        copy.harvest()
        assert files < set(steps.take().taken)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        remove_tree(tmp_path / "copy")


def test_the_owners_write_just_before_a_turn_is_no_conflict(workspace: Path, steps: Steps) -> None:
    for number in range(200):
        (workspace / "src/b.py").write_text(f"b = {number}\n")
        (workspace / "src/b.py").stat()  # who has looked gets a finer time of the next change (Linux 6.13)
        (workspace / "src/b.py").chmod(0o644)
        with turn(steps, f"t{number}") as layer:
            layer.write(names("src/b.py"), b"the model's\n")
        assert not change_of(steps, "src/b.py").conflict, number
        steps.drop()


def test_a_new_folder_that_runs_by_itself_shows_its_lines(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names(".vscode/tasks.json"), b"{}\n")
        layer.write(names("bare/HEAD"), b"ref\n")
        layer.write(names("bare/hooks/inner/pre-commit"), b"run\n", 0o755)
        for part in ("objects", "refs"):
            layer.write(("bare", part, "x"), b"x\n")
        for number in range(200):
            layer.write(("node_modules", f"{number}.js"), b"x\n")
    changes = {change.path: change for change in steps.changes()}
    assert list(changes) == [
        ".vscode/tasks.json", "bare/HEAD", "bare/hooks/inner/pre-commit", "bare/objects/x", "bare/refs/x",
        "node_modules",
    ]  # fmt: skip
    assert all(change.runs_by_itself for change in changes.values())
    assert changes[".vscode/tasks.json"].hunks[0].lines == ("+{}",)
    assert (changes["node_modules"].added, changes["node_modules"].hunks) == (200, ())
    assert not steps.take().taken
    assert steps.take({"bare": None}, allow=["bare"]).taken == tuple(list(changes)[1:5])
    assert not steps.take({"node_modules": None}, allow=["node"]).taken
    assert steps.take(allow=[".vscode", "node_modules"]).taken == (".vscode/tasks.json", "node_modules")
    assert len(listed(workspace / "node_modules")) == 200


def test_a_mode_that_the_owner_gave_a_folder_since_is_kept(workspace: Path, steps: Steps) -> None:
    (workspace / "src").chmod(0o755)
    with turn(steps) as layer:
        layer.write(names("src/b.py"), b"b = 2\n")
        (layer.path / "src").chmod(0o700)
    assert change_of(steps, "src").kind == "mode"
    steps.take()
    (workspace / "src").chmod(0o750)
    with pytest.raises(GpuboxError, match="You changed src since"):
        steps.undo()
    assert steps.undo(keep=["src"]).kept == ("src",)
    assert (workspace / "src").stat().st_mode & 0o777 == 0o750
    assert (workspace / "src/b.py").read_text() == "b = 1\n"


def test_sizes_are_said_as_they_are(steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("src/data.bin"), b"\0" * 1500)
    assert describe(change_of(steps, "src/data.bin")) == "changed, 3 bytes -> 1.5 kB"


def test_what_a_tool_tagged_as_its_cache_is_no_change_and_the_owners_own_tag_hides_nothing(
    steps: Steps, workspace: Path
) -> None:
    (workspace / "data").mkdir()
    (workspace / "data/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# not in my backup\n")
    steps.begin_turn("t1")
    layer = TopLayer(steps.view())
    layer.write(names("target/CACHEDIR.TAG"), b"# This file is a cache directory tag created by cargo.\n")
    layer.write(names("target/debug/x.o"), b"\0")
    layer.write(names("data/table.csv"), b"1\n")
    assert steps.note_changes() == ("data/table.csv",)
    steps.end_turn()
    assert paths(steps) == ["data/table.csv"]
    assert steps.take().taken == ("data/table.csv",) and not (workspace / "target").exists()
