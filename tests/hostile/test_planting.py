"""Whatever a program plants in the owner's project: the project stays as it is, to the byte, the mode and the time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.sandbox import workspace_run
from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import Steps
from tests.guards import needs_open_python
from tests.hostile.planting import HARMLESS, PLANTS, SOURCE, Project
from tests.sampling import sampled


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpubox-planting-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


@pytest.fixture
def project(root: Path) -> Project:
    return Project(root)


@pytest.fixture
def top(root: Path) -> Path:
    folder = root / "chat/1/up"
    folder.mkdir(parents=True)
    return folder


def test_there_are_a_hundred() -> None:
    assert len(PLANTS) >= 100


@pytest.mark.parametrize("name", sampled(list(PLANTS)))
async def test_the_project_is_as_it_was(name: str, sandbox: Sandbox, project: Project, top: Path) -> None:
    over = Policy(workspace=project.folder, layers=(top,))
    outcome = await sandbox.run(project.program(name), over)
    assert outcome.exit_code == 0 or outcome.signal == "SIGKILL" or outcome.isolation == "landlock", outcome.output

    assert project.snapshot() == project.before
    again = await sandbox.run("import os; print(sorted(os.listdir('.')))", over)
    assert again.exit_code == 0 or "root" in name, again.output  # it closed the folder to itself
    await sandbox.run(project.program(name), Policy(workspace=project.folder))
    assert project.snapshot() == project.before
    assert project.work_in_it() == []


@pytest.mark.parametrize("name", sampled(list(PLANTS)))
async def test_the_project_is_as_it_was_where_programs_work_in_a_copy(
    name: str, sandbox: Sandbox, project: Project, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_run, "_obstacles", {top.parent.parent: "a test"})
    over = Policy(workspace=project.folder, layers=(top,))
    await sandbox.run(project.program(name), over)
    again = await sandbox.run("print(1)", over)

    assert again.output == "1\n"
    assert project.snapshot() == project.before
    assert project.work_in_it() == []


@pytest.mark.parametrize("name", sampled([name for name in PLANTS if name not in SOURCE]))
async def test_taking_all_but_what_is_named_leaves_nothing_that_runs(
    name: str, sandbox: Sandbox, project: Project, root: Path
) -> None:
    with contextlib.closing(Steps(project.folder, root / "steps", layer_owner())) as steps:
        steps.begin_turn("t")
        await sandbox.run(project.program(name), Policy(workspace=project.folder, layers=steps.layers()))
        steps.note_changes()
        steps.end_turn()
        taken = steps.take()

    assert project.work_in_it() == [], taken


@pytest.mark.parametrize("name", sampled([name for name in PLANTS if name not in HARMLESS]))
def test_it_would_run_where_nothing_confines_the_program(name: str, project: Project) -> None:
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", project.program(name)], cwd=project.folder, check=True, timeout=60
    )
    subprocess.run(["chmod", "-R", "u+rwX", str(project.folder)], check=True)

    assert project.work_in_it() != []


@needs_open_python
async def test_nothing_but_a_copy_is_written_without_any_wall(project: Project, top: Path) -> None:
    sandbox = Sandbox(confinement=Confinement("none"))
    code = "import os; os.unlink('notes'); open('new', 'w').write('1')"
    await sandbox.run(code, Policy(workspace=project.folder))
    await sandbox.run(code, Policy(workspace=project.folder, layers=(top,)))

    assert project.snapshot() == project.before
    assert set(os.listdir(top)) == {"notes", "new"}  # noqa: PTH208
