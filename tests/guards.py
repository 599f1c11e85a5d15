"""What a whole run promises: nothing is written outside its own folders, and no report of a failure ends it."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

XDG = tuple(f"XDG_{name}_HOME" for name in ("CONFIG", "STATE", "CACHE", "DATA"))
OWNER = {name: value for name in ("HOME", *XDG) if (value := os.environ.get(name))}
"""The owner's own folders, which only the demo model's download may use."""
TREE = Path(__file__).parents[1]
CACHES = {".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"}
"""In the working tree: Python, pytest and the linters keep them for the next run."""
DOWNLOADS = "fetch-"
"""In gpubox's cache: where the demo model is unpacked."""
REPORTS = ("snapshot_report.html", ".coverage", "coverage.xml", "htmlcov")
"""In the working tree: what pytest's own plugins write."""
OF_PROGRAMS = (".config", ".cache", ".local", ".local/share", ".local/state")
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""Tests put them in the place of files; a chmod of such a file as root would take them from everybody."""
CLOSED_PYTHON = os.geteuid() == 0 and any(not folder.stat().st_mode & 0o001 for folder in Path(sys.executable).parents)
"""Under root a program runs as another user where nothing else confines it: one in /root is closed to that user."""
needs_open_python = pytest.mark.skipif(CLOSED_PYTHON, reason="the user that root becomes cannot reach this Python")
Entries = dict[str, tuple[object, ...]]
"""Path -> what must not change; () where others may write, so that only a new name counts."""


def watched(top: Path, home: Path, tree: Path, models: Path) -> Entries:
    """What a run must leave as it is: names in ``top`` and ``home``, gpubox's folders, and the files of ``tree``.

    ``models`` holds the demo model, which README says the tests load: it may come, and its folders with it.
    """
    entries: Entries = {}
    for path in (*_names(top), *(top / "dev" / name for name in DEVICES)):
        if not os.path.lexists(path):
            continue
        state = path.lstat()
        entries[str(path)] = (state.st_mode, state.st_uid, state.st_gid)
    for folder in (home, *(home / name for name in OF_PROGRAMS)):
        entries |= {str(path): () for path in _names(folder)}
    for name in (".config", ".cache", ".local/state"):
        entries |= {str(path): () for path in _below(home / name / "gpubox", {models.name})}
    for path in _below(tree, CACHES):
        state = path.lstat()
        size_and_time = () if path.is_dir() else (state.st_size, state.st_mtime_ns)
        if not path.name.startswith(REPORTS):
            entries[str(path)] = (state.st_mode, *size_and_time)
    for path in (models, *models.parents):
        entries.pop(str(path), None)
    return entries


def changed(before: Entries, after: Entries) -> list[str]:
    """A line for each new, changed or removed entry."""
    kinds = {"new": after.keys() - before.keys(), "removed": before.keys() - after.keys()}
    kinds["changed"] = {path for path in before.keys() & after.keys() if before[path] != after[path]}
    return sorted(f"{path} ({kind})" for kind, paths in kinds.items() for path in paths)


def unremovable(root: Path) -> list[str]:
    """The folders below ``root`` that their owner cannot empty: pytest cannot remove them after its next runs."""
    failed: list[str] = []
    for folder, _, _ in os.walk(root, onerror=lambda error: failed.append(str(error.filename)[:300])):
        if Path(folder).lstat().st_mode & 0o700 != 0o700:
            failed.append(folder)
    return sorted(set(failed))


def _names(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return  # no such folder


def _below(folder: Path, without: set[str]) -> Iterator[Path]:
    for path in _names(folder):
        if path.name not in without and not path.name.startswith(DOWNLOADS):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _below(path, without)


class Watch:
    """A plugin of the process that runs the whole: an error at the end of the run names what was left behind."""

    def __init__(self, home: Path, models: Path) -> None:
        self.folders = Path("/"), home, TREE, models

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        before = watched(*self.folders)
        result = yield
        left = []
        wanted = "__snapshots__" if session.config.getoption("update_snapshots", False) else "\n"
        if written := [name for name in changed(before, watched(*self.folders)) if wanted not in name]:
            left.append("A test (or another program meanwhile) wrote outside its own folder: " + ", ".join(written))
        if folders := unremovable(session.config._tmp_path_factory.getbasetemp()):  # type: ignore[attr-defined]
            left.append("A test left folders that pytest cannot remove: " + ", ".join(folders))
        for sentence in left:
            place = (str(Path(__file__).relative_to(TREE)), None, "the whole run")
            report = pytest.TestReport(place[0], place, {}, "failed", f"{sentence}.", "teardown")
            session.config.hook.pytest_runtest_logreport(report=report)
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """With -q, pytest does not say what the order was."""
        if isinstance(seed := config.getoption("randomly_seed", None), int):
            terminalreporter.write_line(f"The same order again: --randomly-seed={seed}")


def own_home() -> tempfile.TemporaryDirectory[str]:
    """A new folder that is this process's home and all its XDG folders: no test reads or writes the owner's."""
    folder = tempfile.TemporaryDirectory(prefix="gpubox-home-", ignore_cleanup_errors=True)
    for name in XDG:
        os.environ.pop(name, None)
    os.environ["HOME"] = folder.name
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure whose source cannot be shown is told without it.

    Python 3.11.2's ``ast``, which pytest finds the source with, breaks now and then (gh-106905), and deep frames
    exhaust the stack: an exception here would end the whole run of xdist, without a word about the test.
    """
    try:
        return (yield)
    except Exception as broken:
        assert call.excinfo is not None
        told = "\n".join([*_plainly(call.excinfo.value), f"(told plainly, for its report failed: {broken!r})"])
        times = {"duration": call.duration, "start": call.start, "stop": call.stop}
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", told, call.when, **times)  # type: ignore[arg-type]


def _plainly(error: BaseException | None) -> Iterator[str]:
    """The lines at which the exception and what led to it were raised, without a look at any source."""
    for _ in range(5):
        if error is None:
            return
        for frame, line in list(traceback.walk_tb(error.__traceback__))[-30:]:
            yield f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
        yield f"{type(error).__name__}: {str(error)[:2000]}"
        error = error.__cause__ or error.__context__
