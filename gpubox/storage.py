"""Files on disk: read one that others wrote, replace one in a single step, lock one; JSON that others wrote."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from gpubox.errors import GpuboxError

_Record = TypeVar("_Record")
_LOCK_PAUSE_SECONDS = 0.02
LOCK_ATTEMPTS = 100
"""For a lock that nobody holds longer than it takes to write a file."""
_LINE_BYTES, _RECORDS_BYTES = 1 << 24, 1 << 30
DECODE_ERRORS = (ValueError, RecursionError)
"""What msgspec and tomllib raise for text that they cannot decode."""
_CACHE_SCHEMA = 1
"""Of what is kept in caches: another number makes gpubox find it out again."""
MAX_JSON_DEPTH = 100
"""Nothing that gpubox reads is nested so deeply; code that walks through a value is safe far beyond it."""
_ODD_JSON = r"[\ud800-\udfff]|\\u[dD][89a-fA-F]|\d{20}|-\d{19}|[eE]\+?0*\d{3}"
"""Where a JSON text may hold a lone surrogate, or a number that is infinite or no machine word."""
_LONE, _LONE_BUT_BYTES = r"[\ud800-\udfff]", r"[\ud800-\udc7f\udd00-\udfff]"
"""Lone surrogates; without those that stand for bytes of a path that is not UTF-8 (os.fsdecode)."""


class NotRegularFile(OSError):
    """The path is not a regular file, or the file is too large. ``strerror`` says which."""


def file_stamp(path: Path) -> tuple[int, ...]:
    """What changes with a file: its time and size; empty without one."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size


def unwritable(path: Path, error: OSError) -> GpuboxError:
    """The error for a failed write, for the caller to raise."""
    return GpuboxError(
        f"{path} cannot be written: {error.strerror}.", "Check the owner of the folder and the free disk space."
    )


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """Opens a regular file for reading and follows symbolic links.

    A FIFO, a device or an endless file never blocks gpubox: NotRegularFile is raised for everything else than a regular
    file, and for a file larger than ``limit`` bytes. Raises OSError otherwise.
    """
    _check_regular(path, path.stat().st_mode)  # opening a device can have side effects: rewind a tape, start a watchdog
    # O_NONBLOCK: opening a FIFO would wait for its writer. It has no effect on regular files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        _check_regular(path, status.st_mode)
        if limit is not None and status.st_size > limit:
            size = f"it is {status.st_size / 1e6:.1f} MB, more than {limit / 1e6:.1f} MB"
            raise NotRegularFile(errno.EFBIG, size, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """Reads a whole file. Raises NotRegularFile as ``open_regular`` does, else OSError."""
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:  # the file grows, or it reports no size (/proc)
        raise NotRegularFile(errno.EFBIG, f"it is more than {limit / 1e6:.1f} MB", str(path))
    return data


def read_text(path: Path, limit: int, encoding: str = "utf-8") -> str:
    """Reads a whole file as text and keeps its line ends. Raises as ``read_bytes``, and UnicodeDecodeError."""
    return read_bytes(path, limit).decode(encoding)


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[Iterator[bytes]]:
    """The lines of a file of records; a line longer than 16 MiB comes in pieces. Raises as ``open_regular``."""
    with open_regular(path, _RECORDS_BYTES) as file:
        yield iter(partial(file.readline, _LINE_BYTES), b"")


def decode_lines(lines: Iterable[bytes], decode: Callable[[bytes], _Record], most_damaged: int) -> Iterator[_Record]:
    """What ``decode`` makes of each line, up to so many that it refuses: then the file is none of gpubox's."""
    damaged = 0
    for line in lines:
        try:
            yield decode(line)
        except DECODE_ERRORS:
            damaged += 1
            if damaged == most_damaged:
                return


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    raise NotRegularFile(errno.EINVAL, f"it is {kind}, not a file", str(path))


def existing_folder(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def free_bytes(folder: Path) -> int | None:
    """Free space on the disk of ``folder``, which need not exist yet; None if it is unknown."""
    import shutil  # `gpubox status` needs this module, and not the 5 ms of shutil

    try:
        return shutil.disk_usage(existing_folder(folder)).free
    except OSError:
        return None


def private_folder(folder: Path) -> Path:
    """Makes one of gpubox's own folders, readable by its owner alone whatever the umask; tightens one that is open.

    What root makes in a user's folder is the user's. Returns ``folder``. Raises OSError.
    """
    make_folder(folder)
    status = folder.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # some file systems have no modes
            folder.chmod(0o700)
    return folder


def make_folder(folder: Path) -> None:
    """Makes the missing folders of a path, as ``private_folder``, and leaves those that exist. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _give_to_owner_of(folder.parent, folder)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def open_private(path: Path, flags: int) -> int:
    """A descriptor of one of gpubox's own files, which is made with mode 0600 if it is missing. Raises OSError.

    ``flags``: as of ``os.open``, which also follows symbolic links.
    """
    flags |= os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        _check_regular(path, path.stat().st_mode)
        return os.open(path, flags, 0o600)
    _give_to_owner_of(path.parent, descriptor)
    return descriptor


def _give_to_owner_of(folder: Path, made: Path | int) -> None:
    """Else a user could not use what ``sudo gpubox`` made for him."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid:
        with contextlib.suppress(OSError):  # a file system without owners
            os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=isinstance(made, int))


def write_atomically(path: Path, data: bytes, *, like: Path | None = None, wait: bool = True) -> None:
    """Replaces the file in one step and waits for the disk: after a crash it has the old or the new content.
    Without ``wait`` only a crash of programs leaves it so, and not one of the machine.

    Owner, mode and attributes stay, and a symbolic link stays: the file that it leads to is replaced. A new file has
    those of ``like``, else it belongs to the owner alone (mode 0600). Makes the parent folder. A failure leaves no
    temporary file behind, a kill leaves ``NAME.*.tmp``. Raises OSError: NotRegularFile, say for a link to /dev/null.
    """
    path = Path(os.path.realpath(path))
    if path.exists():
        _check_regular(path, path.stat().st_mode)
    make_folder(path.parent)
    if path.is_char_device() or path.is_block_device():  # root could replace it: a link may lead to /dev/null
        raise NotRegularFile(errno.EINVAL, "it is a device", str(path))
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            copy_attributes(path if like is None or path.exists() else like, descriptor)
            if wait:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if wait:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names of the folder are on the disk, as far as its file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_attributes(source: Path, descriptor: int) -> None:
    """Gives an open file the owner, mode and attributes of another, as far as this process may."""
    try:
        status = source.stat()
    except OSError:
        return
    mode, own = stat.S_IMODE(status.st_mode), os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.fchown(descriptor, status.st_uid if os.geteuid() == 0 else -1, status.st_gid)
        except OSError:  # not in that group: ours may do no more than everybody
            mode &= ~0o070 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # some file systems have no modes
        os.fchmod(descriptor, mode)
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):  # those of the kernel
                os.setxattr(descriptor, name, os.getxattr(source, name))


