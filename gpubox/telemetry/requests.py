"""The requests of one launch, from the server's log events: those in flight by slot, and the finished ones. Pure.

Why a prompt was processed from its start comes from the server's own log lines and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpubox.server.log_events import (
    BetterPromptFound,
    CachedTokens,
    ContextCheckpoint,
    DeviceBuffer,
    DraftAcceptance,
    DraftAcceptancePerPosition,
    FullReprocessing,
    GenerationProgressLine,
    LogEvent,
    NewPrompt,
    PromptCleared,
    PromptProgressLine,
    PromptSaved,
    SlotEvent,
    SlotPurged,
    SlotReleased,
    SlotSelected,
    SwaCache,
    TaskCancelled,
    TaskFailed,
    TaskLaunched,
    TimingHeader,
    TimingLine,
)
from gpubox.server.state import LEAST_REUSED_SHARE, RestoredSlot
from gpubox.telemetry.request_queue import RequestQueue
from gpubox.telemetry.snapshot import Request

MIN_TOKENS = 64
"""A cache miss of a shorter prompt is not worth reporting."""
MIN_REUSED = 0.05
"""Less than this share is only the beginning that all prompts of a chat template have in common."""
MAX_SHRINKAGE = 1.1
"""A conversation only grows. A prompt that is shorter by this factor belongs to another conversation."""
NO_CHECKPOINT = "no checkpoint before the change (hybrid or SWA model)"
PREFIX_CHANGED = "prefix changed, or a new prompt: no slot held a similar one"
NAMED_SLOT_CHANGED = "prefix changed: the slot that the client named held another prompt"
AFTER_RESTART = "restart: the first prompt since the server started"
AFTER_SLEEP = "restart: the first prompt since the server slept, which empties its cache"


class EvictedPrompt(NamedTuple):
    """A prompt that is no longer in any slot or cache. ``by`` is the task that took its slot; None: to make room."""

    slot: int
    tokens: int
    by: int | None

    def __str__(self) -> str:
        if self.by is None:
            return f"the similar prompt of slot {self.slot} ({self.tokens:,} tokens) was evicted to make room"
        return f"the similar prompt of slot {self.slot} ({self.tokens:,} tokens) was evicted by task {self.by}"


@dataclass(slots=True)
class SlotSelection:
    """How one request got its slot, and what the slot held."""

    event: SlotSelected
    held_tokens: int = 0
    """Tokens of another request that the slot held, if known."""
    saved: bool = False
    """Those tokens went to the prompt cache."""
    from_cache: bool = False
    """The prompt cache held a better match."""
    similarity: float | None = None
    """Share of the request's prompt that the slot, or the prompt cache, held."""


