"""One measured request: streamed, and timed by the server if it reports times, otherwise by the client; its energy.

TTFT is the time from sending the request to the first token of any kind, thinking included. pp and tg are the
server's own (``timings``, tools/server/server-common.cpp: tokens over milliseconds of each phase). For a server
without ``timings``, pp is prompt tokens over TTFT, and tg is the tokens after the first over the time since the
first; such a reply is marked ``client``. A reply in a few large chunks gets no tg.

J per generated token: the mean power while the answer was generated, times those seconds, over the generated tokens.
J per read token: the same while the prompt was read, over the evaluated prompt tokens (cached ones are not read).
The power is that of the whole cards which the server uses, as the driver reports it. Idle power is included, not
subtracted; the power of the host (CPU, RAM) is not, because no driver reports it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox import units
from gpubox.bench.model import RawRecord, Result, Sample
from gpubox.errors import ExitCode, GpuboxError
from gpubox.server.client import CHAT_PATH
from gpubox.server.other_server import LLAMA, supported_fields
from gpubox.server.stream import StreamError

if TYPE_CHECKING:
    from gpubox.bench.target_server import TargetServer


SILENCE_SECONDS = 1800.0
"""A long prompt on a slow box is read for so long without a byte."""
SETTLE_SECONDS = 1.0
"""A reading is the mean of the second before it (``nvmlDeviceGetPowerUsage``, NVML API, Ampere and newer but not
GA100), so the readings of a phase's first second also show what came before."""
MIN_READINGS = 2
NO_POWER = "the driver gives no power reading"
TOO_SHORT = (
    "reading and answering were too short: a power reading is the mean of a second, so a phase needs about two seconds"
)
MEANING = (
    "Energy is the power of the whole cards that the server uses, idle power included, times the seconds of reading or "
    "generating; the host's CPU and RAM are not in it."
)


def energy_joules(samples: Sequence[Sample], begin: float, end: float) -> float | None:
    """The energy of one phase: mean power times its seconds. ``None`` if fewer than two readings show it alone.

    ``begin`` and ``end`` are seconds since the item began.
    """
    watts = [
        sample.power_watts
        for sample in samples
        if sample.power_watts is not None and begin + SETTLE_SECONDS <= sample.at <= end
    ]
    return statistics.fmean(watts) * (end - begin) if len(watts) >= MIN_READINGS else None


def energy_values(raw: RawRecord, first: float | None, end: float, *, prompt: int, generated: int) -> dict[str, Any]:
    """A result's J per token, and why it has none.

    ``first`` and ``end``: seconds from the item's begin to the first token and to the end.
    """
    read = energy_joules(raw.samples, 0.0, first) if first is not None and prompt else None
    answer = energy_joules(raw.samples, first, end) if first is not None and generated else None
    values: dict[str, Any] = {
        "joules_per_token": answer / generated if answer is not None else None,
        "joules_per_prompt_token": read / prompt if read is not None else None,
    }
    if read is None and answer is None:
        known = any(sample.power_watts is not None for sample in raw.samples)
        values["no_energy"] = TOO_SHORT if known else NO_POWER
    return values


def energy_note(results: Sequence[Result]) -> Iterator[str]:
    """What the energy figures of a report include; without any, why there are none."""
    keys = ("joules_per_token", "joules_per_prompt_token")
    if any(result.values.get(key) is not None for result in results for key in keys):
        yield MEANING
    elif reasons := [str(result.values["no_energy"]) for result in results if result.values.get("no_energy")]:
        longest = max(reasons, key=lambda reason: reason != NO_POWER)
        yield f"Energy per token: — ({longest})."


PROGRESS_INTERVAL_SECONDS = 0.25
MIN_CHUNKS = 8
"""A reply of fewer chunks, and of more tokens than chunks, cannot be timed by the client."""


