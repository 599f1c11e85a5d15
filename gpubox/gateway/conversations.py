"""Which conversation a request continues, and where its KV is: put back before the request, saved before it is lost.

llama-server chooses the slots itself, and moves what it displaces into its prompt cache in RAM. Here is only what it
does not do: a state on disk goes into a slot before its conversation's next request; what another request would
destroy is saved before that, all of it if there is no such cache, else conversations with the same long head; before a
server stops it is asked to bring back, one after the other, the conversations that no slot holds any more; and the head
of agents that start together (a long system prompt) is read once, kept as a state, and put into a slot for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import PromptHead
from gpubox.gateway.servers import GatewayServer
from gpubox.gateway.slots import READ_SECONDS, LaunchSlots, NotKept, choose_slot, is_empty, task_of
from gpubox.gateway.upstream import UpstreamFailed
from gpubox.hardware.process import environment_of
from gpubox.paths import Paths
from gpubox.planner.supervisors import full_window
from gpubox.server.kept_kv import MIN_TOKENS, KeptKv
from gpubox.server.kv_key import has_prompt_cache
from gpubox.server.kv_store import SHARED, KeptState
from gpubox.server.responses import Slot
from gpubox.server.state import LEAST_REUSED_SHARE

MOVE_SECONDS = 60.0
MIN_HEAD_TOKENS = 512
"""A shorter head is read in less time than it takes to share it."""
MIN_HEAD_BYTES = 3 * MIN_HEAD_TOKENS
"""Heads of fewer bytes are not looked at. English text has about 4.5 bytes a token."""
MAX_TALKS, MAX_BODY_BYTES = 256, 32 << 20
"""So many conversations are known, and so much of their last requests is kept in all."""
MAX_HEADS = 32
_ALIKE_SHARE = 0.2
"""What build 11434 loses: of a slot whose larger half (0.5) a request shares, the rest; of a prompt in RAM that shares
a quarter (0.25) with one that it does not know, all else. Bytes are counted here, not tokens."""


@dataclass(slots=True)
class _Talk:
    """A conversation, as it was after its last answer."""

    launch: str = ""
    path: str = ""
    body: bytes = b""
    tokens: int = 0
    """What its slot held. 0: unknown, it broke off."""
    sent: int = -1
    """How many requests its launch had been sent by then."""
    saved: int = -1
    """``tokens`` when it was last saved."""
    task: int = -1
    """The last task of the slot that it was found in."""
    finding: asyncio.Task[None] | None = None
    head: str = ""
    head_bytes: int = 0


@dataclass(slots=True)
class _Open:
    """A request that is not over."""

    launch: LaunchSlots
    head: PromptHead
    path: str
    body: bytes
    since: int = -1
    """The newest task of its server that was seen before it was sent."""
    expects: tuple[str, int] | None = None
    """The restored state that it should reuse: name and tokens."""


class Conversations:
    """The conversations of all servers. ``before`` each request, ``after`` it, and ``tidy`` once a second."""

    def __init__(self, record: Callable[[FinishedRequest], None], paths: Paths, config: Config) -> None:
        """``record``: see LaunchSlots."""
        self._record, self._paths, self._config = record, paths, config
        self._notes: deque[str] = deque(maxlen=10)
        self._uses: dict[str, tuple[int, int, int]] = {}
        """Profile -> the restored states, their tokens, and how many of those were reused."""
        self._launches: dict[str, LaunchSlots] = {}
        self._making = asyncio.Lock()
        self._talks: OrderedDict[str, _Talk] = OrderedDict()
        self._open: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def before(
        self, request: int, head: PromptHead | None, server: GatewayServer, api_key: str | None, path: str, body: bytes
    ) -> None:
        """Returns when the request may be sent. Never raises, except if it is cancelled."""
        launch = self._launches.get(server.launch_id) or await self._launch(server, api_key)
        if launch.off:
            return
        launch.sent += 1
        if head is None and launch.has_ram_cache:
            return
        with self._noted(launch):
            if not launch.has_ram_cache:
                await self._guard(launch, head.conversation if head else "", None)
            if head:
                self._open[request] = opened = _Open(launch, head, path, body)
                if not await self._prepare(opened):
                    await self._share(opened, request)
                opened.since = launch.last_task

    def after(self, request: int, line: FinishedRequest) -> None:
        cached, answered = line.cached_tokens, line.status == 200
        if (opened := self._open.pop(request, None)) is None:
            return
        opened.launch.heads.get(opened.head.key, set()).discard(request)
        talk = self._talks.setdefault(opened.head.conversation, _Talk())
        self._talks.move_to_end(opened.head.conversation)
        talk.launch, talk.sent, talk.tokens, talk.task = opened.launch.id, opened.launch.sent, 0, -1
        if answered and line.prompt_tokens and line.generated_tokens:  # the last token is not in the cache
            talk.tokens = line.prompt_tokens + line.generated_tokens - 1
            talk.path, talk.body = opened.path, opened.body
            talk.head, talk.head_bytes = opened.head.key, opened.head.size
            talk.finding = self._start(self._find_slot(opened, talk))
        while len(self._talks) > MAX_TALKS:
            self._talks.popitem(last=False)
        size = sum(len(each.body) for each in self._talks.values())
        for each in self._talks.values():
            if size > MAX_BODY_BYTES:
                size, each.body = size - len(each.body), b""
        if opened.expects and answered and cached is not None:
            self._judge(opened, *opened.expects, min(cached, opened.expects[1]), line.prompt_tokens or cached)

    async def told(self, launch_id: str) -> dict[str, int]:
        """The conversations of a launch, the last used one last, and the last task of its slot + 1 (0: unknown)."""
        await self.close()
        return {
            key: talk.task + 1 for key, talk in self._talks.items()
            if talk.launch == launch_id and talk.body and (talk.tokens >= MIN_TOKENS or not talk.tokens)
        }  # fmt: skip

    async def recall(self, key: str, held_back: int = 0) -> dict[str, int]:
        """Has the server hold a conversation's last prompt in the slot that was used last, from wherever it has it.

        Without a prompt cache in RAM only if nothing was sent after it; ``held_back``: what counts as sent, and waits.
        """
        talk = self._talks.get(key)
        launch = self._launches.get(talk.launch) if talk and talk.body else None
        if talk is None or launch is None or not (launch.has_ram_cache or talk.sent + held_back >= launch.sent):
            return {}
        with self._noted(launch):
            values = msgspec.json.decode(talk.body, type=dict[str, msgspec.Raw])
            for name in ("stream", "stream_options", "max_completion_tokens", "max_output_tokens", "n"):
                values.pop(name, None)
            one, none = msgspec.Raw(b"1"), msgspec.Raw(b"0")
            limit = "max_output_tokens" if talk.path.endswith("responses") else "max_tokens"
            body = msgspec.json.encode({**values, limit: one, "n_predict": none})
            return {"tokens": (await launch.read(talk.path, body))[0]}
        return {}

    def tidy(self, running: Iterable[GatewayServer]) -> None:
        """Forgets the launches that have ended."""
        alive = {server.launch_id for server in running}
        self._launches = {name: launch for name, launch in self._launches.items() if name in alive}

    async def close(self) -> None:
        """Waits for what is being noted."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def sentences(self) -> tuple[str, ...]:
        """What was kept and shared, and why something was not."""
        kept = (
            f"{profile}: {count} kept KV cache{'s' * (count != 1)} came back from disk; {reused:,} of the {tokens:,} "
            "tokens were reused, not read anew."
            for profile, (count, tokens, reused) in self._uses.items()
        )
        return (*kept, *self._notes)

    # -- what is known -------------------------------------------------------

    async def _launch(self, server: GatewayServer, api_key: str | None) -> LaunchSlots:
        async with self._making:
            if server.launch_id not in self._launches:
                self._launches[server.launch_id] = launch = await asyncio.to_thread(self._look, server, api_key)
                self._note(launch, launch.off and f"KV caches are not kept: {launch.off}")
            return self._launches[server.launch_id]

    def _look(self, server: GatewayServer, api_key: str | None) -> LaunchSlots:
        """Reads the log and the environment of a server."""
        assert server.record is not None
        running = server.record
        kv = KeptKv(self._paths, self._config, server.instance, partial(full_window, self._paths, self._config))
        launch = LaunchSlots(running, api_key, kv, self._record)
        launch.off = kv.window_refusal(running) if kv.is_on(running) else kv.why_off(running) or "kept-kv is off"
        variable = (environment_of(running.process.pid) if running.process else {}).get
        launch.has_ram_cache = has_prompt_cache(running.launch.argv, variable)
        launch.filled = {each.slot: -1 for each in running.restored}
        return launch

    def _note(self, launch: LaunchSlots, text: str) -> None:
        sentence = f"{launch.running.launch.profile}: {text.rstrip('.')}."
        if text and sentence not in self._notes:
            self._notes.appendleft(sentence)

    @contextlib.contextmanager
    def _noted(self, launch: LaunchSlots) -> Iterator[None]:
        """What fails in the block is a note; the request goes on as it is."""
        try:
            yield
        except NotKept as reason:
            self._note(launch, str(reason))
        except TimeoutError:
            self._note(launch, "the server took too long to move a slot's state")
        except (GpuboxError, UpstreamFailed, OSError, ValueError) as error:
            self._note(launch, f"a slot's state could not be moved: {error}")

    def _judge(self, opened: _Open, name: str, tokens: int, reused: int, prompt: int) -> None:
        """Whether the first request after a restore has reused it."""
        has_helped = reused >= LEAST_REUSED_SHARE * min(tokens, prompt)
        if has_helped:
            profile = opened.launch.running.launch.profile
            before = self._uses.get(profile, (0, 0, 0))
            self._uses[profile] = (before[0] + 1, before[1] + tokens, before[2] + reused)
        else:
            what = f"a kept KV cache of {tokens:,} tokens was put back, and its next request reused {reused:,} of them"
            self._note(opened.launch, f"{what}: it is dropped")
        self._start(asyncio.to_thread(opened.launch.kv.note_use, name, reused=has_helped))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- moving --------------------------------------------------------------

    async def _prepare(self, opened: _Open) -> bool:
        """Sees that the server finds the conversation of a request, and loses no other one for it.

        False: nobody here knows this conversation.
        """
        launch, key = opened.launch, opened.head.conversation
        talk = self._talks.get(key)
        if talk and talk.launch == launch.id:
            if talk.sent == launch.sent - 1 or await self._slot_of(launch, talk):
                return True  # it is where it was
            await self._guard(launch, key, opened.head)
            if talk.saved == talk.tokens or not launch.has_ram_cache:
                await self._restore(opened, key)
            return True
        kept = next((each for each in launch.running.restored if each.conversation == key), None)
        if kept and (launch.sent == 1 or (await launch.slots())[kept.slot].task is None):
            opened.expects = kept.name, kept.tokens
            return True
        await self._guard(launch, key, opened.head)
        return await self._restore(opened, key)

    async def _share(self, opened: _Open, request: int) -> None:
        """Puts a long head that agents share into a slot, if there is a state of it: else it is read, once for all."""
        launch, head, name = opened.launch, opened.head, SHARED + opened.head.key
        if head.size < MIN_HEAD_BYTES:
            return
        is_known = head.key in launch.heads
        others = launch.heads.setdefault(head.key, set())
        is_alone = not others
        others.add(request)
        if len(launch.heads) > MAX_HEADS:
            launch.heads.pop(next(iter(launch.heads)))
        if not head.is_first or await self._restore(opened, name) or (is_known and is_alone):
            return
        task = launch.readings.get(head.key)
        if task is None:
            task = launch.readings[head.key] = self._start(self._read_head(launch, head, others))
        async with asyncio.timeout(READ_SECONDS):
            await asyncio.shield(task)
        await self._restore(opened, name)

    async def _read_head(self, launch: LaunchSlots, head: PromptHead, others: set[int]) -> None:
        """Reads a head, which leaves its slot at its end; if others wait for it by then, that becomes a state."""
        tokens, slots = await asyncio.gather(launch.tokens_of(head), launch.slots())
        if len(slots) < 2 or len(tokens) < MIN_HEAD_TOKENS:
            return  # for nothing, also for the next ones
        if any(not slot.busy for slot in slots.values()):
            size, slot = await launch.read("/completion", {"prompt": tokens, "n_predict": 0, "cache_prompt": True})
            if len(others) > 1:
                state = await launch.kv.save_one(launch.running, slot, SHARED + head.key)
                if state.tokens != size:  # another request was quicker
                    await asyncio.to_thread(launch.kv.note_use, state.name, reused=False)
        del launch.readings[head.key]

    async def _guard(self, launch: LaunchSlots, key: str, head: PromptHead | None) -> None:
        """Saves the other conversations that the server may lose for a request: those with this head; None: all."""
        for other, talk in list(self._talks.items()):
            alike = head is None or (talk.head == head.key and talk.head_bytes >= _ALIKE_SHARE * len(talk.body))
            if other == key or not alike or talk.launch != launch.id or talk.saved == talk.tokens:
                continue
            async with asyncio.timeout(MOVE_SECONDS), launch.placing:
                slot = await self._slot_of(launch, talk)
                if slot is None and await self.recall(other, held_back=1):
                    idle = [each for each in (await launch.slots()).values() if not each.busy]
                    slot = max(idle, key=task_of, default=None)
                if slot and (slot.context_used_tokens or 0) >= MIN_TOKENS:
                    await launch.kv.save_one(launch.running, slot.index, other)
                    talk.saved = talk.tokens

    async def _restore(self, opened: _Open, key: str) -> bool:
        """Restores the kept state of a conversation, or of a system prompt, into a slot, if there is one."""
        launch = opened.launch
        async with asyncio.timeout(MOVE_SECONDS), launch.placing:
            slots = tuple((await launch.slots()).values())
            context = min(slot.context_size_tokens or 0 for slot in slots)
            state: KeptState | None = await asyncio.to_thread(launch.kv.find, launch.running, key, context)
            if state is None:
                return False
            if slot := choose_slot(slots, launch.filled):
                if not is_empty(slot) and launch.has_ram_cache:  # a new task moves what idle slots hold into RAM
                    await launch.read("/completion", b'{"prompt": ".", "n_predict": 0}')
                if await launch.kv.restore_one(launch.running, slot.index, state):
                    opened.expects = state.name, state.tokens
                    launch.filled[slot.index] = task_of((await launch.slots())[slot.index])
            return True

    async def _slot_of(self, launch: LaunchSlots, talk: _Talk) -> Slot | None:
        """The idle slot that still holds a conversation."""
        if talk.finding:
            await talk.finding
        views = (await launch.slots()).values() if talk.task >= 0 else ()
        return next((each for each in views if each.task == talk.task and _holds(each, talk)), None)

    async def _find_slot(self, opened: _Open, talk: _Talk) -> None:
        """Notes the slot that holds a conversation after its answer: replies do not name it.

        Only if it is the one slot with a task that came after the request and as many tokens: of two conversations as
        long as each other, which were answered together, nobody can say whose is whose.
        """
        launch = opened.launch
        taken = {other.task for other in self._talks.values() if other.launch == launch.id}
        with contextlib.suppress(NotKept, TimeoutError, UpstreamFailed, OSError, ValueError):
            views = (await launch.slots()).values()
            tasks = {task_of(view) for view in views if _holds(view, talk) and task_of(view) > opened.since} - taken
            talk.task = tasks.pop() if len(tasks) == 1 else -1


def _holds(slot: Slot, talk: _Talk) -> bool:
    """Whether an idle slot holds as much as a conversation after its last answer; some engines count one less."""
    return not slot.busy and abs((slot.context_used_tokens or 0) - talk.tokens) <= 1
