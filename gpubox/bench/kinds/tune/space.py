"""The sets of flags that a tune may choose from: axes from profile, model, engine and machine, then their cells. Pure.

An axis changes only what it must: the level of the profile's own value changes nothing, so a cell's overrides are its
difference from the profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gpubox.bench.kinds.sweep.sweep import NEEDS_MORE, Axis
from gpubox.bench.kinds.tune.progress import Goal
from gpubox.bench.kinds.tune.protocol import OWN, AxisRecord
from gpubox.bench.overrides import cell_name, format_flag_value, lossy_values
from gpubox.engines.capabilities import Capabilities
from gpubox.errors import UsageError
from gpubox.planner.launch_flags import LaunchFlags
from gpubox.profiles.profile import FlagValue

MAX_CELLS = 400
"""More are thinned out: the surface is fitted to all of them after each start."""
MAX_OVER_CELLS = 2000
_UBATCHES: Mapping[Goal, tuple[int, ...]] = {
    "tg": (256, 512, 1024), "pp": (256, 512, 1024, 2048, 4096), "agent": (256, 512, 1024, 2048),
}  # fmt: skip
_WINDOWS = (0, 1, 2, 3, 4, 6)
"""Draft tokens; 0: no draft."""
_SLOTS = (1, 2, 3, 4)
_OWN_WINDOW = 3


@dataclass(frozen=True, slots=True)
class TuneFacts:
    """What of a profile, its model, its engine and the machine decides the space."""

    flags: Mapping[str, FlagValue]
    """The profile's."""
    launch: LaunchFlags
    """Its memory flags, with the engine's defaults."""
    layers: int
    """Of the model, without a draft head."""
    experts: bool
    draft_head: bool
    """Whether the model has an MTP head."""
    devices: int
    """Cards and RPC devices."""
    physical_cores: int
    logical_cores: int
    threads: int | None = None
    """What the launch sets; ``None``: the engine takes the physical cores."""
    smallest_on_cpu: int | None = None
    """The smallest n-cpu-moe that fits; ``None``: unknown."""
    most_on_card: int | None = None
    """The largest n-gpu-layers that fits; ``None``: unknown."""


@dataclass(frozen=True, slots=True)
class TuneLevel:
    """One value of an axis."""

    label: str
    overrides: Mapping[str, FlagValue]
    """What it changes in the profile; empty for the profile's own value."""
    value: float = 0.0
    """Its place among the others."""
    own: bool = False


@dataclass(frozen=True, slots=True)
class TuneAxis:
    """One dimension of the space, its levels in order."""

    flag: str
    levels: tuple[TuneLevel, ...]
    ordered: bool = True
    only_own_cell: bool = False
    """The profile's own value is none of the values to try; only the cell of its own flags has it."""

    @property
    def record(self) -> AxisRecord:
        """What the plan keeps of it."""
        lowest = self.levels[0].value
        # A flag that is not set and negative numbers may mean "all"; ctx-size=0 is the model's own.
        known = self.ordered and lowest >= 0 and (lowest > 0 or self.flag != "ctx-size")
        vram, ram = (NEEDS_MORE[memory].get(self.flag, 0) if known else 0 for memory in ("VRAM", "RAM"))
        return AxisRecord(self.flag, tuple(level.label for level in self.levels), vram, ram)


@dataclass(frozen=True, slots=True)
class TuneCell:
    """One set of flags."""

    name: str
    place: tuple[int, ...]
    overrides: Mapping[str, FlagValue]


FlagNames = Callable[[str], str]
"""A flag -> the key that the profile, else the engine, has for it."""


def make_axes(facts: TuneFacts, goal: Goal, capabilities: Capabilities, key: FlagNames, streams: int) -> list[TuneAxis]:
    """The axes for ``goal``, the most promising first; those with a single value are left out."""
    axes = [
        _placement(facts, key),
        _threads(facts, key),
        _draft(facts, capabilities, key),
        _ubatch(facts, goal, key),
        _flash_attention(facts, capabilities, key),
        _slots(facts, key, streams) if goal == "agent" else None,
    ]
    return [axis for axis in axes if axis and len(axis.levels) > 1]


def _numbers(flag: str, own: int, values: Sequence[int], make: Callable[[int], Mapping[str, FlagValue]]) -> TuneAxis:
    """An axis of whole numbers; ``own`` is always one of them."""
    levels = [
        TuneLevel(str(value), {} if value == own else make(value), value, own=value == own)
        for value in sorted({own, *values})
    ]
    return TuneAxis(flag, tuple(levels))


