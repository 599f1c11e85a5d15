"""Reads a system prompt that several agents share once. Each agent's first request then finds it in a slot.

llama-server keeps prompts by slot, so agents that start together each read the same system prompt. Here the first one
has it read alone (POST /completion, n_predict 0), which leaves its slot at its end. If others wait by then, the slot is
kept as a state of its own, which conversations.py restores into a slot before each of their first requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from gpubox.clock import utc_now
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import MIN_BYTES, MIN_TOKENS, PromptHead, SlotView, read_slots, shared_tokens
from gpubox.gateway.upstream import ask_server
from gpubox.server.kept_kv import KeptKv
from gpubox.server.kv_store import SHARED
from gpubox.server.state import RunningServer

OWN_NAME = "gpubox"
"""The client of the gateway's own requests in the ledger."""
READ_SECONDS = 180.0
"""A prefix that is not read within so long is left to the requests themselves."""
PATIENCE_SECONDS = 2.0
"""A server that reads a prompt answers between its batches; a request waits no longer for a look at the slots."""
MAX_PREFIXES = 8
"""For each launch; the least recently used one goes."""


class NotShared(Exception):
    """The request goes on as it is. The text is a sentence for the owner, or empty."""


@dataclass(slots=True)
class Prefix:
    """One system prompt in one launch."""

    key: str
    """Of its state in the store, too."""
    tokens: int = 0
    """0: not read yet."""
    reads: int = 0
    is_kept: bool = False
    """Whether it has a state."""
    reading: asyncio.Task[None] | None = None
    waiting: int = 0
    """Requests that wait for ``reading``."""
    open: set[int] = field(default_factory=set)
    """The requests that begin with it, and are not over."""
    helped: int = 0
    off: bool = False


