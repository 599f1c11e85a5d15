"""The folder of kept slot states: ``NAME.kv`` as llama-server wrote it, and beside it ``NAME.json`` (what it is).

A state exists once its JSON does: that is written last, and removed first. Whatever else lies in the folder was left
by a killed gpubox or server, and the next one that holds the folder's lock removes it. States written in this boot are
complete in the page cache; one from an earlier boot counts only if it reached the disk (``synced``)."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpubox.hardware.process import boot_id
from gpubox.sequences import shared_length
from gpubox.server.kv_key import KvKey
from gpubox.server.state import read_record
from gpubox.storage import free_bytes, lock_file, open_private, private_folder, write_atomically
from gpubox.units import GIB

STATE_SUFFIX, PARTIAL_SUFFIX = ".kv", ".part"
SHARED = "head-"
"""What the name of a system prompt begins with, of several conversations."""
FREE_BYTES = 2 * GIB
"""So much of the disk stays free."""
MAX_UNUSED = 3
"""A state that was put back so often, and that no answer is known to have reused, is dropped."""
_SAME_SHARE = 1.1
"""How much longer a state may be than what it shares with the one that replaces it."""
_LOCK_ATTEMPTS = 250
_SYNC_LOCK_ATTEMPTS = 6000
"""For two minutes: the lock is held while a server restores its states, which may take one."""
_MAGIC = b"qsgg"  # LLAMA_STATE_SEQ_MAGIC "ggsq", little endian
_MAX_TOKENS = 1 << 28


@dataclass(frozen=True, slots=True)
class KeptState:
    """One kept state of one slot."""

    name: str
    key: KvKey
    tokens: int
    size_bytes: int
    saved_at: str
    profile: str
    model_path: str
    boot: str
    """The boot in which it was written."""
    modified_ns: int = 0
    """The file's time of change. Another one: somebody wrote into it, and llama-server would take it as it is."""
    synced: bool = False
    """Whether it is on the disk, and not only in the page cache."""
    exact: bool = False
    """It helps only a prompt that begins with all its tokens (hybrid models)."""
    conversation: str = ""
    """Whose it is, as the gateway calls it; empty: unknown."""
    used_at: str = ""
    """When it was last restored or reused."""
    unused: int = 0
    """How often it was put back since the gateway last saw an answer reuse it. A server that dies counts too: maybe it
    died of the state."""
    trying: bool = False
    """A server is restoring it. If that is still so later, the server died of it, and the state is dropped."""

    @property
    def file(self) -> str:
        """The name that llama-server gets; it takes no path."""
        return f"{self.name}{STATE_SUFFIX}"

    @property
    def shared(self) -> bool:
        """Whether it is the beginning of several conversations: none of them replaces it."""
        return self.conversation.startswith(SHARED)

    @property
    def last_used(self) -> str:
        return max(self.saved_at, self.used_at)


