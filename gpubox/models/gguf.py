"""Checks that a file is a complete GGUF model. Done before each start, while the old server still runs."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models.gguf_header import (
    MAGIC,
    GgufHeader,
    GgufTensor,
    MalformedError,
    MetadataValue,
    NeedMoreError,
    parse_header,
)
from gpubox.storage import open_regular
from gpubox.toml_table import closest_match

SHARD_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.I)
"""llama.cpp's names of the shards of a split model (``llama_split_path``): ``NAME-00001-of-00003.gguf``."""
# Read in growing windows and not with mmap: a mapped file that shrinks kills the process (SIGBUS).
_WINDOWS = (4 << 20, 32 << 20, 256 << 20)
_LFS = b"version https://git-lfs"


def shard_names(name: str) -> tuple[str, ...]:
    """The names of all shards of the model that the file called ``name`` is a shard of; only ``name`` if it is none."""
    match = SHARD_NAME.search(name)
    if not match or match[2] == "00000":
        return (name,)
    return tuple(f"{name[: match.start()]}-{n:05d}-of-{match[2]}.gguf" for n in range(1, int(match[2]) + 1))


def shards_size(path: Path) -> int | None:
    """Bytes of all shards of the model at ``path``; None if one of them is missing."""
    try:
        return sum(path.with_name(name).stat().st_size for name in shard_names(path.name))
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One complete GGUF model. A split one is described by its first shard."""

    path: Path
    size: int
    """Bytes of all shards."""
    shards: tuple[Path, ...]
    """All shards in order; the file itself if it is not split."""
    architecture: str
    name: str
    """The name in its metadata, else its file name."""
    metadata: Mapping[str, MetadataValue]
    """Scalars and short arrays of the (first) header."""
    tensors: tuple[GgufTensor, ...] = field(repr=False, default=())
    """The tensors of all shards."""


def check_gguf(path: Path) -> GgufFile:
    """Reads the header of ``path`` and compares the file's length with the end of its tensors.

    Raises GpuboxError if the file, or one of its shards, is missing, unreadable, not GGUF, or incomplete.
    """
    shards = _shards(path)
    headers: list[GgufHeader] = []
    size = 0
    for shard in shards:
        header, length = _check_one(shard)
        headers.append(header)
        size += length
    metadata = headers[0].metadata
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1 and len(shards) != count:
        raise GpuboxError(
            f"{path} is one of {count} shards of a model, but its name does not show which one.",
            f"llama.cpp finds the shards by name: NAME-00001-of-{count:05d}.gguf.",
        )
    return GgufFile(
        path=path,
        size=size,
        shards=shards,
        architecture=str(metadata.get("general.architecture", "")),
        name=str(metadata.get("general.name", "")) or path.stem,
        metadata=metadata,
        tensors=tuple(tensor for header in headers for tensor in header.tensors),
    )


def _shards(path: Path) -> tuple[Path, ...]:
    match = SHARD_NAME.search(path.name)
    if not match:
        return (path,)
    number, count = int(match[1]), int(match[2])
    names = shard_names(path.name)
    if number != 1:
        raise GpuboxError(f"{path} is shard {number} of {count} of a model.", f"Use the first shard: {names[0]}")
    try:
        present = {entry.name for entry in path.parent.iterdir()}
    except OSError:
        present = set(names)  # the check of the first shard reports what is wrong
    if path.name in present and (missing := [name for name in names if name not in present]):
        raise GpuboxError(
            f"{path} is split into {count} shards and {len(missing)} of them are missing: {missing[0]}"
            + (" and more." if len(missing) > 1 else "."),
            "Download them into the same folder.",
        )
    return tuple(path.with_name(name) for name in names)


def _check_one(path: Path) -> tuple[GgufHeader, int]:
    """Checks one file. Returns its header, and its length in bytes."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except (OSError, ValueError) as error:
        raise GpuboxError(f"The model {path} cannot be read: {_why(error)}.") from None
    if stat.S_ISDIR(status.st_mode):
        files = sorted(entry.name for entry in path.glob("*.gguf"))
        hint = f"Name a file in it: {files[0]}" if files else "It holds no .gguf file."
        raise GpuboxError(f"The model {path} is a folder.", hint)
    if not stat.S_ISREG(status.st_mode):
        raise GpuboxError(f"The model {path} is not a regular file.")
    if status.st_size == 0:
        raise GpuboxError(f"The model {path} is empty.", "Download it again.")
    header = _read(path, status.st_size)
    if status.st_size < header.required_bytes:
        raise _incomplete(path, status.st_size, header.required_bytes)
    return header, status.st_size


