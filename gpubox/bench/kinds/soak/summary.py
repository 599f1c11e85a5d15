"""A soak's results -> its report: figures by third, lines over the minutes, and what was found."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.kinds.soak.cycles import detrend, find_cycle, max_period
from gpubox.bench.kinds.soak.trends import MIN_WINDOWS, TimedAnswer, depth_adjusted_rates, memory_growth
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.report.formatting import validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import scale_estimate

Windows = list[tuple[int, Result]]
"""Number and result of each measured window, in order."""
MARGIN = 0.02
STEADY_MARGIN = 0.05
"""tg holds where the whole interval of its change lies within this."""
THIRDS = ("first third", "middle third", "last third")
_MEMORY = (("VRAM", "vram_bytes"), ("RAM of the server", "rss_bytes"))


def summarise(window_seconds: float, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
    """The soak as far as it is; each target for itself."""
    metrics: list[Metric] = []
    tables: list[ReportTable] = []
    series: list[Series] = []
    notes: list[str] = []
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
        series += _lines(target.name, windows, window_seconds)
        mark = f"{target.name}: " if len(info.plan.targets) > 1 else ""
        own = [flag for _, result in windows for flag in result.flags]
        doubt = validity_suffix((*info.flags, *own))
        notes += [f"{mark}{words.removesuffix('.')}{doubt}." for words in findings(windows, window_seconds)]
    failed = [(item, result) for item, result in results if result.failed]
    notes += [f"Not measured: {item.id}: {result.error}." for item, result in failed[:3]]
    if len(results) < info.items:
        notes.append(f"{info.items - len(results)} of {info.items} windows are not done yet.")
    flags = (*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags))
    return Report("soak", "Agent-like load", tuple(metrics), tuple(tables), tuple(series), tuple(notes), flags)


def timed_answers(windows: Windows, window_seconds: float) -> list[TimedAnswer]:
    """Every answer in order of time; time is that of the load, breaks between sessions left out."""
    found = []
    for number, result in windows:
        for one in result.values["answers"]:
            drafted = one["draft_tokens"]
            share = (one["draft_tokens_accepted"] or 0) / drafted if drafted else None
            found.append(
                TimedAnswer((number - 1) * window_seconds + one["at"], one["tg"], one["context_tokens"], share)
            )
    return found


def findings(windows: Windows, window_seconds: float) -> Iterator[str]:
    """What a reader must know, a sentence each; what was looked for and not found is said too."""
    answers = timed_answers(windows, window_seconds)
    even = depth_adjusted_rates(answers)
    yield from _drift(windows, even)
    yield from _cycles("tg at equal depth", even)
    shares = [answer.acceptance for answer in answers if answer.acceptance is not None]
    if shares and min(shares) > 0:
        yield from _cycles("acceptance", shares)
    for name, key in _MEMORY:
        held = [(number, result.values[key]) for number, result in windows if result.values.get(key) is not None]
        moved = memory_growth([value for _, value in held], [number * window_seconds for number, _ in held])
        if moved and moved.rises:
            rate = f"{units.memory(moved.per_hour)} an hour"
            yield f"{name} creeps: {units.memory(moved.last - moved.first)} more in the last third, {rate}." + (
                " llama-server keeps old prompts in RAM up to cache-ram." if key == "rss_bytes" else ""
            )
        elif moved:
            yield f"{name} holds at {units.memory(moved.last)}."
        elif held:
            yield (
                f"Whether {name} creeps cannot be told from {len(held)} windows: growth is seen from {MIN_WINDOWS} "
                "on (--minutes, --window)."
            )


def _drift(windows: Windows, even: Sequence[float]) -> Iterator[str]:
    """First against last third. By windows where they are enough: the answers of one are no independent samples."""
    rest = iter(even)
    each = [list(itertools.islice(rest, len(result.values["answers"]))) for _, result in windows]
    values = [statistics.geometric_mean(one) for one in each if one]
    if len(values) // 3 < stats.MIN_CLUSTERS:
        values = list(even)
    third = len(values) // 3
    if third < stats.MIN_CLUSTERS:
        return
    begin, end = values[:third], values[-third:]
    wander = stats.lag1_autocorrelation(detrend(begin), detrend(end))  # a sinking rate is no wander
    found = stats.welch(begin, end, margin=MARGIN, correlation=wander)
    change = f"{100 * (found.ratio - 1):+.1f} %"
    if found.low is not None and found.high is not None:
        change += f" ({100 * (found.low - 1):+.1f} to {100 * (found.high - 1):+.1f})"
    where = "from the first to the last third, at equal depth"
    if found.verdict in ("slower", "faster"):
        yield f"tg {'sinks' if found.verdict == 'slower' else 'rises'}: {change} {where}."
    elif (
        found.low is not None
        and found.high is not None
        and found.low > 1 - STEADY_MARGIN
        and found.high < 1 + STEADY_MARGIN
    ):
        yield f"tg holds: {change} {where}."
    else:
        yield f"Whether tg holds cannot be told, the answers differ too much: {change} {where}."


def _cycles(name: str, values: Sequence[float]) -> Iterator[str]:
    cycle = find_cycle(values)
    if cycle:
        yield f"{name} goes in cycles: {cycle}."
    elif len(values) >= 12:
        longest = max_period(len(values))
        yield (
            f"{name} shows no cycle of fast and slow answers of up to {longest} answers; longer ones are not "
            "looked for."
        )
    else:
        yield f"Whether {name} goes in cycles cannot be told from {len(values)} answers."


def _mean(key: str) -> Callable[[Result], float | None]:
    def of(result: Result) -> float | None:
        values = [one[key] for one in result.values["answers"] if one[key] is not None]
        return statistics.fmean(values) if values else None

    return of


def _acceptance(result: Result) -> float | None:
    share = _drafts(result)
    return 100 * share.numerator / share.denominator if share.denominator else None


def _drafts(result: Result) -> stats.RatioSample:
    answers = result.values["answers"]
    accepted = sum(one["draft_tokens_accepted"] or 0 for one in answers)
    return stats.RatioSample(accepted, sum(one["draft_tokens"] or 0 for one in answers))


def _value(key: str, scale: float = 1.0) -> Callable[[Result], float | None]:
    def of(result: Result) -> float | None:
        value = result.values.get(key)
        return float(value) / scale if value is not None else None

    return of


# name, unit, digits, how a window has it
_COLUMNS: tuple[tuple[str, str, int, Callable[[Result], float | None]], ...] = (
    ("tg", "tok/s", 2, _mean("tg")),
    ("depth", "tokens", 0, _mean("context_tokens")),
    ("TTFT", "s", 3, _mean("ttft_seconds")),
    ("acceptance", "%", 1, _acceptance),
    ("VRAM", "GiB", 2, _value("vram_bytes", units.GIB)),
    ("RAM of the server", "GiB", 2, _value("rss_bytes", units.GIB)),
    ("temperature", "°C", 0, _value("temperature_celsius")),
    ("SM clock", "MHz", 0, _value("clock_sm_mhz")),
    ("power", "W", 0, _value("power_watts")),
)


def _thirds(target: str, windows: Windows) -> ReportTable:
    cut = max(1, len(windows) // 3)
    parts = [windows[:cut], windows[cut:-cut], windows[-cut:]] if len(windows) >= 3 else [[], windows, []]
    rows: list[tuple[Value, ...]] = []
    for name, unit, digits, of in _COLUMNS:
        cells: list[str] = []
        for part in parts:
            values = [value for _, result in part if (value := of(result)) is not None]
            spread = f"{min(values):.{digits}f} – {max(values):.{digits}f}" if values else ""
            cells.append(f"{statistics.fmean(values):.{digits}f} ({spread})" if values else units.UNKNOWN)
        if any(cell != units.UNKNOWN for cell in cells):
            rows.append((name, unit, *cells))
    return ReportTable(target, ("", "", *THIRDS), tuple(rows), "mean (least – most) of the windows")


def _metrics(target: str, windows: Windows) -> list[Metric]:
    made = []
    for name, key, better in (("tg", "tg", "higher"), ("TTFT", "ttft_seconds", "lower")):
        samples = [(f"{n:03d}", value) for n, result in windows if (value := _mean(key)(result)) is not None]
        if samples:
            found = stats.estimate([value for _, value in samples])
            unit = "s" if name == "TTFT" else "tok/s"
            made.append(Metric(name, "windows", target, unit, better, found, tuple(samples)))  # type: ignore[arg-type]
    shares = [(f"{number:03d}", share) for number, result in windows if (share := _drafts(result)).denominator]
    if shares:
        pooled = scale_estimate(stats.pooled_ratio([[share for _, share in shares]], units="windows"), 100)
        samples = [(name, 100 * share.numerator / share.denominator) for name, share in shares]
        made.append(Metric("acceptance", "windows", target, "%", "higher", pooled, tuple(samples)))
    return made


def _lines(target: str, windows: Windows, window_seconds: float) -> Iterator[Series]:
    for name, unit, _, of in _COLUMNS:
        points = tuple(
            ((number - 0.5) * window_seconds / 60, value)
            for number, result in windows
            if (value := of(result)) is not None
        )
        if points:
            yield Series(f"{name} over time", target, "minutes", f"{name}, {unit}", points)
