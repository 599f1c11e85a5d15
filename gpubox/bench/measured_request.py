"""One measured request: streamed, timed by the server where it tells and by us where it does not.

TTFT is from sending the request to the first token of any kind (thinking counts). pp and tg are the server's own
(``timings``, tools/server/server-common.cpp: tokens over milliseconds of each phase); a server without them gets
prompt tokens over TTFT, and tokens after the first over the time since the first, and is marked ``client``; an
answer in a few large pieces gets no tg.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox import units
from gpubox.errors import ExitCode, GpuboxError
from gpubox.server.client import CHAT_PATH
from gpubox.server.dialect import supported_fields
from gpubox.server.other_server import LLAMA
from gpubox.server.stream import StreamError

if TYPE_CHECKING:
    from gpubox.bench.target_server import TargetServer

PROGRESS_INTERVAL_SECONDS = 0.25
MIN_PIECES = 8
"""An answer that arrives in fewer than that, and than it has tokens, has no speed that can be seen from outside."""


@dataclass(frozen=True, slots=True)
class MeasuredReply:
    """One answer and its times. ``None`` is unknown."""

    text: str
    reasoning: str
    finish_reason: str
    wall_seconds: float
    ttft_seconds: float | None
    prompt_tokens: int | None
    """Read anew, without the cached ones."""
    cached_tokens: int | None
    generated_tokens: int | None
    prompt_seconds: float | None
    generation_seconds: float | None
    pp: float | None
    """Tokens per second."""
    tg: float | None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    timed_by: str = "server"
    """``server`` or ``client``."""
    model: str = ""
    left_out: tuple[str, ...] = ()
    """Fields of the request that this server does not take."""

    @property
    def acceptance(self) -> float | None:
        """Accepted of drafted tokens, 0 to 1."""
        if not self.draft_tokens or self.draft_tokens_accepted is None:
            return None
        return self.draft_tokens_accepted / self.draft_tokens

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verification step, the model's own included: 1 + accepted / steps (llama-server's ``mean len``).

        Steps are generated - accepted tokens: exact where every step drafts.
        """
        if not self.draft_tokens or self.draft_tokens_accepted is None or not self.generated_tokens:
            return None
        steps = self.generated_tokens - self.draft_tokens_accepted
        return self.generated_tokens / steps if steps > 0 else None


async def measure_request(
    target_server: TargetServer,
    item: str,
    body: Mapping[str, Any],
    *,
    path: str = CHAT_PATH,
    silence_seconds: float = 1800.0,
) -> dict[str, Any]:
    """Sends ``body`` and returns ``{"request": ..., "reply": Measured as JSON}`` for the raw journal.

    Raises GpuboxError: with NOT_RUNNING where the server is gone, else where it refuses.
    """
    from gpubox.bench.target_server import wait_for_exit

    server = target_server.server
    asked, left_out = supported_fields(server.dialect, {**body, "model": server.model})
    asked = {**asked, "stream_options": {"include_usage": True}}
    if server.dialect == LLAMA:
        asked["return_progress"] = True
    try:
        measured = await _stream(target_server, item, asked, left_out, path, silence_seconds)
    except StreamError as error:
        target_server.lost = True
        if error.transient:
            await wait_for_exit(target_server)
        if not target_server.alive:
            raise GpuboxError(error.message, error.hint, code=ExitCode.NOT_RUNNING) from None
        if server.target.url and _not_now(error):  # no result of this item, and none of the next ones either
            hint = "`gpubox bench resume` goes on when it answers again."
            raise GpuboxError(error.message, hint, code=ExitCode.NOT_RUNNING) from None
        raise
    target_server.count(measured.prompt_tokens or 0, measured.generated_tokens or 0)
    return {"request": asked, "reply": msgspec.to_builtins(measured)}


def stored_reply(data: Mapping[str, Any], key: str = "reply") -> MeasuredReply:
    """The Measured in a raw record's data."""
    return msgspec.convert(data[key], MeasuredReply)


def _not_now(error: StreamError) -> bool:
    """Whether a server elsewhere has no time for anybody: too many requests, overloaded, silent for half an hour."""
    busy = ("The server refuses (HTTP 429)", "The server refuses (HTTP 503)", "The server is still loading")
    return error.message.startswith(busy) or error.timed_out


async def _stream(
    target_server: TargetServer,
    item: str,
    body: dict[str, Any],
    left_out: tuple[str, ...],
    path: str,
    silence_seconds: float,
) -> MeasuredReply:
    text: list[str] = []
    reasoning: list[str] = []
    finish, model = "", ""
    timings = usage = None
    pieces = 0
    began = told = time.perf_counter()
    first = last = None
    async with target_server.client.stream_completion(body, path=path, silence_seconds=silence_seconds) as chunks:
        async for chunk in chunks:
            now = time.perf_counter()
            timings, usage = chunk.timings or timings, chunk.usage or usage
            finish, model = chunk.finish_reason or finish, chunk.model or model
            if chunk.text or chunk.reasoning or chunk.calls:
                first, last = first or now, now
                pieces += 1
                text.append(chunk.text)
                reasoning.append(chunk.reasoning)
            if now - told > PROGRESS_INTERVAL_SECONDS:
                told = now
                if first is not None and now > first:
                    target_server.progress(item, f"~{pieces} tokens, ~{units.rate(pieces / (now - first))} tok/s")
                elif chunk.progress:
                    target_server.progress(
                        item, f"reading {chunk.progress.processed:,} of {chunk.progress.total:,} tokens"
                    )
    wall = time.perf_counter() - began
    ttft = first - began if first is not None else None
    words = ("".join(text), "".join(reasoning), finish, wall, ttft)
    if timings:
        return MeasuredReply(
            *words,
            prompt_tokens=timings.prompt_tokens,
            cached_tokens=timings.cached_tokens,
            generated_tokens=timings.generated_tokens,
            prompt_seconds=timings.prompt_seconds,
            generation_seconds=timings.generation_seconds,
            pp=timings.pp_tokens_per_second,
            tg=timings.tg_tokens_per_second,
            draft_tokens=timings.draft_tokens,
            draft_tokens_accepted=timings.draft_tokens_accepted,
            model=model,
            left_out=left_out,
        )
    cached = usage.cached_tokens if usage else None
    prompt = usage.prompt_tokens if usage else None
    generated = usage.generated_tokens if usage else None
    new = max(0, prompt - (cached or 0)) if prompt is not None else None
    since = last - first if first is not None and last is not None else None
    if pieces < min(MIN_PIECES, generated or 0):
        since = None  # what came with the first piece took its time before it
    return MeasuredReply(
        *words,
        prompt_tokens=new,
        cached_tokens=cached,
        generated_tokens=generated,
        prompt_seconds=ttft,
        generation_seconds=since,
        pp=new / ttft if new and ttft else None,
        tg=(generated - 1) / since if generated and generated > 1 and since else None,
        timed_by="client",
        model=model,
        left_out=left_out,
    )
