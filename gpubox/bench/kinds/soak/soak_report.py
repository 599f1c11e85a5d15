"""A soak's results -> its report: figures by third, curves over the minutes, and findings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.kinds.shared import closing_notes, report_doubts
from gpubox.bench.kinds.soak.trends import (
    MIN_CYCLE_ANSWERS,
    MIN_WINDOWS,
    Drift,
    depth_adjusted_rates,
    find_cycle,
    judge_drift,
    max_period,
    memory_growth,
)
from gpubox.bench.model import Result, RunInfo, ScoredItems
from gpubox.bench.report.formatting import validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import scale_estimate

Windows = list[tuple[int, Result]]
"""Number and result of each measured window, in order."""
THIRDS = ("first third", "middle third", "last third")
_MEMORY = (("VRAM", "vram_bytes"), ("RAM of the server", "rss_bytes"))


def summarise(window_seconds: float, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far, each target by itself."""
    metrics: list[Metric] = []
    tables: list[ReportTable] = []
    series: list[Series] = []
    notes: list[str] = []
    verdicts: list[str] = []
    for target in info.plan.targets:
        windows = [
            (int(item.values["window"]), result)
            for item, result in results
            if item.target == target.name and result.ok and not item.warmup
        ]
        if not windows:
            continue
        metrics += _metrics(target.name, windows)
        tables.append(_thirds(target.name, windows))
        series += _curves(target.name, windows, window_seconds)
        several = len(info.plan.targets) > 1
        rates = _depth_adjusted(windows)
        drift = judge_drift(rates)
        verdict = drift_sentence(drift, target.name if several else "It")
        if drift is None or drift.verdict in ("modes", "unclear"):
            minutes = 2 * math.ceil(info.plan.options.get("minutes", 15))
            verdict += f" `gpubox bench soak {target.profile or f'--url {target.url}'} --minutes {minutes}` tells more."
        verdicts.append(verdict)
        prefix = f"{target.name}: " if several else ""
        suffix = validity_suffix((*info.doubts, *(doubt for _, result in windows for doubt in result.doubts)))
        notes += [
            f"{prefix}{finding.removesuffix('.')}{suffix}."
            for finding in findings(windows, window_seconds, rates, drift)
        ]
    notes += closing_notes(info, results)
    doubts = report_doubts(info, results)
    return Report(
        "soak", "Agent-like load", tuple(metrics), tuple(tables), tuple(series), tuple(notes), doubts,
        verdict=" ".join(verdicts),
    )  # fmt: skip


def findings(windows: Windows, window_seconds: float, rates: Sequence[float], drift: Drift | None) -> Iterator[str]:
    """One sentence per question: did tg change, are there cycles, does memory grow. "No" and "unknown" are said too."""
    if drift:
        change, low, high = (f"{100 * value:+.1f}" for value in (drift.change, drift.low, drift.high))
        yield f"tg over the whole soak, at equal depth: {change} % ({low} to {high})."
    yield _cycles("tg at equal depth", rates)
    answers = [answer for _, result in windows for answer in result.values["answers"]]
    drafts = [(a["draft_tokens_accepted"] or 0, a["draft_tokens"]) for a in answers if a["draft_tokens"]]
    if drafts and all(accepted for accepted, _ in drafts):
        yield _cycles("acceptance", [accepted / drafted for accepted, drafted in drafts])
    for name, key in _MEMORY:
        readings = [(number, result.values[key]) for number, result in windows if result.values.get(key) is not None]
        growth = memory_growth([value for _, value in readings], [number * window_seconds for number, _ in readings])
        if growth and growth.grows:
            gain, hourly = units.memory(growth.last - growth.first), units.memory(growth.per_hour)
            yield f"{name} grows: {gain} more in the last third, {hourly} per hour." + (
                " llama-server keeps old prompts in RAM up to cache-ram." if key == "rss_bytes" else ""
            )
        elif growth:
            yield f"{name} is steady at {units.memory(growth.last)}."
        elif readings:
            yield (
                f"{len(readings)} windows are too few to tell whether {name} grows: it takes {MIN_WINDOWS} "
                "(--minutes, --window)."
            )


def _depth_adjusted(windows: Windows) -> list[float]:
    answers = [answer for _, result in windows for answer in result.values["answers"]]
    return depth_adjusted_rates([answer["tg"] for answer in answers], [answer["context_tokens"] for answer in answers])


