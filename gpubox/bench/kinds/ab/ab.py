"""``ab``: two profiles, or two ways to ask one, with the same prompts, on server starts in random order.

If no restart is needed, because both sides ask one server, each prompt is asked in the order A B B A and the prompts
are the sample; otherwise the starts are (``bench.compare``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.benchmark import Batch, Course, check_items
from gpubox.bench.compare.cell_benchmark import CellBenchmark
from gpubox.bench.compare.contest import Rules
from gpubox.bench.compare.report import contest_report
from gpubox.bench.compare.starts import LEVEL, Contrast, Judged, Start, compare_prompts, compare_starts, judge
from gpubox.bench.compare.words import about_time, pair_sentence
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.ab import USUAL_PROMPTS, USUAL_STARTS, USUAL_TOKENS
from gpubox.bench.kinds.shared import closing_notes, convert_options, report_doubts
from gpubox.bench.model import Item, Plan, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import (
    cell_target,
    check_overrides,
    profile_capabilities,
    random_seed,
    read_overrides,
    target_by_url,
    toggle_mmap,
    toggle_mtp,
)
from gpubox.bench.questions import DOMAINS, Question, question_of, question_values, questions
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.prompt_metrics import Measures, acceptance_metrics, prompt_metrics
from gpubox.engines.option_values import with_flag_keys
from gpubox.errors import UsageError

PROMPTS_OF_ONE_SERVER = 10
"""Per domain: with restarts the starts are the sample, on one server the prompts are, so it asks more of them."""
_MORE_PROMPTS = 4
ROUNDS = 2
"""How often each side answers a prompt on one server: A B B A."""
MEASURES: Measures = (
    ("tg", "tg", "tok/s", "higher"),
    ("effective", "effective", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One side: a target, and how requests differ there."""

    name: str
    target: str
    thinking: bool = False
    raw: bool = False
    """Sent as plain text to ``/v1/completions``."""


