"""``sweep``: the cells of a grid of flags, models or profiles beside the owner's present flags."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from gpubox.bench.benchmark import check_items
from gpubox.bench.compare.cell_benchmark import YOUR_FLAGS, CellBenchmark
from gpubox.bench.compare.contest import FINALISTS, Rules
from gpubox.bench.compare.report import MEASURES, cell_metrics, contest_report
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import convert_options, name_list
from gpubox.bench.model import Plan, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import (
    LOSSY_FLAGS,
    MODEL,
    PROFILE,
    cell_name,
    check_overrides,
    format_flag_value,
    lossy_values,
    model_file,
    profile_capabilities,
    random_seed,
    read_overrides,
)
from gpubox.bench.questions import DOMAINS, Question, questions
from gpubox.bench.report.model import Metric, Report, Series
from gpubox.engines.option_values import DRAFT_WINDOW_FLAGS, MAX_INT, flag_key, parse_flag_change
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue, Profile

MAX_CELLS = 200
NEEDS_MORE: Mapping[str, Mapping[str, int]] = {
    "VRAM": {
        "ctx-size": 1, "batch-size": 1, "ubatch-size": 1, "parallel": 1, "n-gpu-layers": 1, "gpu-layers": 1,
        "n-cpu-moe": -1, "spec-draft-n-max": 1,
    },
    "RAM": {"ctx-size": 1, "parallel": 1, "n-gpu-layers": -1, "gpu-layers": -1, "n-cpu-moe": 1},
}  # fmt: skip
"""The direction in which a flag needs more of a memory. A sweep gives a cell up only if all other flags are equal."""
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?::(\d+))?")
_MALFORMED_RANGE = re.compile(r"-?[\d.]*\d\.\.")


@dataclass(frozen=True, slots=True)
class Axis:
    """One flag and its values in order."""

    flag: str
    values: tuple[FlagValue, ...]


def parse_axis(text: str) -> Axis:
    """Parses ``n-cpu-moe=16..28:2`` or ``ctx-size=8192,16384``. Raises UsageError."""
    flag, sign, value_list = text.partition("=")
    flag = flag.strip().lstrip("-")
    flag = MODEL if flag == "m" else flag
    if not sign or not flag or not value_list.strip():
        raise UsageError(
            f"{text!r} is not FLAG=VALUES.", "Write: --over n-cpu-moe=16..28:2 or --over ctx-size=8192,16384"
        )
    values: list[FlagValue] = []
    for part in value_list.split(","):
        word = part.strip()
        if flag != MODEL and (match := _RANGE.fullmatch(word)):
            values += _parse_range(word, int(match[1]), int(match[2]), int(match[3] or 1))
        elif flag != MODEL and _MALFORMED_RANGE.match(word):
            raise UsageError(f"{word!r} is not a range.", "Use whole numbers and a step above 0: 16..28:2 or 28..16:2")
        else:
            values.append(word if flag == MODEL else parse_flag_change(f"{flag}={word}")[1])
    if len(set(map(str, values))) != len(values):
        raise UsageError(f"{text!r} names a value twice.")
    return Axis(flag, tuple(values))


def _parse_range(text: str, first: int, last: int, step: int) -> range:
    if not step:
        raise UsageError(f"{text!r} has a step of 0.")
    if max(abs(first), abs(last)) >= MAX_INT:
        raise UsageError(f"{text!r} is out of range for any flag.")
    if abs(last - first) // step >= MAX_CELLS:
        raise UsageError(f"{text!r} is more than {MAX_CELLS} values.", "Give a step: 0..4096:512")
    return range(first, last + 1, step) if last >= first else range(first, last - 1, -step)


def grid_targets(
    profiles: str | Sequence[str],
    axes: Sequence[Axis],
    base: Mapping[str, FlagValue] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Target]:
    """A target for each cell; the last axis changes fastest, the profile slowest. Raises UsageError.

    ``base``: overrides of every cell. ``labels``: short names of models.
    """
    own_profiles = [profiles] if isinstance(profiles, str) else list(dict.fromkeys(profiles))
    names = [axis.flag for axis in axes]
    if (not axes and len(own_profiles) < 2) or len(set(names)) != len(names):
        raise UsageError(
            "A sweep needs --over with at least one flag, and each flag once; or several profiles.",
            "Write: --over n-cpu-moe=16..28:2",
        )
    if both := set(names) & set(base or {}):
        raise UsageError(f"{min(both)} is swept: --set cannot set it too.")
    if (count := len(own_profiles) * math.prod(len(axis.values) for axis in axes)) > MAX_CELLS:
        raise UsageError(f"That is {count:,} cells, and each needs a restart.", f"At most {MAX_CELLS} at once.")
    targets = []
    for profile, values in product(own_profiles, product(*(axis.values for axis in axes))):
        cell = dict(zip(names, values, strict=True))
        name = cell_name({PROFILE: profile, **cell} if len(own_profiles) > 1 else cell, labels)
        targets.append(Target(name, profile, {**(base or {}), **cell}))
    return targets


def model_labels(models: Sequence[str]) -> dict[str, str]:
    """A short name for each model: its file's name, with as many folders before it as make it unique."""
    labels: dict[str, str] = {}
    for model in models:
        words = [model] if ":" in model else model.removesuffix(".gguf").split("/")
        count = 1
        others = [other.removesuffix(".gguf") for other in models if other != model]
        while count < len(words) and any(other.split("/")[-count:] == words[-count:] for other in others):
            count += 1
        labels[model] = " ".join(filter(None, words[-count:]))  # no slash: the ids of items are parts between slashes
    return labels


