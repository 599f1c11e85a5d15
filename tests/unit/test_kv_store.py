"""The store of kept KV caches: which states exist, which go, and what a lying or broken file does."""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.hardware.process import boot_id
from gpubox.server import kv_store
from gpubox.server.kv_key import KvKey
from gpubox.server.kv_store import MAX_UNUSED, KeptState, KvStore, prepare_folder, read_tokens

KEY = KvKey("model", "lab b1")
Usage = namedtuple("Usage", "total used free")


def slot_file(tokens: list[int], cells: int = 100) -> bytes:
    """A file as build 11434 writes it: header, token list, some cells."""
    words = [-1, 1, len(tokens), *tokens, 0]
    return b"qsgg" + struct.pack(f"<II{len(words)}i", 4, len(words), *words) + bytes(cells)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def store(tmp_path: Path) -> KvStore:
    assert prepare_folder(tmp_path / "kv")
    return KvStore(tmp_path / "kv", 10_000)


class Saver:
    """Saves states into a store as a server and gpubox do."""

    def __init__(self, store: KvStore, model: Path) -> None:
        self.store, self.model, self.count = store, model, 0

    def __call__(self, tokens: list[int], cells: int = 100, **changes: Any) -> KeptState:
        self.count += 1
        data = slot_file(tokens, cells)
        state = KeptState(
            name=f"s{self.count}", key=KEY, tokens=len(tokens), size_bytes=len(data),
            saved_at=f"2026-01-01T00:00:{self.count:02}Z", profile="p", model_path=str(self.model), boot=boot_id(),
        )  # fmt: skip
        state = replace(state, **changes)
        (self.store.folder / self.store.prepare_file(state.name)).write_bytes(data)
        assert self.store.add(state) == tokens
        stored = kv_store.read_state(self.store.folder / f"{state.name}.json")
        assert stored
        assert replace(stored, modified_ns=0) == state
        return stored


@pytest.fixture
def save(store: KvStore, model: Path) -> Saver:
    return Saver(store, model)


def names(store: KvStore) -> list[str]:
    return [state.name for state in store.states()]


def files(store: KvStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name != ".lock")


def test_a_saved_state_is_read_back_the_newest_first_and_only_for_the_owner(store: KvStore, save: Saver) -> None:
    first, second = save([1, 2, 3]), save([4, 5], key=replace(KEY, contents=("swa-full",)))

    assert store.states() == [second, first]
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}
    assert read_tokens(store.folder / first.file) == [1, 2, 3]


def test_a_folder_that_others_can_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir(mode=0o755)

    assert prepare_folder(tmp_path / "kv")
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    assert not prepare_folder(tmp_path / "file")


@pytest.mark.parametrize("leftover", ["x.part", "x.kv", "x.json", "s1.part", "s1.json.ab12.tmp", "y.kv.part"])
def test_what_a_kill_leaves_is_never_a_state_and_goes(store: KvStore, save: Saver, leftover: str) -> None:
    kept = save([1, 2, 3])
    (store.folder / leftover).write_bytes(b"qsgg")

    assert names(store) == [kept.name]
    store.sweep()
    assert files(store) == [f"{kept.name}.json", f"{kept.name}.kv"]


def test_a_file_that_the_server_did_not_finish_is_refused_and_removed(store: KvStore, model: Path) -> None:
    state = KeptState("a", KEY, 3, 500, "2026", "p", str(model), boot_id())
    for data in (b"", slot_file([1, 2, 3])[:20], slot_file([1, 2, 3]), slot_file([1, 2], 104)):
        (store.folder / store.prepare_file("a")).write_bytes(data)
        with pytest.raises((OSError, ValueError)):
            store.add(replace(state, size_bytes=len(data) + (len(data) == len(slot_file([1, 2, 3])))))
        assert files(store) == []


def test_an_unfinished_write_to_the_disk_counts_only_in_its_own_boot(store: KvStore, save: Saver) -> None:
    lost = save([1], boot="an earlier boot")
    on_disk = save([2], boot="an earlier boot", synced=True)
    now = save([3])

    assert names(store) == [now.name, on_disk.name]
    store.sweep()
    assert f"{lost.name}.kv" not in files(store)
    store.sync(now.name)
    assert store.states()[0].synced


def test_a_file_that_somebody_wrote_into_is_no_state(store: KvStore, save: Saver) -> None:
    state = save([1])
    with (store.folder / state.file).open("r+b") as file:
        file.seek(60)
        file.write(b"?")
    os.utime(store.folder / state.file, ns=(0, state.modified_ns + 1))

    assert names(store) == []