@dataclass(slots=True)
class LaunchSlots:
    """One run of one server."""

    id: str
    profile: str
    base_url: str
    api_key: str | None
    kv: KeptKv
    running: RunningServer | None
    """Its record; None only if it is ``off``."""
    off: str = ""
    """Why its slots are left alone."""
    has_one_slot: bool = False
    sent: int = 0
    """How many requests it was sent."""
    has_ram_cache: bool = True
    prefixes: OrderedDict[str, Prefix] = field(default_factory=OrderedDict)
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while states are moved."""
    filled: dict[int, int] = field(default_factory=dict)
    """Slot -> its last task when a state was restored into it: /slots does not show that before its next task."""

    async def slots(self) -> dict[int, SlotView]:
        """Its slots now, by id. Raises as ``post``, and NotShared without them."""
        status, body = await ask_server(self.base_url, self.api_key, "GET", "/slots", seconds=PATIENCE_SECONDS)
        if status != 200:
            self.off = f"the server answers /slots with HTTP {status}"
            raise NotShared(f"KV caches are not kept: {self.off}")
        return {slot.id: slot for slot in read_slots(body)}

    async def post(self, path: str, values: object) -> dict[str, object]:
        """Raises UpstreamFailed, TimeoutError, and ValueError if the server refuses."""
        body = values if isinstance(values, bytes) else msgspec.json.encode(values)
        status, answer = await ask_server(self.base_url, self.api_key, "POST", path, body, seconds=READ_SECONDS)
        if status != 200:
            raise ValueError(f"the server refuses {path} (HTTP {status})")
        return msgspec.json.decode(answer, type=dict[str, object])


class _Timings(msgspec.Struct):
    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0


class _Read(msgspec.Struct):
    """An answer of llama-server (build 11434); only that of /completion names the slot."""

    id_slot: int = -1
    timings: _Timings = msgspec.field(default_factory=_Timings)


class SharedPrefixes:
    """The shared prefixes of all servers, and the gateway's own requests for prompts."""

    def __init__(self, record: Callable[[FinishedRequest], None], note: Callable[[LaunchSlots, str], None]) -> None:
        """``record`` gets the gateway's own requests, ``note`` sentences for the owner."""
        self._record, self._note = record, note

    async def before(self, request: int, launch: LaunchSlots, head: PromptHead) -> Prefix | None:
        """The prefix whose state shall be in a slot before a request with this head is sent; None: it needs none.

        Raises as LaunchSlots.post, and NotShared.
        """
        if launch.has_one_slot or head.size < MIN_BYTES:
            return None
        prefix = launch.prefixes.setdefault(SHARED + head.key, Prefix(SHARED + head.key))
        launch.prefixes.move_to_end(prefix.key)
        if len(launch.prefixes) > MAX_PREFIXES:
            launch.prefixes.popitem(last=False)
        others = bool(prefix.open - {request})
        prefix.open.add(request)
        if not head.is_first or prefix.off:
            return None
        if not prefix.is_kept and (prefix.reading or not prefix.tokens or others):
            await self._read_once(launch, prefix, head)
        return prefix if prefix.is_kept else None

    def judge(self, launch: LaunchSlots, prefix: Prefix, cached_tokens: int) -> None:
        """A request that should find the prefix has reused so many tokens."""
        if cached_tokens >= prefix.tokens:
            prefix.helped += 1
        else:
            prefix.is_kept, prefix.off = False, True
            self._note(launch, f"a system prompt of {prefix.tokens:,} tokens was shared, and did not help")

    def sentences(self, launches: Iterable[LaunchSlots]) -> tuple[str, ...]:
        """What was shared."""
        return tuple(
            f"{launch.profile}: a system prompt of {prefix.tokens:,} tokens was read "
            f"{'once' if prefix.reads == 1 else f'{prefix.reads} times'} for {prefix.helped} requests."
            for launch in launches
            for prefix in reversed(launch.prefixes.values())
            if prefix.helped > 1 and not prefix.off
        )

    async def read(self, launch: LaunchSlots, path: str, body: bytes) -> tuple[int, int]:
        """Has the server read a prompt. Returns its tokens and, of /completion, the slot. Raises as ``post``."""
        began = time.monotonic()
        answer = msgspec.convert(await launch.post(path, body), _Read)
        timings = answer.timings
        self._record(
            FinishedRequest(
                utc_now(), OWN_NAME, launch.profile, path, 200, "done", seconds=round(time.monotonic() - began, 6),
                prompt_tokens=timings.cache_n + timings.prompt_n, cached_tokens=timings.cache_n,
                generated_tokens=timings.predicted_n,
            )
        )  # fmt: skip
        return timings.cache_n + timings.prompt_n, answer.id_slot

    async def _read_once(self, launch: LaunchSlots, prefix: Prefix, head: PromptHead) -> None:
        """Waits until the prefix is read, by this request or by the one that came first."""
        task = prefix.reading
        if task is None:
            task = prefix.reading = asyncio.get_running_loop().create_task(self._read(launch, prefix, head))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its waiters may have left
        prefix.waiting += 1
        try:
            async with asyncio.timeout(READ_SECONDS):
                await asyncio.shield(task)
        finally:
            prefix.waiting -= 1
            if not prefix.waiting and not task.done():
                task.cancel()

    async def _read(self, launch: LaunchSlots, prefix: Prefix, head: PromptHead) -> None:
        try:
            tokens, slots = await asyncio.gather(self._tokens(launch, head), launch.slots())
            launch.has_one_slot = len(slots) < 2
            prefix.off = len(tokens) < MIN_TOKENS
            if launch.has_one_slot or prefix.off or all(slot.busy for slot in slots.values()):
                raise NotShared("")
            values = {"prompt": tokens, "n_predict": 0, "cache_prompt": True}
            prefix.tokens, slot = await self.read(launch, "/completion", msgspec.json.encode(values))
            prefix.reads += 1
            if prefix.waiting > 1 or len(prefix.open) > prefix.waiting:
                assert launch.running is not None
                state = await launch.kv.save_one(launch.running, slot, prefix.key)
                if state.tokens != prefix.tokens:  # another request was quicker
                    await asyncio.to_thread(launch.kv.note_use, state.name, reused=False)
                    raise NotShared("")
                prefix.is_kept = True
        finally:
            prefix.reading = None

    async def _tokens(self, launch: LaunchSlots, head: PromptHead) -> list[int]:
        """The tokens with which the prompts of all requests with this head begin."""

        async def tokens_of(probe: bytes) -> list[int]:
            prompt = (await launch.post("/apply-template", probe)).get("prompt")
            values = {"content": prompt, "add_special": True, "parse_special": True}
            return msgspec.convert((await launch.post("/tokenize", values)).get("tokens"), list[int])

        first, second = await asyncio.gather(*map(tokens_of, head.probes()))
        return shared_tokens(first, second)
