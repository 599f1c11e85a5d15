"""Reads a system prompt that several agents share once, and puts it into the slot of each agent's first request.

llama-server keeps prompts by slot, so agents that start together each read the same system prompt. Here the first one
has it read alone (POST /completion, n_predict 0), which leaves its slot at its end. If others wait by then, the slot
is saved, and restored into an empty slot before each of their first requests. llama-server finds it there by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpubox.clock import utc_now
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import (
    MIN_TOKENS,
    PromptHead,
    SlotHistory,
    SlotView,
    choose_slot,
    newest_task,
    read_prompt_head,
    read_slots,
    shared_tokens,
)
from gpubox.gateway.servers import GatewayServer
from gpubox.gateway.upstream import UpstreamFailed, ask_server
from gpubox.hardware.process import environment_of
from gpubox.server.kv_key import copies_idle_slots, flag_refusal, slot_folder
from gpubox.server.kv_store import has_room, make_file, unlink

PATHS = ("/v1/chat/completions", "/chat/completions", "/v1/messages")
OWN_NAME = "gpubox"
"""The client of the gateway's own requests in the ledger."""
READ_SECONDS = 180.0
"""A prefix that is not read within so long is left to the requests themselves."""
PATIENCE_SECONDS = 0.25
"""A restore may take so long, or half the time in which the prefix was read: a busy server answers between batches."""
LAUNCH_SECONDS = 10.0
"""After so long the next request is let go, even if the one before it was not seen in a slot."""
POLL_SECONDS, POLL_SECONDS_MAX = 0.002, 0.05
MAX_PREFIXES = 8
"""For each launch; the least recently used one goes."""
MAX_FAILURES = 2
_FILE_PREFIX = ".prefix-"
"""Hidden: the store of kept KV removes other files in its folder that it does not know."""


class NotShared(Exception):
    """The request goes on as it is. The text is a sentence for the owner, or empty."""


@dataclass(slots=True)
class _Prefix:
    """One prefix in one launch."""

    key: str
    tokens: int = 0
    """0: not read yet."""
    reads: int = 0
    read_seconds: float = 0.0
    file: Path | None = None
    file_bytes: int = 0
    reading: asyncio.Task[None] | None = None
    waiting: int = 0
    """Requests that wait for ``reading``."""
    open: set[int] = field(default_factory=set)
    """The requests that begin with it, and are not over."""
    alone_in: tuple[int, int] | None = None
    """A slot that holds nothing but the prefix as long as the newest task is still the second number."""
    slots: set[int] = field(default_factory=set)
    """The slots that first requests with it went to."""
    helped: int = 0
    failures: int = 0
    off: str = ""


@dataclass(slots=True)
class _Launch:
    """One run of one server."""

    id: str
    profile: str
    base_url: str
    api_key: str | None
    folder: Path | None
    restored: tuple[int, ...]
    off: str = ""
    prefixes: OrderedDict[str, _Prefix] = field(default_factory=OrderedDict)
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the look at the slots until the request that it was for is in one."""
    history: SlotHistory = field(default_factory=SlotHistory)
    bytes_per_token: int = 1 << 18
    """Of its files. Before the first one: more than common models take."""
    overwrites: bool = True
    """Whether idle slots are copied to the server's prompt cache."""


class _ReadTimings(msgspec.Struct):
    prompt_n: int
    cache_n: int = 0
    predicted_n: int = 0


class _Read(msgspec.Struct):
    """The answer to /completion (build 11434)."""

    id_slot: int
    timings: _ReadTimings


@dataclass(slots=True)
class _Placed:
    """A request that was sent to find a prefix in its slot."""

    launch: _Launch
    prefix: _Prefix
    watching: asyncio.Task[None]


