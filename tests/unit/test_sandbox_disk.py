"""What a program has written, and how what it leaves is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpubox.sandbox import disk_monitor
from gpubox.sandbox.disk_monitor import DiskMonitor, recent_changes
from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import Policy


def test_recent_changes_go_by_the_kernels_clock(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x" * 10_000)
    time.sleep(0.05)  # the clock of file times ticks every 4 ms
    since = time.time_ns() - 20_000_000
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/new").write_text("x" * 10_000)
    os.utime(tmp_path / "node_modules/new", (1, 1))

    changes = recent_changes(tmp_path, since, 100)

    assert (changes.entries, changes.too_deep) == (2, False)
    assert 0 < changes.size_bytes < 20_000


def test_a_folder_deeper_than_any_path_is_reported_and_removed(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    fd = os.open(deep, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("dd", dir_fd=fd)
        inner = os.open("dd", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)

    changes = recent_changes(deep, 0, 100_000)
    remove_tree(deep)

    assert changes.too_deep
    assert not deep.exists()


def test_files_without_a_name_count_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = DiskMonitor(Policy(disk_bytes=1000), None, (tmp_path,))
    free_bytes, free_files, counts = disk_monitor._free(tmp_path)
    monkeypatch.setattr(disk_monitor, "_free", lambda folder: (free_bytes - 10**9, free_files, counts))

    assert monitor.exceeded_limit([]) == ""  # another program filled the disk
    monkeypatch.setattr(disk_monitor, "written_bytes", lambda pids: 2000)
    monitor._next_check = 0.0
    assert monitor.exceeded_limit([1]).startswith("disk: more than")
