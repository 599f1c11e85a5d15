"""What one pastes into a forum about a run: the values of a card and of a Markdown block, nothing private in them.

Everything here is chosen: names of profiles, paths, hosts, error messages and the texts of doubts never get in. What
does get in passes the wall of ``privacy`` as well.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpubox import units
from gpubox.bench.model import Machine, Provenance, RunInfo, ScoredItems
from gpubox.bench.report.chart import METRIC_ORDER
from gpubox.bench.report.formatting import DOUBT_MEANINGS, DOUBTFUL
from gpubox.bench.report.leaderboard import RANKING_METRICS
from gpubox.bench.report.load import report_of
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.post_launch import PostModel, default_text, read_model, shown_flags
from gpubox.bench.report.privacy import Redactor
from gpubox.bench.run_store import Run
from gpubox.bench.stats import Estimate
from gpubox.profiles.profile import is_loopback

MAX_LABEL = 28
"""Letters of a side's label; what is longer is called A, B, ..."""
_HINT = re.compile(r" *`gpubox [^`]*`[^.]*\.")
"""What the owner could do next."""
_FOR_THE_OWNER = re.compile(r"gpubox bench|^Not measured|measurements are not done yet")
"""Notes that help only the owner, or that hold a message of the server."""
_OPTIONS = re.compile(r" \(--[^()]*\)")
_YOUR = re.compile(r"\b[Yy]our\b(?: own\b)?")
_VERSION = re.compile(r"[\w.() ,+-]{1,60}")
_DRIVER = re.compile(r"[\d.]{1,20}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_GPUBOX = re.compile(r"[\w.+-]{1,30}")
_DIALECTS = frozenset({"llama-server", "vllm", "ollama", "lm-studio", "LM Studio", "vLLM", "Ollama"})


@dataclass(frozen=True, slots=True)
class PostSide:
    """One configuration that was measured."""

    label: str
    """What distinguishes it; empty if there is only one."""
    model: PostModel
    engine: str
    """``llama.cpp 0.6.0 (build 11434)``; empty if unknown."""
    flags: tuple[str, ...] | None
    """Those that not all sides have, in their shortest form; ``None``: the command line is unknown."""
    context_tokens: int | None
    """Per slot."""
    slots: int | None
    vram_used_bytes: int | None
    """The largest reading of the driver, over all programs."""
    vram_readings: int


@dataclass(frozen=True, slots=True)
class PostRow:
    """One row of figures."""

    side: str
    group: str
    cells: tuple[Estimate | None, ...]
    """By column; ``None``: not measured."""

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.side, self.group)))


@dataclass(frozen=True, slots=True)
class PostColumn:
    """One measured quantity."""

    name: str
    unit: str
    better: str


@dataclass(frozen=True, slots=True)
class Post:
    """One run, to be read by strangers."""

    kind: str
    title: str
    measured_on: str
    """``2026-11-22``"""
    gpubox: str
    """The version that measured."""
    gpus: tuple[str, ...]
    vram_total_bytes: int | None
    driver: str
    cpu: str
    ram_bytes: int | None
    sides: tuple[PostSide, ...]
    flags: tuple[str, ...] | None
    """Those of all sides; ``None``: no command line is known."""
    columns: tuple[PostColumn, ...]
    rows: tuple[PostRow, ...]
    sentences: tuple[str, ...]
    """What the run concludes, and how it was measured."""
    doubts: tuple[str, ...]
    """Why not to trust the figures."""
    verdict: str = ""
    """The first of ``sentences``, if it is the answer."""

    @property
    def name(self) -> str:
        """The model, or the models: ``Qwen3.6-35B-A3B Q8_0 / Q4_K_M``."""
        quants: dict[str, dict[str, None]] = {}
        for side in self.sides:
            quants.setdefault(side.model.name, {})[side.model.quant] = None
        return " / ".join(f"{name} {' / '.join(filter(None, own))}".strip() for name, own in quants.items())

    @property
    def file_stem(self) -> str:
        """A file name without anything private: ``2026-11-22-speed-Qwen3.6-35B-A3B-Q4_K_M``."""
        words = f"{self.measured_on}-{self.kind}-{self.name}"
        return re.sub(r"[^\w.]+", "-", words, flags=re.A).strip("-.")[:90] or "post"


