"""``tune``: which flags of one profile are the fastest, of those that fit."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpubox.bench.compare.cell_benchmark import YOUR_FLAGS, CellBenchmark
from gpubox.bench.compare.contest import Contest, Rules, Stage
from gpubox.bench.compare.report import MEASURES, cell_metrics, contest_report
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.tune.agent_turns import load_result, needed_context, run_load
from gpubox.bench.kinds.tune.progress import UNITS
from gpubox.bench.kinds.tune.protocol import (
    ENOUGH,
    MAX_STARTS,
    Protocol,
    fitted_protocol,
    flag_changes,
    parse_options,
)
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable
from gpubox.bench.report.prompt_metrics import Measures, start_means
from gpubox.bench.stats import estimate
from gpubox.bench.target_server import TargetServer

_LOAD = "load"
"""The name of the one measurement of a start with the goal ``agent``."""
_LOAD_MEASURES: Measures = (
    ("turns", "agent", "turns/min", "higher"),
    ("time per turn", "turn_seconds", "s", "lower"),
    ("tg", "tg", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
_GOALS = {"tg": "generation (tg)", "pp": "prompt processing (pp)", "agent": "agents' turns"}


class Tune(CellBenchmark):
    """Cells that gpubox chooses. The first answer shows what there is time for."""

    kind = "tune"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self.measure, self.unit = self.options.goal, UNITS[self.options.goal]
        self.rules = Rules(
            tuple(target.name for target in plan.targets),
            MAX_STARTS,
            seconds=60 * self.options.minutes,
            enough=ENOUGH,
            lossy=frozenset(self.options.lossy),
            places=self.options.cells,
            domains={q.name: q.domain for q in Protocol(prompts=17).questions},
            needs_no_less=self.options.needs_no_less,
            seed=plan.seed,
        )

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        from gpubox.bench.kinds.tune.planning import plan_tune

        return plan_tune(context, given)

    def label(self, cell: str) -> str:
        return YOUR_FLAGS if cell == self.rules.own else cell

    # -- the course -----------------------------------------------------------------------------------

    def contest(self) -> Contest:
        chosen: list[Protocol] = []

        def start_items(number: int, cell: str, stage: Stage) -> Generator[Sequence[Item], ScoredItems, None]:
            """The protocol is chosen after the first answer of the first cell that runs."""
            calibration = self.question_item(self.options.calibration, number, cell, stage, warmup=True)
            if chosen:
                yield [calibration, *self._asked(chosen[0], number, cell, stage)]
                return
            results = yield [calibration]
            _, first = results[-1]
            if first.ok:
                values = first.values
                loaded = float(values.get("start_seconds") or 0.0)
                chosen.append(fitted_protocol(self.options, loaded, values.get("pp"), values.get("tg")))
                yield self._asked(chosen[0], number, cell, stage)

        return Contest(self.rules, start_items, self.read_start)

    def _asked(self, protocol: Protocol, number: int, cell: str, stage: Stage) -> list[Item]:
        if self.options.goal != "agent":
            return [self.question_item(question, number, cell, stage) for question in protocol.questions]
        values = {"stage": stage, "load": msgspec.to_builtins(protocol)}
        group, weight = f"{number:03d}/{cell}", float(protocol.streams * protocol.turns * protocol.max_tokens)
        return [Item(f"{group}/{_LOAD}", cell, values, False, group, weight, number)]

    # -- one item -------------------------------------------------------------------------------------

    def needed_context(self, item: Item) -> int:
        return needed_context(_load_of(item)) if "load" in item.values else super().needed_context(item)

    async def measured(self, item: Item, target_server: TargetServer) -> dict[str, Any]:
        if "load" in item.values:
            return await run_load(_load_of(item), item, target_server)
        return await super().measured(item, target_server)

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return load_result(item, raw) if "load" in item.values else await super().score(item, raw)

    # -- what it found --------------------------------------------------------------------------------

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        options, best = self.options, self.best(results)
        tables = []
        if best:
            rows = [(change.flag, change.before, change.after) for change in flag_changes(options, best.overrides)]
            tables.append(ReportTable("Changed flags", ("flag", "your profile", "tuned"), tuple(rows), best.name))
        metrics = self._load_metrics(info, results) if options.goal == "agent" else cell_metrics(
            self, info, results, MEASURES[:3]
        )  # fmt: skip
        notes = [f"{count:,} sets of flags were not tried: {why}." for why, count in options.pruned.items()]
        rates = [("turns/min", "agent")] if options.goal == "agent" else [("tg", "tg"), ("pp", "pp")]
        report = contest_report(
            self, info, results, title=f"{info.plan.targets[0].profile} tuned for {_GOALS[options.goal]}",
            axes={axis.flag: _Column(options.cells, at, axis.labels) for at, axis in enumerate(options.axes)},
            metrics=metrics, rates=rates, notes=notes,
        )  # fmt: skip
        return replace(report, tables=(*tables, *report.tables))  # what to change stands first

    def _load_metrics(self, info: RunInfo, results: ScoredItems) -> list[Metric]:
        metrics = []
        for cell, rows in self.rows_of(self.contest_after(results), results).items():
            for name, key, unit, better in _LOAD_MEASURES:
                values = [(item.id, float(r.values[key])) for item, r in rows if r.values.get(key) is not None]
                if values:
                    numbers, means = estimate([value for _, value in values]), start_means(rows, key)
                    profile = info.plan.targets[0].profile
                    metrics.append(Metric(name, cell, profile, unit, better, numbers, tuple(values), means))
        return metrics


class _Column:
    """The value of each cell on one axis."""

    def __init__(self, cells: Mapping[str, tuple[int, ...]], at: int, labels: Sequence[str]) -> None:
        self._cells, self._at, self._labels = cells, at, labels

    def __call__(self, cell: str) -> str:
        return self._labels[self._cells[cell][self._at]]


def _load_of(item: Item) -> Protocol:
    return msgspec.convert(item.values["load"], Protocol)
