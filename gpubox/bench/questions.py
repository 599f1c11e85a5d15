"""Questions with fixed prompts, and the numbers of their replies, as ab, speed, sweep and soak measure them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.bench.measured_request import MeasuredReply, energy_values, measure_request, stored_reply
from gpubox.bench.model import Doubt, Item, RawRecord, Result
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.errors import UsageError
from gpubox.server.other_server import LLAMA

if TYPE_CHECKING:
    from gpubox.bench.target_server import TargetServer

COMPLETIONS = "/v1/completions"
TEMPLATE_TOKENS = 160
"""Context reserved for the chat template and the question."""
MIN_PP_TOKENS = 16
"""With fewer evaluated prompt tokens there is no pp."""
DOMAINS = tuple(CHAT_PROMPTS)
_REPLY_VALUES = (
    "ttft_seconds", "wall_seconds", "pp", "tg", "prompt_tokens", "cached_tokens", "generated_tokens",
    "generation_seconds", "draft_tokens", "draft_tokens_accepted", "mean_accepted_length", "timed_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One of the fifty chat prompts and how to ask it: greedy, uncached, with a fixed number of tokens."""

    name: str
    text: str
    domain: str
    max_tokens: int
    context_tokens: int = 0
    """Length of the filler text before it."""
    thinking: bool = False
    raw: bool = False
    """Sent to ``/v1/completions`` as text that the server's own chat template produced."""

    @property
    def needed_context(self) -> int:
        """Tokens of the prompt and the answer."""
        return self.context_tokens + self.max_tokens + TEMPLATE_TOKENS


def questions(per_domain: int, max_tokens: int, domains: Sequence[str] = DOMAINS, context: int = 0) -> list[Question]:
    """The first ``per_domain`` prompts of each domain, the domains in alternation. Raises UsageError."""
    if unknown := [name for name in domains if name not in CHAT_PROMPTS]:
        raise UsageError(f"There is no domain {unknown[0]!r}.", f"There are: {', '.join(CHAT_PROMPTS)}.")
    if per_domain < 1 or max_tokens < 2 or context < 0 or not domains:
        raise UsageError("There is nothing to measure.", "Ask for at least one prompt and two tokens.")
    columns = [
        [Question(f"{name}-{i:02d}", text, name, max_tokens, context) for i, text in enumerate(CHAT_PROMPTS[name], 1)]
        for name in dict.fromkeys(domains)
    ]
    rows = zip_longest(*(column[:per_domain] for column in columns))
    return [question for row in rows for question in row if question]


def question_of(item: Item) -> Question:
    """The question of ``item``."""
    return msgspec.convert(item.values["question"], Question)


def question_values(question: Question, **changes: Any) -> dict[str, Any]:
    """``question``, with ``changes``, in the form of an item's values."""
    return {"question": msgspec.to_builtins(replace(question, **changes))}


async def ask_question(target_server: TargetServer, item: Item, contexts: dict[int, str]) -> dict[str, Any]:
    """The raw data of one question. ``contexts`` caches the filler text by length. Raises as ``measure_request``."""
    question = question_of(item)
    text = await text_at_depth(question.text, question.context_tokens, target_server, contexts)
    text = uncached_text(text, item, target_server)
    messages = [{"role": "user", "content": text}]
    template_kwargs = {"enable_thinking": question.thinking}
    body: dict[str, Any] = {
        "max_tokens": question.max_tokens,
        "temperature": 0.0,
        "top_k": 1,
        "seed": 1,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    if not question.raw:
        body |= {"messages": messages, "chat_template_kwargs": template_kwargs}
        return await measure_request(target_server, item.id, body)
    body["prompt"] = await target_server.client.apply_template(messages, template_kwargs)
    return await measure_request(target_server, item.id, body, path=COMPLETIONS)


def reply_values(raw: RawRecord, reply: MeasuredReply) -> dict[str, Any]:
    """A result's values for one reply that has ``generated_tokens``: rates in tokens per second, times in seconds."""
    values: dict[str, Any] = {name: getattr(reply, name) for name in _REPLY_VALUES}
    values["effective"] = (reply.generated_tokens or 0) / reply.wall_seconds
    if (reply.prompt_tokens or 0) < MIN_PP_TOKENS:
        values["pp"] = None
    prompt, generated = reply.prompt_tokens or 0, reply.generated_tokens or 0
    return values | energy_values(raw, reply.ttft_seconds, reply.wall_seconds, prompt=prompt, generated=generated)


def question_result(item: Item, raw: RawRecord, extra: Mapping[str, Any] | None = None) -> Result:
    """The result of one stored reply to a question; ``extra`` values are added."""
    reply = stored_reply(raw.data)
    doubts = unmet_conditions(item, reply, question_of(item).max_tokens)
    if reason := no_speed_reason(reply):
        return Result(item.id, doubts=doubts, error=reason)
    return Result(item.id, {**reply_values(raw, reply), **(extra or {})}, doubts=doubts)


def no_speed_reason(reply: MeasuredReply) -> str:
    """Why a reply has no speed; empty: it has one."""
    if reply.generated_tokens is None and (reply.text or reply.reasoning):
        return "the server does not report how many tokens it generated"
    if reply.generated_tokens and reply.tg is None and reply.timed_by == "client":
        return "the answer came in too few chunks for the client to measure its speed"
    return "" if reply.generated_tokens and reply.tg is not None else "too few tokens were generated to measure a speed"


def unmet_conditions(
    item: Item, reply: MeasuredReply, max_tokens: int | None, *, cold: bool = True
) -> tuple[Doubt, ...]:
    """A doubt for each condition that the reply does not meet: its length (``None``: any), and a cold cache."""
    doubts = []
    cached, generated = reply.cached_tokens or 0, reply.generated_tokens
    prompt = (reply.prompt_tokens or 0) + cached
    if cold and cached > max(8, prompt // 50):
        doubts.append(Doubt("cache", f"{cached:,} of {prompt:,} prompt tokens came from the cache", item.id))
    if max_tokens is not None and generated is not None and generated != max_tokens:
        doubts.append(Doubt("length", f"{generated:,} tokens were generated instead of {max_tokens:,}", item.id))
    return tuple(doubts)


async def text_at_depth(text: str, tokens: int, target_server: TargetServer, contexts: dict[int, str]) -> str:
    """``text`` below so many tokens of filler text. ``contexts`` caches the filler text by length."""
    if not tokens:
        return text
    if tokens not in contexts:
        contexts[tokens] = await context_filler(target_server, tokens)
    return f"{contexts[tokens]}\n\nLeave the text above aside. {text}"


def uncached_text(text: str, item: Item, target_server: TargetServer) -> str:
    """``text``, with a beginning of its own for a server whose cache cannot be switched off."""
    return text if target_server.active.dialect == LLAMA else f"[{item.id}]\n{text}"


async def context_filler(target_server: TargetServer, tokens: int) -> str:
    """Filler text of ``tokens`` tokens, as llama-server counts them; for other servers four tokens per three words.

    Raises GpuboxError if a llama-server does not tokenize.
    """
    text = filler_text(tokens)
    if target_server.active.dialect != LLAMA:
        return " ".join(text.split()[: tokens * 3 // 4])
    client = target_server.client
    return await client.detokenize((await client.tokenize(text))[:tokens])
