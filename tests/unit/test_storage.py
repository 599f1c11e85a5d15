"""Reading regular files, replacing a file in one step, and file locks."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.storage import (
    MAX_JSON_DEPTH,
    NotRegularFile,
    is_locked,
    lock_file,
    lock_holder,
    make_folder,
    open_lines,
    open_private,
    private_folder,
    read_bytes,
    read_json,
    try_lock,
    write_atomically,
)

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


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664, 0o640, 0o400, 0o755])
def test_a_file_keeps_its_mode_and_attributes(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"old")
    path.chmod(mode)
    try:
        os.setxattr(path, "user.note", b"mine")
    except OSError:
        marked = False
    else:
        marked = True
    write_atomically(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"new", mode)
    assert not marked or os.getxattr(path, "user.note") == b"mine"


def test_a_link_stays_and_the_file_that_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles" / "mine.toml", tmp_path / "mine.toml"
    target.parent.mkdir()
    target.write_bytes(b"old")
    target.chmod(0o644)
    link.symlink_to("dotfiles/mine.toml")
    write_atomically(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == 0o644


def test_the_name_is_on_the_disk_after_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file")
        sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    write_atomically(tmp_path / "state.json", b"new")
    assert steps == ["file", "rename", "folder"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_for_a_user_is_the_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    path = tmp_path / "theirs.toml"
    path.write_bytes(b"old")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    write_atomically(path, b"new")
    write_atomically(tmp_path / "config" / "gpubox" / "new.toml", b"new")
    descriptor = lock_file(tmp_path / "state" / "x.lock")
    assert descriptor is not None
    os.close(descriptor)
    owners = {p.relative_to(tmp_path).as_posix(): (p.stat().st_uid, p.stat().st_gid) for p in tmp_path.rglob("*")}
    assert owners.pop("theirs.toml") == (12345, 23456) and path.stat().st_mode & 0o777 == 0o640
    assert len(owners) == 5 and set(owners.values()) == {(12345, 54321)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could be led to another file")
def test_root_gives_no_file_away_that_a_link_leads_to(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "theirs"
    secret.write_bytes(b"x")
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    (folder / "log").symlink_to(secret)
    os.close(open_private(folder / "log", os.O_WRONLY))
    assert secret.stat().st_uid == 0


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_own_folders_and_files_are_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    before = os.umask(umask)
    try:
        private_folder(shared / "a" / "b")
        make_folder(shared / "c")
        os.close(open_private(shared / "a" / "log", os.O_WRONLY))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (shared, *shared.rglob("*"))}
    assert modes == {"shared": 0o755, "a": 0o700, "b": 0o700, "c": 0o700, "log": 0o600}
    make_folder(shared)
    assert shared.stat().st_mode & 0o777 == 0o755, "the folder of others stays as it is"
    assert private_folder(shared).stat().st_mode & 0o777 == 0o700


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "device")  # as root, it would be /dev/null that is gone
    (tmp_path / "link").symlink_to(tmp_path / "device")
    with pytest.raises(NotRegularFile, match="not a file"):
        write_atomically(tmp_path / "link", b"text")
    assert (tmp_path / "device").is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_a_file_system_without_modes_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    (tmp_path / "own").mkdir(mode=0o755)
    (tmp_path / "own").chmod(0o755)
    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    assert private_folder(tmp_path / "own") == tmp_path / "own"


def test_lines_of_a_file_without_line_ends_come_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * (20 << 20) + b"\nend")
    with open_lines(tmp_path / "one") as lines:
        assert [len(line) for line in lines] == [16 << 20, (4 << 20) + 1, 3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, "\u00e4", 1.5, null]}', {"a": [1, "ä", 1.5, None]}),
        ('["\\ud800", {"\\uDFFF": "x\ud812"}]', ["?", {"?": "x?"}]),
        ('"\\ud83d\\ude00"', "😀"),
        ("[1e999, -1e999, NaN, Infinity, -Infinity, 1e308]", [None, None, None, None, None, 1e308]),
        ("[18446744073709551615, -9223372036854775808]", [2**64 - 1, -(2**63)]),
        ("[18446744073709551616]", [2.0**64]),
        ("[1" + "0" * 400 + "]", [None]),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_json_from_outside_is_harmless(text: str | bytes, value: object) -> None:
    read = read_json(text)

    assert read == value
    json.dumps(read, allow_nan=False).encode("utf-8", "strict")


def test_the_paths_of_ones_own_files_stay() -> None:
    path = os.fsdecode(b"/models/\xff.gguf")
    assert read_json(json.dumps([path, "\ud800"]), own=True) == [path, "?"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 200_000,
        '{"a":' * 100_000,
        "[" * 101 + "]" * 101,
        "1" * 5000,
        b"\xff",
        b"\xed\xa0\x80",
        "\ufeff{}",
    ],
    ids=lambda text: repr(text[:6]),
)
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_the_deepest_json_can_be_walked_through() -> None:
    value = read_json("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    for _ in range(MAX_JSON_DEPTH - 1):
        (value,) = value
    assert value == []
    assert math.isfinite(read_json("1e300"))


def test_json_is_decoded_in_one_place() -> None:
    package = Path(__file__).parents[2] / "gpubox"
    apart = {
        "judge.py",
        "grader.py",
        "sandbox_checks.py",
        "search_program.py",
        "web.py",
    }  # in the sandbox, signed, keys
    users = {
        path.name for path in package.rglob("*.py") if re.search(r"\bjson\.loads?\(", path.read_text(encoding="utf-8"))
    }
    assert users == {"storage.py", *apart}
