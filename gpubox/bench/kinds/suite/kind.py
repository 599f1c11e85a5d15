"""``suite``: the 12-task comparison of one or several profiles."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kinds.suite.scoring import score_of_values, score_reply
from gpubox.bench.kinds.suite.summary import summarise
from gpubox.bench.kinds.suite.tasks import SPEED_RUNS, SYSTEM_PROMPT, TASKS, SuiteTask, parse_options
from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo
from gpubox.bench.questions import no_speed_reason, unmet_conditions
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.server.other_server import LLAMA

if TYPE_CHECKING:
    pass

BUDGET, THINKING_BUDGET = 4096, 8192
ROOM_TOKENS = 160


class Suite(Benchmark):
    """See ``tasks``."""

    kind = "suite"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)

    def items(self) -> Sequence[Item]:
        made: list[Item] = []
        for target in self.plan.targets:
            mark = f"{target.name}:" if len(self.plan.targets) > 1 else ""
            for name in (name for name in TASKS if name in self.options.tasks):
                task = TASKS[name]
                values, group = {"task": name}, f"{mark}{name}" if task.max_tokens else ""
                weight = float(self._tokens(task, None)) if task.max_tokens else 1000.0
                if task.max_tokens:
                    made.append(Item(f"{mark}{name}/w1", target.name, values, True, group, weight))
                for number in range(1, (SPEED_RUNS if task.max_tokens else self.options.repeat) + 1):
                    made.append(Item(f"{mark}{name}/{number}", target.name, values, False, group, weight))
        return made

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        if server is None or server.target.name != item.target:
            return ""
        task, size = TASKS[item.values["task"]], server.context_tokens
        needs = len(task.prompt) // 3 + ROOM_TOKENS + (self._tokens(task, server) if task.max_tokens else 0)
        return f"needs a context of {needs:,} tokens; a slot has {size:,}" if size and size < needs else ""

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        task = TASKS[item.values["task"]]
        text = task.prompt
        if task.max_tokens and target_server.active.dialect != LLAMA:
            text = f"[{item.id}]\n{text}"  # no switch for its cache: what is first must be new
        messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
        body: dict[str, Any] = {"messages": messages, "max_tokens": self._tokens(task, target_server.active)}
        if task.max_tokens:
            body |= {"temperature": 0.0, "cache_prompt": False, "ignore_eos": True}
            body["chat_template_kwargs"] = {"enable_thinking": False}
        else:
            sampling = self.options.sampling
            body |= {name: int(v) if name in ("top_k", "seed") else v for name, v in sampling.items()}
        return await measure_request(target_server, item.id, body)

    async def sandbox_isolation(self, target_server: TargetServer) -> str:
        self.config = target_server.config
        if not {"1.1", "1.2", "1.3", "2.1", "2.2"} & set(self.options.tasks):
            return ""
        found = await self.shared_sandbox().confinement()
        return f"{found.isolation}: {found.detail}" if found.isolation else ""

    async def score(self, item: Item, raw: RawRecord) -> Result:
        got, name = stored_reply(raw.data), item.values["task"]
        numbers = {"tg": got.tg, "ttft_seconds": got.ttft_seconds, "generated_tokens": got.generated_tokens}
        if TASKS[name].max_tokens:
            flags = unmet_conditions(item, got, self._tokens(TASKS[name], None))
            if why := no_speed_reason(got):
                return Result(item.id, flags=flags, error=why)
            return Result(item.id, {"task": name, **numbers}, flags=flags)
        scored = await score_reply(name, got.text, got.reasoning, got.finish_reason, self.shared_sandbox)
        return Result(item.id, {**scored, **numbers})

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        done = [score_of_values(r.values).value for i, r in results if r.ok and "features" in r.values]
        known = [value for value in done if value is not None]
        return f"{statistics.fmean(known):.0f} of 100 points in {len(known)} tasks" if known else ""

    def _tokens(self, task: SuiteTask, server: ActiveTarget | None) -> int:
        if task.max_tokens:
            return self.options.speed_tokens or task.max_tokens
        template = str(server.props.get("chat_template", "")) if server else ""
        thinks = "enable_thinking" in template or "<think>" in template
        return self.options.max_tokens or (THINKING_BUDGET if thinks else BUDGET)