def test_a_state_that_shrank_or_that_killed_a_server_is_none(store: KvStore, save: Saver) -> None:
    shrunk, deadly, good = save([1]), save([2]), save([3])
    os.truncate(store.folder / shrunk.file, 10)
    store.change(deadly.name, trying=True)

    assert names(store) == [good.name]
    store.sweep()
    assert files(store) == [f"{good.name}.json", f"{good.name}.kv"]


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"name": "s1"}', '{"key": 3}', "[" * 5000, "é"])
def test_a_damaged_description_is_no_state(store: KvStore, save: Saver, text: str) -> None:
    kept, broken = save([1]), save([2])
    (store.folder / f"{broken.name}.json").write_text(text)

    assert names(store) == [kept.name]
    store.sweep()
    assert names(store) == [kept.name]
    assert len(files(store)) == 2


@pytest.mark.parametrize(
    "lie", [{"name": "../../etc/passwd"}, {"tokens": -1}, {"size_bytes": "9"}, {"saved_at": 3}, {"new": 1}]
)
def test_a_description_that_lies_is_no_state(store: KvStore, save: Saver, lie: dict[str, Any]) -> None:
    path = store.folder / f"{save([1]).name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **lie}))

    assert names(store) == []


def test_the_least_recently_used_states_go_first(store: KvStore, save: Saver) -> None:
    old, used, new = save([1], 3000), save([2], 3000), save([3], 3000)
    store.change(old.name, used_at="2026-02-01T00:00:00Z")

    assert store.make_room(3000)
    assert names(store) == [new.name, old.name]
    assert not store.make_room(10_001)
    assert names(store) == [new.name, old.name]
    store.max_bytes = 4000  # the owner lowered the cap
    store.sweep()
    assert names(store) == [old.name]
    assert used.file not in files(store)


def test_the_disk_is_not_filled(store: KvStore, save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = save([1], 3000), save([2], 3000)
    store.max_bytes = 100_000

    def disk_usage(path: Path) -> Usage:
        """A disk on which 4,000 bytes and what was dropped may be used."""
        used = sum(file.stat().st_size for file in store.folder.glob("*.kv"))
        return Usage(0, 0, kv_store.FREE_BYTES + 4000 + first.size_bytes + second.size_bytes - used)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    assert store.make_room(4000)
    assert names(store) == [second.name, first.name]
    assert store.make_room(5000)
    assert names(store) == [second.name]
    assert store.make_room(9000)
    assert names(store) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, kv_store.FREE_BYTES))
    assert not store.make_room(1)


def test_states_of_deleted_models_and_useless_ones_go(store: KvStore, save: Saver, model: Path) -> None:
    gone, useless, good = save([1], model_path="/gone.gguf"), save([2], unused=MAX_UNUSED), save([3])

    store.sweep()
    assert names(store) == [good.name]
    assert gone.file not in files(store) and useless.file not in files(store)
    model.unlink()
    store.sweep()
    assert files(store) == []


def test_a_longer_state_replaces_those_that_it_begins_with(store: KvStore, save: Saver) -> None:
    turn, talk = list(range(40)), list(range(60))
    short, branch = save(turn), save([*turn, 99, 98, 97])
    exact, beginning = save([*turn, 96], exact=True), save(turn, exact=True)
    other, foreign = save([*turn, *range(900, 990)]), save(turn, key=replace(KEY, model="other"))
    much = save(list(range(100)))
    long = save(talk)

    store.drop_replaced(long, talk)

    assert names(store) == [long.name, much.name, foreign.name, other.name, exact.name]
    assert not {short.file, branch.file, beginning.file} & {*files(store)}


def test_a_state_that_was_dropped_meanwhile_does_not_come_back(store: KvStore, save: Saver) -> None:
    state = save([1])
    (store.folder / state.file).unlink()

    store.change(state.name, unused=2)
    store.sync(state.name)

    assert files(store) == []


def test_a_state_is_noted_as_synced_only_under_the_lock(store: KvStore, save: Saver) -> None:
    state = save([1])
    syncing = threading.Thread(target=store.sync, args=(state.name,))
    with store.locked():
        syncing.start()
        syncing.join(0.3)
        assert [each.synced for each in store.states()] == [False]
        store.change(state.name, trying=True)
    syncing.join(10)

    noted = kv_store.read_state(store.folder / f"{state.name}.json")
    assert noted and noted.synced and noted.trying


def test_one_gpubox_at_a_time_changes_the_store(store: KvStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "_LOCK_ATTEMPTS", 1)
    with store.locked() as mine, store.locked() as theirs:
        assert (mine, theirs) == (True, False)
    with store.locked() as again:
        assert again
    shutil.rmtree(store.folder)
    store.folder.write_text("")
    with store.locked() as impossible:
        assert not impossible
    assert store.states() == []


def test_tokens_of_older_builds_and_of_no_slot(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"qsgg" + struct.pack("<II3i", 2, 3, 7, 8, 9))
    assert read_tokens(path) == [7, 8, 9]
    media = [-1, 1, 1, 5, 1]  # a token and a picture
    huge = b"qsgg" + struct.pack("<II", 4, 0xFFFFFFFF)
    for data in (b"", b"qsgg", b"GGUF" + bytes(60), huge, b"qsgg" + struct.pack("<II5i", 4, 5, *media)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="it "):
            read_tokens(path)