def try_lock(descriptor: int, attempts: int = 1) -> bool:
    """Takes the exclusive lock on an open file; False if another process holds it.

    The lock lasts until the last copy of the descriptor is closed. ``is_locked`` of another process holds a shared lock
    for microseconds: more ``attempts`` outlast it. Raises GpuboxError if the file system has no locks.
    """
    for attempt in range(attempts):
        if attempt:
            time.sleep(_LOCK_PAUSE_SECONDS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            continue
        except OSError as error:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            raise GpuboxError(f"{path} cannot be locked: {error.strerror}.") from None
    return False


def lock_file(path: Path, attempts: int = 1) -> int | None:
    """Opens a lock file under its exclusive lock, as ``try_lock``; None if another process holds it.

    Makes the file and its folder. Returns the descriptor, which the caller closes. Raises OSError, and GpuboxError.
    """
    make_folder(path.parent)
    descriptor = open_private(path, os.O_RDWR)
    try:
        locked = try_lock(descriptor, attempts)
    except BaseException:
        os.close(descriptor)
        raise
    if locked:
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def held_lock(
    path: Path, busy: str, hint: str = "Try again in a moment.", *, attempts: int = LOCK_ATTEMPTS
) -> Iterator[int]:
    """Holds the lock on ``path`` inside the block, which gets the descriptor: a copy of it keeps the lock.

    Raises GpuboxError: ``busy`` and ``hint`` if another process holds it.
    """
    try:
        descriptor = lock_file(path, attempts)
    except OSError as error:
        raise unwritable(path, error) from None
    if descriptor is None:
        raise GpuboxError(busy, hint)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path, *, shared: bool = False) -> bool:
    """Whether a process holds the lock on ``path``, or with ``shared`` a shared one. False without the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if shared else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_holder(path: Path) -> int | None:
    """The process that took the lock on ``path``; None if it is free. Never takes the lock itself.

    Reads /proc/locks. The process may be dead, or of another container, and have passed the lock on. Only the inode is
    compared: btrfs and overlayfs report another device there than stat does.
    """
    try:
        inode = str(path.stat().st_ino)
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    locks = (line.split() for line in lines if "FLOCK" in line and "->" not in line)
    return next((int(fields[4]) for fields in locks if fields[5].rpartition(":")[2] == inode), None)


def read_json(text: str | bytes | bytearray, *, own: bool = False, strict: bool = True) -> Any:
    """The value in a JSON text from outside, as data that can be encoded, walked through and calculated with.

    A lone surrogate becomes a question mark, a whole number beyond 64 bits a float, an infinite number or NaN ``None``.
    ``own``: gpubox wrote it, and its paths stay what they are. Not ``strict``: strings may hold line breaks. Raises
    ValueError, also for values nested deeper than MAX_JSON_DEPTH.
    """
    text = text if isinstance(text, str) else text.decode()
    try:
        value = json.loads(text, strict=strict, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return _harmless(value, _LONE_BUT_BYTES if own else _LONE) if re.search(_ODD_JSON, text) else value
    raise ValueError("it is nested too deeply")


def read_cache(file: Path, key: Any, limit: int) -> Any:
    """What ``write_cache`` kept under ``key``; None if there is nothing, or what belongs to another key or gpubox."""
    try:
        stored = read_json(read_bytes(file, limit), own=True)
        return stored["value"] if stored["cache"] == _CACHE_SCHEMA and stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_cache(file: Path, key: Any, value: Any) -> None:
    """Keeps a value that can be found out again: what goes wrong costs only time, and is ignored."""
    with contextlib.suppress(OSError, ValueError):
        stored = json.dumps({"cache": _CACHE_SCHEMA, "key": key, "value": value}).encode()
        write_atomically(file, stored, wait=False)


def json_line(value: Any) -> bytes:
    """``value`` as JSON on one line. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a path or a model's text that is not UTF-8
        return msgspec.json.encode(_harmless(msgspec.to_builtins(value), _LONE))


def _harmless(value: Any, lone: str) -> Any:
    if isinstance(value, str):
        return re.sub(lone, "?", value)
    if isinstance(value, dict):
        return {_harmless(key, lone): _harmless(item, lone) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless(item, lone) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = float(value) if abs(value) < 1e308 else math.inf
    return None if isinstance(value, float) and not math.isfinite(value) else value