class PromptCacheState:
    """What the slots hold, as far as the log shows. ``restarted``: another server ran here before this one."""

    def __init__(self, *, restarted: bool = False) -> None:
        self.needs_checkpoints = False
        """The model is hybrid or has a sliding window: the log of its load reported such a cache."""
        self._held_tokens: dict[int, int] = {}
        self._longest = 0
        """The most tokens that a request has left in a slot; -1: a part of the log was lost."""
        self._evicted: deque[EvictedPrompt] = deque(maxlen=32)
        self._selections: dict[int, SlotSelection] = {}
        self._latest: SlotSelection | None = None
        self._reason_if_empty = AFTER_RESTART if restarted else ""

    def forget(self, *, slept: bool = False) -> None:
        """A part of the log was lost, or (``slept``) the server emptied everything."""
        self._held_tokens.clear()
        self._evicted.clear()
        self._selections.clear()
        self._latest = None
        self._longest = -1
        self._reason_if_empty = AFTER_SLEEP if slept else ""

    def feed(self, event: SlotEvent) -> None:
        """Processes one event, in order."""
        match event:
            case SlotSelected():
                held = self._held_tokens.get(event.slot, 0)
                self._latest = self._selections[event.slot] = SlotSelection(event, held, similarity=event.similarity)
            case BetterPromptFound() if self._latest:
                self._latest.from_cache, self._latest.similarity = True, event.similarity
            case PromptSaved() if self._latest and event.tokens == self._latest.held_tokens:
                self._latest.saved = True
            case SwaCache():
                self.needs_checkpoints = True
            case SlotPurged():
                self._evict(EvictedPrompt(event.slot, event.tokens, None))
            case PromptCleared() if event.tokens:
                self._held_tokens.pop(event.slot, None)
            case _:
                pass

    def launched(self, slot: int, task: int) -> None:
        """The selected slot begins with its request."""
        self._latest = None
        selection = self._selections.get(slot)
        if selection and selection.event.by == "lru" and not selection.event.fresh and not selection.saved:
            self._evict(EvictedPrompt(slot, selection.held_tokens, task))

    def released(self, slot: int, tokens: int) -> None:
        """A slot finished its request and holds its ``tokens``."""
        self._held_tokens[slot] = tokens
        self._longest = max(tokens, self._longest) if self._longest >= 0 else -1
        self._selections.pop(slot, None)

    def miss_reason(
        self, slot: int, task: int, prompt: int | None, cached: int | None, reprocessing: bool
    ) -> str | None:
        """Why no part of a prompt was reused; None if some was, or if the log does not show why.

        Call it before ``released``. ``reprocessing``: the server reported a full reprocessing. It does so, with the
        same reason, for a dense model if only the first token matches.
        """
        selection = self._selections.get(slot)
        by_similarity = selection is None or selection.event.by != "lru" or selection.from_cache
        if reprocessing and self.needs_checkpoints and selection and prompt:
            if (selection.similarity or 0) * prompt >= MIN_TOKENS:
                return NO_CHECKPOINT
            if selection.event.by == "id":
                return None  # the log does not show how much of the slot's prompt matches
        if selection is None or prompt is None or prompt < MIN_TOKENS:
            return None
        if cached is None or cached > MIN_REUSED * prompt:
            return None
        reason_if_empty, self._reason_if_empty = self._reason_if_empty, ""
        if selection.event.by == "id" and selection.held_tokens:
            return NAMED_SLOT_CHANGED
        if by_similarity:
            return None  # the client disabled the cache, or a line is missing
        for evicted in self._evicted:
            if evicted.by != task and evicted.tokens <= MAX_SHRINKAGE * prompt:
                self._evicted.remove(evicted)
                return str(evicted)
        comparable = MIN_TOKENS <= selection.held_tokens <= MAX_SHRINKAGE * prompt
        return reason_if_empty or (PREFIX_CHANGED if comparable else None)

    def reread_tokens(self, slot: int, prompt: int | None, cached: int | None) -> int | None:
        """Tokens that the slot held but that were processed again, for want of a checkpoint; None if unknown.

        Call it before ``released``. The log rounds the similarity to a thousandth.
        """
        selection = self._selections.get(slot)
        if not self.needs_checkpoints or selection is None or selection.similarity is None:
            return None
        if prompt is None or cached is None:
            return None
        return max(0, round(selection.similarity * prompt) - cached)

    def reused_state(self, slot: int, cached: int, states: Iterable[RestoredSlot]) -> int | None:
        """The tokens of the kept state that a request was the first to reuse, of those put back; None: of none.

        Call it before ``released``. The state lay in the request's slot, and no request has left as much there; or none
        has left as much anywhere: then it was in the prompt cache, which gets what idle slots hold.
        """
        selection, known = self._selections.get(slot), self._longest
        if known >= 0 and selection and selection.event.by == "lcp" and not selection.from_cache:
            known, states = selection.held_tokens, [state for state in states if state.slot == slot]
        fitting = (each.tokens for each in states if max(LEAST_REUSED_SHARE * each.tokens, known + 1) <= cached)
        return min((tokens for tokens in fitting if cached <= tokens), default=None) if known >= 0 else None

    def _evict(self, prompt: EvictedPrompt) -> None:
        self._held_tokens.pop(prompt.slot, None)
        if prompt.tokens >= MIN_TOKENS:
            self._evicted.append(prompt)


MAX_REQUESTS = 300
PROBE_TOKENS = 8
"""The prompt of the readiness probe is one short word, at most this long for any tokenizer."""


@dataclass(slots=True)
class RequestInFlight:
    """What the log has reported about a request that a slot works on. Times are seconds of the server's clock."""

    slot: int
    task: int
    began: float
    timed: bool = True
    """``began`` comes from the log's own clock, and not from when its line was read."""
    queue_seconds: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    pp: float | None = None
    tg_3s: float | None = None
    tg_at: float | None = None
    """When ``tg_3s`` was reported."""
    first_at: float | None = None
    """When generation began, calculated from its speed lines."""
    generated: int | None = None
    prompt: TimingLine | None = None
    generation: TimingLine | None = None
    total: TimingLine | None = None
    draft: DraftAcceptance | None = None
    accepted_per_position: tuple[float, ...] = ()
    reprocessing: bool = False
    """The server reported that it reads the whole prompt again."""
    predict_limit: int | None = None
    """``n_predict`` of the request, from /slots."""


