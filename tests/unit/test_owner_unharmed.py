"""What must never happen to the owner's files: each test was once an attack that hurt."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpubox.agent.files_named import read_named
from gpubox.agent.git import commit_paths
from gpubox.errors import GpuboxError
from gpubox.sandbox import private_copy
from gpubox.sandbox import steps as steps_module
from gpubox.sandbox.layers import TopLayer
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.steps import Steps
from gpubox.sandbox.toolchains import find_toolchains
from tests.unit.test_sandbox_steps import change_of, names, turn


@contextmanager
def plain_user() -> Iterator[Path]:
    """A folder of a user who is not root, in whose name the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="gpubox-test-"))
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, 54321, 54321)
            os.setegid(54321)
            os.seteuid(54321)
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
            os.setegid(0)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(f"{name} old\n")
    return folder


@pytest.fixture
def steps(workspace: Path, tmp_path: Path) -> Iterator[Steps]:
    steps = Steps(workspace, tmp_path / "chat.layers")
    yield steps
    steps.close()


def texts(workspace: Path) -> list[str]:
    return [(workspace / name).read_text() for name in "abc"]


def change_all(steps: Steps) -> None:
    with turn(steps) as layer:
        for name in "abc":
            layer.write(names(name), f"{name} new\n".encode())


def test_undo_puts_each_file_back_where_it_was_when_an_earlier_one_is_kept(workspace: Path, steps: Steps) -> None:
    change_all(steps)
    steps.take()
    (workspace / "a").write_text("a owner\n")
    steps.undo(keep=["a"])
    assert texts(workspace) == ["a owner\n", "b old\n", "c old\n"]
    steps.redo()
    assert texts(workspace) == ["a owner\n", "b new\n", "c new\n"]


@pytest.mark.parametrize("on_another_disk", [False, True])
def test_what_the_owner_saves_during_a_take_stays(
    workspace: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, on_another_disk: bool
) -> None:
    change_all(steps)
    rename, saved = os.rename, list[str]()

    def rename_slowly(old: object, new: object, **folders: int) -> None:
        if "src_dir_fd" not in folders and "dst_dir_fd" in folders:
            if new == "a":
                (workspace / "b").write_text("b owner\n")
                saved.append(new)
            if on_another_disk:
                if new == "c":
                    (workspace / "c").write_text("c owner\n")
                raise OSError(18, "another disk")
        rename(old, new, **folders)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename_slowly)
    result = steps.take()
    assert saved and "b changed at the last moment: it stays as it is." in result.notes
    last = "c owner\n" if on_another_disk else "c new\n"
    assert texts(workspace) == ["a new\n", "b owner\n", last]
    steps.undo()
    assert texts(workspace) == ["a old\n", "b owner\n", last.replace("new", "old")]
    assert sorted(path.name for path in workspace.iterdir()) == ["a", "b", "c"]