class KvStore:
    """The states in one folder. Reading needs no lock; whoever adds, changes or removes states holds ``locked``."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    @contextmanager
    def locked(self, attempts: int | None = None) -> Iterator[bool]:
        """Holds the folder's lock inside the block; False if another gpubox holds it for some seconds."""
        try:
            descriptor = lock_file(self.folder / ".lock", attempts or _LOCK_ATTEMPTS)
        except OSError:
            descriptor = None
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def states(self) -> list[KeptState]:
        """The whole states, the newest first. Others are left out: a wrong size, another boot's unsynced file."""
        return sorted(self._whole_states(), key=lambda state: state.saved_at, reverse=True)

    def sweep(self) -> None:
        """Removes what is no state, states of deleted models and of no use, and the oldest beyond the cap.

        The caller holds the lock.
        """
        kept = {state.name: state for state in self.states()}
        for state in list(kept.values()):
            if state.unused >= MAX_UNUSED or not Path(state.model_path).exists():
                self.drop(state.name)
                del kept[state.name]
        for path in self._paths():
            if path.name.partition(".")[0] not in kept or path.suffix not in (STATE_SUFFIX, ".json"):
                _unlink(path)
        self._shrink(list(kept.values()), self.max_bytes)

    def make_room(self, size_bytes: int) -> bool:
        """Drops the least recently used states until ``size_bytes`` fit under the cap. Returns whether they fit.

        They do not if the disk would have less than FREE_BYTES left. The caller holds the lock.
        """
        if size_bytes > self.max_bytes:
            return False
        states = self._shrink(self.states(), self.max_bytes - size_bytes)
        while (free_bytes(self.folder) or 0) - size_bytes < FREE_BYTES:
            if not states:
                return False
            self.drop(states.pop().name)
        return True

    def new_name(self) -> str:
        """A name that no state has."""
        return os.urandom(8).hex()

    def prepare_file(self, name: str) -> str:
        """Makes the file that a server is about to write, for the owner only. Returns its name. Raises OSError."""
        path = self.folder / f"{name}{PARTIAL_SUFFIX}"
        os.close(open_private(path, os.O_WRONLY | os.O_EXCL))
        return path.name

    def add(self, state: KeptState) -> list[int]:
        """Takes over the file that a server wrote as ``prepare_file`` said. Returns its tokens.

        Raises OSError or ValueError, and removes the file, if it is not what the server said.
        """
        partial = self.folder / f"{state.name}{PARTIAL_SUFFIX}"
        try:
            if partial.stat().st_size != state.size_bytes:
                raise ValueError("the file has another size than the server said")
            tokens = read_tokens(partial)
            if len(tokens) != state.tokens:
                raise ValueError("the file has other tokens than the server said")
            partial.chmod(0o600)
            state = replace(state, modified_ns=partial.stat().st_mtime_ns)
            partial.replace(self.folder / state.file)
            self.write(state)
        except BaseException:
            self.drop(state.name)
            raise
        return tokens

    def write(self, state: KeptState) -> None:
        """Writes what is known of a state. Raises OSError."""
        write_atomically(self.folder / f"{state.name}.json", json.dumps(asdict(state)).encode())

    def change(self, name: str, **changes: Any) -> None:
        """Changes what is known of a state, if it still exists. Never raises."""
        path = self.folder / f"{name}.json"
        with contextlib.suppress(OSError):
            if state := read_state(path):
                self.write(replace(state, **changes))
                if not (self.folder / state.file).exists():  # dropped meanwhile
                    _unlink(path)

    def drop(self, name: str) -> None:
        """Removes a state, also one that no server has finished. Never raises."""
        for suffix in (".json", STATE_SUFFIX, PARTIAL_SUFFIX):
            _unlink(self.folder / f"{name}{suffix}")

    def sync(self, name: str) -> None:
        """Waits until a state is on the disk, and notes it. The caller does not hold the lock. Never raises. Blocks."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.folder / f"{name}{STATE_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            # without the lock it could take back that a server is restoring the state just now
            with self.locked(_SYNC_LOCK_ATTEMPTS) as is_locked:
                if is_locked:
                    self.change(name, synced=True)

    def drop_replaced(self, state: KeptState, tokens: list[int]) -> None:
        """Drops the older states that ``state`` with its ``tokens`` replaces.

        Those are the same conversation, some requests ago: nearly all of their tokens are its beginning, for an exact
        state all of them. Of two that the gateway knows, its word counts.
        """
        for other in self.states():
            if other.name == state.name or other.key != state.key:
                continue
            if other.conversation and other.conversation == state.conversation:
                self.drop(other.name)
            known = other.shared or (other.conversation and state.conversation)
            if known or other.tokens > len(tokens) * _SAME_SHARE:
                continue
            with contextlib.suppress(OSError, ValueError):
                earlier = read_tokens(self.folder / other.file)
                if shared_length(earlier, tokens) * (1 if other.exact else _SAME_SHARE) >= len(earlier):
                    self.drop(other.name)

    def _shrink(self, states: Iterable[KeptState], limit: int) -> list[KeptState]:
        """Drops the least recently used states beyond ``limit`` bytes. Returns the rest, the least used last."""
        left = sorted(states, key=lambda state: state.last_used, reverse=True)
        while left and sum(state.size_bytes for state in left) > limit:
            self.drop(left.pop().name)
        return left

    def _whole_states(self) -> Iterator[KeptState]:
        for path in self._paths(".json"):
            state = read_state(path)
            if state and not state.trying and self._is_whole(state):
                yield state

    def _is_whole(self, state: KeptState) -> bool:
        if not state.synced and state.boot != boot_id():
            return False
        try:
            status = (self.folder / state.file).stat()
            return (status.st_size, status.st_mtime_ns) == (state.size_bytes, state.modified_ns)
        except OSError:
            return False

    def _paths(self, suffix: str = "") -> list[Path]:
        try:
            entries = sorted(entry.name for entry in os.scandir(self.folder) if not entry.name.startswith("."))
        except OSError:
            return []
        return [self.folder / name for name in entries if name.endswith(suffix)]


def prepare_folder(folder: Path) -> bool:
    """Makes the folder, for the owner only. Returns whether it can be used."""
    try:
        private_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _unlink(path: Path) -> None:
    """Removes a file. Never raises."""
    with contextlib.suppress(OSError):
        path.unlink()


def read_tokens(path: Path) -> list[int]:
    """The tokens at the start of a slot's file. Raises OSError, or ValueError if it is no such file.

    Format: ``llama_state_seq_save_file`` (magic, version, count, so many int32), and since build 11000 or so the list
    is that of tools/server/server-common.cpp: -1, 1, the number of tokens, the tokens, the number of media (0 here).
    """
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) < 12 or head[:4] != _MAGIC:
            raise ValueError("it is no file of a slot")
        (count,) = struct.unpack("<8xI", head)
        if count > _MAX_TOKENS:
            raise ValueError("it has too many tokens")
        data = file.read(4 * count)
    if len(data) != 4 * count:
        raise ValueError("it ends within its tokens")
    words = list(struct.unpack(f"<{count}i", data))
    if words[:2] != [-1, 1] or count < 4:
        return words
    if words[2] != count - 4 or words[-1] != 0:
        raise ValueError("it holds media, or a list of tokens that gpubox does not know")
    return words[3:-1]


def read_state(path: Path) -> KeptState | None:
    """What a JSON file says; None if it is damaged, or not about the files of its own name."""
    state = read_record(KeptState, path)
    if state is None or state.name != path.stem:
        return None
    numbers = (state.tokens, state.size_bytes, state.unused, state.modified_ns, state.key.streams)
    return state if min(numbers) >= 0 else None
