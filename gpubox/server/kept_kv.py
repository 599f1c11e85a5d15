"""Moves slot states between servers and the disk: saved before a stop, restored when a compatible launch is ready, and
single ones at any time. Around a stop nothing raises, or waits for a server that does not answer. Whether a request
reuses what was put back is seen at the request: the gateway judges it, and without one a state that was put back often
without being replaced by a longer one goes (``MAX_UNUSED``).

llama-server moves conversations out of their slots into its prompt cache in RAM, which nobody can read from outside. A
gateway that has sent them can have the server read them back from there, one after the other. What a new task moves
out of a restored slot is found in that cache again.

Hybrid models reuse a state only if the next prompt begins with all of its tokens, and the reply in it is often written
differently in the next prompt (without its reasoning, or in other tokens). So their slots are rolled back to the
beginning of the reply before they are saved. With a sliding window nothing restored is reused, unless --swa-full.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox import units
from gpubox.clock import utc_now
from gpubox.config import Config, api_key
from gpubox.errors import GpuboxError
from gpubox.hardware.process import boot_id, environment_of, is_alive
from gpubox.models.header_cache import read_model
from gpubox.paths import Paths
from gpubox.sequences import shared_length
from gpubox.server.client import LlamaClient, connect
from gpubox.server.kv_key import KvKey, incompatible, launch_key, refusal
from gpubox.server.kv_store import KeptState, KvStore
from gpubox.server.log import HEAD_BYTES, LogReader
from gpubox.server.log_events import DeviceBuffer, KvCache, NewPrompt, SwaCache
from gpubox.server.log_parsing import parse_event
from gpubox.server.responses import Slot, json_count
from gpubox.server.state import RestoredSlot, RunningServer, load_gateway
from gpubox.server.status import can_sleep

MIN_TOKENS = 256
"""Fewer tokens are read again in less time than it takes to keep them."""
ANSWER_SECONDS = 2.0
"""An idle server answers /slots within so long; one that does not is left alone."""
ALL_SECONDS = 60.0
"""Saving, and restoring, ends after so long; what was done until then counts."""
_SLOWEST_BYTES_PER_SECOND = 100e6
_ROLL_BACK_SECONDS = 10.0
_RECENT_BYTES = 2 * 1024 * 1024
"""So much of the end of the log is searched for the last prompts."""
_UNKNOWN_BYTES_PER_TOKEN = 1 << 20
_CONTEXT_SHARE = 0.9
"""The restored slots of one shared cache take at most this part of it."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the log of a load says about the caches of a server."""

    bytes_per_token: float = 0.0
    fixed_bytes: int = 0
    """Of a slot with any number of tokens: recurrent states."""
    exact: bool = False
    """It reuses a restored state only whole."""
    windowed: bool = False
    """Layers with a sliding window keep no more than that: nothing restored is reused (build 11434)."""


class KvRestoreKilled(GpuboxError):
    """The server died, or hung, while it restored a state."""


