"""``sweep``: one profile over a grid of flags; the best cells are compared on fresh starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpubox import units
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kinds.sweep.grid import finalist_number, grid_items, needs_at_least_as_much, parse_options
from gpubox.bench.kinds.sweep.ranking import cell_to_keep, fastest_cell, rank_cells, select_finalists
from gpubox.bench.kinds.sweep.summary import summarise
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Target
from gpubox.bench.questions import ask_question, context_shortfall, question_of, question_result
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import GpuboxError, UsageError
from gpubox.server.failure_causes import FailureKind
from gpubox.server.supervisor import OperationFailed

LOAD_FAILURES = frozenset(
    {FailureKind.OOM, FailureKind.FLAG, FailureKind.UNSUPPORTED, FailureKind.HANG, FailureKind.CRASH}
)
"""Causes that the cell's flags can have; a missing file or a taken port is the box's, and ends the run."""
_OUT_OF = re.compile(r"out of (VRAM|RAM)\b")


class Sweep(Benchmark):
    """See ``plan``."""

    kind = "sweep"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._targets = {target.name: target for target in plan.targets}
        self._contexts: dict[int, str] = {}
        self._chosen: list[Target] | None = None

    def items(self) -> Sequence[Item]:
        return grid_items(self.options, self.plan.targets, self.plan.seed)

    def target_of(self, item: Item, results: Sequence[tuple[Item, Result]]) -> str:
        place = finalist_number(item)
        return item.target if place is None else self._finalists(results)[place - 1].name

    def unneeded_reason(self, item: Item, results: Sequence[tuple[Item, Result]]) -> str:
        place = finalist_number(item)
        if place is None:
            return ""
        cell_to_keep = self._finalists(results)
        if len(cell_to_keep) < 2:
            return "fewer than two cells could be measured"
        return "" if place <= len(cell_to_keep) else f"only {len(cell_to_keep)} cells could be measured"

    def _finalists(self, results: Sequence[tuple[Item, Result]]) -> list[Target]:
        """Asked when every cell has had its first start: what they are does not change any more."""
        if self._chosen is None:
            self._chosen = select_finalists(self.options, self.plan.targets, results)
        return self._chosen

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        if isinstance(error, OperationFailed) and error.cause.kind in LOAD_FAILURES:
            return error.cause.sentence
        return error.message.rstrip(".") if isinstance(error, UsageError) else ""

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        mine = self.target_of(item, results)
        for other, result in results:
            if result.ok or result.unneeded:
                continue
            name = self.target_of(other, results)
            if name == mine:
                if result.skipped and other.id != item.id and other.group != item.group:
                    return result.error  # another start: it could not load before
                if not result.skipped and any(flag.kind == "crash" for flag in result.flags):
                    return f"the server died under {other.id}"
            elif memory := self._beyond(mine, name, result):
                return f"not tried: {name} was out of {memory} with less"
        up = server if server and server.target.name == mine else None
        return context_shortfall(question_of(item), up)

    def _beyond(self, mine: str, other: str, result: Result) -> str:
        """The memory that the cell ``other`` ran out of, where the cell ``mine`` needs no less of it."""
        match = _OUT_OF.match(result.error) if result.skipped else None
        cell, failed = self._targets[mine], self._targets[other]
        return match[1] if match and needs_at_least_as_much(self.options.axes, cell, failed, match[1]) else ""

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        data = await ask_question(target_server, item, self._contexts)
        if item.warmup and (running := target_server.running):
            vram = sum(used for _, used in running.loaded_vram) or None
            data |= {"load_seconds": running.load_seconds, "vram_bytes": vram}
        return data

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return question_result(item, raw, {name: raw.data.get(name) for name in ("load_seconds", "vram_bytes")})

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options, info, results, self.history)

    def best(self, results: Sequence[tuple[Item, Result]]) -> Target | None:
        kept = cell_to_keep(self.options, self.plan.targets, rank_cells(self.options, self.plan.targets, results))
        return kept.target if kept else None

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        best = fastest_cell(self.options, self.plan.targets, results)
        if best is None:
            return ""
        return f"best so far {best.target.name}: {self.options.by} {units.rate(best.rate)} tok/s"
