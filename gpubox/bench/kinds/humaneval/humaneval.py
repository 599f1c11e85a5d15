"""``humaneval``: pass@1 of the 164 problems in one to three modes, and where the wall time goes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.humaneval import dataset
from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, Grade, grade
from gpubox.bench.kinds.humaneval.humaneval_report import summarise
from gpubox.bench.kinds.humaneval.replies import ParsedReply, parse_reply
from gpubox.bench.kinds.shared import convert_options, exceeds_context, id_prefix
from gpubox.bench.measured_request import measure_request
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.questions import COMPLETIONS
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.other_server import LLAMA

MODE_WEIGHTS = {"vanilla": 1.0, "chat": 1.5, "agentic": 5.0}
"""Mode -> its relative cost. vanilla: the bare completion, as the local-completions model of lm-eval 0.4.12 asks and
scores it. chat: one chat answer. agentic: several rounds of writing, running and fixing in the sandbox."""
MODES = tuple(MODE_WEIGHTS)
STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""From lm-eval's humaneval.yaml. The model's end-of-text token is added."""
SYSTEM_PROMPT = "You are a careful Python programmer."
CHAT_PROMPT = (
    "Complete this Python function. Answer with the whole function and the imports it needs in one ```python block."
    "\n\n```python\n{}\n```"
)
AGENT_PROMPT = (
    "Complete this Python function. Write the whole function with the imports it needs, run it together with the "
    "examples of its docstring and a few checks of your own, and mend it until they pass. The last program that "
    "defines the function and ran without an error is your solution.\n\n```python\n{}\n```"
)


@dataclass(frozen=True, slots=True)
class HumanEvalOptions:
    """The options of one HumanEval run."""

    modes: tuple[str, ...] = ("vanilla",)
    limit: int | None = None
    """Only the first so many problems; ``None``: all 164."""
    max_tokens: int | None = None
    """Of one reply. Default: 1,024 in vanilla, 2,048 otherwise, 8,192 with thinking."""
    rounds: int = 5
    thinking: bool = False
    sampling: Mapping[str, int | float] = field(default_factory=dict)
    """Of chat and agentic, over the greedy defaults. vanilla is always greedy."""

    def reply_tokens(self, mode: str) -> int:
        """The max_tokens of one reply."""
        return self.max_tokens or (1024 if mode == "vanilla" else 8192 if self.thinking else 2048)

    @property
    def effective_sampling(self) -> dict[str, int | float]:
        return {"temperature": 0.0, "seed": 1234, **self.sampling}

    def problems(self) -> list[Problem]:
        """The problems to ask."""
        return list(load_problems().values())[: self.limit]


def parse_options(values: Mapping[str, Any]) -> HumanEvalOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, HumanEvalOptions)
    if unknown := [mode for mode in options.modes if mode not in MODES]:
        raise UsageError(f"There is no mode {unknown[0]!r}.", f"Choose from: {', '.join(MODES)}, all.")
    if not options.modes or len(set(options.modes)) < len(options.modes):
        raise UsageError("Name at least one mode, and each mode only once.")
    if (options.limit is not None and options.limit < 1) or options.rounds < 1 or (options.max_tokens or 1) < 1:
        raise UsageError("--limit, --rounds and --max-tokens must be at least 1.")
    return options


PROMPT_TOKENS = 900
"""Enough for the longest prompt with any tokenizer seen."""
NO_CODE = Grade("no code", "the reply has no program that defines the function")