def needs_at_least_as_much(cell: Mapping[str, FlagValue], failed: Mapping[str, FlagValue], memory: str) -> bool:
    """Whether a cell needs at least as much VRAM or RAM on every axis as one that ran out of it."""

    def needs_no_less(flag: str) -> bool:
        value, failed_value = cell[flag], failed[flag]
        if not isinstance(value, int) or not isinstance(failed_value, int):
            return value == failed_value
        # 0 and -1 mean "all" or "as in the model" for some flags, so only positive numbers are compared.
        comparable = value > 0 and failed_value > 0
        return value == failed_value or (comparable and (value - failed_value) * NEEDS_MORE[memory].get(flag, 0) > 0)

    return all(map(needs_no_less, cell))


OWN = "own flags"
_CURVES = (("tg", "tok/s"), ("pp", "tok/s"), ("acceptance", "%"), ("mean accepted length", "tokens/step"))
UNSET = "default"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of one sweep."""

    axes: tuple[str, ...]
    """In order: ``profile`` if there are several; then flags, and perhaps ``model``, which each target overrides."""
    by: Literal["tg", "pp", "effective"] = "tg"
    """The rate that decides."""
    prompts: int = 3
    """Of each domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = 64
    context_tokens: int = 512
    starts: int = 6
    """The most of each cell that is compared at the end."""
    finalists: int = FINALISTS
    """How many cells are compared at the end, besides the present flags."""
    own_values: Mapping[str, FlagValue] = field(default_factory=dict)
    """The profile's own values of the axes, where it sets them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Short names for values of the axis ``model``."""
    lossy: tuple[str, ...] = ()
    """The cells that change the profile's answers."""

    @property
    def questions(self) -> list[Question]:
        """The prompts asked of every cell. Raises UsageError."""
        return questions(self.prompts, self.max_tokens, self.domains, self.context_tokens)

    def value(self, target: Target, axis: str) -> FlagValue:
        """The value of ``axis`` in the cell ``target``."""
        if axis == PROFILE:
            return target.profile
        return target.overrides.get(axis, self.own_values.get(axis, UNSET))


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> SweepOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SweepOptions)
    if len(targets) < 2 or any({*options.axes} - {PROFILE, *target.overrides} for target in targets[1:]):
        raise UsageError("A sweep compares at least two cells, and each sets all of its flags.")
    if options.starts < 1 or options.finalists < 1:
        raise UsageError("A sweep compares at least two cells with at least one start each.")
    starts = 2 * len(targets) + options.starts * (1 + options.finalists)
    check_items(starts * (1 + len(options.questions)))
    return options


