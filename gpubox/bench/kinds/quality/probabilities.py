"""The quality of a model through its server: its probabilities of the next token on a fixed text. Comparison is pure.

``/completion`` of llama-server (build 11434, tools/server/server-context.cpp, ``populate_token_probs``) with
``n_probs`` K and ``post_sampling_probs`` false gives the K most likely tokens with their log probabilities before any
sampler, and the one of the token that was sampled. A ``logit_bias`` forces the sampled token to be the text's own, so
its log probability is known even if it is not among the K; that makes perplexity exact.

The KL divergence here is that of two distributions over the tokens that both list and one bucket for all others.
Merging outcomes never increases a KL divergence, so it is a lower bound of the true one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.kinds.quality.quality_options import POSITIONS, QualityOptions, text_of
from gpubox.bench.model import Item
from gpubox.bench.target_server import TargetServer
from gpubox.errors import ExitCode, GpuboxError
from gpubox.server.other_server import LLAMA

TOP = 256
"""The tokens whose probabilities are asked for (K)."""
FORCED = 1e5
"""Added to the logit of the text's next token, far above any logit."""
REQUEST_SECONDS = 1800.0
DIGITS = 6


@dataclass(frozen=True, slots=True)
class TokenProbabilities:
    """One position of the text: what the model expects next."""

    token: int
    """The token that does come next."""
    logprob: float
    """Its log probability."""
    ids: tuple[int, ...]
    """The most likely tokens, the first one first."""
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenDivergence:
    """One position compared with the reference."""

    kl: float
    """In nats; a lower bound."""
    same_top: bool


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The text in the tokens of one server, and the token that begins every chunk, if the model wants one."""

    tokens: Sequence[int]
    beginning: Sequence[int]
    sha256: str
    """Of both; equal for servers with the same vocabulary."""


async def read_tokens(options: QualityOptions, target_server: TargetServer) -> TextTokens:
    """Raises GpuboxError if the server is no llama-server."""
    active = target_server.active
    if active.dialect != LLAMA:
        raise GpuboxError(f"{active.target.name} is no llama-server: it reports no probabilities of given tokens.")
    client = target_server.client
    tokens, beginning = await client.tokenize(text_of(options)), await client.tokenize("", special=True)
    return TextTokens(tokens, beginning, hashlib.sha256(repr((beginning, tokens)).encode()).hexdigest())


async def execute_chunk(
    item: Item, options: QualityOptions, text: TextTokens, target_server: TargetServer
) -> dict[str, Any]:
    """The raw record of one chunk. Raises GpuboxError; ``{"ended": True}`` if the text ends before it."""
    number, size = item.values["chunk"], options.context
    chunk = list(text.tokens[(number - 1) * size : number * size])
    if len(chunk) < size and number == 1:
        raise GpuboxError(f"The text has {len(chunk):,} tokens, fewer than one chunk of {size:,}.")
    if len(chunk) < size:
        return {"ended": True}
    if text.beginning:
        chunk[0] = text.beginning[0]  # as llama-perplexity does
    positions = []
    for count, place in enumerate(chosen_positions(size), 1):
        target_server.report_progress(item.id, f"token {count} of {POSITIONS}")
        # The first prompt of a chunk is read anew: what the cache holds changes the batches, and so the last digits.
        positions.append(await _ask(chunk[: place + 1], chunk[place + 1], target_server, cached=count > 1))
    return {"text_sha256": text.sha256, "positions": msgspec.to_builtins(positions)}


def chosen_positions(context: int) -> list[int]:
    """Positions spread evenly over those that llama-perplexity predicts from: the second half but its last token."""
    first, count = context // 2, context - 1 - context // 2
    return [first + index * count // POSITIONS for index in range(POSITIONS)]


async def _ask(
    prompt: Sequence[int], following: int, target_server: TargetServer, *, cached: bool
) -> TokenProbabilities:
    body = {
        "prompt": list(prompt),
        "n_predict": 1,
        "n_probs": TOP,
        "post_sampling_probs": False,
        "temperature": 0.0,
        "samplers": ["temperature"],
        "logit_bias": [[following, FORCED]],
        "cache_prompt": cached,
        "stream": False,
    }
    reply = await target_server.client.complete(body, timeout=REQUEST_SECONDS)
    target_server.count_tokens(_evaluated(reply, len(prompt)), 1)
    return read_probabilities(reply, following)


def _evaluated(reply: Mapping[str, Any], prompt: int) -> int:
    timings = reply.get("timings")
    count = timings.get("prompt_n") if isinstance(timings, dict) else None
    return count if isinstance(count, int) else prompt


def read_probabilities(reply: Mapping[str, Any], following: int) -> TokenProbabilities:
    """The answer of ``/completion``. Raises GpuboxError if it lacks the probabilities or the token asked for."""
    listed = reply.get("completion_probabilities")
    first = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(first, dict) or not isinstance(first.get("top_logprobs"), list):
        raise GpuboxError("The server reports no probabilities (n_probs).", "Its llama-server may be too old.")
    try:
        sampled = msgspec.convert(first, _Listed)
        top = msgspec.convert(first["top_logprobs"], list[_Listed])
    except msgspec.ValidationError as error:
        raise GpuboxError(f"The probabilities of the server cannot be read: {error}.") from None
    if sampled.id != following or not top:
        raise GpuboxError("The server did not choose the token asked for, so its perplexity is unknown.")
    if not all(math.isfinite(entry.logprob) and entry.logprob <= 1e-3 for entry in (sampled, *top)):
        raise GpuboxError("The server reports log probabilities that are none.", code=ExitCode.UNHEALTHY)
    top.sort(key=lambda entry: -entry.logprob)
    return TokenProbabilities(
        following,
        round(sampled.logprob, DIGITS),
        tuple(entry.id for entry in top),
        tuple(round(entry.logprob, DIGITS) for entry in top),
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    id: int
    logprob: float


def divergence(reference: TokenProbabilities, other: TokenProbabilities) -> TokenDivergence:
    """KL(reference | other) over the tokens that both list, and one bucket for the rest: a lower bound."""
    logs = dict(zip(other.ids, other.logprobs, strict=True))
    kl = shared = other_shared = 0.0
    for token, log_p in zip(reference.ids, reference.logprobs, strict=True):
        if (log_q := logs.get(token)) is not None:
            p = math.exp(log_p)
            kl += p * (log_p - log_q)
            shared += p
            other_shared += math.exp(log_q)
    rest, other_rest = max(0.0, 1 - shared), max(0.0, 1 - other_shared)
    if rest > REST_ROUNDING:
        kl += rest * math.log(rest / max(other_rest, REST_ROUNDING))
    return TokenDivergence(kl, reference.ids[0] == other.ids[0])


REST_ROUNDING = 1e-5
"""The rest is one minus a sum of rounded numbers: below this it is rounding."""
