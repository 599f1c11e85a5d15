"""What ``ab``, ``sweep`` and ``tune`` have in common: cells of one plan, started and compared until one can be told."""

from __future__ import annotations

import math
import re
import statistics
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from gpubox import units
from gpubox.bench.benchmark import Benchmark, Course, play
from gpubox.bench.compare.contest import Contest, Rules, Stage, StartOutcome
from gpubox.bench.compare.words import answer_sentence, winner
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.model import Item, Plan, Provenance, RawRecord, Result, ScoredItems, Target
from gpubox.bench.questions import Question, ask_question, question_of, question_result, question_values
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError, UsageError
from gpubox.server.failure_causes import FailureKind
from gpubox.server.state import Launch
from gpubox.server.supervisor import OperationFailed

_OF_FLAGS = {FailureKind.FLAG, FailureKind.UNSUPPORTED}
_LOAD_FAILURES = frozenset({*_OF_FLAGS, FailureKind.OOM, FailureKind.HANG, FailureKind.CRASH, FailureKind.KILLED})
"""Failures that the flags of a cell can cause. Others, such as a missing file or a taken port, end the run."""
_OUT_OF = re.compile(r"out of (VRAM|RAM)\b")


def cell_load_failure(error: GpuboxError) -> str:
    """Why a cell cannot load, if its flags can be the cause; empty: the run must end with ``error``."""
    if isinstance(error, OperationFailed) and error.cause.kind in _LOAD_FAILURES:
        return error.cause.sentence
    return error.message.rstrip(".") if isinstance(error, UsageError) else ""


def lacked_memory(reason: str) -> str:
    """``VRAM`` or ``RAM``, if ``reason`` of ``cell_load_failure`` is that a cell ran out of it."""
    match = _OUT_OF.match(reason)
    return match[1] if match else ""


YOUR_FLAGS = "your flags"
START_FIELDS = (
    "start_seconds", "load_seconds", "vram_bytes", "context_tokens", "quant", "model_bytes", "parameters",
    "active_parameters",
)  # fmt: skip
"""Stored with the warm-up of each start, as far as they are known."""


