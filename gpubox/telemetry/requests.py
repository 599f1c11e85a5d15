"""Requests, folded from the server's log events: those in flight by slot, and the finished ones. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpubox.server.log_events import (
    CachedTokens,
    ContextCheckpoint,
    DeviceBuffer,
    DraftAcceptance,
    DraftAcceptancePerPosition,
    FullReprocessing,
    GenerationProgressLine,
    LogEvent,
    NewPrompt,
    PromptProgressLine,
    SlotEvent,
    SlotReleased,
    TaskCancelled,
    TaskFailed,
    TaskLaunched,
    TimingHeader,
    TimingLine,
)
from gpubox.telemetry.cache_miss import PromptCacheState
from gpubox.telemetry.request_queue import RequestQueue
from gpubox.telemetry.snapshot import Request

MAX_REQUESTS = 300
PROOF_TOKENS = 8
"""The proof's prompt is one short word; no tokenizer makes more of it."""


@dataclass(slots=True)
class RequestInFlight:
    """One request a slot works on; what the log has said of it so far. Times in seconds of the server's clock."""

    slot: int
    task: int
    began: float
    timed: bool = True
    """Whether the log's own clock said when it began; else when its line was read."""
    waited: float | None = None
    """Seconds that it waited for its slot."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    done_tokens: int | None = None
    context_size: int | None = None
    pp: float | None = None
    tg_3s: float | None = None
    tg_at: float | None = None
    first_at: float | None = None
    """When it began to generate, as its speed lines tell."""
    generated: int | None = None
    prompt: TimingLine | None = None
    generation: TimingLine | None = None
    total: TimingLine | None = None
    drafted: DraftAcceptance | None = None
    per_position: tuple[float, ...] = ()
    forced: bool = False
    """Whether the server said that it reads the whole prompt again."""
    predict_limit: int | None = None
    """``n_predict`` of the request where /slots told it."""


@dataclass(slots=True)
class RequestLog:
    """Folds events of one launch. ``started`` is the wall time of the server's second 0."""

    started: datetime
    in_flight: dict[int, RequestInFlight] = field(default_factory=dict)
    finished: deque[Request] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    count: int = 0
    generated_tokens: int = 0
    first_began: float | None = None
    last_ended: float | None = None
    skip_proof: bool = False
    """Whether gpubox's own one-token proof is still to come, which is no client's. Clients may come before it."""
    kept: PromptCacheState = field(default_factory=PromptCacheState)
    waiting: RequestQueue = field(default_factory=RequestQueue)
    _cancelled: set[int] = field(default_factory=set)
    _failed: set[int] = field(default_factory=set)
    _timings_of: TimingHeader | None = None

    def feed(self, at: float | None, event: LogEvent, *, seen: float = 0.0) -> Request | None:
        """Takes in one event; returns the request that it finished, if it did.

        ``seen`` is the server's second in which its line was read, for a log without times.
        """
        timed, at = at is not None, seen if at is None else at
        if isinstance(event, TaskCancelled | TaskFailed):
            ended = self._cancelled if isinstance(event, TaskCancelled) else self._failed
            if len(ended) > MAX_REQUESTS:  # while they were in the queue: no slot ever releases them
                ended.clear()
            ended.add(event.task)
            if isinstance(event, TaskCancelled) and all(found.task != event.task for found in self.in_flight.values()):
                self.waiting.left(event.task)
            return None
        self.waiting.feed(at, event)
        if isinstance(event, SlotEvent):
            self.kept.feed(event)
        if isinstance(event, ContextCheckpoint) or (isinstance(event, DeviceBuffer) and event.kind == "recurrent"):
            self.kept.needs_checkpoints = True
        if isinstance(event, TaskLaunched):
            self.kept.taken(event.slot, event.task)
            waited = self.waiting.taken(at, event.task, child=event.child)
            self.in_flight[event.slot] = RequestInFlight(event.slot, event.task, at, timed, waited if timed else None)
            return None
        if isinstance(event, TimingHeader):
            self._timings_of = event
            return None
        if isinstance(event, TimingLine | DraftAcceptance) and event.slot < 0 and self._timings_of:
            event = event._replace(slot=self._timings_of.slot, task=self._timings_of.task)
        found = self._found(event)
        if found is None:
            if isinstance(event, SlotReleased):  # it began in what was not read
                self.count += 1
                self.skip_proof = False
            return None
        match event:
            case NewPrompt():
                found.prompt_tokens, found.context_size = event.tokens, event.context_size
            case CachedTokens():
                if found.cached_tokens is None:
                    found.cached_tokens = event.tokens
                found.done_tokens = event.tokens
            case PromptProgressLine():
                found.done_tokens, found.pp = event.tokens, event.tokens_per_second
                if found.prompt_tokens is None and event.progress and event.progress > 0.001:
                    found.prompt_tokens = round(event.tokens / event.progress)
            case GenerationProgressLine():
                found.generated, found.tg_3s, found.tg_at = event.tokens, event.tg_3s or event.tg, at
                if event.tg:
                    found.first_at = at - (event.tokens - 1) / event.tg
            case TimingLine():
                setattr(found, event.kind, event)
            case DraftAcceptance():
                found.drafted = event
            case DraftAcceptancePerPosition():
                found.per_position = event.rates
            case FullReprocessing():
                found.forced = True
            case SlotReleased():
                return self._finish(found, at, event)
            case _:
                pass
        return None

    def left_out(self, ended: int) -> None:
        """Counts requests that ended in a part of the log that was not read."""
        if ended and self.skip_proof:
            self.skip_proof = False
            ended -= 1
        self.count += ended

    def forget(self) -> None:
        """A part of the log was lost: the ends of those in flight may be in it."""
        self.in_flight.clear()
        self.kept.forget()
        self.waiting = RequestQueue(lost=True)

    def _found(self, event: LogEvent) -> RequestInFlight | None:
        slot, task = getattr(event, "slot", None), getattr(event, "task", None)
        found = self.in_flight.get(slot) if slot is not None else None
        return found if found and found.task == task else None

    def _finish(self, found: RequestInFlight, ended: float, event: SlotReleased) -> Request | None:
        del self.in_flight[found.slot]
        self._timings_of = None
        why = self.kept.why(found.slot, found.task, found.prompt_tokens, found.cached_tokens, found.forced)
        self.kept.released(found.slot, event.tokens)
        cut_off = found.task in self._cancelled or found.task in self._failed
        if self.skip_proof and not cut_off and _like_the_proof(found):
            self.skip_proof = False
            return None
        generated = found.generation.tokens if found.generation else found.generated
        if found.generation is None and found.task in self._cancelled:
            generated = _held(found, event)
        self.count += 1
        self.generated_tokens += generated or 0
        self.first_began = found.began if self.first_began is None else self.first_began
        self.last_ended = ended
        request = _request(found, ended, generated, self.started, self.count)
        request = replace(
            request,
            stop_reason=self._reason(found, event, generated),
            cache_miss=why,
        )
        self.finished.appendleft(request)
        return request

    def _reason(self, found: RequestInFlight, event: SlotReleased, generated: int | None) -> str | None:
        if found.task in self._failed:
            self._failed.discard(found.task)
            return "error"
        if found.task in self._cancelled:
            self._cancelled.discard(found.task)
            return "cancelled"
        if event.truncated:
            return "context full"
        if found.predict_limit is not None and found.predict_limit > 0 and generated is not None:
            return "length" if generated >= found.predict_limit else "stop"
        return None