def _read(path: Path, size: int) -> GgufHeader:
    try:
        with path.open("rb") as file:
            start = file.read(64)
            if not start.startswith(MAGIC):
                raise not_gguf(path, start)
            for window in _WINDOWS:
                file.seek(0)
                try:
                    return parse_header(file.read(min(window, size)), size)
                except NeedMoreError:
                    if window >= size:
                        raise _incomplete(path, size, None) from None
    except OSError as error:
        raise GpuboxError(f"The model {path} cannot be read: {_why(error)}.") from None
    except MalformedError as error:
        raise GpuboxError(f"{path} is a damaged GGUF: {error}.", "Download it again.") from None
    raise GpuboxError(f"{path} is a damaged GGUF: its header has no end.", "Download it again.")


def _missing(path: Path) -> GpuboxError:
    if not path.parent.is_dir():
        return GpuboxError(f"The model {path} does not exist: there is no folder {path.parent}.")
    try:
        names = [entry.name for entry in path.parent.glob("*.gguf")]
    except OSError:
        names = []
    near = closest_match(path.name, names)
    return GpuboxError(
        f"The model {path} does not exist.",
        f"Did you mean {near}?"
        if near
        else f"That folder holds {len(names) or 'no'} .gguf file{'' if len(names) == 1 else 's'}.",
    )


def may_be_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF, or cannot be read by this user."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except PermissionError:
        return True
    except OSError:
        return False


def not_gguf(path: Path, start: bytes) -> GpuboxError:
    """What a file is instead, in a sentence. ``start``: its first bytes."""
    if start.startswith(_LFS):
        return GpuboxError(
            f"{path} is a git-LFS pointer, not the model itself.", "Fetch the model: git lfs pull, in that folder."
        )
    text = start.decode(errors="replace")
    hint = "Download the model again."
    if start.lstrip()[:1] == b"<":
        problem = f"a web page was saved instead ({text.strip()[:24]!r})"
    elif "\ufffd" not in text[:24] and "".join(text.split()).isprintable():
        problem = f"it begins with {text.strip()[:24]!r}"
        # An error message may have been saved under the name of the model.
        download = ", or download it again" if path.suffix.lower() == ".gguf" else ""
        hint = f"Correct `model` in the profile{download}."
    else:
        problem = f"it begins with the bytes {start[:4].hex(' ')}"
    return GpuboxError(f"{path} is not a GGUF: {problem}.", hint)


def _incomplete(path: Path, has: int, needs: int | None) -> GpuboxError:
    if needs is None:
        problem = f"it has {has:,} bytes and ends inside its header"
    elif units.file_size(has) == units.file_size(needs):
        problem = f"it has {has:,} of {needs:,} bytes"
    else:
        problem = f"it has {units.file_size(has)} of {units.file_size(needs)}"
    return GpuboxError(f"{path} is incomplete: {problem}.", "Wait for its download to finish, or download it again.")


def _why(error: Exception) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model, compared by their texts: quants of one model have equal ones."""

    size: int
    sha256: str


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of the model ``path``. Raises GpuboxError if the file cannot be read or has none."""
    first = _shards(path)[0]
    header, _ = _check_one(first)
    begin, end, count = header.tokens
    if not count:
        raise GpuboxError(f"{path} has no vocabulary.", "Name a language model.")
    try:
        with first.open("rb") as file:
            file.seek(begin)
            return Vocabulary(count, hashlib.sha256(file.read(end - begin)).hexdigest())
    except OSError as error:
        raise GpuboxError(f"The model {path} cannot be read: {_why(error)}.") from None
