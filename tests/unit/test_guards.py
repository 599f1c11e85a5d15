"""The suite's own guards: they see what a test leaves behind, and a report that fails ends nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards import TREE, changed, unremovable, watched

BROKEN = """
import pytest
from _pytest._code.code import TracebackEntry

def test_whose_report_fails(monkeypatch):
    def no_source(self, astcache=None):
        raise {error}
    TracebackEntry.getsource = no_source
    raise ValueError("the cause")

def test_of_endless_recursion():
    def again():
        again()
    again()

def test_after_it():
    pass
"""


CONFTEST = """
from pathlib import Path
from tests import guards
from tests.guards import pytest_runtest_makereport

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(guards.Watch(Path({home!r}), Path({home!r}, "models")))
"""
LEAVING = """
from pathlib import Path

def test_that_writes_elsewhere():
    Path({home!r}, "left").touch()

def test_that_shuts_its_folder(tmp_path):
    (tmp_path / "shut").mkdir(mode=0)
"""


def pytest_of(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(argv, cwd=TREE, capture_output=True, text=True, timeout=120, check=False)


def test_a_report_that_fails_is_told_plainly_and_what_is_left_behind_is_an_error(tmp_path: Path) -> None:
    home, tests = tmp_path / "home", tmp_path / "tests"
    home.mkdir()
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST.format(home=str(home)))
    (tests / "test_leaving.py").write_text(LEAVING.format(home=str(home)))
    for name, error in (("system", 'SystemError("AST constructor")'), ("deep", "RecursionError()")):
        (tests / f"test_{name}.py").write_text(BROKEN.format(error=error))

    done = pytest_of(tests, "-n", "1", f"--basetemp={tmp_path / 'temp'}")
    (shut,) = (tmp_path / "temp").glob("**/shut")
    shut.chmod(0o700)

    assert done.returncode == 1, done.stdout
    assert "4 failed, 4 passed, 2 errors" in done.stdout
    assert done.stdout.count("ValueError: the cause") >= 2
    assert f"wrote outside its own folder: {home}/left (new)." in done.stdout
    assert f"left folders that pytest cannot remove: {shut}." in done.stdout
    assert "INTERNALERROR" not in done.stdout


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    for name in ("top/etc", "home/.cache/gpubox/models", "home/.config/gpubox", "tree/.git", "tree/tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.config/gpubox/config.toml").touch()
    (tmp_path / "tree/tests/a.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("write", "line"),
    [
        ("top/nowhere", "top/nowhere (new)"),
        ("home/x", "home/x (new)"),
        ("home/.config/other", "home/.config/other (new)"),
        ("home/.local", "home/.local (new)"),
        ("home/.config/gpubox/profiles", "home/.config/gpubox/profiles (new)"),
        ("home/.cache/gpubox/engines", "home/.cache/gpubox/engines (new)"),
        ("home/.cache/gpubox/models/demo.gguf", ""),
        ("tree/tests/__pycache__", ""),
        ("tree/tests/b.py", "tree/tests/b.py (new)"),
        ("tree/.git/index", ""),
    ],
)
def test_a_new_name_outside_is_seen(owner: Path, write: str, line: str) -> None:
    folders = owner / "top", owner / "home", owner / "tree", owner / "home/.cache/gpubox/models"
    before = watched(*folders)
    (owner / write).touch()

    assert changed(before, watched(*folders)) == ([f"{owner}/{line}"] if line else [])


def test_a_changed_file_of_the_tree_is_seen_and_one_that_is_gone(owner: Path) -> None:
    folders = owner / "top", owner / "home", owner / "tree", owner / "models"
    before = watched(*folders)
    (owner / "tree/tests/a.py").write_text("1")
    (owner / "top/etc").rmdir()

    assert changed(before, watched(*folders)) == [f"{owner}/top/etc (removed)", f"{owner}/tree/tests/a.py (changed)"]


def test_a_folder_that_its_owner_cannot_empty_is_named(tmp_path: Path) -> None:
    shut = tmp_path / "a" / "shut"
    shut.mkdir(parents=True)
    assert unremovable(tmp_path) == []
    shut.chmod(0o500)
    try:
        assert unremovable(tmp_path) == [str(shut)]
    finally:
        shut.chmod(0o700)
