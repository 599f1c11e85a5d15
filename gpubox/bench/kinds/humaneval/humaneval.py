"""``humaneval``: pass@1 of the 164 problems in one to three modes, and where the wall time goes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.humaneval import dataset, modes
from gpubox.bench.kinds.humaneval.dataset import load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, Grade, grade
from gpubox.bench.kinds.humaneval.humaneval_options import MODE_WEIGHTS, MODES, parse_options
from gpubox.bench.kinds.humaneval.humaneval_report import summarise
from gpubox.bench.kinds.humaneval.replies import ParsedReply, parse_reply
from gpubox.bench.kinds.shared import exceeds_context, id_prefix
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import GpuboxError

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
            return await modes.ask_vanilla(target_server, item.id, problem, self.options)
        if mode == "chat":
            return await modes.ask_chat(target_server, item.id, problem, self.options)
        return await modes.ask_agentic(target_server, item.id, problem, self.options, self.shared_sandbox())

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
        return summarise(self.options, info, results)

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