@dataclass(slots=True)
class RequestLog:
    """Folds the events of one launch. ``started`` is the wall time of the server's second 0."""

    started: datetime
    in_flight: dict[int, RequestInFlight] = field(default_factory=dict)
    """By slot."""
    finished: deque[Request] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    """The newest first."""
    count: int = 0
    """All requests that ended."""
    last_ended: float | None = None
    skip_probe: bool = False
    """gpubox's readiness probe is still to come. It is not counted. Requests of clients may come before it."""
    prompt_cache: PromptCacheState = field(default_factory=PromptCacheState)
    queue: RequestQueue = field(default_factory=RequestQueue)
    restored: tuple[RestoredSlot, ...] = ()
    """The kept states that the server had restored when it became ready."""
    _cancelled: set[int] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _timing_header: TimingHeader | None = None
    _early: tuple[RequestInFlight, float, SlotReleased] | None = None
    """A request of an older build: its slot was released, and its timing lines are still to come."""

    def feed(self, at: float | None, event: LogEvent, *, seen: float = 0.0) -> Request | None:
        """Processes one event. Returns the request that it finished, if any.

        ``seen`` is the server's second in which the line was read, for a log without times.
        """
        waiting = self._early
        if waiting is None or isinstance(event, TimingHeader | TimingLine | DraftAcceptance):
            return self._process(at, event, seen)
        self._early = None
        ended = self._finish(*waiting)
        another = self._process(at, event, seen, wait=ended is not None)
        return ended or another

    def _process(self, at: float | None, event: LogEvent, seen: float, *, wait: bool = False) -> Request | None:
        """``feed`` for one event. ``wait``: do not finish a request yet."""
        timed, at = at is not None, seen if at is None else at
        if isinstance(event, TaskCancelled | TaskFailed):
            self._note_failure(event)
            return None
        self.queue.feed(at, event)
        if isinstance(event, SlotEvent):
            self.prompt_cache.feed(event)
        if isinstance(event, ContextCheckpoint) or (isinstance(event, DeviceBuffer) and event.kind == "recurrent"):
            self.prompt_cache.needs_checkpoints = True
        if isinstance(event, TaskLaunched):
            self.prompt_cache.launched(event.slot, event.task)
            queued = self.queue.launched(at, event.task, child=event.child)
            self.in_flight[event.slot] = RequestInFlight(event.slot, event.task, at, timed, queued if timed else None)
            return None
        if isinstance(event, TimingHeader):
            self._timing_header = event
            return None
        if isinstance(event, TimingLine | DraftAcceptance) and event.slot < 0 and self._timing_header:
            event = event._replace(slot=self._timing_header.slot, task=self._timing_header.task)
        request = self._request_of(event)
        if request is None:
            if isinstance(event, SlotReleased):  # the request began in a part of the log that was not read
                self.count += 1
                self.skip_probe = False
            return None
        match event:
            case NewPrompt():
                request.prompt_tokens = event.tokens
            case CachedTokens():
                if request.cached_tokens is None:
                    request.cached_tokens = event.tokens
            case PromptProgressLine():
                request.pp = event.tokens_per_second
                if request.prompt_tokens is None and event.progress and event.progress > 0.001:
                    request.prompt_tokens = round(event.tokens / event.progress)
            case GenerationProgressLine():
                request.generated, request.tg_3s, request.tg_at = event.tokens, event.tg_3s or event.tg, at
                if event.tg:
                    request.first_at = at - (event.tokens - 1) / event.tg
            case TimingLine():
                setattr(request, event.kind, event)
            case DraftAcceptance():
                request.draft = event
            case DraftAcceptancePerPosition():
                request.accepted_per_position = event.rates
            case FullReprocessing():
                request.reprocessing = True
            case SlotReleased():
                del self.in_flight[request.slot]
                if wait or (event.early and request.total is None):
                    self._early = request, at, event
                    return None
                return self._finish(request, at, event)
            case _:
                pass
        return None

    def count_unread(self, ended: int) -> None:
        """Counts requests that ended in a part of the log that was not read."""
        if ended and self.skip_probe:
            self.skip_probe = False
            ended -= 1
        self.count += ended

    def forget(self) -> None:
        """Forgets the requests in flight: a part of the log was lost, and they may have ended in it."""
        self.in_flight.clear()
        self.prompt_cache.forget()
        self.queue = RequestQueue(lost=True)

    def _note_failure(self, event: TaskCancelled | TaskFailed) -> None:
        tasks = self._cancelled if isinstance(event, TaskCancelled) else self._failed
        if len(tasks) > MAX_REQUESTS:  # of tasks that were still queued, no slot is ever released
            tasks.clear()
        tasks.add(event.task)
        if isinstance(event, TaskCancelled) and all(r.task != event.task for r in self.in_flight.values()):
            self.queue.cancelled(event.task)

    def _request_of(self, event: LogEvent) -> RequestInFlight | None:
        slot, task = getattr(event, "slot", None), getattr(event, "task", None)
        request = self._early[0] if self._early else self.in_flight.get(slot) if slot is not None else None
        return request if request and request.task == task else None

    def _finish(self, request: RequestInFlight, ended: float, event: SlotReleased) -> Request | None:
        self._timing_header = None
        cache_miss = self.prompt_cache.miss_reason(
            request.slot, request.task, request.prompt_tokens, request.cached_tokens, request.reprocessing
        )
        reread = self.prompt_cache.reread_tokens(request.slot, request.prompt_tokens, request.cached_tokens)
        restored = self.prompt_cache.reused_state(request.slot, request.cached_tokens or 0, self.restored)
        self.prompt_cache.released(request.slot, event.tokens)
        cut_off = request.task in self._cancelled or request.task in self._failed
        if self.skip_probe and not cut_off and _may_be_probe(request):
            self.skip_probe = False
            return None
        generated = request.generation.tokens if request.generation else request.generated
        if request.generation is None and request.task in self._cancelled:
            generated = _generated_before_cancel(request, event)
        self.count += 1
        self.last_ended = ended
        finished = self._finished_request(request, ended, event, generated, cache_miss)
        if reread is not None or restored:
            finished = replace(finished, reread_tokens=reread, restored_tokens=restored)
        self.finished.appendleft(finished)
        return finished

    def _finished_request(
        self, request: RequestInFlight, ended: float, event: SlotReleased, generated: int | None, cache_miss: str | None
    ) -> Request:
        prompt, generation, draft = request.prompt, request.generation, request.draft
        cached, queued = request.cached_tokens, request.queue_seconds
        prompt_tokens = request.prompt_tokens
        if prompt_tokens is None and prompt:
            prompt_tokens = prompt.tokens + (cached or 0)
        # The timing lines come with the release, so generation began their duration earlier.
        first = ended - generation.seconds if generation and generated and request.timed else None
        slot_ttft = max(0.0, first - request.began) if first is not None else None
        duration: float | None = max(0.0, ended - request.began)
        if not request.timed:  # without a clock in the log, only the timing lines have durations
            slot_ttft = prompt.seconds if prompt and generated else None
            duration = request.total.seconds if request.total else None
        return Request(
            number=self.count,
            at=(self.started + timedelta(seconds=request.began)).astimezone(UTC).isoformat(timespec="milliseconds"),
            slot=request.slot,
            task=request.task,
            prompt_tokens=prompt_tokens,
            cached_tokens=max(0, prompt_tokens - prompt.tokens) if prompt_tokens is not None and prompt else cached,
            generated_tokens=generated,
            queue_seconds=queued,
            slot_ttft_seconds=slot_ttft,
            ttft_seconds=queued + slot_ttft if queued is not None and slot_ttft is not None else None,
            pp_tokens_per_second=prompt.tokens_per_second if prompt else None,
            tg_tokens_per_second=generation.tokens_per_second if generation else None,
            prompt_seconds=prompt.seconds if prompt else None,
            generation_seconds=generation.seconds if generation else None,
            duration_seconds=duration,
            draft_tokens=draft.generated if draft else None,
            draft_tokens_accepted=draft.accepted if draft else None,
            mean_accepted_length=draft.mean_length if draft else None,
            accepted_per_position=request.accepted_per_position,
            stop_reason=self._stop_reason(request, event, generated),
            cache_miss=cache_miss,
        )

    def _stop_reason(self, request: RequestInFlight, event: SlotReleased, generated: int | None) -> str | None:
        if request.task in self._failed:
            self._failed.discard(request.task)
            return "error"
        if request.task in self._cancelled:
            self._cancelled.discard(request.task)
            return "cancelled"
        if event.truncated:
            return "context full"
        if request.predict_limit is not None and request.predict_limit > 0 and generated is not None:
            return "length" if generated >= request.predict_limit else "stop"
        return None


def _generated_before_cancel(request: RequestInFlight, event: SlotReleased) -> int | None:
    """Tokens generated by a cancelled request. It has no timing lines, and its last progress line may be old.

    The slot is released with the prompt and every generated token but the last (build 11434).
    """
    if event.truncated or request.prompt_tokens is None or event.tokens < request.prompt_tokens:
        return request.generated
    return event.tokens - request.prompt_tokens + 1


def _may_be_probe(request: RequestInFlight) -> bool:
    """Whether it looks like gpubox's readiness probe: a prompt of one word, at most one token generated."""
    # An embedding has no timing lines, and at low verbosity there are no prompt lines either.
    read = request.prompt.tokens if request.prompt else request.prompt_tokens or 0
    few_generated = request.generation is None or request.generation.tokens <= 1
    return read <= PROBE_TOKENS and not request.cached_tokens and few_generated
