"""Reading regular files, replacing a file in one step, and file locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.storage import NotRegularFile, is_locked, lock_file, lock_holder, read_bytes, try_lock, write_atomically

HOLD = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); print(flush=True); sys.stdin.read()"


def test_a_file_is_replaced_whole_and_belongs_to_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        write_atomically(tmp_path / "file" / "state.json", b"new")


def test_a_lock_is_held_once_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "main.lock"
    assert not is_locked(path) and lock_holder(path) is None

    descriptor = lock_file(path)
    assert descriptor is not None
    assert lock_file(path) is None
    assert is_locked(path)
    assert lock_holder(path) == os.getpid()
    os.close(descriptor)

    assert not is_locked(path) and lock_holder(path) is None


def test_the_lock_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "main.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lock_holder(path) == holder.pid
        assert lock_file(path) is None

    descriptor = lock_file(path)
    assert descriptor is not None
    os.close(descriptor)


def test_more_attempts_outlast_a_reader_that_looks_at_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "main.lock"
    path.touch()
    with path.open("rb") as reader, path.open("rb") as writer:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not try_lock(writer.fileno())
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
        assert try_lock(writer.fileno(), attempts=2)


def test_a_file_system_without_locks_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(GpuboxError, match=r"main\.lock cannot be locked: No locks available"):
        lock_file(tmp_path / "main.lock")


def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long").write_bytes(b"x" * 1001)

    with pytest.raises(NotRegularFile, match="it is a FIFO, not a file"):
        read_bytes(tmp_path / "fifo", 1000)
    with pytest.raises(NotRegularFile, match="it is a folder, not a file"):
        read_bytes(tmp_path, 1000)
    with pytest.raises(NotRegularFile, match=r"more than 0\.0 MB"):
        read_bytes(tmp_path / "long", 1000)
    assert len(read_bytes(tmp_path / "long", 1001)) == 1001