def make_post(run: Run) -> Post:
    """The post of ``run``. Raises GpuboxError if the run is damaged."""
    info, scored = run.info, run.scored()
    report = report_of(run, info, scored)
    failed = sum(not result.ok for item, result in scored if not item.warmup)
    sides, common = _sides(info, report, _vram_readings(run, info, scored))
    post = _assemble(info, report, sides, common, list(_doubts(info, report, len(scored), failed)))
    return Redactor([info], public=True).redact(post)


def post_values(post: Post) -> dict[str, Any]:
    """The post as JSON values; each row names its columns."""
    values: dict[str, Any] = msgspec.to_builtins(post)
    names = [column.name for column in post.columns]
    for row in values["rows"]:
        row["cells"] = dict(zip(names, row["cells"], strict=True))
    return values


def _assemble(
    info: RunInfo, report: Report, sides: Mapping[str, PostSide], common: tuple[str, ...], doubts: Sequence[str]
) -> Post:
    machine = info.machine or Machine("")
    if _elsewhere(info):  # what is known of a machine is known of this one
        machine = Machine(machine.gpubox)
    names = {name: side.label or side.model.name for name, side in sides.items()}
    for target in info.plan.targets:  # not the names of a sweep's cells: those are its flags
        side = sides.get(target.name) or next(iter(sides.values()))
        names.setdefault(target.profile or target.name, side.label or side.model.name)
    columns = _columns(report)
    notes = [
        _renamed(_for_strangers(note), names) if note and not _FOR_THE_OWNER.search(note) else ""
        for note in (_HINT.sub("", report.verdict), *report.notes)
    ]
    totals = [_number(gpu.get("vram_total_bytes")) for gpu in machine.gpus]
    return Post(
        kind=report.kind,
        title=_renamed(report.title, names),
        measured_on=info.created_at[:10] if _DATE.match(info.created_at) else units.UNKNOWN,
        gpubox=machine.gpubox if _GPUBOX.fullmatch(machine.gpubox) else "",
        gpus=tuple(_gpus(machine)),
        vram_total_bytes=round(sum(total for total in totals if total)) if totals and all(totals) else None,
        driver=machine.driver if _DRIVER.fullmatch(machine.driver) else "",
        cpu=machine.cpu[:60],
        ram_bytes=machine.ram_bytes,
        sides=tuple(dict.fromkeys(sides.values())),
        flags=common if any(side.flags is not None for side in sides.values()) else None,
        columns=columns,
        rows=tuple(_best_first(report.kind, columns, list(_rows(report.metrics, columns, sides, names)))),
        sentences=tuple(filter(None, notes)),
        doubts=tuple(doubts),
        verdict=notes[0],
    )


# -- what was measured ----------------------------------------------------------------------------------------------


def _sides(
    info: RunInfo, report: Report, readings: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, PostSide], tuple[str, ...]]:
    """Each side under the name that the report has for it, and the flags of all."""
    names = list(dict.fromkeys(metric.target for metric in report.metrics)) or [info.plan.targets[0].name]
    provenances = {name: _provenances(info, name) for name in names}
    flags = {name: _common([shown_flags(own.argv) for own in group if own.argv]) for name, group in provenances.items()}
    known = all(own.argv for group in provenances.values() for own in group) and any(provenances.values())
    shared = _common(list(flags.values())) if known else {}
    models: dict[str, PostModel] = {}
    sides = {}
    for name in names:
        group = provenances[name]
        first = group[0] if group else Provenance(name)
        models.setdefault(first.model_path, read_model(first))
        peaks = [readings[own.target] for own in group if own.target in readings]
        flags[name] = {flag: text for flag, text in flags[name].items() if flag not in shared}
        own_flags = tuple(flags[name].values())
        sides[name] = PostSide(
            "", models[first.model_path], _engine(first), own_flags if known else None, _count(first, "n_ctx"),
            _count(first, "total_slots"), max((peak for peak, _ in peaks), default=None),
            sum(count for _, count in peaks),
        )  # fmt: skip
    return _labelled(sides, flags, info), tuple(shared.values())