class Sweep(CellBenchmark):
    """The given cells."""

    kind = "sweep"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self.asked, self.measure = self.options.questions, self.options.by
        self.with_models = bool({MODEL, PROFILE} & set(self.options.axes))
        self._targets = {target.name: target for target in plan.targets}
        self.rules = Rules(
            tuple(self._targets),
            self.options.starts,
            self.options.finalists,
            lossy=frozenset(self.options.lossy),
            domains={question.name: question.domain for question in self.asked},
            needs_no_less=lambda cell, failed, memory: needs_at_least_as_much(
                self._values(cell), self._values(failed), memory
            ),
            seed=plan.seed,
        )

    def _values(self, cell: str) -> dict[str, FlagValue]:
        return {axis: self.options.value(self._targets[cell], axis) for axis in self.options.axes}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        profiles = [context.profile(name) for name in dict.fromkeys(given.pop("profiles"))]
        profile = profiles[0]
        axes = [parse_axis(text) for text in given.pop("over", ())]
        overrides = read_overrides(context, profile, given.pop("set", ()))
        capabilities = profile_capabilities(context, profile)
        axes = [replace(axis, flag=flag_key(axis.flag, profile, capabilities)) for axis in axes]
        axes = [_with_model_files(context, profile, axis) if axis.flag == MODEL else axis for axis in axes]
        labels = model_labels([str(value) for axis in axes if axis.flag == MODEL for value in axis.values])
        targets = grid_targets([own.name for own in profiles], axes, overrides, labels)
        flags: dict[str, FlagValue] = {**profile.flags}
        if any(axis.flag in DRAFT_WINDOW_FLAGS for axis in axes):
            if {**flags, **overrides}.get("spec-synth-rates", "") != "":
                raise UsageError(
                    "spec-synth-rates needs exactly as many rates as the draft window is long.",
                    "Sweep the window with --set spec-synth-rates= --set spec-synth-len=2.5",
                )
            given.setdefault("context_tokens", 0)
        targets = [_under_own_names(context, target) for target in targets] if len(profiles) > 1 else targets
        for target in {target.profile: target for target in reversed(targets)}.values():
            check_overrides(context, target)
        given.setdefault("by", "tg")
        given["axes"] = [*([PROFILE] if len(profiles) > 1 else []), *(axis.flag for axis in axes)]
        if labels:
            given["labels"] = labels
            flags[MODEL] = model_file(context, profile, profile.model)
        own = {axis.flag: flags[axis.flag] for axis in axes if axis.flag in flags}
        if own:
            given["own_values"] = {
                flag: list(value) if isinstance(value, tuple) else value for flag, value in own.items()
            }
        targets = with_own_flags(targets, profile.name, flags)
        given["lossy"] = [
            target.name
            for target in targets
            if target.profile == profile.name and lossy_values({**flags, **target.overrides}) != lossy_values(flags)
        ]
        options = parse_options(given, targets)
        return Plan("sweep", tuple(targets), given, seed=random_seed(), about=tuple(_about(options, targets)))

    def label(self, cell: str) -> str:
        return YOUR_FLAGS if cell == self.rules.own and PROFILE not in self.options.axes else cell

    def best(self, results: ScoredItems) -> Target | None:
        """None of several profiles: what else they differ in is the owner's business."""
        return None if PROFILE in self.options.axes else super().best(results)

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        options = self.options
        measures = [m for m in MEASURES if m[0] != "effective" or options.by == "effective" or self.with_models]
        metrics = cell_metrics(self, info, results, measures)
        return contest_report(
            self, info, results, title=self._title(), axes={axis: self._column(axis) for axis in options.axes},
            metrics=metrics, rates=[(unit if name == "energy" else name, key) for name, key, unit, _ in measures
                                    if name != "TTFT"],
            series=tuple(self._curves(metrics)), notes=tuple(self._lossy_note()), save_hint=PROFILE not in options.axes,
        )  # fmt: skip

    def _title(self) -> str:
        flags = [axis for axis in self.options.axes if axis != PROFILE]
        profiles = name_list(list(dict.fromkeys(target.profile for target in self.plan.targets)))
        return profiles + (f" over {' and '.join(flags)}" if flags else "")

    def _column(self, axis: str) -> Callable[[str], str]:
        def text(cell: str) -> str:
            value = format_flag_value(self.options.value(self._targets[cell], axis))
            return self.options.labels.get(value, value) if axis == MODEL else value

        return text

    def _lossy_note(self) -> Iterator[str]:
        if lossy := sorted(set(self.options.axes) & LOSSY_FLAGS):
            yield (
                f"{' and '.join(lossy)} changes the answers, not only their speed: no value is recommended for being "
                "faster. `gpubox bench quality` measures what it costs."
            )

    def _curves(self, metrics: Sequence[Metric]) -> Iterator[Series]:
        """For each combination of the other axes, one curve over the first axis."""
        flags = [axis for axis in self.options.axes if axis not in (MODEL, PROFILE)]
        if not flags:
            return  # the bars of the metrics show models and profiles side by side
        flag, *others = [*flags, *(axis for axis in self.options.axes if axis not in flags)]
        by_cell = {(metric.group, metric.name): metric.estimate.value for metric in metrics}
        targets = [target for target in self.plan.targets if self.options.value(target, flag) != UNSET]
        x_of, x_names = _x_axis(list(dict.fromkeys(self.options.value(target, flag) for target in targets)))
        for name, unit in _CURVES:
            curves: dict[str, list[tuple[float, float]]] = {}
            for target in targets:
                if (value := by_cell.get((target.name, name))) is not None:
                    rest = {other: self.options.value(target, other) for other in others}
                    point = x_of(self.options.value(target, flag)), value
                    curves.setdefault(cell_name(rest, self.options.labels), []).append(point)
            for curve, points in curves.items():
                line = curve or targets[0].profile
                yield Series(f"{name} over {flag}", line, flag, f"{name}, {unit}", tuple(sorted(points)), x_names)


