"""``humaneval``: pass@1 of the 164 problems, in one to three modes, and where the time went."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kinds.humaneval import dataset, modes
from gpubox.bench.kinds.humaneval.dataset import load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, Grade, grade
from gpubox.bench.kinds.humaneval.options import MODE_WEIGHTS, parse_options
from gpubox.bench.kinds.humaneval.replies import ParsedReply, parse_reply
from gpubox.bench.kinds.humaneval.summary import summarise
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    pass

PROMPT_TOKENS = 900
"""More than the longest prompt with its task has, in any tokenizer seen."""
NO_CODE = Grade("no code", "the reply holds no program that defines the function")


class HumanEval(Benchmark):
    """See ``options``."""

    kind = "humaneval"
    takes_parallel = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._graded: dict[str, Grade] = {}

    def items(self) -> Sequence[Item]:
        several = len(self.plan.targets) > 1
        return [
            Item(
                f"{target.name}:{mode}/{problem.number}" if several else f"{mode}/{problem.number}",
                target.name,
                {"mode": mode, "task": problem.task_id},
                weight=MODE_WEIGHTS[mode],
            )
            for target in self.plan.targets
            for mode in self.options.modes
            for problem in self.options.problems()
        ]

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        if server is None or server.target.name != item.target or item.values["mode"] == "ask_vanilla":
            return ""
        size = server.context_tokens
        return f"needs a context of {PROMPT_TOKENS} tokens; a slot has {size}" if size and size < PROMPT_TOKENS else ""

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        problem, mode = load_problems()[item.values["task"]], item.values["mode"]
        if mode == "ask_vanilla":
            return await modes.ask_vanilla(target_server, item.id, problem, self.options)
        if mode == "ask_chat":
            return await modes.ask_chat(target_server, item.id, problem, self.options)
        return await modes.ask_agentic(target_server, item.id, problem, self.options, self.shared_sandbox())

    async def sandbox_isolation(self, target_server: TargetServer) -> str:
        self.config = target_server.config
        found = await self.shared_sandbox().confinement()
        if found.isolation is None:
            raise GpuboxError(f"HumanEval runs the model's code, and nothing confines it: {found.problem}", found.hint)
        # Without a mount namespace a Python that gpubox shares with others is open to programs, its packages too.
        if (
            found.isolation != "none"
            and (await self.shared_sandbox().run(f"open({str(dataset.DATASET_FILE)!r}, 'rb').read()")).ok
        ):
            raise GpuboxError(
                "A program in the sandbox can read HumanEval's tests here.",
                "Install bubblewrap, or install gpubox in a venv of its own.",
            )
        return f"{found.isolation}: {found.detail}"

    async def prepare(self, pairs: Sequence[tuple[Item, RawRecord]]) -> None:
        cases = []
        for item, raw in pairs:
            with contextlib.suppress(Exception):  # `score` says what is wrong with this one
                if not raw.error and (case := _case(item, parse_reply(item, raw))):
                    cases.append(case)
        self._graded = await grade(cases, self.shared_sandbox())

    async def score(self, item: Item, raw: RawRecord) -> Result:
        found = parse_reply(item, raw)
        case = _case(item, found)
        verdict = NO_CODE
        if case:
            graded = {item.id: self._graded.pop(item.id)} if item.id in self._graded else None
            verdict = (graded or await grade([case], self.shared_sandbox()))[item.id]
        elif found.failure:
            verdict = Grade("no answer", found.failure)
        values = {
            "passed": verdict.passed,
            "verdict": verdict.kind,
            "why": verdict.why,
            "source": found.code.source,
            "code": found.code.code,
            **found.numbers,
        }
        return Result(item.id, values)

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        done = [(item, result) for item, result in results if result.ok]
        if not done:
            return ""
        mode, target = done[-1][0].values["mode"], done[-1][0].target
        own = [r.values["passed"] for i, r in done if (i.values["mode"], i.target) == (mode, target)]
        return f"{mode} pass@1 {100 * sum(own) / len(own):.1f} % of {len(own)}"


def _case(item: Item, found: ParsedReply) -> Candidate | None:
    if not found.code.program:
        return None
    return Candidate(item.id, load_problems()[item.values["task"]], found.code.program)