class SharedPrefixes:
    """The shared prefixes of all servers. ``before`` each request, ``after`` it, and ``tidy`` once a second."""

    def __init__(self, record: Callable[[FinishedRequest], None], folder: Path, max_bytes: int) -> None:
        """``record`` gets the gateway's own requests, so that the ledger has every token that a server has read.

        ``folder``: where servers save their slots, unless a profile says something else. All files together take at
        most ``max_bytes``.
        """
        self._record, self._max_bytes = record, max_bytes
        self._launches: dict[str, _Launch] = {}
        self._open: dict[int, _Prefix] = {}
        self._placed: dict[int, _Placed] = {}
        self._notes: deque[str] = deque(maxlen=10)
        self._useless: list[Path] = _leftovers(folder, ())

    async def before(self, request: int, server: GatewayServer, api_key: str | None, path: str, body: bytes) -> None:
        """Returns when the request may be sent. Never raises, except if it is cancelled."""
        is_anthropic = path == "/v1/messages"
        if path not in PATHS or (head := read_prompt_head(body, is_anthropic=is_anthropic)) is None:
            return
        launch = self._launch(server, api_key)
        if launch.off:
            return
        prefix = self._prefix(launch, head.key)
        others = bool(prefix.open - {request})
        prefix.open.add(request)
        self._open[request] = prefix
        if not head.is_first or prefix.off:
            return
        try:
            if prefix.file is None and (prefix.reading or not prefix.tokens or others):
                await self._read_once(launch, prefix, head)
            await self._place(request, launch, prefix)
        except NotShared as reason:
            self._note(launch, str(reason))
        except TimeoutError:
            self._note(launch, "the server took too long to share a system prompt")
        except (UpstreamFailed, OSError, ValueError) as error:
            self._note(launch, f"a system prompt is not shared: {error}")

    def after(self, request: int, *, answered: bool, cached_tokens: int | None) -> None:
        """The request is over. ``answered``: with status 200. ``cached_tokens`` of its prompt, as the server said."""
        if prefix := self._open.pop(request, None):
            prefix.open.discard(request)
        placed = self._placed.pop(request, None)
        if placed is None:
            return
        placed.watching.cancel()
        if not answered or cached_tokens is None:
            return
        prefix = placed.prefix
        if cached_tokens >= prefix.tokens:
            prefix.helped, prefix.failures = prefix.helped + 1, 0
            return
        self._failed(placed.launch, prefix, f"a system prompt of {prefix.tokens:,} tokens was shared, and did not help")

    def _failed(self, launch: _Launch, prefix: _Prefix, why: str) -> None:
        prefix.failures += 1
        if prefix.failures >= MAX_FAILURES and not prefix.off:
            prefix.off = why
            self._note(launch, why)
            self._erase(prefix)

    async def tidy(self, running: Iterable[GatewayServer]) -> None:
        """Forgets the launches that have ended, and removes files that nobody needs."""
        alive = {server.launch_id for server in running}
        for launch in [launch for launch in self._launches.values() if launch.id not in alive]:
            del self._launches[launch.id]
            for prefix in launch.prefixes.values():
                self._drop(prefix)
        if self._useless:
            files, self._useless = self._useless, []
            await asyncio.gather(*(asyncio.to_thread(unlink, file) for file in files))

    async def close(self) -> None:
        """Ends everything that is under way and removes the files."""
        tasks = [placed.watching for placed in self._placed.values()]
        tasks += [p.reading for launch in self._launches.values() for p in launch.prefixes.values() if p.reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.tidy(())

    def sentences(self) -> tuple[str, ...]:
        """What was shared, and why something was not."""
        shared = [
            f"{launch.profile}: a system prompt of {prefix.tokens:,} tokens was read "
            f"{'once' if prefix.reads == 1 else f'{prefix.reads} times'} for {prefix.helped} requests."
            for launch in self._launches.values()
            for prefix in reversed(launch.prefixes.values())
            if prefix.helped > 1 and not prefix.off
        ]
        return (*shared, *self._notes)

    # -- what is known -------------------------------------------------------

    def _launch(self, server: GatewayServer, api_key: str | None) -> _Launch:
        if known := self._launches.get(server.launch_id):
            return known
        folder = slot_folder(server.argv)
        launch = _Launch(server.launch_id, server.profile, server.base_url, api_key, folder, server.restored)
        self._launches[launch.id] = launch
        environment = environment_of(server.pid)
        if folder is None:
            self._switch_off(launch, "the server was started without --slot-save-path")
        elif why := flag_refusal(server.argv, environment.get):
            self._switch_off(launch, why)
        else:
            launch.overwrites = copies_idle_slots(server.argv, environment.get)
            self._useless += _leftovers(folder, {_file_name(known) for known in self._launches.values()})
        return launch

    def _prefix(self, launch: _Launch, key: str) -> _Prefix:
        prefix = launch.prefixes.setdefault(key, _Prefix(key))
        launch.prefixes.move_to_end(key)
        for other in list(launch.prefixes.values())[: max(0, len(launch.prefixes) - MAX_PREFIXES)]:
            if not other.open:
                self._drop(launch.prefixes.pop(other.key))
        return prefix

    def _drop(self, prefix: _Prefix) -> None:
        if prefix.reading:
            prefix.reading.cancel()
        self._erase(prefix)

    def _erase(self, prefix: _Prefix) -> None:
        if prefix.file:
            self._useless.append(prefix.file)
            prefix.file, prefix.file_bytes = None, 0

    def _switch_off(self, launch: _Launch, why: str) -> None:
        launch.off = why
        self._note(launch, f"system prompts are not shared: {why}")

    def _note(self, launch: _Launch, text: str) -> None:
        sentence = f"{launch.profile}: {text.rstrip('.')}."
        if text and sentence not in self._notes:
            self._notes.appendleft(sentence)

    # -- reading -------------------------------------------------------------

    async def _read_once(self, launch: _Launch, prefix: _Prefix, head: PromptHead) -> None:
        """Waits until the prefix is read, by this request or by the one that came first."""
        task = prefix.reading
        if task is None:
            task = prefix.reading = asyncio.get_running_loop().create_task(self._read(launch, prefix, head))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its waiters may have left
        prefix.waiting += 1
        try:
            async with asyncio.timeout(READ_SECONDS):
                await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotShared("") from None  # dropped; not this request was cancelled
            raise
        finally:
            prefix.waiting -= 1
            if not prefix.waiting and not task.done():
                task.cancel()

    async def _read(self, launch: _Launch, prefix: _Prefix, head: PromptHead) -> None:
        try:
            tokens, slots = await asyncio.gather(self._tokens(launch, head), self._slots(launch, READ_SECONDS))
            if len(tokens) < MIN_TOKENS:
                prefix.off = "too short"
                raise NotShared("")
            if len(slots) < 2:
                self._switch_off(launch, "the server has one slot")
                raise NotShared("")
            if all(slot.busy for slot in slots):
                raise NotShared("")
            slot = await self._read_tokens(launch, prefix, tokens)
            slots = await self._slots(launch, READ_SECONDS)
            if not any(view.id == slot and view.tokens is not None for view in slots):
                self._switch_off(launch, "the engine does not show what its slots hold")
                raise NotShared("")
            prefix.alone_in = (slot, newest_task(slots))
            if prefix.waiting > 1 or len(prefix.open) > prefix.waiting:
                await self._save(launch, prefix, slot)
        except (UpstreamFailed, TimeoutError, OSError, ValueError) as error:
            self._failed(launch, prefix, f"a system prompt could not be read: {error}")
            raise
        finally:
            prefix.reading = None

    async def _read_tokens(self, launch: _Launch, prefix: _Prefix, tokens: list[int]) -> int:
        """Has the server read the prefix. Returns the slot that holds it."""
        began = time.monotonic()
        values = {"prompt": tokens, "n_predict": 0, "cache_prompt": True}
        answer = msgspec.convert(await self._post(launch, "/completion", values), _Read)
        seconds = time.monotonic() - began
        prefix.tokens, prefix.read_seconds = len(tokens), max(prefix.read_seconds, seconds)
        prefix.reads += 1
        timings = answer.timings
        self._record(
            FinishedRequest(
                utc_now(), OWN_NAME, launch.profile, "/completion", 200, "done", seconds=round(seconds, 6),
                prompt_tokens=timings.cache_n + timings.prompt_n, cached_tokens=timings.cache_n,
                generated_tokens=timings.predicted_n,
            )
        )  # fmt: skip
        return answer.id_slot

    async def _tokens(self, launch: _Launch, head: PromptHead) -> list[int]:
        """The tokens with which the prompts of all requests with this head begin."""

        async def tokens_of(probe: bytes) -> list[int]:
            prompt = (await self._post(launch, "/apply-template", probe)).get("prompt")
            values = {"content": prompt, "add_special": True, "parse_special": True}
            return msgspec.convert((await self._post(launch, "/tokenize", values)).get("tokens"), list[int])

        first, second = await asyncio.gather(*map(tokens_of, head.probes()))
        return shared_tokens(first, second)

    async def _save(self, launch: _Launch, prefix: _Prefix, slot: int) -> None:
        assert launch.folder is not None
        if not await asyncio.to_thread(has_room, launch.folder, prefix.tokens * launch.bytes_per_token):
            raise NotShared("a system prompt is not shared: the disk has too little room")
        # never a name of before: that file may still wait for ``tidy``, which would remove this one
        file = launch.folder / f"{_file_name(launch)}{os.urandom(8).hex()}"
        try:
            await asyncio.to_thread(make_file, file)
            answer = await self._post(launch, f"/slots/{slot}?action=save", {"filename": file.name})
            if answer.get("n_saved") != prefix.tokens:
                raise NotShared("")  # another request was quicker
        except BaseException:
            self._useless.append(file)
            raise
        prefix.file, prefix.file_bytes = file, file.stat().st_size
        launch.bytes_per_token = max(1, prefix.file_bytes // prefix.tokens)
        kept = [known for each in self._launches.values() for known in each.prefixes.values() if known.file]
        for other in sorted(kept, key=lambda known: known is prefix):  # itself last
            if sum(known.file_bytes for known in kept) > self._max_bytes:
                self._erase(other)
        if prefix.file is None:
            prefix.off = "a system prompt is not shared: its state is larger than a quarter of max-gib"
            raise NotShared(prefix.off)

    # -- placing -------------------------------------------------------------

    async def _place(self, request: int, launch: _Launch, prefix: _Prefix) -> None:
        """Puts the prefix into an empty slot, and holds the next request back until this one is in it."""
        if prefix.off or (prefix.file is None and prefix.alone_in is None):
            return
        patience = max(PATIENCE_SECONDS, prefix.read_seconds / 2)
        async with asyncio.timeout(READ_SECONDS):
            await launch.placing.acquire()
        placed = False
        try:
            slots = await self._slots(launch, patience)
            newest = newest_task(slots)
            idle = {slot.id for slot in slots if not slot.busy}
            if prefix.alone_in is None or prefix.alone_in[0] not in idle or prefix.alone_in[1] != newest:
                spare = launch.history.copied(slots) if launch.overwrites and not idle & prefix.slots else ()
                slot = choose_slot(slots, spare, launch.restored)
                if slot is None or prefix.file is None:
                    return
                values = {"filename": prefix.file.name}
                try:
                    await self._post(launch, f"/slots/{slot.id}?action=restore", values, patience)
                except ValueError as error:
                    self._failed(launch, prefix, f"a system prompt could not be restored: {error}")
                    self._erase(prefix)  # it is read again for the next one
                    raise
            prefix.alone_in = None
            watching = asyncio.get_running_loop().create_task(self._until_launched(launch, prefix, newest))
            watching.add_done_callback(lambda task: launch.placing.release())  # also if it is cancelled at once
            self._placed[request] = _Placed(launch, prefix, watching)
            placed = True
        finally:
            if not placed:
                launch.placing.release()

    async def _until_launched(self, launch: _Launch, prefix: _Prefix, newest: int) -> None:
        """Ends when a slot has a newer task. ``placing`` is held until then."""
        pause = POLL_SECONDS
        with contextlib.suppress(TimeoutError, UpstreamFailed, OSError, ValueError, NotShared):
            async with asyncio.timeout(LAUNCH_SECONDS):
                while True:
                    await asyncio.sleep(pause)
                    slots = await self._slots(launch, LAUNCH_SECONDS)
                    if changed := {slot.id for slot in slots if slot.task > newest}:
                        for other in launch.prefixes.values():
                            other.slots -= changed
                        prefix.slots |= changed
                        return
                    pause = min(POLL_SECONDS_MAX, 1.5 * pause)

    # -- asking --------------------------------------------------------------

    async def _slots(self, launch: _Launch, seconds: float) -> tuple[SlotView, ...]:
        status, body = await ask_server(launch.base_url, launch.api_key, "GET", "/slots", seconds=seconds)
        if status in (404, 501):
            self._switch_off(launch, "the server was started with --no-slots")
            raise NotShared("")
        if status != 200:
            raise ValueError(f"the server answers /slots with HTTP {status}")
        slots = read_slots(body)
        launch.history.see(slots)
        return slots

    async def _post(
        self, launch: _Launch, path: str, values: object, seconds: float = READ_SECONDS
    ) -> dict[str, object]:
        """Raises UpstreamFailed, TimeoutError, and ValueError if the server refuses."""
        body = values if isinstance(values, bytes) else msgspec.json.encode(values)
        status, answer = await ask_server(launch.base_url, launch.api_key, "POST", path, body, seconds=seconds)
        if status != 200:
            raise ValueError(f"the server refuses {path.partition('?')[0]} (HTTP {status})")
        return msgspec.json.decode(answer, type=dict[str, object])


def _file_name(launch: _Launch) -> str:
    """What the names of all files of ``launch`` begin with."""
    return f"{_FILE_PREFIX}{os.getpid()}-{launch.id[:16]}-"


def _leftovers(folder: Path, kept: Collection[str]) -> list[Path]:
    """The files of gateways that are gone, and of launches that are not known any more."""
    files = []
    with contextlib.suppress(OSError):
        for file in folder.glob(f"{_FILE_PREFIX}*"):
            pid = file.name.removeprefix(_FILE_PREFIX).partition("-")[0]
            is_gone = pid == str(os.getpid()) or (pid.isdecimal() and not Path(f"/proc/{pid}").exists())
            if is_gone and not file.name.startswith(tuple(kept)):
                files.append(file)
    return files
