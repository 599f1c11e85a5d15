"""What the owner's git says of changes: ignored files are none, hooks run by themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpubox.agent.git import changed_hooks
from gpubox.sandbox.owners_git import HOOK
from gpubox.sandbox.steps import Steps
from tests.unit.test_sandbox_steps import names, turn

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> None:
    person = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("build/\n*.o\nobj\n.env\n")
    (folder / "old.o").write_text("tracked\n")
    git(folder, "add", "-f", ".")
    git(folder, "commit", "-qm", "Begin")
    return folder


@pytest.fixture
def steps(workspace: Path, tmp_path: Path) -> Iterator[Steps]:
    with closing(Steps(workspace, tmp_path / "chat.layers")) as steps:
        yield steps


def write(steps: Steps, *paths: str) -> dict[str, str]:
    """The changes, and why they run by themselves."""
    with turn(steps) as layer:
        for path in paths:
            layer.write(names(path), b"new\n")
    return {change.path: change.runs_by_itself for change in steps.changes()}


def test_new_files_that_git_ignores_are_no_changes_but_what_is_there_is_always_shown(
    workspace: Path, steps: Steps
) -> None:
    (workspace / "mine.o").write_text("not tracked\n")
    changes = write(
        steps, "build/a/x.txt", "src/obj/x", "src/x.c", "old.o", "mine.o", "odd\nname/obj/x", "-n.c", ".env"
    )
    assert set(changes) - {"src", "odd\nname"} == {
        "src/x.c",
        "old.o",
        "mine.o",
        "-n.c",
        ".env",
    }  # its own name hides none
    steps.take()
    assert not (workspace / "build").exists() and not (workspace / "src/obj").exists()


def test_what_the_layer_ignores_hides_nothing(steps: Steps) -> None:
    assert set(write(steps, "evil.py", ".git/info/exclude", ".gitignore")) >= {"evil.py", ".gitignore"}


def test_a_repository_around_the_workspace_that_ignores_all_of_it_says_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    git(home, "init", "-q")
    (home / ".gitignore").write_text("*\n")
    with closing(Steps(home / "project", tmp_path / "chat.layers")) as steps:
        assert set(write(steps, "a.py")) == {"a.py"}


def test_the_folder_that_the_owner_named_for_hooks_runs_by_itself(workspace: Path, steps: Steps) -> None:
    git(workspace, "config", "core.hooksPath", "tools/hooks")
    assert write(steps, "tools/hooks/pre-commit", "tools/x.py") == {"tools/hooks/pre-commit": HOOK, "tools/x.py": ""}
    assert steps.take().taken == ("tools/x.py",)
    paths = ["tools/hooks/pre-commit", "tools/x.py"]
    assert changed_hooks(workspace, paths) == []  # it was not taken
    steps.take(allow=["tools/hooks/pre-commit"])
    assert changed_hooks(workspace, paths) == ["tools/hooks/pre-commit"]


def test_git_runs_no_program_of_the_owners_settings(workspace: Path, steps: Steps, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(workspace, "config", "core.fsmonitor", str(program))
    assert set(write(steps, "obj/x", "x.c")) == {"x.c"}
    assert not (tmp_path / "ran").exists()
