"""``tune``: the cells that fit, as far as is known before a start, searched in the time given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import psutil

from gpubox import units
from gpubox.bench.compare.cell_benchmark import YOUR_FLAGS, CellBenchmark
from gpubox.bench.compare.contest import Contest, Rules, Stage
from gpubox.bench.compare.report import MEASURES, cell_metrics, contest_report
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.sweep.sweep import parse_axis
from gpubox.bench.kinds.tune.progress import UNITS, Goal
from gpubox.bench.kinds.tune.protocol import (
    ENOUGH,
    FIRST_CHOICE,
    MAX_STARTS,
    Protocol,
    TuneOptions,
    fitted_protocol,
    flag_changes,
    load_result,
    needed_context,
    parse_options,
    run_load,
)
from gpubox.bench.kinds.tune.space import (
    MAX_OVER_CELLS,
    TuneAxis,
    TuneCell,
    TuneFacts,
    given_axis,
    kv_axis,
    lossy_cells,
    make_axes,
    make_cells,
    thinned,
)
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import MODEL, apply_overrides, random_seed
from gpubox.bench.questions import TEMPLATE_TOKENS
from gpubox.bench.report.model import Metric, Report, ReportTable
from gpubox.bench.report.prompt_metrics import Measures, start_means
from gpubox.bench.stats import estimate
from gpubox.bench.target_server import TargetServer
from gpubox.engines.capabilities import Capabilities
from gpubox.engines.option_values import DRAFT_WINDOW_FLAGS, flag_key
from gpubox.engines.query import read_capabilities
from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.planner import Planner, Situation, read_flags
from gpubox.planner.solve import solve
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.instance import observe
from gpubox.server.launch import check_flags
from gpubox.telemetry.device_memory import HOST
from gpubox.units import parse_size

DEFAULT_KEEP_FREE_BYTES = units.GIB
_DRY_RUNS = 3
"""How often the engine may be asked for the smallest n-cpu-moe that fits, if nothing is known of it."""
_MIN_PREFIX = 64
_GOAL_WORDS = {
    "tg": "the fastest flags for writing (tg)",
    "pp": "the fastest flags for reading prompts (pp)",
    "agent": "the flags with the most turns per minute of several agents at once",
}


def plan_tune(context: PlanContext, given: dict[str, Any]) -> Plan:
    """The plan of a tune. Blocks, and may run the engine for its devices. Raises GpuboxError."""
    profile, size = context.profile(given.pop("profile")), given.pop("keep_free", None)
    keep_free = parse_size(size) if size else DEFAULT_KEEP_FREE_BYTES
    goal: Goal = given.pop("goal", "tg")
    over, kv_types = tuple(given.pop("over", ())), tuple(given.pop("kv_types", ()))
    running = observe(context.paths, MAIN_INSTANCE).running
    planner = Planner(context.paths, context.config)
    situation = planner.situation(profile, replaces=(running,) if running else ())
    capabilities = read_capabilities(situation.engine, context.paths)
    facts = _facts(planner, situation, keep_free, capabilities)

    def key(flag: str) -> str:
        return flag_key(flag, profile, capabilities)

    if over:
        axes = [_given_axis(text, profile, key) for text in over]
        _check_count(axes)
    else:
        axes = make_axes(facts, goal, capabilities, key, int(given.get("streams", FIRST_CHOICE[goal].streams)))
    if kv_types:
        axes.append(kv_axis(kv_types, facts, key))
    if len({axis.flag for axis in axes}) != len(axes):
        raise UsageError("A flag is given twice.", "Give each flag one --over with all its values.")
    if not over:
        axes = thinned(axes)
    _check_flags(axes, profile, capabilities)
    cells, pruned = _fitting(planner, situation, make_cells(axes), keep_free)
    if len(cells) < 2:
        why = "; ".join(f"{count:,} {reason}" for reason, count in pruned.items())
        raise UsageError(
            f"{profile.name}: there is nothing to tune{f' ({why})' if why else ''}.",
            "Keep less memory free, or name flags and values: --over threads=4,8",
        )
    options = TuneOptions(
        tuple(axis.record for axis in axes), {cell.name: cell.place for cell in cells}, goal,
        lossy=tuple(lossy_cells(cells, profile.flags)), pruned=pruned,
    )  # fmt: skip
    options = replace(options, **given)
    values = msgspec.to_builtins(replace(options, most_context=_most_context(options, axes, facts)))
    targets = tuple(Target(cell.name, profile.name, cell.overrides) for cell in cells)
    parse_options(values, targets)  # refuses wrong options before anything is stored
    about = tuple(_about(options, units.memory(keep_free) if facts.devices else ""))
    return Plan("tune", targets, values, seed=random_seed(), about=about)


def _about(options: TuneOptions, kept_free: str) -> Iterator[str]:
    """What it finds, among which candidates, what does not fit, time, restarts."""
    count, axes = len(options.cells), [axis.flag for axis in options.axes]
    yield f"It finds {_GOAL_WORDS[options.goal]}, among {count:,} sets of {', '.join(axes)}."
    if options.pruned:
        yield f"Not tried: {'; '.join(f'{number:,} {reason}' for reason, number in options.pruned.items())}."
    if kept_free:
        yield f"Each candidate leaves at least {kept_free} free on each card, as predicted."
    else:
        yield "Candidates that are predicted not to fit are left out."
    minutes = f"{options.minutes:g} {'minute' if options.minutes == 1 else 'minutes'}"
    yield f"It takes at most {minutes}, and ends as soon as no candidate can win by more than {ENOUGH:.0%}."
    yield "Each start restarts the server, so no other client is answered meanwhile. No profile is changed."


def _given_axis(text: str, profile: Profile, key: Callable[[str], str]) -> TuneAxis:
    axis = parse_axis(text)
    axis = replace(axis, flag=key(axis.flag))
    if axis.flag == MODEL:
        raise UsageError(
            "A tune keeps the model.", "gpubox bench sweep PROFILE --over model=A.gguf,B.gguf compares some."
        )
    if axis.flag in DRAFT_WINDOW_FLAGS and profile.flags.get("spec-synth-rates", "") != "":
        raise UsageError(
            "spec-synth-rates needs exactly as many rates as the draft window is long.",
            "Give the profile spec-synth-len instead.",
        )
    return given_axis(axis, profile.flags.get(axis.flag))


def _check_count(axes: Sequence[TuneAxis]) -> None:
    count = math.prod(len(axis.levels) for axis in axes)
    if count > MAX_OVER_CELLS:
        raise UsageError(f"That is {count:,} sets of flags.", f"At most {MAX_OVER_CELLS:,}: give fewer values.")


def _facts(planner: Planner, situation: Situation, keep_free: int, capabilities: Capabilities) -> TuneFacts:
    shape, launch = situation.model.shape, read_flags(situation, {})
    cards = [device for device in situation.devices if device.key != HOST]
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    experts = shape.experts
    smallest = most = None
    if cards:
        answer = _solved(planner, situation, "n-cpu-moe" if experts else "n-gpu-layers", keep_free)
        smallest, most = (answer, None) if experts else (None, answer)
    threads_key = flag_key("threads", situation.profile, capabilities)
    given = situation.profile.flags.get(threads_key, situation.env.get("LLAMA_ARG_THREADS"))
    threads = int(str(given)) if given is not None and str(given).isdecimal() and int(str(given)) > 0 else None
    return TuneFacts(
        situation.profile.flags, launch, shape.trunk, experts, shape.draft_layers > 0, len(cards), physical,
        psutil.cpu_count() or physical, threads, smallest, most,
    )  # fmt: skip


def _solved(planner: Planner, situation: Situation, flag: str, keep_free: int) -> int | None:
    """The best value of ``flag`` that fits; ``None`` if that is unknown, or none does."""
    answer = solve(planner, situation, flag, keep_free_bytes=keep_free)
    answer = answer or solve(planner, situation, flag, keep_free_bytes=keep_free, dry_runs=_DRY_RUNS)
    return int(str(answer.flags.get(flag, 0))) if answer else None


def _check_flags(axes: Sequence[TuneAxis], profile: Profile, capabilities: Capabilities) -> None:
    """Raises UsageError if the engine refuses one of the values: known before anything is stopped."""
    for axis in axes:
        for level in axis.levels:
            check_flags(apply_overrides(profile, Target(level.label, profile.name, level.overrides)), capabilities)


def _fitting(
    planner: Planner, situation: Situation, cells: Sequence[TuneCell], keep_free: int
) -> tuple[list[TuneCell], dict[str, int]]:
    """The cells that fit, as far as is known, and why the others were left out. The profile's own flags always stay."""
    reasons: Counter[str] = Counter()
    kept = []
    for cell in cells:
        reason = _misfit(planner, situation, cell.overrides, keep_free) if cell.overrides else ""
        if reason:
            reasons[reason] += 1
        else:
            kept.append(cell)
    return kept, dict(reasons)


