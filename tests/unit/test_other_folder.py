"""A workspace that another folder takes the place of, and one on a file system without idmapped mounts."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.sandbox import idmapped_mount, taking
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import Steps
from tests.unit.test_sandbox_steps import turn

REPLACED = "replaced by another folder"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("old\n")
    return folder


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def replace_folder(workspace: Path) -> None:
    workspace.rename(workspace.with_name("moved"))
    workspace.mkdir()


def change(steps: Steps, turn_id: str = "t1") -> None:
    with turn(steps, turn_id) as layer:
        layer.write(("a",), b"new\n")


def test_nothing_is_taken_into_or_undone_in_another_folder_at_the_same_path(workspace: Path, tmp_path: Path) -> None:
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        change(steps)
        steps.take()
        change(steps, "t2")
        replace_folder(workspace)
        with pytest.raises(GpuboxError, match=REPLACED):
            steps.take()
        with pytest.raises(GpuboxError, match=REPLACED):
            steps.undo()
        with pytest.raises(GpuboxError, match=REPLACED):
            steps.begin_turn("t3")
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:  # what waits was made over the other one
        with pytest.raises(GpuboxError, match=REPLACED):
            steps.take()
        steps.drop()
    assert not list(workspace.iterdir())
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        change(steps, "t3")
        assert steps.take().taken == ("a",)
    assert (tmp_path / "moved/a").read_text() == "new\n"


def test_a_take_that_a_kill_cut_off_does_not_go_on_in_another_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps, monkeypatch.context() as killed:
        change(steps)
        killed.setattr(taking.FileExchange, "apply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            steps.take()
    replace_folder(workspace)
    with pytest.raises(GpuboxError, match=REPLACED):
        Steps(workspace, tmp_path / "chat.layers")
    workspace.rmdir()
    (tmp_path / "moved").rename(workspace)
    with closing(Steps(workspace, tmp_path / "chat.layers")):
        assert (workspace / "a").read_text() == "new\n"


@pytest.fixture(params=["overlayfs", "refused"])
def unmappable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace of which root can make no idmapped mount."""
    if os.geteuid() != 0:
        pytest.skip("only root's programs run as another user")
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for folder in (lower, upper, work, merged):
        folder.mkdir()
    (lower / "a").write_text("old\n")
    if request.param == "refused":

        def refuse(*_: object) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(idmapped_mount, "_idmap", refuse)
        yield lower
        return
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no overlay can be mounted here")
    yield merged
    subprocess.run(["umount", str(merged)], check=True)
    (work / "work").chmod(0o700)  # the kernel closes it to everybody


def test_root_runs_programs_in_a_copy_where_his_folder_cannot_be_shown_to_another_user(
    unmappable: Path, tmp_path: Path
) -> None:
    async def run(policy: Policy, line: str) -> str:
        outcome = await Sandbox().run(line, policy, shell=True)
        assert outcome.ok, outcome.output
        return outcome.output

    (unmappable / "sub").mkdir(mode=0o700)
    (unmappable / "sub/b").write_text("b\n")
    (unmappable / "sub/b").chmod(0o600)
    with closing(Steps(unmappable, tmp_path / "chat.layers", layer_owner())) as steps:
        assert asyncio.run(run(Policy(unmappable), "cat a sub/b")) == "old\nb\n"
        for number in (1, 2):
            steps.begin_turn(f"t{number}")
            policy = Policy(unmappable, layers=steps.layers())
            asyncio.run(run(policy, f"cat a sub/b && echo {number} > a && echo {number} >> sub/b && echo n > n"))
            steps.note_changes()
            steps.end_turn()
        assert (unmappable / "a").read_text() == "old\n"
        assert set(steps.take().taken) == {"a", "n", "sub/b"}
    assert ((unmappable / "a").read_text(), (unmappable / "sub/b").read_text()) == ("2\n", "b\n1\n2\n")
    assert {path.stat().st_uid for path in unmappable.rglob("*")} == {0}