@dataclass(frozen=True, slots=True)
class MeasuredReply:
    """One reply and its times. ``None`` is unknown."""

    text: str
    reasoning: str
    finish_reason: str
    wall_seconds: float
    ttft_seconds: float | None
    prompt_tokens: int | None
    """Evaluated, without the cached ones."""
    cached_tokens: int | None
    generated_tokens: int | None
    prompt_seconds: float | None
    generation_seconds: float | None
    pp: float | None
    """Prompt tokens per second."""
    tg: float | None
    """Generated tokens per second."""
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    timed_by: str = "server"
    """``server`` or ``client``."""
    model: str = ""

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verification step, including the model's own one (llama-server's ``mean len``).

        Steps are generated minus accepted tokens, which is exact if every step drafts.
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
    label: str = "",
) -> dict[str, Any]:
    """Sends ``body`` and returns ``{"request": ..., "reply": MeasuredReply as JSON}`` for the raw journal.

    ``label``: put before its progress (``stream 3 of 8: ``), where an item sends several requests.

    Raises GpuboxError: with NOT_RUNNING if the server is gone, another code if it refuses.
    """
    active = target_server.active
    request = supported_fields(active.dialect, {**body, "model": active.model})
    request["stream_options"] = {"include_usage": True}
    if active.dialect == LLAMA:
        request["return_progress"] = True
    try:
        reply = await _stream(target_server, item, request, path, label)
    except StreamError as error:
        target_server.token_count_unknown = True
        if error.transient:
            await target_server.wait_for_exit()
        if not target_server.alive:
            raise GpuboxError(error.message, error.hint, code=ExitCode.NOT_RUNNING) from None
        if active.target.url and (error.overloaded or error.timed_out):  # the next items would fail too: the run ends
            hint = "`gpubox bench resume` continues the run when the server answers again."
            raise GpuboxError(error.message, hint, code=ExitCode.NOT_RUNNING) from None
        raise
    target_server.count_tokens(reply.prompt_tokens or 0, reply.generated_tokens or 0)
    return {"request": request, "reply": msgspec.to_builtins(reply)}


def stored_reply(data: Mapping[str, Any]) -> MeasuredReply:
    """The MeasuredReply in a raw record's data."""
    return msgspec.convert(data["reply"], MeasuredReply)


async def _stream(
    target_server: TargetServer,
    item: str,
    body: dict[str, Any],
    path: str,
    label: str,
) -> MeasuredReply:
    text: list[str] = []
    reasoning: list[str] = []
    finish_reason, model = "", ""
    timings = usage = None
    sent = reported = time.perf_counter()
    first = last = None
    async with target_server.client.stream_completion(body, path=path, silence_seconds=SILENCE_SECONDS) as chunks:
        async for chunk in chunks:
            now = time.perf_counter()
            timings, usage = chunk.timings or timings, chunk.usage or usage
            finish_reason, model = chunk.finish_reason or finish_reason, chunk.model or model
            if chunk.text or chunk.reasoning or chunk.calls:
                first, last = first or now, now
                text.append(chunk.text)
                reasoning.append(chunk.reasoning)
            if now - reported > PROGRESS_INTERVAL_SECONDS:
                reported = now
                if first is not None and now > first:
                    rate = units.rate(len(text) / (now - first))
                    target_server.report_progress(item, f"{label}~{len(text)} tokens, ~{rate} tok/s")
                elif chunk.progress:
                    progress = f"{label}reading {chunk.progress.processed:,} of {chunk.progress.total:,} tokens"
                    target_server.report_progress(item, progress)
    wall = time.perf_counter() - sent
    ttft = first - sent if first is not None else None
    head = ("".join(text), "".join(reasoning), finish_reason, wall, ttft)
    if timings:
        return MeasuredReply(
            *head, timings.prompt_tokens, timings.cached_tokens, timings.generated_tokens, timings.prompt_seconds,
            timings.generation_seconds, timings.pp_tokens_per_second, timings.tg_tokens_per_second,
            timings.draft_tokens, timings.draft_tokens_accepted, "server", model,
        )  # fmt: skip
    cached = usage.cached_tokens if usage else None
    prompt = usage.prompt_tokens if usage else None
    generated = usage.generated_tokens if usage else None
    evaluated = max(0, prompt - (cached or 0)) if prompt is not None else None
    generation = last - first if first is not None and last is not None else None
    if len(text) < min(MIN_CHUNKS, generated or 0):
        generation = None  # the first chunk holds many tokens, whose time lies before it
    pp = evaluated / ttft if evaluated and ttft else None
    tg = (generated - 1) / generation if generated and generated > 1 and generation else None
    return MeasuredReply(*head, evaluated, cached, generated, ttft, generation, pp, tg, None, None, "client", model)
