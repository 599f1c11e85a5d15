"""Checking GGUF files: complete, broken and hostile ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.models.gguf import check_gguf
from gpubox.models.header_cache import read_model
from gpubox.paths import Paths
from tests.gguf_bytes import header, model, pair, tensor, text


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(data: bytes, name: str = "m.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(GpuboxError) as error:
        check_gguf(path)
    assert str(path.name) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_whole_file(write) -> None:  # type: ignore[no-untyped-def]
    data = model({"llama.block_count": 3, "tokenizer.ggml.tokens": ["a", "bc"] * 500, "x.flag": True, "x.eps": 0.5})
    checked = check_gguf(write(data))
    assert (checked.architecture, checked.name, checked.size) == ("llama", "Tiny", len(data))
    assert checked.shards == (checked.path,)
    assert checked.metadata["llama.block_count"] == 3
    assert checked.metadata["x.flag"] is True
    assert "tokenizer.ggml.tokens" not in checked.metadata


def test_a_file_without_a_name_is_called_like_its_file(write) -> None:  # type: ignore[no-untyped-def]
    assert check_gguf(write(header([], []), "Some-Model.gguf")).name == "Some-Model"


def test_every_truncation_is_noticed(write) -> None:  # type: ignore[no-untyped-def]
    data = model({"tokenizer.ggml.tokens": ["token"] * 20})
    for length in range(4, len(data)):
        assert "is incomplete" in refused(write(data[:length]))


def test_incomplete_says_how_much_is_there(write) -> None:  # type: ignore[no-untyped-def]
    data = model(elements=1_000_000)
    assert "it has 1 MB of 4 MB" in refused(write(data[:1_000_000]))
    assert f"{len(data) - 1:,} of {len(data):,} bytes" in refused(write(data[:-1]))


def test_quantised_tensors_have_their_block_size(write) -> None:  # type: ignore[no-untyped-def]
    head = header([], [tensor("w", [256, 2], 14, 32)])  # Q6_K: 210 bytes for 256 elements
    start = len(head) + -len(head) % 32
    check_gguf(write(head.ljust(start + 32 + 420, b"\0")))
    refused(write(head.ljust(start + 32 + 419, b"\0")))
    unknown = header([], [tensor("w", [256, 2], 999, 32)])  # a newer type: only its place is known
    check_gguf(write(unknown.ljust(start + 32, b"\0")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>", "a web page was saved"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS pointer"),
        (b"Invalid username or password.", "it begins with 'Invalid username"),
        (b"\x00\x01\x02\x03" * 20, "00 01 02 03"),
        (b"PK\x03\x04\xff\xfe" * 20, "50 4b 03 04"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGU", "not a GGUF"),
    ],
)
def test_files_that_are_not_gguf(write, data: bytes, message: str) -> None:  # type: ignore[no-untyped-def]
    assert message in refused(write(data))


def test_the_hint_for_a_file_that_is_no_model(write) -> None:  # type: ignore[no-untyped-def]
    assert refused(write(b"# Notes\nabout models", "notes.md")).endswith("  Correct `model` in the profile.")
    assert refused(write(b"Not found")).endswith("  Correct `model` in the profile, or download it again.")
    assert refused(write(b"<html>")).endswith("  Download the model again.")
    assert refused(write(b"\0" * 99)).endswith("  Download the model again.")


def test_how_many_models_a_folder_holds(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert "That folder holds no .gguf files." in refused(tmp_path / "m.gguf")
    write(b"x", "quite-another.gguf")
    assert "That folder holds 1 .gguf file." in refused(tmp_path / "m.gguf")
    write(b"x", "something-else.gguf")
    assert "That folder holds 2 .gguf files." in refused(tmp_path / "m.gguf")


BIG = 2**63 - 1
HOSTILE = {
    "counts": b"GGUF" + struct.pack("<IQQ", 3, BIG, BIG),
    "keys without end": b"GGUF" + struct.pack("<IQQ", 3, 0, 30) + b"\0" * 8,
    "key length": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", BIG) + b"x" * 90,
    "text length": header([text("k") + struct.pack("<IQ", 8, BIG) + b"x" * 90], []),
    "array length": header([text("k") + struct.pack("<IIQ", 9, 4, BIG) + b"x" * 90], []),
    "array of texts": header([text("k") + struct.pack("<IIQ", 9, 8, BIG) + b"x" * 90], []),
    "text in array": header([text("k") + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", BIG) + b"x" * 90], []),
    "nested arrays": header([text("k") + struct.pack("<IIQ", 9, 9, 1) * 50], []),
    "value type": header([text("k") + struct.pack("<I", 77) + b"x" * 90], []),
    "dimensions": header([], [text("w") + struct.pack("<I", 2**31) + b"x" * 90]),
    "tensor size": header([], [tensor("w", [BIG, BIG, BIG, BIG], 0, 0)]),
    "tensor offset": header([], [tensor("w", [1], 0, BIG)]),
    "alignment 0": header([pair("general.alignment", 0)], []),
    "alignment text": header([pair("general.alignment", "many")], []),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_lies_are_refused(write, name: str) -> None:  # type: ignore[no-untyped-def]
    """No clock: who believes one of these counts to 2**62, and holds the whole run up."""
    refused(write(HOSTILE[name]))


def test_random_damage_never_escapes(write) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(7)
    good = model({"tokenizer.ggml.tokens": ["token"] * 20, "a": 1, "b": "text"})
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        try:
            check_gguf(write(bytes(data)))
        except GpuboxError as error:
            assert "m.gguf" in error.message


def test_a_large_vocabulary_is_walked(write) -> None:  # type: ignore[no-untyped-def]
    path = write(model({"tokenizer.ggml.tokens": [f"token{i}" for i in range(150_000)]}))
    assert check_gguf(path).size == path.stat().st_size


def test_missing_files_and_folders(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(model(), "Qwen3-4B-Q4_K_M.gguf")
    assert "Did you mean Qwen3-4B-Q4_K_M.gguf?" in refused(tmp_path / "Qwen3-4B-Q4_K_S.gguf")
    assert "there is no folder" in refused(tmp_path / "no" / "m.gguf")
    assert "is a folder" in refused(tmp_path)
    assert "not a regular file" in refused(Path("/dev/null"))
    assert "does not exist" in refused(tmp_path / "Qwen3-4B-Q4_K_M.gguf" / "m.gguf")
    assert "cannot be read" in refused(tmp_path / ("m" * 300 + ".gguf"))


def test_shards(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    first = write(model({"split.count": 3}), "m-00001-of-00003.gguf")
    assert "2 of them are missing: m-00002-of-00003.gguf and more" in refused(first)
    second = write(model(), "m-00002-of-00003.gguf")
    third = write(model(), "m-00003-of-00003.gguf")
    checked = check_gguf(first)
    assert checked.shards == (first, second, third)
    assert checked.size == sum(p.stat().st_size for p in checked.shards)
    assert "shard 2 of 3" in refused(second)
    third.write_bytes(model()[:-1])
    with pytest.raises(GpuboxError, match=r"m-00003-of-00003\.gguf is incomplete"):
        check_gguf(first)
    assert "one of 3 shards" in refused(write(model({"split.count": 3}), "renamed.gguf"))


def test_the_tensor_table(write) -> None:  # type: ignore[no-untyped-def]
    tensors = [tensor("a", [256, 2], 14, 0), tensor("b", [64, 2], 999, 448), tensor("c", [64], 0, 608)]
    head = header([pair("x.layers", 3)], tensors)
    path = write(head.ljust(len(head) + -len(head) % 32 + 864, b"\0"))
    a, b, c = check_gguf(path).tensors
    assert (a.name, a.type, a.dimensions, a.size_bytes) == ("a", 14, (256, 2), 420)
    assert b.size_bytes == 160  # of a newer type: up to the next tensor
    assert c.size_bytes == 256


def test_short_arrays_of_numbers_are_kept(write) -> None:  # type: ignore[no-untyped-def]
    layers = text("x.layers") + struct.pack("<IIQ3i", 9, 5, 3, 4, 0, 4)
    flags = text("x.flags") + struct.pack("<IIQ2?", 9, 7, 2, True, False)
    long = text("x.long") + struct.pack("<IIQ", 9, 5, 5000) + bytes(20_000)
    metadata = check_gguf(write(header([layers, flags, long], []))).metadata
    assert metadata == {"x.layers": (4, 0, 4), "x.flags": (True, False)}


def test_a_header_is_read_from_the_cache_until_its_file_changes(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    path = write(model({"llama.block_count": 3, "llama.eps": 0.5}))
    first = read_model(path, paths)
    assert read_model(path, paths) == first == check_gguf(path)
    cached = next(paths.headers.iterdir())
    for damage in (b"", b"{}", b"[" * 100_000, b'{"schema": 1, "key": []}', cached.read_bytes()[:-9]):
        cached.write_bytes(damage)
        assert read_model(path, paths) == first
    path.write_bytes(model({"llama.block_count": 4}))
    assert read_model(path, paths).metadata["llama.block_count"] == 4
    path.write_bytes(model()[:-1])
    with pytest.raises(GpuboxError, match="is incomplete"):
        read_model(path, paths)