class CellBenchmark(Benchmark):
    """One item is one question to one start of a cell. The plan's first target is what the owner has now."""

    rules: Rules
    asked: Sequence[Question]
    """Of every start; the first one also warms it up."""
    measure: str = "tg"
    """The rate that decides."""
    unit: str = "tok/s"
    with_models = False
    """Whether cells differ in their model, which is then described as well."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._contexts: dict[str, dict[int, str]] = {}

    @abstractmethod
    def label(self, cell: str) -> str:
        """The name of a cell in a sentence."""

    # -- the course -----------------------------------------------------------------------------------

    def contest(self) -> Contest:
        """The comparison before its first start."""
        return Contest(self.rules, self.start_items, self.read_start)

    def contest_after(self, results: ScoredItems) -> Contest:
        """The comparison as far as ``results`` go."""
        contest = self.contest()
        play(contest.course(), {item.id: result for item, result in results})
        return contest

    def course(self) -> Course:
        return self.contest().course()

    def start_items(self, number: int, cell: str, stage: Stage) -> Generator[Sequence[Item], ScoredItems, None]:
        """A warm-up, then every question."""
        warmup = self.question_item(self.asked[0], number, cell, stage, warmup=True)
        yield [warmup, *(self.question_item(question, number, cell, stage) for question in self.asked)]

    def question_item(self, question: Question, number: int, cell: str, stage: Stage, *, warmup: bool = False) -> Item:
        """One question to one start."""
        group, weight = f"{number:03d}/{cell}", question.max_tokens + question.context_tokens / 10
        name = "warm-up" if warmup else question.name
        values = {**question_values(question), "stage": stage}
        return Item(f"{group}/{name}", cell, values, warmup, group, weight, number)

    def read_start(self, number: int, cell: str, stage: Stage, own: ScoredItems) -> StartOutcome:
        """What came of one start."""
        seconds = sum(result.seconds + float(result.values.get("start_seconds") or 0.0) for _, result in own)
        failed = next((result for _, result in own if not result.ok), None)
        rates = {item.id.rpartition("/")[2]: result.values.get(self.measure) for item, result in own if not item.warmup}
        known = {name: math.log(rate) for name, rate in rates.items() if isinstance(rate, int | float) and rate > 0}
        if failed is None and known and len(known) == len(rates):
            return StartOutcome(number, cell, stage, known, seconds)
        why = (failed.error if failed else f"{self.measure} could not be measured").rstrip(".")
        not_loaded = bool(failed and failed.skipped and own[0][1] is failed)
        return StartOutcome(number, cell, stage, {}, seconds, why, lacked_memory(why) if not_loaded else "")

    # -- one item -------------------------------------------------------------------------------------

    def needed_context(self, item: Item) -> int:
        """Tokens of prompt and answer."""
        return question_of(item).needed_context

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        for other, result in results:
            if other.start == item.start and not result.ok and other.id != item.id:
                if result.skipped:
                    return result.error
                if any(doubt.kind == "crash" for doubt in result.doubts):
                    return f"the server died during {other.id}"
        return exceeds_context(self.needed_context(item), item.target, active)

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        return cell_load_failure(error)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        data = await self.measured(item, target_server)
        if item.warmup and (running := target_server.running):
            data |= {
                "start_seconds": round(target_server.switch_seconds, 3),
                "load_seconds": running.load_seconds,
                "vram_bytes": sum(used for _, used in running.loaded_vram) or None,
            }
            if self.with_models:
                data["context_tokens"] = target_server.active.context_tokens
                data |= await run_in_thread(_model_values, running.launch)
        return data

    async def measured(self, item: Item, target_server: TargetServer) -> dict[str, Any]:
        """The raw data of one item."""
        return await ask_question(target_server, item, self._contexts.setdefault(item.target, {}))

    async def score(self, item: Item, raw: RawRecord) -> Result:
        extra = {name: raw.data[name] for name in START_FIELDS if name in raw.data}
        result = question_result(item, raw, extra)
        return result if result.ok else Result(item.id, extra, doubts=result.doubts, error=result.error)

    # -- what it found --------------------------------------------------------------------------------

    def best(self, results: ScoredItems) -> Target | None:
        """Only what is faster than the present flags, and answers as they do."""
        contest = self.contest_after(results)
        cell = winner(contest, contest.judged()) if contest.reason is not None else ""
        return next((target for target in self.plan.targets if target.name == cell), None)

    def headline(self, results: ScoredItems) -> str:
        contest = self.contest_after(results)
        if contest.reason is not None:
            doubts = [doubt for _, result in results for doubt in result.doubts]
            sentence = answer_sentence(contest, contest.judged(), self.label, doubts, self.plan)
            return sentence.partition(". ")[0].rstrip(".")
        rates = {cell: mean for cell in self.rules.cells if (mean := contest.mean(cell)) is not None}
        if not rates:
            return ""
        best = max(rates, key=lambda cell: rates[cell])
        return f"fastest so far {units.rate(math.exp(rates[best]))} {self.unit} with {self.label(best)}"

    def rows_of(self, contest: Contest, results: ScoredItems) -> dict[str, list[tuple[Item, Result]]]:
        """The answers of each measured cell, without warm-ups: of its fresh starts if it is compared."""
        stages = {cell: "final" if contest.starts_of(cell, "final") else "search" for cell in self.rules.cells}
        rows: dict[str, list[tuple[Item, Result]]] = {}
        for item, result in results:
            if result.ok and not item.warmup and item.values.get("stage") == stages.get(item.target):
                rows.setdefault(item.target, []).append((item, result))
        return {cell: rows[cell] for cell in self.rules.cells if cell in rows}


def start_facts(results: ScoredItems) -> dict[str, dict[str, Any]]:
    """What the warm-ups of each cell stored (START_FIELDS)."""
    facts: dict[str, dict[str, Any]] = {}
    for item, result in results:
        if item.warmup and result.ok:
            known = {name: value for name, value in result.values.items() if name in START_FIELDS and value is not None}
            facts.setdefault(item.target, known)
    return facts


def mean_rate(rows: ScoredItems, key: str) -> float | None:
    """The mean over prompts of the median of each."""
    prompts: dict[str, list[float]] = {}
    for item, result in rows:
        if value := result.values.get(key):
            prompts.setdefault(item.id.rpartition("/")[2], []).append(float(value))
    return statistics.fmean(map(statistics.median, prompts.values())) if prompts else None


def _model_values(launch: Launch) -> dict[str, Any]:
    """Quant, size and parameters of the model that runs, for a table in which models differ."""
    from gpubox.bench.report.post_launch import read_model

    model = read_model(Provenance("", model_path=launch.model_path or "", model_bytes=launch.model_bytes))
    return {
        "quant": model.quant,
        "model_bytes": model.size_bytes,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
    }
