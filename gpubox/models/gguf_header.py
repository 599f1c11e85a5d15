"""Reads the header of a GGUF file: metadata, tensor table, and how long the file must be. Pure: reads bytes, no file.

gpubox has its own small reader for two reasons. The gguf package takes seconds for a vocabulary of 49k tokens, which is
too slow for a check before each switch. And files may be damaged or hostile: here every length is checked before it is
used.

Format: ggml's docs/gguf.md and llama.cpp's ggml/src/gguf.cpp. Little-endian; a string is a u64 length and its bytes.
"""

from __future__ import annotations

import bisect
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MAGIC = b"GGUF"
VERSIONS = (2, 3)
Scalar = bool | int | float | str
MetadataValue = Scalar | tuple[bool | int | float, ...]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TYPES = Path(__file__).with_name("ggml_types.txt").read_text(encoding="ascii").splitlines()[1:]
GGML_BLOCKS = {int(number): (int(elements), int(size)) for number, _, elements, size in map(str.split, _TYPES)}
"""Tensor type -> (elements per block, bytes per block).

Of a type that is not listed, only the offset of its tensors is checked. The list ends at 39 on purpose: forks use 40
and 41 for types of different sizes, and a complete file must never be called incomplete.
"""
_STRING, _ARRAY = 8, 9
_TOKENIZER, _TOKENS = "tokenizer.ggml.", "tokenizer.ggml.tokens"
_MAX_VALUE_BYTES = 512  # a chat template is not needed here
_MAX_ARRAY_ITEMS = 1024  # one value for each layer (llama.cpp: at most 512 layers), but no vocabulary
_MAX_DIMENSIONS = 8  # ggml itself has 4
_MAX_ROWS = 1 << 17  # of either table; the largest models have a few thousand tensors and a hundred keys
_MAX_BYTES = 1 << 60


class MalformedError(Exception):
    """The bytes are not a GGUF header; the text says why."""


class NeedMoreError(Exception):
    """The header is longer than the bytes given."""


class GgufTensor(NamedTuple):
    """One row of the tensor table."""

    name: str
    type: int
    """ggml's number of the type; see GGML_BLOCKS."""
    dimensions: tuple[int, ...]
    size_bytes: int
    """For a type that GGML_BLOCKS does not list: the distance to the next tensor, which includes its padding."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file."""

    metadata: dict[str, MetadataValue]
    """Scalars and short arrays of numbers. Long arrays, texts in arrays (the vocabulary) and long texts are skipped."""
    tensors: tuple[GgufTensor, ...]
    required_bytes: int
    """The end of the last tensor."""
    vocabulary: tuple[int, int] = (0, 0)
    """Where the keys of the tokenizer begin and end in the file; equal in all quants of a model."""
    end: int = 0
    """Where the tensor table ends."""
    tokens: tuple[int, int, int] = (0, 0, 0)
    """Where the texts of the tokens begin and end in the file, and their number; zeros without a vocabulary."""


