"""``suite``: the 12-task comparison of one or several profiles."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.agent.reply_text import split_thinking
from gpubox.bench.benchmark import Benchmark, check_items
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import convert_options, exceeds_context, id_prefix
from gpubox.bench.kinds.suite.answers import GRADERS
from gpubox.bench.kinds.suite.programs import CHECKS, grade_program
from gpubox.bench.kinds.suite.suite_report import summarise
from gpubox.bench.kinds.suite.tasks import SPEED_RUNS, SYSTEM_PROMPT, TASKS, SuiteTask
from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.questions import TEMPLATE_TOKENS, no_speed_reason, uncached_text, unmet_conditions
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import UsageError
from gpubox.sandbox.runner import Sandbox

MAX_TOKENS, MAX_TOKENS_THINKING = 4096, 8192
FIX_POINTS = 4
"""The most points of 2.1."""


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """The options of one suite run."""

    tasks: tuple[str, ...] = tuple(TASKS)
    repeats: int = 3
    """Answers to each task but speed: their mean counts. One answer shows no spread, so it ranks nothing."""
    ref_tps: float | None = None
    """The tok/s that are worth 100 points of speed, for a run of one profile."""
    max_tokens: int | None = None
    """Of an answer. Default: 4,096, or 8,192 if the chat template has thinking."""
    speed_tokens: int | None = None
    """For all speed rows instead of their own, to try the suite out."""
    sampling: Mapping[str, int | float] = field(default_factory=dict)
    """Of tasks 1 to 4, over the profile's own. Speed always has temperature 0."""


def parse_options(values: Mapping[str, Any]) -> SuiteOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SuiteOptions)
    if unknown := [task for task in options.tasks if task not in TASKS]:
        raise UsageError(f"There is no task {unknown[0]!r}.", f"Choose from: {', '.join(TASKS)}.")
    counts = (options.repeats, options.max_tokens, options.speed_tokens)
    if not options.tasks or any(count is not None and count < 1 for count in counts):
        raise UsageError("A suite needs at least one task, one repeat and one token.")
    check_items(options.repeats * len(options.tasks))
    if options.ref_tps is not None and options.ref_tps <= 0:
        raise UsageError("--ref-tps must be above 0.")
    return options


class Suite(Benchmark):
    """One item is one answer to one task."""

    kind = "suite"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        if "temperature" in given:
            given["sampling"] = {"temperature": given.pop("temperature")}
        plan = super().make_plan(context, given)
        parse_options(plan.options)
        return plan

    def items(self) -> Sequence[Item]:
        items: list[Item] = []
        for target in self.plan.targets:
            prefix = id_prefix(self.plan, target)
            for name, task in TASKS.items():
                if name not in self.options.tasks:
                    continue
                values, answers, group, weight = {"task": name}, self.options.repeats, "", 1000.0
                if task.max_tokens:
                    answers, group, weight = SPEED_RUNS, f"{prefix}{name}", float(self._max_tokens(task, None))
                    items.append(Item(f"{group}/w1", target.name, values, True, group, weight))
                for number in range(1, answers + 1):
                    items.append(Item(f"{prefix}{name}/{number}", target.name, values, False, group, weight))
        return items

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        task = TASKS[item.values["task"]]
        answer_tokens = self._max_tokens(task, None) if task.max_tokens else 0
        return exceeds_context(len(task.prompt) // 3 + TEMPLATE_TOKENS + answer_tokens, item.target, active)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        task, server = TASKS[item.values["task"]], target_server.active
        text = uncached_text(task.prompt, item, target_server) if task.max_tokens else task.prompt
        body: dict[str, Any] = {
            "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}],
            "max_tokens": self._max_tokens(task, server),
        }
        if task.max_tokens:
            body |= {"temperature": 0.0, "cache_prompt": False, "ignore_eos": True}
            body["chat_template_kwargs"] = {"enable_thinking": False}
        else:
            body |= self.options.sampling
        return await measure_request(target_server, item.id, body)

    async def sandbox_isolation(self, target_server: TargetServer) -> str:
        self.config = target_server.config
        if not any(TASKS[name].category == "coding" for name in self.options.tasks):
            return ""
        confinement = await self.shared_sandbox().confinement()
        return f"{confinement.isolation}: {confinement.detail}" if confinement.isolation else ""

    async def score(self, item: Item, raw: RawRecord) -> Result:
        reply, name = stored_reply(raw.data), item.values["task"]
        numbers = {"tg": reply.tg, "ttft_seconds": reply.ttft_seconds, "generated_tokens": reply.generated_tokens}
        if TASKS[name].max_tokens:
            doubts = unmet_conditions(item, reply, self._max_tokens(TASKS[name], None))
            if why := no_speed_reason(reply):
                return Result(item.id, doubts=doubts, error=why)
            return Result(item.id, {"task": name, **numbers}, doubts=doubts)
        score = await score_reply(name, reply.text, reply.reasoning, reply.finish_reason, self.shared_sandbox)
        return Result(item.id, {**score, **numbers})

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options.tasks, self.options.ref_tps, info, results)

    def headline(self, results: ScoredItems) -> str:
        shares = [r.values["share"] for _, r in results if r.ok and r.values.get("share") is not None]
        return f"{100 * statistics.fmean(shares):.0f} of 100 points in {len(shares)} answers" if shares else ""

    def _max_tokens(self, task: SuiteTask, server: ActiveTarget | None) -> int:
        if task.max_tokens:
            return self.options.speed_tokens or task.max_tokens
        template = str(server.props.get("chat_template", "")) if server else ""
        thinks = "enable_thinking" in template or "<think>" in template
        return self.options.max_tokens or (MAX_TOKENS_THINKING if thinks else MAX_TOKENS)


async def score_reply(
    task: str, content: str, reasoning: str, finish_reason: str, sandbox: Callable[[], Sandbox]
) -> dict[str, Any]:
    """A result's values: the points by criterion, their share of the most, and why they are not available."""
    text, source = answer_of_reply(content, reasoning, finish_reason)
    values: dict[str, Any] = {"task": task, "source": source, "finish_reason": finish_reason}
    points: Mapping[str, float] | None
    if task in GRADERS:
        grader, most = GRADERS[task]
        points = grader(text)
    else:
        points, values["code"], values["unavailable"] = await grade_program(task, text, sandbox)
        most = FIX_POINTS if task == "2.1" else len(CHECKS[task].names)
    return values | {"points": points or {}, "share": None if points is None else sum(points.values()) / most}


def answer_of_reply(content: str, reasoning: str, finish_reason: str) -> tuple[str, str]:
    """The text to grade, and where it was: content | reasoning | empty | cut (max_tokens ended the thinking).

    Unfinished thinking is never an answer; one that the server put into ``reasoning_content`` is.
    """
    thinking, visible = split_thinking(content)
    if visible.strip():
        return visible, "content"
    if finish_reason == "length" and (thinking.strip() or reasoning.strip()):
        return "", "cut"
    return (reasoning, "reasoning") if reasoning.strip() and not thinking.strip() else ("", "empty")
