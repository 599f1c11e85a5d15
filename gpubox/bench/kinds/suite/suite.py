"""``suite``: the 12-task comparison of one or several profiles."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import exceeds_context, id_prefix
from gpubox.bench.kinds.suite.scoring import score_of_values, score_reply
from gpubox.bench.kinds.suite.suite_report import summarise
from gpubox.bench.kinds.suite.tasks import SPEED_RUNS, SYSTEM_PROMPT, TASKS, SuiteTask, parse_options
from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.questions import TEMPLATE_TOKENS, no_speed_reason, uncached_text, unmet_conditions
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer

MAX_TOKENS, MAX_TOKENS_THINKING = 4096, 8192


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
            flags = unmet_conditions(item, reply, self._max_tokens(TASKS[name], None))
            if why := no_speed_reason(reply):
                return Result(item.id, flags=flags, error=why)
            return Result(item.id, {"task": name, **numbers}, flags=flags)
        score = await score_reply(name, reply.text, reply.reasoning, reply.finish_reason, self.shared_sandbox)
        return Result(item.id, {**score, **numbers})

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: ScoredItems) -> str:
        scores = [score_of_values(r.values).value for _, r in results if r.ok and "features" in r.values]
        points = [value for value in scores if value is not None]
        return f"{statistics.fmean(points):.0f} of 100 points in {len(points)} tasks" if points else ""

    def _max_tokens(self, task: SuiteTask, server: ActiveTarget | None) -> int:
        if task.max_tokens:
            return self.options.speed_tokens or task.max_tokens
        template = str(server.props.get("chat_template", "")) if server else ""
        thinks = "enable_thinking" in template or "<think>" in template
        return self.options.max_tokens or (MAX_TOKENS_THINKING if thinks else MAX_TOKENS)