def with_own_flags(targets: Sequence[Target], profile: str, flags: Mapping[str, FlagValue]) -> list[Target]:
    """``targets`` with the present flags first: one of them, if it changes nothing, else a cell of their own."""

    def changes_nothing(target: Target) -> bool:
        same = (str(flags.get(flag, "")) == str(value) for flag, value in target.overrides.items())
        return target.profile == profile and all(same)

    own = next(filter(changes_nothing, targets), Target(OWN, profile))
    return [own, *(target for target in targets if target != own)]


def _about(options: SweepOptions, targets: Sequence[Target]) -> Iterator[str]:
    yield f"{len(targets)} cells: {name_list([target.name for target in targets])}."
    finalists = min(len(targets) - 1, options.finalists)
    search = "Each is started once, the better half again; then the best" if len(targets) > 1 + finalists else "They"
    yield (
        f"{search} and the present flags get up to {options.starts} starts each, in random order; a clear answer ends "
        "it earlier."
    )


def _with_model_files(context: PlanContext, profile: Profile, axis: Axis) -> Axis:
    """The axis ``model`` with the file of each value. Raises GpuboxError if one is missing or no complete model."""
    files = [model_file(context, profile, str(value)) for value in axis.values]
    if len(set(files)) != len(files):
        raise UsageError("--over model names a file twice.")
    return replace(axis, values=tuple(files))


def _under_own_names(context: PlanContext, target: Target) -> Target:
    """``target`` without its profile's flags that an override names in another way (``c`` and ``ctx-size``)."""
    profile = context.profile(target.profile)
    capabilities = profile_capabilities(context, profile)
    keys = {flag_key(name, profile, capabilities) for name in target.overrides}
    removed = {key: "" for key in keys if key in profile.flags and key not in target.overrides}
    return replace(target, overrides={**removed, **target.overrides})


def _x_axis(values: Sequence[FlagValue]) -> tuple[Callable[[FlagValue], float], tuple[str, ...]]:
    """The x of a value. Values that are not numbers stand at 1, 2, 3, ... and have names."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return float, ()  # type: ignore[return-value]
    texts = tuple(format_flag_value(value) for value in values)
    return (lambda value: float(texts.index(format_flag_value(value)) + 1)), texts