@dataclass(frozen=True, slots=True)
class AbOptions:
    """The options of one run."""

    sides: tuple[Side, ...]
    """Two; the second is compared with the first."""
    prompts: int | None = None
    """Per domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = USUAL_TOKENS
    starts: int = USUAL_STARTS
    """The most starts of each side; a clear answer ends the run earlier."""
    context_tokens: int = 0

    @property
    def one_server(self) -> bool:
        """Whether both sides ask the same server, without restarts."""
        return len({side.target for side in self.sides}) == 1

    @property
    def questions(self) -> list[Question]:
        """What every side is asked. Raises UsageError."""
        default = PROMPTS_OF_ONE_SERVER if self.one_server else USUAL_PROMPTS
        prompts = default if self.prompts is None else self.prompts
        return questions(prompts, self.max_tokens, self.domains, self.context_tokens)


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> AbOptions:
    """The options from a plan. Raises UsageError if one is invalid."""
    options = convert_options(values, AbOptions)
    names = {target.name for target in targets}
    if len(options.sides) != 2 or len({side.name for side in options.sides}) != 2:
        raise UsageError("An ab run has two sides of different names.")
    if any(side.target not in names for side in options.sides):
        raise UsageError("A side of this ab run has no target.")
    if options.starts < 1:
        raise UsageError("Each side needs a start.", "Write: --starts 6")
    if options.one_server and "starts" in values:
        raise UsageError("Both sides ask one server: nothing is restarted.", "Leave out --starts.")
    check_items(2 * (ROUNDS if options.one_server else options.starts) * len(options.questions))
    return options


class Ab(CellBenchmark):
    """Two cells."""

    kind = "ab"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self.asked = self.options.questions
        self.rules = Rules(
            tuple(side.target for side in self.options.sides),
            self.options.starts,
            domains={question.name: question.domain for question in self.asked},
            restarted=not any(target.url for target in plan.targets),
            seed=plan.seed,
        )

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        sides, targets = _sides(
            context, given.pop("first"), given.pop("second", None), given.pop("set", ()), given.pop("vary", None)
        )
        given["sides"] = [msgspec.to_builtins(side) for side in sides]
        options = parse_options(given, targets)
        names = " and ".join(side.name for side in options.sides)
        about = f"At most {2 * options.starts} starts of {names}, in random order; a clear answer ends it earlier."
        return Plan("ab", tuple(targets), given, seed=random_seed(), about=() if options.one_server else (about,))

    def label(self, cell: str) -> str:
        return cell

    def course(self) -> Course:
        if self.options.one_server:
            yield Batch(self._one_server_items())
            return ""
        return (yield from super().course())

    def _one_server_items(self) -> list[Item]:
        sides = self.options.sides
        items = [self._side_item(self.asked[0], side, f"{side.name}/warm-up", warmup=True) for side in sides]
        for number, question in enumerate(self.asked):
            for repeat in range(ROUNDS):
                reverse = (number + repeat) % 2  # every other prompt begins with the second side
                for side in sides[:: -1 if reverse else 1]:
                    items.append(self._side_item(question, side, f"{side.name}/{repeat + 1}/{question.name}"))
        return items

    def _side_item(self, question: Question, side: Side, name: str, *, warmup: bool = False) -> Item:
        values = {**question_values(question, thinking=side.thinking, raw=side.raw), "side": side.name}
        return Item(name, side.target, values, warmup, side.target, question.max_tokens)

    def headline(self, results: ScoredItems) -> str:
        if not self.options.one_server:
            return super().headline(results)
        contrast = self._contrasts(results)[0][2]
        first, second = self.options.sides
        return f"{second.name} / {first.name}: tg × {contrast.ratio:.3f}" if contrast and contrast.starts > 1 else ""

    # -- the report -----------------------------------------------------------------------------------

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        title = " against ".join(side.name for side in reversed(self.options.sides))
        metrics = self._metrics(info, results)
        if self.options.one_server:
            return self._one_server_report(info, results, title, metrics)
        return contest_report(
            self, info, results, title=title, axes={"side": lambda cell: cell}, metrics=metrics,
            tables=self._measures_table(results), save_hint=bool(info.plan.targets[-1].overrides),
        )  # fmt: skip

    def _one_server_report(self, info: RunInfo, results: ScoredItems, title: str, metrics: list[Metric]) -> Report:
        doubts = report_doubts(info, results)
        first, second = (side.name for side in self.options.sides)
        main = judge([self._contrasts(results)[0][2]], LEVEL)[0]
        why = f"their prompts differ too much or are too few. {self._more_prompts(info)}"
        notes = ["Both sides asked one server, prompt by prompt; nothing was restarted."]
        if main.contrast and math.isfinite(main.contrast.error):
            low, high = map(format_change, main.contrast.interval)
            ends = f"95 % interval {low} to {high}, {main.contrast.starts} prompts{validity_suffix(doubts)}"
            notes.insert(0, f"{second} measured {format_change(main.contrast.ratio)} in tg, {ends}.")
        return Report(
            "ab", title, tuple(metrics), tuple(self._measures_table(results)),
            notes=(*notes, *closing_notes(info, results)), doubts=doubts,
            verdict=pair_sentence(main, second, first, why),
        )  # fmt: skip

    def _more_prompts(self, info: RunInfo) -> str:
        """The command that asks more, and its time."""
        first, second = self.options.sides
        target = info.plan.targets[0]
        prompts = _MORE_PROMPTS * (self.options.prompts or PROMPTS_OF_ONE_SERVER)
        vary = "thinking" if first.thinking != second.thinking else "completion"
        command = f"gpubox bench ab {target.url or target.profile} --vary {vary} --prompts {prompts}"
        took = f", in about {about_time(_MORE_PROMPTS * info.seconds)}" if info.seconds else ""
        return f"`{command}` would settle it{took}."

    def _metrics(self, info: RunInfo, results: ScoredItems) -> list[Metric]:
        """Each side's figures by domain and over all prompts."""
        metrics: list[Metric] = []
        for side in self.options.sides:
            for domain in ("", *(self.options.domains if len(self.options.domains) > 1 else ())):
                own = self._side_rows(side, results, domain)
                metrics += prompt_metrics(
                    side.name, domain or "all", own, MEASURES[:1] if domain else MEASURES, info.plan.seed
                )
                metrics += acceptance_metrics(side.name, domain or "all", own, info.plan.seed)
        return metrics

    def _side_rows(self, side: Side, results: ScoredItems, domain: str = "") -> ScoredItems:
        """The answers of a side without warm-ups, of one domain if it is given."""
        return [
            (item, result)
            for item, result in results
            if result.ok and not item.warmup and item.values.get("side", item.target) == side.name
            and domain in ("", question_of(item).domain)
        ]  # fmt: skip

    def _contrasts(self, results: ScoredItems) -> list[tuple[str, str, Contrast | None]]:
        """(name, prompts, second side over the first) of each row of the table, tg over all prompts first."""
        rows = []
        for name, key, _, _ in MEASURES:
            for domain in ("", *(self.options.domains if len(self.options.domains) > 1 and key == "tg" else ())):
                rows.append((name, domain or "all", self._contrast(results, key, domain)))
        return rows

    def _contrast(self, results: ScoredItems, key: str, domain: str) -> Contrast | None:
        rows = {side.name: self._side_rows(side, results, domain) for side in self.options.sides}
        starts = [start for side, own in rows.items() for start in _starts(side, own, key)]
        first, second = rows
        domains = self.rules.domains
        if not self.options.one_server:
            return compare_starts(starts, first, second, domains=domains, restarted=self.rules.restarted)
        logs = {start.side: start.log_rates for start in starts}
        names = [name for name in logs.get(first, {}) if name in logs.get(second, {})]
        if not names:
            return None
        return compare_prompts([logs[second][name] - logs[first][name] for name in names], [domains[n] for n in names])

    def _measures_table(self, results: ScoredItems) -> list[ReportTable]:
        """Every measure, of all prompts and of each domain: figures, of which tg over all prompts alone decides."""
        first, second = (side.name for side in self.options.sides)
        cells: list[tuple[Value, ...]] = []
        for name, domain, contrast in self._contrasts(results):
            if contrast:
                low, high = Judged(contrast=contrast).interval or (None, None)
                cells.append((name, domain, contrast.ratio, low, high, contrast.starts))
        columns = ("", "prompts", "ratio", "95 % CI from", "to", "prompts" if self.options.one_server else "starts")
        return [ReportTable(f"{second} over {first}", columns, tuple(cells), f"above 1 where {second} is faster")]