def _misfit(planner: Planner, situation: Situation, overrides: Mapping[str, FlagValue], keep_free: int) -> str:
    changes = {flag: None if value == "" else value for flag, value in overrides.items()}
    plan = planner.plan_in(situation, changes, keep_free_bytes=keep_free)
    fit = judge(plan).fit
    if fit == "short":
        return "they would not fit"
    if fit == "disk" and judge(planner.plan_in(situation, {}, keep_free_bytes=keep_free)).fit != "disk":
        return "they would read weights from the disk for each token"
    if fit == "tight" and not plan.adapts:
        on_card = any(device.kind != "host" for device in plan.devices)  # nothing is kept free of the RAM
        return f"they would leave less than {units.memory(keep_free)} free" if on_card else "they may not fit"
    return ""


def _most_context(options: TuneOptions, axes: Sequence[TuneAxis], facts: TuneFacts) -> int | None:
    """The tokens that a slot of the profile holds before a prompt; ``None``: as many as are asked for."""
    if options.goal == "tg" and any(axis.flag in DRAFT_WINDOW_FLAGS for axis in axes):
        return 0  # random filler text would make the drafts worse than an owner's texts do
    launch, longest = facts.launch, options.protocols()[0]
    slot = launch.context // (1 if launch.unified else launch.slots)
    if not slot:
        return None
    if options.goal == "agent":
        return max(_MIN_PREFIX, slot - needed_context(replace(longest, context_tokens=0)))
    return max(0, slot - longest.max_tokens - TEMPLATE_TOKENS)


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
            axes={axis.flag: self._column(at, axis.labels) for at, axis in enumerate(options.axes)},
            metrics=metrics, rates=rates, notes=notes,
        )  # fmt: skip
        return replace(report, tables=(*tables, *report.tables))  # what to change stands first

    def _column(self, at: int, labels: Sequence[str]) -> Callable[[str], str]:
        """The value of each cell on one axis."""
        return lambda cell: labels[self.options.cells[cell][at]]

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


def _load_of(item: Item) -> Protocol:
    return msgspec.convert(item.values["load"], Protocol)