def parse_header(data: bytes, size: int) -> GgufHeader:
    """Parses ``data``, the first bytes of a file of ``size`` bytes that begins with MAGIC.

    Raises MalformedError, or NeedMoreError if ``data`` ends first.
    """
    reader = _Reader(data, size)
    version = int(reader.scalar("<I", 4))
    if version not in VERSIONS:
        raise MalformedError(_version_text(version))
    tensors, pairs = int(reader.scalar("<Q", 8)), int(reader.scalar("<Q", 16))
    reader.position = 24
    if max(tensors, pairs) > min(size, _MAX_ROWS):
        raise MalformedError(f"its header claims {tensors} tensors and {pairs} metadata keys")
    metadata = reader.metadata(pairs)
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment <= 1 << 24:
        raise MalformedError(f"its alignment is {alignment!r}")
    table, data_end = reader.tensors(tensors)
    start = -(-reader.position // alignment) * alignment
    rows = _sized(table, max(0, size - start))
    required = start + data_end if tensors else reader.position
    return GgufHeader(metadata, rows, required, reader.vocabulary, reader.position, reader.tokens)


class _Reader:
    """A position in the header. Every step checks that the bytes exist."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.position = 0
        self.vocabulary = (0, 0)
        self.tokens = (0, 0, 0)

    def scalar(self, form: str, at: int) -> Scalar:
        try:
            value: Scalar = struct.unpack_from(form, self.data, at)[0]
        except struct.error:
            raise NeedMoreError from None
        return value

    def number(self, form: str = "<Q") -> int:
        value = int(self.scalar(form, self.position))
        self.position += struct.calcsize(form)
        return value

    def skip(self, count: int, what: str) -> int:
        """Skips ``count`` bytes. Returns where they began."""
        begin, self.position = self.position, self.position + count
        if self.position > len(self.data):
            if self.position > self.size + _MAX_BYTES:
                raise MalformedError(f"{what} would be {count} bytes long")
            raise NeedMoreError
        return begin

    def string(self, what: str, limit: int = _MAX_BYTES) -> str:
        length = self.number()
        if length > limit:
            raise MalformedError(f"{what} would be {length} bytes long")
        begin = self.skip(length, what)
        return self.data[begin : self.position].decode(errors="replace")

    def metadata(self, pairs: int) -> dict[str, MetadataValue]:
        values: dict[str, MetadataValue] = {}
        for _ in range(pairs):
            begin_of_pair = self.position
            key = self.string("a metadata key", 1 << 16)
            if not key:  # a file of zeros would have endless empty keys
                raise MalformedError("a metadata key has no name")
            kind = self.number("<I")
            if form := _SCALARS.get(kind):
                values[key] = self.scalar(form, self.position)
                self.position += struct.calcsize(form)
            elif kind == _STRING:
                length = self.number()
                begin = self.skip(length, key)
                if length <= _MAX_VALUE_BYTES:
                    values[key] = self.data[begin : self.position].decode(errors="replace")
            elif kind == _ARRAY:
                if (items := self.array(key)) is not None:
                    values[key] = items
            else:
                raise MalformedError(f"the metadata key {key[:60]!r} has the unknown type {kind}")
            if key.startswith(_TOKENIZER):
                self.vocabulary = (self.vocabulary[0] or begin_of_pair, self.position)
        return values

    def array(self, key: str) -> tuple[bool | int | float, ...] | None:
        """Skips an array. Returns its items if they are a few numbers."""
        kind, count = self.number("<I"), self.number()
        if form := _SCALARS.get(kind):
            begin = self.skip(count * struct.calcsize(form), key)
            return struct.unpack_from(f"<{count}{form[1]}", self.data, begin) if count <= _MAX_ARRAY_ITEMS else None
        if kind == _STRING:
            begin = self.position
            self.strings(count)
            if key == _TOKENS:
                self.tokens = (begin, self.position, count)
            return None
        # as in llama.cpp, there are no arrays of arrays
        raise MalformedError(f"the metadata key {key[:60]!r} is an array of the unknown type {kind}")

    def strings(self, count: int) -> None:
        """Skips ``count`` strings. This is the vocabulary, so the loop must be fast."""
        if self.position + 8 * count > self.size:
            raise NeedMoreError
        unpack, data, position = struct.Struct("<Q").unpack_from, self.data, self.position
        try:
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct.error, OverflowError):
            raise NeedMoreError from None
        self.position = position
        self.skip(0, "an array of strings")

    def tensors(self, count: int) -> tuple[list[_TensorInfo], int]:
        """The tensor infos, and where the last tensor ends, relative to the start of the data."""
        table: list[_TensorInfo] = []
        data_end = 0
        for _ in range(count):
            name = self.string("a tensor's name", 1 << 10)
            rank = self.number("<I")
            if rank > _MAX_DIMENSIONS:
                raise MalformedError(f"the tensor {name[:60]!r} has {rank} dimensions")
            dimensions = tuple(self.number() for _ in range(rank))
            kind = self.number("<I")
            block, block_bytes = GGML_BLOCKS.get(kind, (1, 0))
            size, offset = math.prod(dimensions) // block * block_bytes, self.number()
            if offset + size > _MAX_BYTES:
                raise MalformedError(f"the tensor {name[:60]!r} would end at byte {offset + size}")
            data_end = max(data_end, offset + size)
            table.append(_TensorInfo(name, kind, dimensions, size, offset))
        return table, data_end


class _TensorInfo(NamedTuple):
    name: str
    type: int
    dimensions: tuple[int, ...]
    size_bytes: int
    offset: int


def _sized(table: list[_TensorInfo], data_bytes: int) -> tuple[GgufTensor, ...]:
    """The rows of the table. A tensor of an unknown type reaches to the next one, or to the end of the data."""
    if all(info.type in GGML_BLOCKS for info in table):
        return tuple(GgufTensor(*info[:4]) for info in table)
    ends = sorted({*(info.offset for info in table), data_bytes})

    def size(info: _TensorInfo) -> int:
        after = bisect.bisect_right(ends, info.offset)
        return max(0, ends[after] - info.offset) if after < len(ends) else 0

    return tuple(GgufTensor(*info[:3], info.size_bytes if info.type in GGML_BLOCKS else size(info)) for info in table)


def _version_text(version: int) -> str:
    if struct.unpack(">I", struct.pack("<I", version))[0] in VERSIONS:
        return "it is big-endian"
    return f"it is GGUF version {version}, and llama.cpp reads {' and '.join(map(str, VERSIONS))}"