def test_what_the_owner_saves_before_it_is_removed_stays(
    workspace: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turn(steps) as layer:
        layer.remove(names("a"))
        layer.remove(names("b"))
    unlink = os.unlink

    def unlink_slowly(path: object, **folder: int) -> None:
        unlink(path, **folder)  # type: ignore[arg-type]
        if path in ("a", "b"):
            other = "b" if path == "a" else "a"
            (workspace / other).write_text("owner\n")

    monkeypatch.setattr(os, "unlink", unlink_slowly)
    result = steps.take()
    monkeypatch.undo()
    assert len(result.taken) == 1 and "changed at the last moment" in result.notes[0]
    assert sorted(path.read_text() for path in workspace.iterdir()) == ["c old\n", "owner\n"]


def test_a_file_that_the_owner_closed_to_himself_is_neither_opened_nor_touched() -> None:
    with plain_user() as folder:
        workspace = folder / "project"
        workspace.mkdir()
        secret = workspace / "secret"
        secret.write_text("the owner's\n")
        secret.chmod(0)
        before = secret.stat()
        steps = Steps(workspace, folder / "chat.layers")
        with turn(steps) as layer:
            layer.write(names("secret"), b"the model's\n", 0o644)
        change = change_of(steps, "secret")
        assert change.conflict == "It cannot be read: Permission denied." and not change.hunks
        assert (secret.stat().st_ctime_ns, stat.S_IMODE(secret.stat().st_mode)) == (before.st_ctime_ns, 0)
        assert not steps.take().taken
        steps.close()


def test_links_cannot_hide_that_they_lead_out(workspace: Path, steps: Steps) -> None:
    with turn(steps) as layer:
        layer.write(names("one/two/file"), b"x\n")
        (layer.path / "one/two/root").symlink_to("../..")
        (layer.path / "one/two/out").symlink_to("root/../..")
    assert steps.take().taken == ("one/two/file", "one/two/root")
    assert change_of(steps, "one/two/out").runs_by_itself == "a link out of the workspace"


def test_a_clock_that_is_set_back_hides_no_edit_of_the_owner(
    workspace: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as early:
        early.setattr(steps_module, "now_ns", lambda: time.time_ns() + 3600 * 10**9)
        steps.begin_turn("t")
        began_ns = steps_module.now_ns()
    TopLayer(steps.view()).write(names("a"), b"a new\n")
    (workspace / "a").write_text("a owner\n")
    steps.note_changes(began_ns)
    steps.end_turn()
    assert change_of(steps, "a").conflict == "You changed it meanwhile."


def test_a_private_copy_leaves_the_owner_some_of_his_disk(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (workspace / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    usage = shutil.disk_usage(tmp_path)
    full = usage._replace(free=private_copy._KEPT_FREE_BYTES + (1 << 20))
    copy = PrivateCopy(Policy(workspace), tmp_path / "copy", None, heavy=False)
    with monkeypatch.context() as almost_full:
        almost_full.setattr(shutil, "disk_usage", lambda _: full)
        with pytest.raises(OSError, match="No space left"):
            copy.synchronize()
    assert not any((tmp_path / "copy").iterdir())
    copy.synchronize()
    assert texts(tmp_path / "copy") == texts(workspace)


def test_programs_get_dotnet_without_the_owners_keys(tmp_path: Path) -> None:
    for name in ("sdk", "corefx/cryptography/x509stores/my"):
        (tmp_path / ".dotnet" / name).mkdir(parents=True)
    (tmp_path / ".dotnet/dotnet").touch()
    tools = find_toolchains(tmp_path / "project", None, network=False, home=tmp_path, path="")
    inside = [path for path in tools.folders if ".dotnet" in path]
    assert inside == [f"{tmp_path}/.dotnet/dotnet", f"{tmp_path}/.dotnet/sdk"]
    assert f"{tmp_path}/.dotnet" in tools.env["PATH"].split(":")


def test_a_commit_message_with_a_null_is_an_error_for_the_owner(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a").write_text("a\n")
    with pytest.raises(GpuboxError, match="git commit did not end well"):
        commit_paths(tmp_path, ["a"], "a\0b")


def test_what_a_program_closed_is_neither_taken_as_removed_nor_beyond_undo() -> None:
    with plain_user() as folder:
        workspace = folder / "project"
        (workspace / "src").mkdir(parents=True)
        (workspace / "src/a").write_text("a old\n")
        (workspace / "b").write_text("b old\n")
        steps = Steps(workspace, folder / "chat.layers")
        with turn(steps) as layer:
            layer.write(names("src/a"), b"a new\n", 0)
            layer.write(names("b"), b"b new\n", 0)
            steps.note_changes()
            (layer.path / "src").chmod(0)
        assert [change.kind for change in steps.changes()] == ["changed", "mode", "changed"]
        assert steps.take().taken == ("b", "src", "src/a")
        assert (workspace / "src/a").read_text() + (workspace / "b").read_text() == "a new\nb new\n"
        steps.undo()
        assert (workspace / "src/a").read_text() + (workspace / "b").read_text() == "a old\nb old\n"
        steps.close()


def test_an_image_is_not_found_through_a_link_of_the_model(workspace: Path, steps: Steps, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    for image in (tmp_path / "private/a.png", workspace / "b.png"):
        image.write_bytes(b"\x89PNG\r\n\x1a\n")
    with turn(steps) as layer:
        (layer.path / "pictures").symlink_to(tmp_path / "private")
    prompt = read_named("see @pictures/a.png and @b.png", steps.view())
    assert prompt.images == (workspace / "b.png",)