def _starts(side: str, rows: ScoredItems, key: str) -> Iterator[Start]:
    """Each start with the mean log of each prompt's rate. TTFT is inverted: higher is faster."""
    logs: dict[int, dict[str, list[float]]] = {}
    for item, result in rows:
        if value := result.values.get(key):
            log = -math.log(value) if key == "ttft_seconds" else math.log(value)
            logs.setdefault(item.start, {}).setdefault(question_of(item).name, []).append(log)
    for start, prompts in sorted(logs.items()):
        yield Start(side, start, {name: statistics.fmean(values) for name, values in prompts.items()})


def _sides(
    context: PlanContext, first: str, second: str | None, settings: Sequence[str], vary: str | None
) -> tuple[list[Side], list[Target]]:
    """The two sides and their targets. Raises UsageError, GpuboxError."""
    if second is None and not settings and not vary:
        raise UsageError("ab needs two sides.", "Name a second profile, or change a flag: --set spec-type=none")
    if first.startswith("http") or (second or "").startswith("http"):
        return _sides_by_address(first, second, changed=bool(settings or vary))
    if vary and (second is not None or settings):
        raise UsageError("--vary changes one setting of A.", "Leave out B and --set.")
    target = Target(first, profile=first)
    profile = context.profile(first)
    check_overrides(context, target)
    if vary in ("thinking", "completion"):
        label = "thinking" if vary == "thinking" else "as plain text"
        other_side = Side(f"{first} {label}", first, thinking=vary == "thinking", raw=vary == "completion")
        return [Side(first, first), other_side], [target]
    if vary:
        capabilities = profile_capabilities(context, profile)
        label, changes = toggle_mtp(profile) if vary == "mtp" else toggle_mmap(profile, capabilities)
        other = Target(f"{first} {label}", first, with_flag_keys(changes, profile, capabilities))
    else:
        name = second or first
        other = cell_target(name, read_overrides(context, context.profile(name), settings))
    check_overrides(context, other)
    return _sides_of(target, other)


def _sides_by_address(first: str, second: str | None, *, changed: bool) -> tuple[list[Side], list[Target]]:
    hint = "Name two addresses: ab http://A http://B"
    if second is None or changed:
        raise UsageError("gpubox cannot change the flags of a server given by its address.", hint)
    for url in (first, second):
        if "://" not in url:  # the name of a profile would be taken for a host
            raise UsageError(f"{url!r} is not the address of a server.", hint)
    return _sides_of(target_by_url(first), target_by_url(second))


def _sides_of(*targets: Target) -> tuple[list[Side], list[Target]]:
    """One target if both sides ask the same server."""
    names = [target.name for target in targets]
    if targets[0] == targets[1]:
        return [Side(names[0], names[0]), Side(f"{names[0]} again", names[0])], [targets[0]]
    return [Side(name, name) for name in names], list(targets)
