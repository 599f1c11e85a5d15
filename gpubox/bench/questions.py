"""One question to the served path and the numbers of its answer: what speed, ab, sweep and soak ask alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.bench.measured_request import MeasuredReply, measure_request, stored_reply
from gpubox.bench.model import Flag, Item, RawRecord, Result
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.errors import UsageError
from gpubox.server.other_server import LLAMA

if TYPE_CHECKING:
    from gpubox.bench.target_server import ActiveTarget, TargetServer

COMPLETIONS = "/v1/completions"
TEMPLATE_TOKENS = 160
"""Of the chat template and the question."""
MIN_PP_TOKENS = 16
"""A prompt of fewer new tokens says nothing of the speed of reading."""
DOMAINS = tuple(CHAT_PROMPTS)


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of the fixed fifty, and how it is asked. Greedy, uncached, of a fixed length."""

    name: str
    text: str
    domain: str
    max_tokens: int
    context_tokens: int = 0
    """Made-up prose before it."""
    thinking: bool = False
    raw: bool = False
    """As text that the server's own template made, to ``/v1/completions`` instead of the chat."""


def questions(per_domain: int, max_tokens: int, domains: Sequence[str] = DOMAINS, context: int = 0) -> list[Question]:
    """The first ``per_domain`` prompts of each domain, the domains taking turns. Raises UsageError."""
    if unknown := [name for name in domains if name not in CHAT_PROMPTS]:
        raise UsageError(f"There is no domain {unknown[0]!r}.", f"There are: {', '.join(CHAT_PROMPTS)}.")
    if per_domain < 1 or max_tokens < 2 or context < 0 or not domains:
        raise UsageError("There is nothing to measure.", "At least one prompt and two tokens.")
    columns = [
        [Question(f"{name}-{i:02d}", text, name, max_tokens, context) for i, text in enumerate(CHAT_PROMPTS[name], 1)]
        for name in dict.fromkeys(domains)
    ]
    return [one for row in zip_longest(*(column[:per_domain] for column in columns)) for one in row if one]


def question_of(item: Item) -> Question:
    """What ``item`` asks."""
    return msgspec.convert(item.values["question"], Question)


def question_values(question: Question, **changes: Any) -> dict[str, Any]:
    """``question`` as an item keeps it."""
    return {"question": msgspec.to_builtins(replace(question, **changes))}


def context_shortfall(question: Question, server: ActiveTarget | None) -> str:
    """Why the server's slots have no room for it; empty: they have."""
    size = server.context_tokens if server else None
    needs = question.context_tokens + question.max_tokens + TEMPLATE_TOKENS
    return f"needs a context of {needs:,} tokens; a slot has {size:,}" if size and size < needs else ""


async def ask_question(target_server: TargetServer, item: Item, contexts: dict[int, str]) -> dict[str, Any]:
    """The raw data of one asked question. ``contexts`` keeps the prose of each length. Raises as ``measure_request``."""
    question = question_of(item)
    text = question.text
    if question.context_tokens:
        if question.context_tokens not in contexts:
            contexts[question.context_tokens] = await context_filler(target_server, question.context_tokens)
        text = f"{contexts[question.context_tokens]}\n\nLeave the text above aside. {text}"
    if target_server.server.dialect != LLAMA:
        text = f"[{item.id}]\n{text}"  # no switch for its cache: what is first must be new
    messages = [{"role": "user", "content": text}]
    kwargs = {"enable_thinking": question.thinking}
    body: dict[str, Any] = {
        "max_tokens": question.max_tokens,
        "temperature": 0.0,
        "top_k": 1,
        "seed": 1,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    if not question.raw:
        return await measure_request(
            target_server, item.id, {**body, "messages": messages, "chat_template_kwargs": kwargs}
        )
    prompt = await target_server.client.apply_template(messages, kwargs)
    return await measure_request(target_server, item.id, {**body, "prompt": prompt}, path=COMPLETIONS)


def reply_values(raw: RawRecord, got: MeasuredReply) -> dict[str, Any]:
    """A result's values of one answer: rates in tokens per second, times in seconds. Needs ``got.generated_tokens``."""
    values: dict[str, Any] = {
        "ttft_seconds": got.ttft_seconds,
        "wall_seconds": got.wall_seconds,
        "pp": got.pp if (got.prompt_tokens or 0) >= MIN_PP_TOKENS else None,
        "tg": got.tg,
        "effective": (got.generated_tokens or 0) / got.wall_seconds,
        "prompt_tokens": got.prompt_tokens,
        "cached_tokens": got.cached_tokens,
        "generated_tokens": got.generated_tokens,
        "generation_seconds": got.generation_seconds,
        "draft_tokens": got.draft_tokens,
        "draft_tokens_accepted": got.draft_tokens_accepted,
        "mean_accepted_length": got.mean_accepted_length,
        "timed_by": got.timed_by,
    }
    if got.ttft_seconds is not None and got.generated_tokens:
        from gpubox.bench.interference import energy_joules

        joules = energy_joules(raw.samples, got.ttft_seconds, got.wall_seconds)
        values["joules_per_token"] = joules / got.generated_tokens if joules is not None else None
    return values


def question_result(item: Item, raw: RawRecord, more: Mapping[str, Any] | None = None) -> Result:
    """The Result of one stored answer to a question."""
    got = stored_reply(raw.data)
    flags = unmet_conditions(item, got, question_of(item).max_tokens)
    if why := no_speed_reason(got):
        return Result(item.id, flags=flags, error=why)
    return Result(item.id, {**reply_values(raw, got), **(more or {})}, flags=flags)


def no_speed_reason(got: MeasuredReply) -> str:
    """Why an answer has no speed; empty: it has one."""
    if got.generated_tokens is None and (got.text or got.reasoning):
        return "the server does not say how many tokens it generated"
    if got.generated_tokens and got.tg is None and got.timed_by == "client":
        return "its answer came in too few pieces to be timed from outside"
    return "" if got.generated_tokens and got.tg is not None else "it generated nothing that could be timed"


def unmet_conditions(item: Item, got: MeasuredReply, wanted: int | None, *, cold: bool = True) -> tuple[Flag, ...]:
    """What the request asked for and did not get: a length (``None``: any), a prompt that is read anew."""
    found = []
    prompt = (got.prompt_tokens or 0) + (got.cached_tokens or 0)
    if cold and (got.cached_tokens or 0) > max(8, prompt // 50):
        found.append(Flag("cache", f"{got.cached_tokens:,} of {prompt:,} prompt tokens came from the cache", item.id))
    if wanted is not None and got.generated_tokens is not None and got.generated_tokens != wanted:
        found.append(Flag("length", f"{got.generated_tokens:,} instead of {wanted:,} tokens", item.id))
    return tuple(found)


async def context_filler(target_server: TargetServer, tokens: int) -> str:
    """Made-up prose of so many tokens; counted by the server where it can, else four tokens for three words.

    Raises GpuboxError where a llama-server does not count.
    """
    text = filler_text(tokens)
    if target_server.server.dialect != LLAMA:
        return " ".join(text.split()[: tokens * 3 // 4])
    client = target_server.client
    return await client.detokenize((await client.tokenize(text))[:tokens])
