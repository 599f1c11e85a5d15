"""One request from its arrival over a server and back to its line in the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpubox.clock import utc_now
from gpubox.gateway.admission import Ticket
from gpubox.gateway.gateway_status import FinishedRequest, LiveRequest, Outcome, RequestState, WaitsFor
from gpubox.gateway.http_connection import Exchange, Headers, RequestRefused
from gpubox.gateway.reply_observer import AnswerTokens, ReplyObserver
from gpubox.gateway.routes import Route, error_event
from gpubox.gateway.upstream import ServerReply, UpstreamFailed, send_request
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line

_KEPT_BODY_BYTES = 2 * 1024 * 1024
"""So large a body is kept until the server answers, to ask another one with it: any text, but few images."""
_ASKED_CHARS = 100
STREAM_HEADERS: Headers = (
    (b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"),
)  # fmt: skip
"""Of a stream that the gateway begins while the request waits."""


@dataclass(slots=True)
class ClientRequest:
    """What the gateway knows of a request while it is open. Times are those of time.monotonic()."""

    ticket: Ticket
    """What the queue knows of it."""
    exchange: Exchange
    task: asyncio.Task[None]
    """The one that answers it."""
    record: Callable[[FinishedRequest], None]
    """Writes its line, before the last bytes go to the client: the ledger is never behind what a client got."""
    refusal: RequestRefused | None = None
    """Why ``task`` was cancelled, if the client has not left."""
    keyed: bool = False
    """Whether it has a key that can be revoked."""
    route: Route = field(default_factory=lambda: Route("", "", None))
    model: str | None = None
    """The model that it names."""
    asked: str = ""
    """The same, if another one answers."""
    state: RequestState = "reading"
    first_text_at: float | None = None
    outcome: Outcome = "left"
    """What it is unless something else is said: the client went away."""
    error: str = ""
    observer: ReplyObserver | None = None
    late_error: bool = False
    """Whether the server refused a request whose stream the gateway had begun with 200."""
    passed_on: bool = False
    """Whether a byte of the server's answer has gone to the client. Until then another server can be asked."""
    line: FinishedRequest | None = None
    """Its line in the ledger, once that is written."""

    async def forward(self, base_url: str, body: bytes, key: str | None) -> None:
        """Passes it on to a server, and the reply back. Returns when that is over, whole or not.

        Raises UpstreamFailed if it failed before anything of the reply was passed on, NotConnected if the server has
        seen nothing of the request. Until then a small body is kept. When it is cancelled, because the client left, the
        server's connection is closed and it stops generating.
        """
        exchange = self.exchange
        on_sent = exchange.drop_body if len(body) > _KEPT_BODY_BYTES else lambda: None
        sending = send_request(base_url, exchange.request, body, key, on_sent)
        del body
        try:
            async with sending as reply:
                self.observer = ReplyObserver(stream=reply.is_stream)
                if reply.is_stream:  # of any other, not even the head goes out before the first byte of its body
                    self._begin(reply)
                data = await reply.body.readany()
                self.passed_on = True
                exchange.drop_body()
                self._begin(reply)
                self.late_error = exchange.status == 200 != reply.status
                while data and not reply.body.is_eof():
                    self._pass_on(data)
                    await exchange.drained()  # so nothing is buffered for a client that reads slowly
                    data = await reply.body.readany()
                self._end(reply.status, data)
        except UpstreamFailed as error:
            if not self.passed_on:
                self.observer = None
                raise
            self.outcome = "failed"
            self.cut(502, str(error))

    def cut(self, status: int, sentence: str) -> None:
        """Ends a reply that has begun with an error."""
        self.error = sentence[:1].upper() + sentence[1:].rstrip(".") + "."
        exchange = self.exchange
        if exchange.chunked and (self.observer is None or self.observer.stream or self.late_error):
            exchange.write(b"\n\n" + error_event(status, self.error, self.route.api))
            exchange.finish()
        else:
            exchange.abort()  # so the client knows that the answer is not whole

    def _begin(self, reply: ServerReply) -> None:
        if not self.exchange.status:  # else the waiting comments began the stream
            length = 0 if reply.status in (204, 304) else reply.length
            self.exchange.start(reply.status, reply.headers, length=length, chunked=length is None)

    def _pass_on(self, data: bytes) -> None:
        if not self.late_error:  # a token goes out before anything is done with it
            self.exchange.write(data)
        self._observe(data)

    def _observe(self, data: bytes) -> None:
        assert self.observer is not None
        self.observer.feed(data)
        if self.observer.text_events and self.first_text_at is None:
            self.first_text_at = time.monotonic()
            self.state = "generating"

    def _end(self, status: int, data: bytes) -> None:
        """``data``: the last bytes of the reply, which go to the client once its line is written."""
        self.outcome = "failed" if status >= 500 else "refused" if status >= 400 else "done"
        self._observe(data)
        if self.late_error and self.observer:
            text = " ".join(self.observer.kept.decode("utf-8", "replace").split())
            self.error = f"The server refused the request (HTTP {status}): {text[:300]}"
            data = error_event(status, self.error, self.route.api)
        self.line = self.finished()
        self.record(self.line)
        self.exchange.finish(data)

    def answered_by(self, profile: Profile) -> None:
        """Notes which profile answers. The client is told if it asked for another one."""
        self.ticket.profile = profile.name
        if self.model is None:
            self.model = profile.name
        elif self.model not in profile.names:
            self.model = self.model.removesuffix(":latest")
        if self.model not in profile.names:
            self.asked = sanitize_line(self.model)[:_ASKED_CHARS] or "(empty)"
            self.exchange.headers = ((b"X-Gpubox-Model", profile.name.encode()),)

    def _stages(self, tokens: AnswerTokens) -> tuple[float | None, float | None]:
        """Seconds of prefill and generation: as the client saw them, else as the server reports them."""
        waited = self.ticket.queue_seconds + self.ticket.swap_seconds
        answering = time.monotonic() - self.exchange.request.received - waited
        if self.ttft_seconds is not None:
            prefill = self.ttft_seconds - waited
        elif tokens.generated_tokens and tokens.tg_tokens_per_second:
            prefill = answering - (tokens.generated_tokens - 1) / tokens.tg_tokens_per_second
        else:
            reading = self.route.stream and self.state == "reading" and self.ticket.sent_at
            return (answering if reading else None), None
        return round(max(0.0, prefill), 6), round(max(0.0, answering - prefill), 6)

    @property
    def ttft_seconds(self) -> float | None:
        if self.first_text_at is None:
            return None
        return round(self.first_text_at - self.exchange.request.received, 6)

    def live(self, waits_for: WaitsFor | None) -> LiveRequest:
        generated = self.observer.text_events if self.observer and self.observer.stream else None
        shared = self._shared(AnswerTokens())
        return LiveRequest(
            id=self.ticket.id, state=self.state, waits_for=waits_for, generated_tokens=generated, **shared
        )

    def finished(self) -> FinishedRequest:
        """Its line in the ledger."""
        tokens = self.observer.tokens() if self.observer else AnswerTokens()
        return FinishedRequest(
            at=utc_now(),
            asked=self.asked,
            status=self.exchange.status,
            outcome=self.outcome,
            error=self.error,
            prompt_tokens=tokens.prompt_tokens,
            cached_tokens=tokens.cached_tokens,
            generated_tokens=tokens.generated_tokens,
            tg_tokens_per_second=tokens.tg_tokens_per_second,
            **self._shared(tokens),
        )

    def _shared(self, tokens: AnswerTokens) -> dict[str, Any]:
        """What is said of it while it is open and afterwards."""
        prefill, generation = self._stages(tokens)
        return {
            "client": self.ticket.client,
            "profile": self.ticket.profile,
            "path": self.route.path,
            "stream": self.route.stream,
            "queue_seconds": round(self.ticket.queue_seconds, 6),
            "swap_seconds": round(self.ticket.swap_seconds, 6),
            "prefill_seconds": prefill,
            "generation_seconds": generation,
            "ttft_seconds": self.ttft_seconds,
            "seconds": round(time.monotonic() - self.exchange.request.began, 6),
        }
