"""Asks one problem in one of the three modes and returns the whole exchange."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from gpubox.bench.kinds.humaneval.dataset import Problem
from gpubox.bench.kinds.humaneval.humaneval_options import (
    AGENT_PROMPT,
    CHAT_PROMPT,
    STOP_SEQUENCES,
    SYSTEM_PROMPT,
    HumanEvalOptions,
)
from gpubox.bench.measured_request import measure_request
from gpubox.bench.questions import COMPLETIONS
from gpubox.bench.target_server import TargetServer
from gpubox.errors import ExitCode, GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.other_server import LLAMA

CUT_OFF_TOKENS = 32
"""Tokens the server may still generate before it notices that the client closed a reply after its program."""


async def ask_vanilla(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions
) -> dict[str, Any]:
    """The bare completion, as lm-eval 0.4.12 local-completions asks: token ids without BOS, greedy, its stops and seed.

    The prompt cache is off, so that earlier requests cannot change a completion. Raises as ``measure_request``.
    """
    prompt: Any = problem.prompt
    if target_server.active.dialect == LLAMA:
        prompt = await target_server.client.tokenize(problem.prompt)
    eos = target_server.active.props.get("eos_token")
    body = {
        "prompt": prompt,
        "max_tokens": options.reply_tokens("vanilla"),
        "temperature": 0.0,
        "stop": [*STOP_SEQUENCES, *([eos] if isinstance(eos, str) and eos else [])],
        "seed": 1234,
        "cache_prompt": False,
    }
    return await measure_request(target_server, item, body, path=COMPLETIONS)


async def ask_chat(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions
) -> dict[str, Any]:
    """One chat answer without tools. Raises as ``measure_request``."""
    prompt = CHAT_PROMPT.format(problem.prompt.rstrip("\n"))
    body = {
        "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": prompt}],
        "max_tokens": options.reply_tokens("chat"),
        **options.effective_sampling,
        "cache_prompt": False,
        "chat_template_kwargs": {"enable_thinking": options.thinking},
    }
    return await measure_request(target_server, item, body)


async def ask_agentic(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions, sandbox: Sandbox
) -> Mapping[str, Any]:
    """One turn of the agent loop with the tool ``code_execution``.

    Returns its settings and its events without the streamed deltas; the messages among them are the exact requests.
    Raises GpuboxError if the server is at fault.
    """
    from gpubox.agent import events
    from gpubox.agent.conversation import Conversation
    from gpubox.agent.loop import AgentLoop
    from gpubox.agent.settings import AgentSettings
    from gpubox.agent.tool_runner import CodeExecution

    tokens = options.reply_tokens("agentic")
    settings = AgentSettings(
        rounds=options.rounds,
        max_tokens=tokens,
        max_turn_tokens=tokens * options.rounds,
        max_turn_seconds=1800.0,
        silence_seconds=1800.0,
        max_output_characters=4000,
        thinking=options.thinking,
        sampling=options.effective_sampling,
        system_prompt=SYSTEM_PROMPT,
    )
    tool = CodeExecution(sandbox, Policy(wall_seconds=15.0, cpu_seconds=10))
    conversation = Conversation([events.Message("user", AGENT_PROMPT.format(problem.prompt.rstrip("\n")))])
    stored = [events.event_values(events.MessageAdded(conversation.messages[0]))]
    not_stored = (events.ReasoningDelta, events.TextDelta, events.PrefillProgress, events.GenerationStats)
    uncounted_tokens, end = 0, None
    async with aclosing(AgentLoop().run(conversation, settings, [tool], target_server.client)) as turn:
        async for event in turn:
            if isinstance(event, events.GenerationStats):
                target_server.report_progress(item, f"{event.generated_tokens} tokens")
            elif isinstance(event, events.ToolRequested):
                target_server.report_progress(item, "running its program")
            elif isinstance(event, events.RoundRestarted) or (
                isinstance(event, events.RoundFinished) and event.finish_reason in ("program", "")
            ):
                uncounted_tokens += CUT_OFF_TOKENS
            if not isinstance(event, not_stored):
                stored.append(events.event_values(event))
                end = event
    assert isinstance(end, events.TurnFinished | events.TurnFailed)
    timing = end.totals.timing
    prompt_tokens = (timing.prefill_new_tokens or 0) + (timing.prefill_reprocessed_tokens or 0)
    if timing.prefill_new_tokens is None:
        target_server.token_count_unknown = True
    target_server.count_tokens(prompt_tokens, timing.generated_tokens, unattributed=uncounted_tokens)
    if isinstance(end, events.TurnFailed) and not end.by_model:
        target_server.token_count_unknown = True
        await target_server.wait_for_exit()
        code = ExitCode.UNHEALTHY if target_server.alive else ExitCode.NOT_RUNNING
        raise GpuboxError(end.message, end.hint, code=code)
    return {"settings": {**msgspec.to_builtins(settings), "tool": tool.description}, "events": stored}