def _provenances(info: RunInfo, name: str) -> list[Provenance]:
    """Of what a report calls ``name``: a target, a side of an A/B run, or the profile that all cells change."""
    if name in info.provenance:
        return [info.provenance[name]]
    for side in info.plan.options.get("sides", ()):
        if isinstance(side, Mapping) and side.get("name") == name and side.get("target") in info.provenance:
            return [info.provenance[str(side["target"])]]
    return [own for own in info.provenance.values() if own.profile == name] or list(info.provenance.values())


def _common(flags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first = flags[0] if flags else {}
    return {name: text for name, text in first.items() if all(other.get(name) == text for other in flags)}


def _labelled(sides: dict[str, PostSide], flags: Mapping[str, Mapping[str, str]], info: RunInfo) -> dict[str, PostSide]:
    """The sides with labels: what differs in the shortest words, else letters. A profile's name is none."""
    if len(sides) < 2:
        return sides
    profiles = {target.profile or target.name for target in info.plan.targets}
    differing = {flag: "" for own in flags.values() for flag in own}

    def of_models(side: PostSide) -> str:
        same_name = len({other.model.name for other in sides.values()}) == 1
        return side.model.quant if same_name else f"{side.model.name} {side.model.quant}".strip()

    def of_flags(name: str) -> str:
        return " ".join(flags[name].get(flag) or default_text(flag) for flag in {**flags[name], **differing})

    def rest_of_name(name: str) -> str:
        return next((name[len(own) :].strip() for own in profiles if name.startswith(own)), "")

    rests = {name: rest_of_name(name) or "as it is" for name in sides}
    for labels in (
        {name: of_models(side) for name, side in sides.items()},
        {name: of_flags(name) for name in sides},
        {name: side.engine for name, side in sides.items()},
        rests if any(rest != "as it is" for rest in rests.values()) else {},
        {name: f"side {letter}" for name, letter in zip(sides, ascii_uppercase, strict=False)},
    ):
        if len(set(labels.values())) == len(sides) and all(0 < len(label) <= MAX_LABEL for label in labels.values()):
            return {name: replace(side, label=labels[name]) for name, side in sides.items()}
    return {name: replace(side, label=f"side {number}") for number, (name, side) in enumerate(sides.items(), 1)}


def _engine(provenance: Provenance) -> str:
    version = re.sub(
        r" \(build 0(?:, commit (?:unknown)?)?\)", "", provenance.engine_version
    )  # a build that knows none
    version = version if _VERSION.fullmatch(version) else ""
    if provenance.url and provenance.dialect != "llama-server":
        name = provenance.dialect if provenance.dialect in _DIALECTS else ""
    else:
        name = "llama.cpp"
    return f"{name} {version}".strip() if version or provenance.url else ""


def _count(provenance: Provenance, key: str) -> int | None:
    value = provenance.props.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _vram_readings(run: Run, info: RunInfo, scored: ScoredItems) -> dict[str, tuple[int, int]]:
    """Target -> the largest reading of the VRAM in use, and the number of readings."""
    if _elsewhere(info):
        return {}
    targets = {item.id: item.target for item, _ in scored}
    readings: dict[str, list[int]] = {}
    for record in run.raws().values():
        if target := targets.get(record.item):
            used = [sample.vram_used_bytes for sample in record.samples if sample.vram_used_bytes]
            readings.setdefault(target, []).extend(used)
    return {target: (max(used), len(used)) for target, used in readings.items() if used}


def _elsewhere(info: RunInfo) -> bool:
    """Whether a server on another machine was measured."""
    return any(target.url and not is_loopback(urlsplit(target.url).hostname or "") for target in info.plan.targets)


def _gpus(machine: Machine) -> Iterator[str]:
    """Each model of card once: ``2 × NVIDIA GeForce RTX 3090, 24.0 GiB, power limit 280 W``."""
    names = []
    for gpu in machine.gpus:
        total, limit = _number(gpu.get("vram_total_bytes")), _number(gpu.get("power_limit_watts"))
        power = f", power limit {limit:.0f} W" if limit else ""
        names.append(f"{str(gpu.get('name', '?'))[:48]}, {units.memory(total)}{power}")
    for name, count in Counter(names).items():
        yield f"{count} × {name}" if count > 1 else name


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


# -- the figures ----------------------------------------------------------------------------------------------------


def _columns(report: Report) -> tuple[PostColumn, ...]:
    """What ranks runs of the kind first, then what every report draws first."""
    columns = dict.fromkeys(PostColumn(metric.name, metric.unit, metric.better) for metric in report.metrics)
    order = list(dict.fromkeys(("aggregate tg", RANKING_METRICS.get(report.kind, ""), *METRIC_ORDER)))
    place = {name: number for number, name in enumerate(order)}
    return tuple(sorted(columns, key=lambda column: (place.get(column.name, len(place)), not column.better)))


def _rows(
    metrics: Sequence[Metric], columns: Sequence[PostColumn], sides: Mapping[str, PostSide], names: Mapping[str, str]
) -> Iterator[PostRow]:
    cells: dict[tuple[str, str], dict[PostColumn, Estimate]] = {}
    for metric in metrics:
        column = PostColumn(metric.name, metric.unit, metric.better)
        cells.setdefault((metric.target, metric.group), {})[column] = metric.estimate
    groups = list(dict.fromkeys(group for _, group in cells))  # rivals below each other
    for (target, group), own in sorted(cells.items(), key=lambda entry: groups.index(entry[0][1])):
        label = sides[target].label if target in sides else ""
        yield PostRow(label, _renamed(group, names), tuple(own.get(column) for column in columns))


def _best_first(kind: str, columns: Sequence[PostColumn], rows: Sequence[PostRow]) -> Sequence[PostRow]:
    """The rows of rivals by their first figure; others as they are."""
    if kind not in ("sweep", "tune") or not columns or not columns[0].better:
        return rows
    sign = -1 if columns[0].better == "higher" else 1
    return sorted(rows, key=lambda row: sign * row.cells[0].value if row.cells[0] else math.inf)


def _doubts(info: RunInfo, report: Report, done: int, failed: int) -> Iterator[str]:
    """The kinds of doubts with what they mean; what is missing. No doubt's own text: it may name a program."""
    for kind in dict.fromkeys(doubt.kind for doubt in report.doubts):
        items = len({doubt.item for doubt in report.doubts if doubt.kind == kind and doubt.item})
        where = f" in {items} measurement{'s' * (items != 1)}" if items else ""
        known = kind in DOUBT_MEANINGS
        yield f"{DOUBTFUL} {kind if known else 'another observation'}{where}" + (
            f" ({DOUBT_MEANINGS[kind]})" if known else ""
        )
    if done < info.items or info.state != "finished":
        yield f"Not finished: {done} of {info.items} items are measured."
    if failed:
        yield f"{failed} of {info.items} items could not be measured."


def _for_strangers(note: str) -> str:
    """A note of a report without options of a verb, and without "your"."""
    own = _YOUR.sub(lambda match: "The owner's" if match[0][0] == "Y" else "the owner's", note)
    return _OPTIONS.sub("", own)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """``text`` with the names of targets and profiles replaced. Names of one or two letters are words, not names."""
    longest = sorted((name for name in names if len(name) > 2), key=len, reverse=True)
    if not longest:
        return text
    pattern = "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in longest)
    return re.sub(pattern, lambda match: names[match[0]], text)
