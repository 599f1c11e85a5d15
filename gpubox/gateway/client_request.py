"""One request from its arrival over a server and back to its line in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpubox.clock import utc_now
from gpubox.gateway.admission import Ticket
from gpubox.gateway.conversations import ClientConversation
from gpubox.gateway.gateway_status import FinishedRequest, LiveRequest, Outcome, RequestState, WaitsFor
from gpubox.gateway.http_connection import Exchange, Headers, RequestRefused
from gpubox.gateway.reply_observer import AnswerTokens, ReplyObserver
from gpubox.gateway.routes import Api, error_event
from gpubox.gateway.upstream import ServerReply, UpstreamFailed, send_request
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line

_ERROR_BYTES = 64 * 1024
_KEPT_BODY_BYTES = 2 * 1024 * 1024
"""So large a body is kept until the server answers, to ask another one with it: any text, but few images."""
_ASKED_CHARS = 100
STREAM_HEADERS: Headers = (
    (b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"),
)  # fmt: skip
"""Of a stream that the gateway begins while the request waits."""


class Forwarding:
    """One request on its way through a server."""

    def __init__(
        self, exchange: Exchange, *, api: Api, on_text: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        """``on_text`` is called once, when the first token has been written to the client.

        ``on_end`` is called once, when the whole reply is here and its last bytes are not yet written: what it records
        is never behind what a client got, whenever the gateway is killed.
        """
        self._exchange, self._api, self._on_text, self._on_end = exchange, api, on_text, on_end
        self.observer: ReplyObserver | None = None
        self.upstream_status = 0
        self.error = ""
        """Why the reply is not whole; one sentence."""
        self.error_status = 502
        """The HTTP status that says so, where there still can be one."""
        self.passed_on = False
        """Whether a byte of the server's answer has gone to the client. Until then another server can be asked."""
        self._error_body = bytearray()

    async def run(self, base_url: str, body: bytes, extra: Headers) -> None:
        """Returns when the reply is over, whole or not. Raises UpstreamFailed if it failed before anything of it was
        passed on, NotConnected if the server has seen nothing of the request. Until then a small body is kept.

        When it is cancelled, because the client left, the server's connection is closed and it stops generating.
        """
        exchange = self._exchange
        on_sent = exchange.drop_body if len(body) > _KEPT_BODY_BYTES else None
        sending = send_request(base_url, exchange.request, body, extra, on_sent)
        del body
        try:
            async with sending as reply:
                self.upstream_status = reply.status
                self.observer = ReplyObserver(stream=reply.is_stream)
                if reply.is_stream:  # of any other, not even the head goes out before the first byte of its body
                    self._begin(reply)
                while data := await reply.body.readany():
                    self._pass_on_head(reply)
                    if reply.body.is_eof():
                        break
                    self._pass_on(data)
                    await exchange.drained()  # so nothing is buffered for a client that reads slowly
                self._pass_on_head(reply)
                self._end(data)
        except UpstreamFailed as error:
            if not self.passed_on:
                raise
            self._fail(str(error))

    def cut(self, status: int, sentence: str) -> None:
        """Ends a reply that has begun with an error. ``run`` is over, or was cancelled."""
        self.error_status = status
        self._fail(sentence.rstrip("."))

    @property
    def text_events(self) -> int | None:
        """The tokens so far, one for each event of a stream that carries text."""
        return self.observer.text_events if self.observer and self.observer.stream else None

    def _begin(self, reply: ServerReply) -> None:
        if not self._exchange.head_sent:  # else the waiting comments began the stream
            length = 0 if reply.status in (204, 304) else reply.length
            self._exchange.start(reply.status, reply.headers, length=length, chunked=length is None)

    def _pass_on_head(self, reply: ServerReply) -> None:
        if not self.passed_on:
            self.passed_on = True
            self._exchange.drop_body()
            self._begin(reply)

    def _pass_on(self, data: bytes) -> None:
        if self._late_error:
            self._error_body += data[: _ERROR_BYTES - len(self._error_body)]
        else:  # a token goes out before anything is done with it
            self._exchange.write(data)
            self._observe(data)

    def _observe(self, data: bytes) -> None:
        observer = self.observer
        assert observer is not None
        had_text = observer.has_text
        observer.feed(data)
        if observer.has_text and not had_text:
            self._on_text()

    @property
    def _late_error(self) -> bool:
        """Whether the server refused a request whose stream the gateway had begun with 200."""
        return self._exchange.status == 200 != self.upstream_status

    def _end(self, data: bytes) -> None:
        """``data``: the last bytes of the reply."""
        if self._late_error:
            self._pass_on(data)
            text, status = self._error_body.decode("utf-8", "replace"), self.upstream_status
            self.error = f"The server refused the request (HTTP {status}): {' '.join(text.split())[:300]}"
            data = error_event(status, self.error, self._api)
        else:
            self._observe(data)
        self._on_end()
        self._exchange.finish(data)

    def _fail(self, sentence: str) -> None:
        self.error = sentence[:1].upper() + sentence[1:] + "."
        exchange = self._exchange
        if not exchange.head_sent:
            return  # the caller answers with a status
        if exchange.chunked and (self.observer is None or self.observer.stream or self._late_error):
            exchange.write(b"\n\n" + error_event(self.error_status, self.error, self._api))
            exchange.finish()
        else:
            exchange.abort()  # so the client knows that the answer is not whole