def _placement(facts: TuneFacts, key: FlagNames) -> TuneAxis | None:
    """Which part of the model is on the cards: the most that fits, and a little less, which leaves room for others."""
    if not facts.devices:
        return None
    launch, layers = facts.launch, facts.layers
    if facts.experts:
        own = launch.cpu_expert_layers
        least = facts.smallest_on_cpu if facts.smallest_on_cpu is not None else max(0, own - 2)
        values = [value for value in (least + step for step in (0, 1, 2, 4, 7)) if value <= layers]
        remove = {name: "" for name in facts.flags if name in ("cpu-moe", "cmoe")}
        return _numbers("n-cpu-moe", own, values, lambda value: {key("n-cpu-moe"): value, **remove})
    if not launch.gpu_layers_given:
        return None  # the engine itself puts as many as fit on the cards
    own, most = min(launch.gpu_layers, layers + 1), facts.most_on_card
    if most is None or (most > layers and own > layers):
        return None
    values = [value for value in (most - step for step in (0, 1, 2, 4)) if value >= 0]
    return _numbers("n-gpu-layers", own, values, lambda value: {key("n-gpu-layers"): value})


def _threads(facts: TuneFacts, key: FlagNames) -> TuneAxis | None:
    """Around the physical cores, if the CPU computes anything."""
    on_cpu = not facts.devices or facts.launch.cpu_expert_layers or (facts.smallest_on_cpu or 0) > 0
    if not on_cpu and facts.launch.gpu_layers_given and facts.launch.gpu_layers > facts.layers:
        return None
    name, cores = key("threads"), facts.physical_cores
    own = facts.threads or cores
    values = {max(1, cores // 2), max(1, cores - 1), cores, facts.logical_cores}
    return _numbers("threads", own, sorted(values), lambda value: {name: value})


def _draft(facts: TuneFacts, capabilities: Capabilities, key: FlagNames) -> TuneAxis | None:
    """The draft window, and no draft, if the profile drafts or its model has an MTP head."""
    launch = facts.launch
    has_draft = launch.draft is not None or launch.mtp
    if not has_draft and str(facts.flags.get(key("spec-type"), "none")) not in ("none", ""):
        return None  # it drafts from the text, which has windows of its own
    if not (has_draft or (facts.draft_head and _allows(capabilities, "spec-type", "draft-mtp"))):
        return None
    window, kind = key("spec-draft-n-max"), key("spec-type")
    synthetic = {name: "" for name in facts.flags if name.startswith("spec-synth-")}
    if "spec-synth-rates" in synthetic:
        return None  # it needs exactly as many rates as the window is long
    given = facts.flags.get(window)
    own = (given if isinstance(given, int) else _OWN_WINDOW) if has_draft else 0
    drafting: Mapping[str, FlagValue] = {} if has_draft else {kind: "draft-mtp"}
    draftless = {name: "" for name in (window,) if name in facts.flags}
    if launch.draft is not None and launch.draft.model:
        draftless |= {name: "" for name in facts.flags if name in ("spec-draft-model", "md", "model-draft")}
    off: Mapping[str, FlagValue] = {kind: "none", **synthetic, **draftless}
    return _numbers("spec-draft-n-max", own, _WINDOWS, lambda value: {**drafting, window: value} if value else off)


def _ubatch(facts: TuneFacts, goal: Goal, key: FlagNames) -> TuneAxis:
    launch = facts.launch

    def make(value: int) -> Mapping[str, FlagValue]:
        larger = {key("batch-size"): value} if value > launch.batch else {}
        return {key("ubatch-size"): value, **larger}

    context = launch.context or max(_UBATCHES[goal])
    values = [value for value in _UBATCHES[goal] if value <= max(context, launch.ubatch)]
    return _numbers("ubatch-size", launch.ubatch, values, make)


def _flash_attention(facts: TuneFacts, capabilities: Capabilities, key: FlagNames) -> TuneAxis | None:
    launch, name = facts.launch, key("flash-attn")
    if not _allows(capabilities, "flash-attn", "off") or launch.type_v not in ("f32", "f16", "bf16"):
        return None  # a quantised V cache needs it
    other = "on" if launch.flash_attention == "off" else "off"
    own = TuneLevel(launch.flash_attention, {}, own=True)
    return TuneAxis("flash-attn", (own, TuneLevel(other, {name: other}, 1.0)), ordered=False)


def _slots(facts: TuneFacts, key: FlagNames, streams: int) -> TuneAxis | None:
    """The slots. Without a unified cache each slot keeps its context, so the whole one grows with them."""
    launch = facts.launch

    def make(value: int) -> Mapping[str, FlagValue]:
        if launch.unified or not launch.context_given:
            return {key("parallel"): value}
        return {key("parallel"): value, key("ctx-size"): launch.context // launch.slots * value}

    return _numbers("parallel", launch.slots, [*(value for value in _SLOTS if value <= streams), streams], make)


def _allows(capabilities: Capabilities, flag: str, value: str) -> bool:
    option = capabilities.option(flag)
    return option is not None and option.removed is None and (not option.allowed or value in option.allowed)


def kv_axis(kinds: Sequence[str], facts: TuneFacts, key: FlagNames) -> TuneAxis:
    """The types of the KV cache, K and V alike. Raises UsageError without one."""
    launch = facts.launch
    own = TuneLevel(f"{launch.type_k}/{launch.type_v}", {}, own=True)
    if not (names := [kind for kind in dict.fromkeys(kinds) if kind]):
        raise UsageError("--kv-types names no type.", "Write: --kv-types f16,q8_0")
    levels = [
        TuneLevel(kind, {key("cache-type-k"): kind, key("cache-type-v"): kind}, number)
        for number, kind in enumerate(names, 1)
        if (launch.type_k, launch.type_v) != (kind, kind)
    ]
    return TuneAxis("cache-type-k", (own, *levels), ordered=False)


def given_axis(axis: Axis, own: FlagValue | None) -> TuneAxis:
    """The axis of ``--over``: exactly its values. ``own``: the profile's value; ``None``: it does not set the flag."""
    label = format_flag_value(own) if own is not None else "default"
    values = list(axis.values)
    ordered = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    is_given = own is not None and any(str(value) == str(own) for value in values)
    levels = [
        TuneLevel(format_flag_value(value), {} if same else {axis.flag: value}, _order(value), own=same)
        for value in values
        for same in (own is not None and str(value) == str(own),)
    ]
    if not is_given:
        place = _order(own) if own is not None else -math.inf
        levels.append(TuneLevel(label, {}, place, own=True))
    if ordered:
        levels.sort(key=lambda level: level.value)
    return TuneAxis(axis.flag, tuple(levels), ordered, only_own_cell=not is_given)


def _order(value: FlagValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def make_cells(axes: Sequence[TuneAxis]) -> list[TuneCell]:
    """Every cell; the profile's own flags first."""
    own = tuple(next(i for i, level in enumerate(axis.levels) if level.own) for axis in axes)
    values = [[i for i, level in enumerate(axis.levels) if not (axis.only_own_cell and level.own)] for axis in axes]
    cells = [TuneCell(OWN, own, {})]
    for place in product(*values):
        if place != own:
            cells.append(_cell(axes, place))
    return cells


def _cell(axes: Sequence[TuneAxis], place: tuple[int, ...]) -> TuneCell:
    levels = [axis.levels[at] for axis, at in zip(axes, place, strict=True)]
    overrides: dict[str, FlagValue] = {}
    for level in levels:
        overrides |= level.overrides
    shown = {axis.flag: level.label for axis, level in zip(axes, levels, strict=True) if not level.own}
    return TuneCell(cell_name(shown), place, overrides)


def thinned(axes: Sequence[TuneAxis]) -> list[TuneAxis]:
    """The axes with so few levels that there are at most MAX_CELLS cells. The ends and the own level stay."""
    answer = list(axes)
    while math.prod(len(axis.levels) for axis in answer) > MAX_CELLS:
        widest = max(range(len(answer)), key=lambda i: len(answer[i].levels))
        levels = answer[widest].levels
        removable = [i for i, level in enumerate(levels) if not level.own and 0 < i < len(levels) - 1]
        if not removable:
            answer.pop()  # the least promising
            continue
        middle = removable[len(removable) // 2]
        answer[widest] = replace(answer[widest], levels=tuple(x for i, x in enumerate(levels) if i != middle))
    return answer


def lossy_cells(cells: Sequence[TuneCell], flags: Mapping[str, FlagValue]) -> list[str]:
    """The cells that answer otherwise than the profile does."""
    own = lossy_values(flags)
    return [cell.name for cell in cells if lossy_values({**flags, **cell.overrides}) != own]
