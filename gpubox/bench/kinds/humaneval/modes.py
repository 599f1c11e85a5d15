"""Asks one problem in one of three modes, and gives back everything that was said."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from gpubox.bench.kinds.humaneval.dataset import Problem
from gpubox.bench.kinds.humaneval.options import (
    AGENT_PROMPT,
    CHAT_PROMPT,
    STOP_SEQUENCES,
    SYSTEM_PROMPT,
    HumanEvalOptions,
)
from gpubox.bench.measured_request import measure_request
from gpubox.bench.questions import COMPLETIONS
from gpubox.bench.target_server import TargetServer, wait_for_exit
from gpubox.errors import ExitCode, GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.other_server import LLAMA

CUT_OFF_TOKENS = 32
"""A reply that is closed after its program: the server may make so many more before it sees that."""


async def ask_vanilla(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions
) -> Mapping[str, Any]:
    """lm-eval 0.4.12, local-completions: token ids without BOS, greedy, its seed and stops, and the end of text.

    Uncached, so that a completion does not depend on what was asked before it. Raises GpuboxError as ``measure_request``.
    """
    prompt: Any = problem.prompt
    if target_server.server.dialect == LLAMA:
        prompt = await target_server.client.tokenize(problem.prompt)
    end = target_server.server.props.get("eos_token")
    body = {
        "prompt": prompt,
        "max_tokens": options.tokens("vanilla"),
        "temperature": 0.0,
        "stop": [*STOP_SEQUENCES, *([end] if isinstance(end, str) and end else [])],
        "seed": 1234,
        "cache_prompt": False,
    }
    return await measure_request(target_server, item, body, path=COMPLETIONS)


async def ask_chat(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions
) -> Mapping[str, Any]:
    """One answer, no tools. Raises as ``measure_request``."""
    task = CHAT_PROMPT.format(problem.prompt.rstrip("\n"))
    body = {
        "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task}],
        "max_tokens": options.tokens("chat"),
        **_sampling(options),
        "cache_prompt": False,
        "chat_template_kwargs": {"enable_thinking": options.thinking},
    }
    return await measure_request(target_server, item, body)


async def ask_agentic(
    target_server: TargetServer, item: str, problem: Problem, options: HumanEvalOptions, sandbox: Sandbox
) -> Mapping[str, Any]:
    """One turn of the agent loop with the tool ``code_execution``. Raises GpuboxError where the server is at fault.

    The events without the deltas: the messages among them are the requests, word for word.
    """
    from gpubox.agent import events
    from gpubox.agent.code_execution import CodeExecution
    from gpubox.agent.conversation import Conversation
    from gpubox.agent.loop import AgentLoop
    from gpubox.agent.settings import AgentSettings

    tokens = options.tokens("agentic")
    settings = AgentSettings(
        rounds=options.rounds,
        max_tokens=tokens,
        turn_tokens=tokens * options.rounds,
        wall_seconds=1800.0,
        silence_seconds=1800.0,
        output_characters=4000,
        thinking=options.thinking,
        sampling=_sampling(options),
        system_prompt=SYSTEM_PROMPT,
    )
    tool = CodeExecution(sandbox, Policy(wall_seconds=15.0, cpu_seconds=10))
    conversation = Conversation([events.Message("user", AGENT_PROMPT.format(problem.prompt.rstrip("\n")))])
    kept: list[dict[str, Any]] = [events.event_values(events.MessageAdded(conversation.messages[0]))]
    quiet = (events.ReasoningDelta, events.TextDelta, events.PrefillProgress, events.GenerationStats)
    loose, end = 0, None
    async with aclosing(AgentLoop().run(conversation, settings, [tool], target_server.client)) as told:
        async for event in told:
            if isinstance(event, events.GenerationStats):
                target_server.progress(item, f"{event.generated_tokens} tokens")
            elif isinstance(event, events.ToolRequested):
                target_server.progress(item, "runs its program")
            if isinstance(event, events.RoundFinished | events.RoundRestarted):
                closed = isinstance(event, events.RoundRestarted) or event.finish_reason in ("program", "")
                loose += CUT_OFF_TOKENS * closed
            if not isinstance(event, quiet):
                kept.append(events.event_values(event))
                end = event
    assert isinstance(end, events.TurnFinished | events.TurnFailed)
    timing = end.totals.timing
    target_server.count(
        timing.prefill_new_tokens + timing.prefill_reprocessed_tokens, timing.generated_tokens, loose=loose
    )
    if isinstance(end, events.TurnFailed) and not _models_fault(end.message):
        target_server.lost = True
        await wait_for_exit(target_server)
        code = ExitCode.UNHEALTHY if target_server.alive else ExitCode.NOT_RUNNING
        raise GpuboxError(end.message, end.hint, code=code)
    return {"settings": {**_plain(settings), "tool": tool.description}, "events": kept}


def _models_fault(message: str) -> bool:
    return message.startswith(("The model ", "The conversation does not fit"))


def _plain(settings: Any) -> dict[str, Any]:
    import msgspec

    made: dict[str, Any] = msgspec.to_builtins(settings)
    return made


def _sampling(options: HumanEvalOptions) -> dict[str, Any]:
    return {name: int(v) if name in ("top_k", "seed") else v for name, v in options.chosen.items()}