def drift_sentence(drift: Drift | None, name: str = "It") -> str:
    """Whether the speed held, as a sentence without figures."""
    if drift is None:
        return f"Cannot tell whether {name.lower() if name == 'It' else name} keeps its speed: too few answers."
    causes = {
        "modes": "it changes between two speeds, as servers do, so its last minutes say little about the next",
        "unclear": "its answers vary too much; a longer soak would tell",
    }
    if cause := causes.get(drift.verdict):
        return f"Cannot tell whether {name.lower() if name == 'It' else name} keeps its speed: {cause}."
    return f"{name} {'kept its speed' if drift.verdict == 'steady' else f'became {drift.verdict}'}."


def _cycles(name: str, values: Sequence[float]) -> str:
    if cycle := find_cycle(values):
        return f"{name} goes in cycles: {cycle}."
    if len(values) < MIN_CYCLE_ANSWERS:
        return f"{len(values)} answers are too few to tell whether {name} goes in cycles."
    longest = max_period(len(values))
    return f"{name} shows no cycle of fast and slow answers; cycles of up to {longest} answers were looked for."


def _drafts(result: Result) -> stats.RatioSample:
    answers = result.values["answers"]
    accepted = sum(answer["draft_tokens_accepted"] or 0 for answer in answers)
    return stats.RatioSample(accepted, sum(answer["draft_tokens"] or 0 for answer in answers))


def _figures(windows: Windows, key: str) -> list[tuple[int, float]]:
    """The number of each window with its value: a reading, the acceptance, or the mean over its answers."""
    figures: list[tuple[int, float]] = []
    for number, result in windows:
        drafts = _drafts(result)
        if key == "acceptance":
            values = [100 * drafts.numerator / drafts.denominator] if drafts.denominator else []
        else:
            rows = result.values["answers"] if key in _OF_ANSWERS else [result.values]
            values = [row[key] for row in rows if row.get(key) is not None]
        if values:
            figures.append((number, statistics.fmean(values)))
    return figures


_OF_ANSWERS = ("tg", "context_tokens", "ttft_seconds")
# name, unit, digits, key of the value, what the value is divided by
_COLUMNS = (
    ("tg", "tok/s", 2, "tg", 1),
    ("depth", "tokens", 0, "context_tokens", 1),
    ("TTFT", "s", 3, "ttft_seconds", 1),
    ("acceptance", "%", 1, "acceptance", 1),
    ("VRAM", "GiB", 2, "vram_bytes", units.GIB),
    ("RAM of the server", "GiB", 2, "rss_bytes", units.GIB),
    ("temperature", "°C", 0, "temperature_celsius", 1),
    ("SM clock", "MHz", 0, "clock_sm_mhz", 1),
    ("power", "W", 0, "power_watts", 1),
)


def _thirds(target: str, windows: Windows) -> ReportTable:
    third = max(1, len(windows) // 3)
    parts = [windows[:third], windows[third:-third], windows[-third:]] if len(windows) >= 3 else [[], windows, []]
    rows: list[tuple[Value, ...]] = []
    for name, unit, digits, key, divisor in _COLUMNS:
        cells: list[str] = []
        for part in parts:
            values = [value / divisor for _, value in _figures(part, key)]
            spread = f"{min(values):.{digits}f} – {max(values):.{digits}f}" if values else ""
            cells.append(f"{statistics.fmean(values):.{digits}f} ({spread})" if values else units.UNKNOWN)
        if any(cell != units.UNKNOWN for cell in cells):
            rows.append((name, unit, *cells))
    return ReportTable(target, ("", "", *THIRDS), tuple(rows), "mean (minimum – maximum) of the windows")


def _metrics(target: str, windows: Windows) -> Iterator[Metric]:
    for name, key, unit, better in (("tg", "tg", "tok/s", "higher"), ("TTFT", "ttft_seconds", "s", "lower")):
        samples = [(f"{number:03d}", value) for number, value in _figures(windows, key)]
        if samples:
            estimate = stats.estimate([value for _, value in samples])
            yield Metric(name, "windows", target, unit, better, estimate, tuple(samples))  # type: ignore[arg-type]
    drafts = [(f"{number:03d}", ratio) for number, result in windows if (ratio := _drafts(result)).denominator]
    if drafts:
        pooled = scale_estimate(stats.pooled_ratio([[ratio for _, ratio in drafts]], units="windows"), 100)
        samples = [(name, 100 * ratio.numerator / ratio.denominator) for name, ratio in drafts]
        yield Metric("acceptance", "windows", target, "%", "higher", pooled, tuple(samples))


def _curves(target: str, windows: Windows, window_seconds: float) -> Iterator[Series]:
    for name, unit, _, key, divisor in _COLUMNS:
        points = [((n - 0.5) * window_seconds / 60, value / divisor) for n, value in _figures(windows, key)]
        if points:
            yield Series(f"{name} over time", target, "minutes", f"{name}, {unit}", tuple(points))