@dataclass(slots=True)
class ClientRequest:
    """What the gateway knows of a request while it is open. Times are those of time.monotonic()."""

    id: int
    exchange: Exchange
    task: asyncio.Task[None]
    """The one that answers it."""
    refusal: RequestRefused | None = None
    """Why ``task`` was cancelled, if the client has not left."""
    cancelled: bool = False
    """By the owner."""
    client: str = ""
    """Empty until it is known."""
    keyed: bool = False
    """Whether it has a key that can be revoked."""
    profile: str = ""
    path: str = ""
    stream: bool = False
    model: str | None = None
    """The model that it names."""
    asked: str = ""
    """The same, if another one answers."""
    tried: tuple[str, ...] = ()
    """The profiles that did not load, and left it to their fallback."""
    api: Api = "openai"
    state: RequestState = "reading"
    ticket: Ticket | None = None
    """What the queue knows of it, once its profile is known."""
    first_text_at: float | None = None
    outcome: Outcome = "left"
    """What it is unless something else is said: the client went away."""
    error: str = ""
    conversation: ClientConversation | None = None
    forwarding: Forwarding | None = None
    line: FinishedRequest | None = None
    """Its line in the ledger, once that is written."""

    def answered_by(self, profile: Profile) -> None:
        """Notes which profile answers. The client is told if it asked for another one."""
        self.profile = profile.name
        if self.model is None:
            self.model = profile.name
        elif self.model not in profile.names:
            self.model = self.model.removesuffix(":latest")
        if self.model not in profile.names:
            self.asked = sanitize_line(self.model)[:_ASKED_CHARS] or "(empty)"
            self.exchange.headers = ((b"X-Gpubox-Model", profile.name.encode()),)

    def first_text(self) -> None:
        """The first token has been written to the client."""
        self.first_text_at = time.monotonic()
        self.state = "generating"

    @property
    def waited(self) -> float:
        """Seconds in the queue."""
        return self.queue_seconds + self.swap_seconds

    @property
    def queue_seconds(self) -> float:
        return self.ticket.queue_seconds if self.ticket else 0.0

    @property
    def swap_seconds(self) -> float:
        return self.ticket.swap_seconds if self.ticket else 0.0

    def stages(self, tokens: AnswerTokens) -> tuple[float | None, float | None]:
        """Seconds of prefill and generation: as the client saw them, else as the server reports them."""
        answering = time.monotonic() - self.exchange.request.received - self.waited
        if self.ttft_seconds is not None:
            prefill = self.ttft_seconds - self.waited
        elif tokens.generated_tokens and tokens.tg_tokens_per_second:
            prefill = answering - tokens.generated_tokens / tokens.tg_tokens_per_second
        else:
            return (answering if self.stream and self.forwarding and self.state == "reading" else None), None
        return round(max(0.0, prefill), 6), round(max(0.0, answering - prefill), 6)

    @property
    def ttft_seconds(self) -> float | None:
        if self.first_text_at is None:
            return None
        return round(self.first_text_at - self.exchange.request.received, 6)

    def live(self, waits_for: WaitsFor | None) -> LiveRequest:
        prefill, generation = self.stages(AnswerTokens())
        return LiveRequest(
            id=self.id,
            client=self.client,
            profile=self.profile,
            path=self.path,
            state=self.state,
            stream=self.stream,
            queue_seconds=round(self.queue_seconds, 3),
            swap_seconds=round(self.swap_seconds, 3),
            prefill_seconds=prefill,
            generation_seconds=generation,
            waits_for=waits_for,
            seconds=round(time.monotonic() - self.exchange.request.began, 3),
            ttft_seconds=self.ttft_seconds,
            generated_tokens=self.forwarding.text_events if self.forwarding else None,
        )

    def finished(self) -> FinishedRequest:
        """Its line in the ledger."""
        observer = self.forwarding.observer if self.forwarding else None
        tokens = observer.tokens() if observer else AnswerTokens()
        prefill, generation = self.stages(tokens)
        return FinishedRequest(
            at=utc_now(),
            client=self.client,
            profile=self.profile,
            asked=self.asked,
            path=self.path,
            status=self.exchange.status,
            outcome=self.outcome,
            stream=self.stream,
            queue_seconds=round(self.queue_seconds, 6),
            swap_seconds=round(self.swap_seconds, 6),
            prefill_seconds=prefill,
            generation_seconds=generation,
            ttft_seconds=self.ttft_seconds,
            seconds=round(time.monotonic() - self.exchange.request.began, 6),
            prompt_tokens=tokens.prompt_tokens,
            cached_tokens=tokens.cached_tokens,
            generated_tokens=tokens.generated_tokens,
            tg_tokens_per_second=tokens.tg_tokens_per_second,
            error=self.error,
        )
