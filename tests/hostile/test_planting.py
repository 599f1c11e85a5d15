"""Nothing that a program leaves in the owner's project is run by the owner's tools, and each change is reported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.agent.tool_runner import CodeExecution
from gpubox.agent.tools import CODE_TOOL, ToolCall
from gpubox.errors import GpuboxError
from gpubox.sandbox import quarantine
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.workspace_scan import remove_tree
from tests.hostile.conftest import confinement
from tests.hostile.planting import HARMLESS, PLANTS, Project
from tests.sampling import sampled


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    root = Path(tempfile.mkdtemp(prefix="gpubox-planting-"))
    root.chmod(0o755)
    monkeypatch.setattr(quarantine, "default_quarantine_folder", lambda: root / "quarantine")
    yield Project(root)
    remove_tree(root)


def named(outcome: Outcome) -> set[str]:
    """All paths that the report names."""
    files = [text.removesuffix(" (removed)").partition("/ (")[0].removesuffix("/") for text in outcome.files_changed]
    return {*files, *(text.rpartition(" (")[0] for text in (*outcome.quarantined, *outcome.not_quarantined))}


@pytest.mark.parametrize("name", sampled(list(PLANTS)))
async def test_what_is_planted_is_neither_run_nor_unreported(name: str, sandbox: Sandbox, project: Project) -> None:
    isolation = (await sandbox.confinement()).isolation
    if isolation == "landlock":  # it cannot protect a folder
        project.cut_links()
    outcome = await sandbox.run(project.program(name), Policy(workspace=project.folder))

    if isolation == "landlock":
        assert project.unreported(named(outcome)) == []
        return
    # It may be moved out while the program is still writing it.
    assert outcome.exit_code == 0 or (outcome.quarantined and "FileNotFoundError" in outcome.output), outcome.output
    assert outcome.unchecked == outcome.not_quarantined == ()
    assert project.unreported(named(outcome)) == []
    assert project.work_in_it() == [], (outcome.files_changed, outcome.quarantined)


@pytest.mark.parametrize("name", sampled([name for name in PLANTS if name not in HARMLESS]))
def test_it_would_run_where_nothing_confines_the_program(name: str, project: Project) -> None:
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", project.program(name)], cwd=project.folder, check=True, timeout=60
    )
    project.folder.chmod(0o755)
    for parent, folders, _ in os.walk(project.folder):
        for inner in folders:
            if not Path(parent, inner).is_symlink():
                Path(parent, inner).chmod(0o755)

    assert project.work_in_it() != []


async def test_behind_landlock_no_file_with_a_name_outside_is_in_reach(project: Project) -> None:
    behind_landlock, why = confinement("landlock")
    if not behind_landlock:
        pytest.skip(why)
    with pytest.raises(GpuboxError, match="another name outside"):
        await Sandbox(confinement=behind_landlock).run("", Policy(workspace=project.folder))
    assert project.unreported(set()) == []


async def test_the_report_of_an_ordinary_program_is_short(sandbox: Sandbox, project: Project) -> None:
    isolation = (await sandbox.confinement()).isolation
    project.cut_links()
    (project.folder / "new").mkdir(mode=0o777)
    code = (
        "import os, shutil\n"
        "for n in range(1000): open(f'new/{n}.txt', 'w').close()\n"
        "for n in range(100): open(f'{n}.pyc', 'w').close()\n"
        "for name in ('new/.pytest_cache', 'new/node_modules/left'): os.makedirs(name)\n"
        "open('new/node_modules/left/index.js', 'w').close()\n"
        "shutil.copy('new/1.txt', 'copy')"
    )
    output = await CodeExecution(sandbox, Policy(workspace=project.folder)).run(ToolCall("1", CODE_TOOL, code=code))

    assert len(output.text) < 2000
    for part in ("and 95 more (bytecode, which", "new/node_modules (installed packages)", "files changed: "):
        assert output.text.count(part) == 1
    assert ("copy with shutil.copyfile" in output.text) == (isolation == "landlock") == (output.exit_code == 1)


async def test_what_is_read_only_and_why_is_said_to_the_model(sandbox: Sandbox, project: Project) -> None:
    if (await sandbox.confinement()).isolation == "landlock":
        pytest.skip("it refuses this workspace")
    call = ToolCall("1", CODE_TOOL, code="open('shared/common.py', 'w')")
    output = await CodeExecution(sandbox, Policy(workspace=project.folder)).run(call)

    assert "Read-only file system" in output.text
    assert "shared: read-only for the program, because of files that have other names" in output.text