class KeptKv:
    """The kept states of one instance's server."""

    def __init__(
        self, paths: Paths, config: Config, instance: str, full_window: Callable[[RunningServer], str] = lambda _: ""
    ) -> None:
        """``full_window``: what --swa-full would take more, ``1.2 GiB``."""
        self._paths, self._instance, self._full_window = paths, instance, full_window
        self._store = KvStore(paths.kept_kv, config.kept_kv.max_gib * units.GIB)
        self._enabled = config.kept_kv.enabled and not instance.startswith("~")

    def is_on(self, running: RunningServer) -> bool:
        """Whether states of this server are kept. Blocks."""
        return self._enabled and not running.cold and not self.why_off(running)

    def may_restore(self, running: RunningServer) -> bool:
        """Whether states of this server are kept, and there is any state at all. Blocks."""
        return self.is_on(running) and bool(self._store.states())

    def why_off(self, running: RunningServer) -> str:
        """Why this launch cannot keep its states, in a few words; empty: it can."""
        return refusal(running.launch, self._paths.kept_kv, _environment(running))

    def window_refusal(self, running: RunningServer) -> str:
        """Why nothing is kept of a model with a sliding window; empty: it has none, or its whole cache. Blocks."""
        if not read_cache_shape(self._log).windowed:
            return ""
        price = self._full_window(running)
        return f"with a sliding window nothing restored is reused without --swa-full{price and f' ({price} more)'}"

    async def save(self, running: RunningServer) -> str:
        """Saves the conversations of a server that is about to stop: those in idle slots, then those that the gateway
        can have read back out of the prompt cache in RAM. Returns what was saved, or why nothing was."""
        if can_sleep(running.launch.argv):
            return ""  # asking would wake a sleeping server, whose cache is gone
        try:
            async with asyncio.timeout(ALL_SECONDS), self._connected(running) as client:
                slots, told = await _long_slots(client), await self._ask_gateway(f"conversations/{running.launch_id}")
                if not slots and not told:
                    return ""
                if why := await asyncio.to_thread(self.window_refusal, running):
                    return f"not kept: {why}"
                async with self._locked():
                    return await self._save(await self._saver(running, client), slots, told)
        except (GpuboxError, OSError, ValueError) as error:
            return f"not kept: {_sentence(error)}"

    async def save_one(self, running: RunningServer, index: int, conversation: str) -> KeptState:
        """Saves an idle slot of a server that goes on. Raises GpuboxError, OSError, ValueError."""
        async with self._connected(running) as client, self._locked():
            saver = await self._saver(running, client)
            slots = [slot for slot in await _long_slots(client) if slot.index == index]
            if not slots:
                raise ValueError("the slot answers, or holds too little")
            return await saver.save(slots[0], conversation, is_last=False)

    async def restore_one(self, running: RunningServer, index: int, state: KeptState) -> bool:
        """Whether a server that goes on took a state into an idle slot. Raises as ``save_one``."""
        async with self._connected(running) as client, self._locked():
            return await self._restore_slot(client, index, state)

    def find(self, running: RunningServer, conversation: str, context: int) -> KeptState | None:
        """The state of a conversation that a server can take, each of whose slots holds ``context``. Blocks.

        Raises OSError, GpuboxError.
        """
        states = [state for state in self._store.states() if state.conversation == conversation]
        key = self._key(running, context) if states else None
        return next((each for each in states if key and not incompatible(each.key, key, each.tokens, context)), None)

    def note_use(self, name: str, *, reused: bool) -> None:
        """A request that wanted a restored state has reused it, or not: then it is dropped. Blocks."""
        with self._store.locked() as is_locked:
            if is_locked and reused:
                self._store.change(name, unused=0, used_at=utc_now())
            elif is_locked:
                self._store.drop(name)

    async def restore(self, running: RunningServer) -> tuple[str, tuple[RestoredSlot, ...]]:
        """Restores the newest states that fit into the free slots of a server that has just become ready.

        Returns what was restored, or why nothing was. Raises KvRestoreKilled if the server did not survive it.
        """
        restored: list[RestoredSlot] = []
        async with self._connected(running) as client:
            try:
                async with asyncio.timeout(ALL_SECONDS), self._locked():
                    note = await self._restore(running, client, restored)
            except (GpuboxError, OSError, ValueError) as error:
                note = f"not put back: {_sentence(error)}"
                if not is_alive(running.process) or await client.slots() is None:
                    raise KvRestoreKilled(f"{running.launch.profile}: {note}.") from None
        return (_summary([each.tokens for each in restored]) if restored else note), tuple(restored)

    def _connected(self, running: RunningServer) -> AbstractAsyncContextManager[LlamaClient]:
        return connect(running.launch.base_url, api_key(self._paths), timeout=ANSWER_SECONDS)

    @property
    def _log(self) -> Path:
        return self._paths.instance_log(self._instance)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        with ExitStack() as stack:
            if not await asyncio.to_thread(stack.enter_context, self._store.locked()):
                raise ValueError("another gpubox uses the store")
            yield

    async def _ask_gateway(self, path: str) -> dict[str, int]:
        """The numbers that a running gateway answers with; empty if there is none, or it fails."""
        with contextlib.suppress(GpuboxError):
            if record := load_gateway(self._paths):
                async with connect(record.base_url, record.token, timeout=_ROLL_BACK_SECONDS) as client:
                    answer = await client.fetch_object(f"/gpubox/{path}")
                    return {key: count for key, value in answer.items() if (count := json_count(value)) is not None}
        return {}

    async def _saver(self, running: RunningServer, client: LlamaClient) -> _Saver:
        shape = await asyncio.to_thread(read_cache_shape, self._log)
        header = await _reply_header(client) if shape.exact else []
        prompts = await asyncio.to_thread(read_prompt_sizes, self._log) if shape.exact else {}
        context = min((slot.context_size_tokens or 0 for slot in await client.slots() or ()), default=0)
        key = await asyncio.to_thread(self._key, running, context)
        await asyncio.to_thread(self._store.sweep)
        return _Saver(client, self._store, running, key, shape, header, prompts)

    async def _save(self, saver: _Saver, slots: Sequence[Slot], told: Mapping[str, int]) -> str:
        """``told``: conversation -> the last task of its slot + 1 (0: unknown), the last used one last.

        The server finds by their tokens those that may be in any slot, and those in its prompt cache in RAM.
        """
        saved, left, problem = list[KeptState](), dict(told), ""

        async def save(slot: Slot, conversation: str) -> None:
            nonlocal problem
            try:
                saved.append(await saver.save(slot, conversation))
            except (GpuboxError, OSError, ValueError) as error:
                problem = _sentence(error)
                if await saver.client.slots() is None:
                    raise

        with contextlib.suppress(GpuboxError, OSError, ValueError):
            for slot in slots:
                conversation = next((key for key, task in left.items() if task and task - 1 == slot.task), "")
                left.pop(conversation, None)
                if conversation or all(told.values()):  # else it may be one of those
                    await save(slot, conversation)
            for conversation, task in sorted(reversed(left.items()), key=lambda each: each[1] > 0):
                for slot in (await saver.client.slots() or ()) if task else ():  # saved: it shall not go to one of them
                    await saver.client.erase_slot(slot.index, timeout=ANSWER_SECONDS)
                tokens = (await self._ask_gateway(f"recall/{conversation}")).get("tokens", 0)
                for slot in (await _long_slots(saver.client))[-1:]:
                    if abs((slot.context_used_tokens or 0) - tokens) <= 1:
                        await save(slot, conversation)
        if saved:  # to the disk while the server stops and the next one loads; gpubox ends after it
            threading.Thread(target=self._sync, args=(saved,), name="kept KV").start()
        if not saved:
            return f"not kept: {problem}" if problem else ""
        size_text = units.file_size(sum(state.size_bytes for state in saved))
        return f"{_summary([state.tokens for state in saved])}, {size_text}"

    def _key(self, running: RunningServer, context: int) -> KvKey:
        """The key of a server. Raises OSError, and GpuboxError if its model is no GGUF."""
        model = read_model(Path(running.launch.model_path or ""), self._paths)
        # of such a model (LongRoPE) the angles of all positions change with the context (build 11434)
        sized = any(tensor.name.startswith("rope_factors_") for tensor in model.tensors)
        return launch_key(running.launch, _environment(running), str(context) if sized and context else "")

    def _sync(self, states: Sequence[KeptState]) -> None:
        for state in states:
            self._store.sync(state.name)

    async def _restore(self, running: RunningServer, client: LlamaClient, restored: list[RestoredSlot]) -> str:
        free = [
            slot for slot in await client.slots() or ()
            if not slot.busy and (slot.context_used_tokens or 0) < MIN_TOKENS
        ]  # fmt: skip
        context = min((slot.context_size_tokens or 0 for slot in free), default=0)
        key = await asyncio.to_thread(self._key, running, context)
        room = int(_CONTEXT_SHARE * context) if key.streams == 1 and len(free) > 1 else 0
        reason = ""
        for state in await asyncio.to_thread(self._store.states):
            if why := incompatible(state.key, key, state.tokens, context):
                if state.profile == running.launch.profile:
                    reason = reason or f"not put back: {why}"
                continue
            if state.conversation and (state.shared or state.profile != running.launch.profile):
                continue  # the gateway restores it when it is asked for
            if room and restored and sum(each.tokens for each in restored) + state.tokens > room:
                continue
            if not free:
                break
            if not restored:
                # The probe's token takes the first cell. One cell further on, sums round differently, and an answer
                # at temperature 0 may differ from the one that the same conversation got without a restart.
                for slot in [each for each in free if each.context_used_tokens]:
                    await client.erase_slot(slot.index, timeout=ANSWER_SECONDS)
            if await self._restore_slot(client, free[0].index, state):
                restored.append(RestoredSlot(free.pop(0).index, state.tokens, state.name, state.conversation))
            else:
                reason = reason or "not put back: the server refused the file"
        return reason

    async def _restore_slot(self, client: LlamaClient, index: int, state: KeptState) -> bool:
        """Whether the server took the state. Raises GpuboxError if it did not answer.

        The state stays marked meanwhile: should the server die of it, nobody tries it again.
        """
        await asyncio.to_thread(self._store.change, state.name, trying=True)
        try:
            answer = await client.restore_slot(index, state.file, timeout=_seconds_for(state.size_bytes))
        except GpuboxError:
            if await client.slots() is None:
                raise
            answer = None
        if answer is None or answer.tokens != state.tokens:  # refused, although all that gpubox knows fits
            await asyncio.to_thread(self._store.drop, state.name)
            return False
        await asyncio.to_thread(
            self._store.change, state.name, trying=False, used_at=utc_now(), unused=state.unused + 1
        )
        return True