class HumanEval(Benchmark):
    """One item is one problem in one mode."""

    kind = "humaneval"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._grades: dict[str, Grade] = {}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        parallel = given.pop("parallel", 1)
        mode = given.pop("modes", "vanilla")
        given["modes"] = list(MODES) if mode == "all" else [mode]
        if "temperature" in given:
            given["sampling"] = {"temperature": given.pop("temperature")}
        plan = super().make_plan(context, given)
        parse_options(plan.options)
        return replace(plan, parallel=parallel)

    def items(self) -> Sequence[Item]:
        return [
            Item(
                f"{id_prefix(self.plan, target)}{mode}/{problem.number}",
                target.name,
                {"mode": mode, "task": problem.task_id},
                weight=MODE_WEIGHTS[mode],
            )
            for target in self.plan.targets
            for mode in self.options.modes
            for problem in self.options.problems()
        ]

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        return "" if item.values["mode"] == "vanilla" else exceeds_context(PROMPT_TOKENS, item.target, active)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        problem, mode = load_problems()[item.values["task"]], item.values["mode"]
        if mode == "vanilla":
            return await ask_vanilla(target_server, item.id, problem, self.options)
        if mode == "chat":
            return await ask_chat(target_server, item.id, problem, self.options)
        return await ask_agentic(target_server, item.id, problem, self.options, self.shared_sandbox())

    async def sandbox_isolation(self, target_server: TargetServer) -> str:
        self.config = target_server.config
        confinement = await self.shared_sandbox().confinement()
        if confinement.isolation is None:
            raise GpuboxError(
                f"HumanEval runs the model's code, and no sandbox works here: {confinement.problem}", confinement.hint
            )
        # Without a mount namespace a program can read the installed packages, this one too.
        reads_tests = f"open({str(dataset.DATASET_FILE)!r}, 'rb').read()"
        if confinement.isolation != "none" and (await self.shared_sandbox().run(reads_tests)).ok:
            raise GpuboxError(
                "A program in the sandbox can read HumanEval's tests.",
                "Install bubblewrap, or install gpubox in a virtual environment of its own.",
            )
        return f"{confinement.isolation}: {confinement.detail}"

    async def prepare(self, pairs: Sequence[tuple[Item, RawRecord]]) -> None:
        candidates = []
        for item, raw in pairs:
            with contextlib.suppress(Exception):  # `score` reports what is wrong with this record
                if not raw.error and (candidate := _candidate(item, parse_reply(item, raw))):
                    candidates.append(candidate)
        self._grades = await grade(candidates, self.shared_sandbox())

    async def score(self, item: Item, raw: RawRecord) -> Result:
        reply = parse_reply(item, raw)
        if candidate := _candidate(item, reply):
            verdict = self._grades.pop(item.id, None) or (await grade([candidate], self.shared_sandbox()))[item.id]
        else:
            verdict = Grade("no answer", reply.failure) if reply.failure else NO_CODE
        values = {
            "passed": verdict.passed,
            "verdict": verdict.kind,
            "why": verdict.why,
            "source": reply.code.source,
            "code": reply.code.code,
            **reply.values,
        }
        return Result(item.id, values)

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options.limit, self.options.reply_tokens("vanilla"), info, results)

    def headline(self, results: ScoredItems) -> str:
        measured = [(item, result) for item, result in results if result.ok]
        if not measured:
            return ""
        last = measured[-1][0]
        mode = last.values["mode"]
        passed = [
            result.values["passed"]
            for item, result in measured
            if (item.values["mode"], item.target) == (mode, last.target)
        ]
        return f"{mode} pass@1 {100 * sum(passed) / len(passed):.1f} % of {len(passed)}"


def _candidate(item: Item, reply: ParsedReply) -> Candidate | None:
    return Candidate(item.id, load_problems()[item.values["task"]], reply.code.program) if reply.code.program else None


# --- Asking ---

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
    """One turn of the agent loop with the tool ``run``.

    Returns its settings and its events without the streamed deltas; the messages among them are the exact requests.
    Raises GpuboxError if the server is at fault.
    """
    from gpubox.agent import events
    from gpubox.agent.conversation import Conversation
    from gpubox.agent.loop import AgentLoop
    from gpubox.agent.run_tools import Programs, RunTool
    from gpubox.agent.settings import AgentSettings

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
    tool = RunTool(Programs(sandbox, policy=Policy(wall_seconds=15.0, cpu_seconds=10)))
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