def _held(found: RequestInFlight, event: SlotReleased) -> int | None:
    """Tokens generated of a cancelled request, of which no timings are written; its last progress is of a while ago.

    The slot is let go with the prompt and each token but the last in it (build 11434).
    """
    if event.truncated or found.prompt_tokens is None or event.tokens < found.prompt_tokens:
        return found.generated
    return event.tokens - found.prompt_tokens + 1


def _like_the_proof(found: RequestInFlight) -> bool:
    """Whether it may be ``LlamaClient.prove``: a word in, at most one token out."""
    # of an embedding no timings are written, and at a low verbosity no prompt either
    read = found.prompt.tokens if found.prompt else found.prompt_tokens or 0
    return (
        read <= PROOF_TOKENS and not found.cached_tokens and (found.generation is None or found.generation.tokens <= 1)
    )


def _request(found: RequestInFlight, ended: float, generated: int | None, started: datetime, number: int) -> Request:
    prompt, generation, drafted = found.prompt, found.generation, found.drafted
    cached = found.cached_tokens
    total = found.prompt_tokens
    if total is None and prompt:
        total = prompt.tokens + (cached or 0)
    # print_timing comes with the release: the first token came when the generation's time began
    first = ended - generation.seconds if generation and generated and found.timed else None
    slot_ttft = max(0.0, first - found.began) if first is not None else None
    duration: float | None = max(0.0, ended - found.began)
    if not found.timed:  # the times at which lines were read are no durations
        slot_ttft = prompt.seconds if prompt and generated else None
        duration = found.total.seconds if found.total else None
    return Request(
        number=number,
        at=(started + timedelta(seconds=found.began)).astimezone(UTC).isoformat(timespec="milliseconds"),
        slot=found.slot,
        task=found.task,
        prompt_tokens=total,
        cached_tokens=max(0, total - prompt.tokens) if total is not None and prompt else cached,
        generated_tokens=generated,
        queue_seconds=found.waited,
        slot_ttft_seconds=slot_ttft,
        ttft_seconds=found.waited + slot_ttft if found.waited is not None and slot_ttft is not None else None,
        pp_tokens_per_second=prompt.tokens_per_second if prompt else None,
        tg_tokens_per_second=generation.tokens_per_second if generation else None,
        prompt_seconds=prompt.seconds if prompt else None,
        generation_seconds=generation.seconds if generation else None,
        duration_seconds=duration,
        draft_tokens=drafted.generated if drafted else None,
        draft_tokens_accepted=drafted.accepted if drafted else None,
        mean_accepted_length=drafted.mean_length if drafted else None,
        accepted_per_position=found.per_position,
    )