@dataclass(frozen=True, slots=True)
class _Saver:
    """Saves slots of one server. The store is locked meanwhile."""

    client: LlamaClient
    store: KvStore
    running: RunningServer
    key: KvKey
    shape: CacheShape
    header: Sequence[int]
    """The tokens before a reply; empty: unknown, or nothing is rolled back."""
    prompts: Mapping[tuple[int, int | None], int]
    """The tokens of the last prompts by slot and task."""

    async def save(self, slot: Slot, conversation: str, *, is_last: bool = True) -> KeptState:
        """Saves a slot; one of a hybrid model a second time, rolled back to where its last reply begins.

        Without a chat that is the end of its last prompt, whose last token may become one with what follows.
        ``is_last``: nobody else asks the server any more; else the slot is not named: one that is busy by now would be
        spoilt (build 11434). Raises GpuboxError, OSError, ValueError.
        """
        measured = [
            state.size_bytes / state.tokens for state in self.store.states() if state.tokens and state.key == self.key
        ]
        per_token = max([self.shape.bytes_per_token, *measured]) or _UNKNOWN_BYTES_PER_TOKEN
        size = int((slot.context_used_tokens or 0) * per_token) + self.shape.fixed_bytes
        if not await asyncio.to_thread(self.store.make_room, size):
            raise ValueError("not enough free disk space, or max-gib is too small")
        launch = self.running.launch
        state = KeptState(
            name=self.store.new_name(), key=self.key, tokens=0, size_bytes=size, saved_at=utc_now(),
            profile=launch.profile, model_path=launch.model_path or "", boot=boot_id(), exact=self.shape.exact,
            conversation=conversation,
        )  # fmt: skip
        state, tokens = await self._write(slot.index, state)
        cut, prompt = _reply_start(tokens, self.header), self.prompts.get((slot.index, slot.task), 0)
        if not cut and MIN_TOKENS < prompt <= len(tokens):
            cut = prompt - 1
        if cut and not state.shared:
            shorter = replace(state, name=self.store.new_name(), saved_at=utc_now())
            with contextlib.suppress(GpuboxError, OSError, ValueError):  # the whole slot stays kept
                index = slot.index if is_last else -1
                await self.client.read_prompt(tokens[:cut], index=index, timeout=_ROLL_BACK_SECONDS)
                shorter, tokens = await self._write(slot.index, shorter)
                await asyncio.to_thread(self.store.drop, state.name)
                state = shorter
        await asyncio.to_thread(self.store.drop_replaced, state, tokens)
        return state

    async def _write(self, index: int, state: KeptState) -> tuple[KeptState, list[int]]:
        name = await asyncio.to_thread(self.store.prepare_file, state.name)
        try:
            answer = await self.client.save_slot(index, name, timeout=_seconds_for(state.size_bytes))
            if not answer.tokens:  # an answer was cancelled in its prompt: the slot is long, and its cache is empty
                raise ValueError("the slot holds no tokens")
        except BaseException:
            await asyncio.to_thread(self.store.drop, state.name)
            raise
        state = replace(state, tokens=answer.tokens, size_bytes=answer.size_bytes)
        return state, await asyncio.to_thread(self.store.add, state)


async def _long_slots(client: LlamaClient) -> list[Slot]:
    """The idle slots that hold enough to be kept, the last used one last."""
    slots = [slot for slot in await client.slots() or () if not slot.busy]
    return sorted((s for s in slots if (s.context_used_tokens or 0) >= MIN_TOKENS), key=lambda slot: slot.task or 0)


def read_cache_shape(log: Path) -> CacheShape:
    """What the caches of a server are, from the log of its load."""
    reader, per_token, fixed, exact, cells, window = LogReader(log), 0.0, 0, False, 0, 0
    for line in reader.read(HEAD_BYTES):
        event = parse_event(line)[1]
        if isinstance(event, KvCache) and event.cells and event.streams:
            per_token += event.size_bytes / (event.cells * event.streams)
            cells = max(cells, event.cells)
        elif isinstance(event, DeviceBuffer) and event.kind == "recurrent":
            fixed, exact = fixed + event.size_bytes, True
        elif isinstance(event, SwaCache):
            window = event.cells
    return CacheShape(per_token, fixed, exact, windowed=0 < window < cells)


def read_prompt_sizes(log: Path) -> dict[tuple[int, int | None], int]:
    """The tokens of the last prompts in a server's log, by slot and task."""
    reader = LogReader(log)
    reader.skip(_RECENT_BYTES)
    events = (parse_event(line)[1] for line in reader.read(_RECENT_BYTES) if "new prompt" in line)
    return {(event.slot, event.task): event.tokens for event in events if isinstance(event, NewPrompt)}


async def _reply_header(client: LlamaClient) -> list[int]:
    """The tokens that stand between a user's text and any reply to it; empty if the chat template shows none.

    Without the last one: what follows may become one token with it.
    """
    question, reply = {"role": "user", "content": "gpubox"}, {"role": "assistant", "content": "gpubox"}
    try:
        asked = (await client.apply_template([question], {})).rpartition("gpubox")[2]
        answered = (await client.apply_template([question, reply, question], {})).split("gpubox")[-3]
        shared = asked[: shared_length(asked, answered)]
        return (await client.tokenize(shared))[:-1] if shared.strip() else []
    except (GpuboxError, IndexError):
        return []


def _reply_start(tokens: Sequence[int], header: Sequence[int]) -> int:
    """Where the last reply in ``tokens`` begins, after ``header``; 0 if it shows none."""
    size = len(header)
    if size < 2:
        return 0
    starts = (at for at in range(len(tokens) - size, -1, -1) if list(tokens[at : at + size]) == list(header))
    at = next(starts, -1)
    return at + size if at >= 0 and at + size >= MIN_TOKENS else 0


def _environment(running: RunningServer) -> Callable[[str], str | None]:
    return (environment_of(running.process.pid) if running.process else {}).get


def _seconds_for(size_bytes: int) -> float:
    """How long a server may take to write or read a file."""
    return 5.0 + size_bytes / _SLOWEST_BYTES_PER_SECOND


def _summary(tokens: Sequence[int]) -> str:
    """``3 slots, 4,212 tokens``."""
    return f"{len(tokens)} slot{'' if len(tokens) == 1 else 's'}, {sum(tokens):,} tokens"


def _sentence(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, GpuboxError):
        return error.message.rstrip(".")
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
