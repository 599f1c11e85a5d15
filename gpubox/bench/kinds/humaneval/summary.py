"""A HumanEval run's results -> its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.kinds.humaneval.grader import CPU_SECONDS
from gpubox.bench.kinds.humaneval.options import HumanEvalOptions
from gpubox.bench.kinds.humaneval.replies import TIME_PARTS
from gpubox.bench.kinds.shared import closing_notes, report_flags
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.prompt_metrics import scale_estimate
from gpubox.bench.stats import Estimate

Rows = list[tuple[Item, Result]]
Arms = dict[tuple[str, str], Rows]
"""(target, mode) -> its measured items."""


def summarise(options: HumanEvalOptions, info: RunInfo, results: ScoredItems) -> Report:
    """pass@1 by target and mode, the paired comparison of modes, the failures, and the wall time by part."""
    arms: Arms = {}
    for item, result in results:
        if result.ok:
            arms.setdefault((item.target, item.values["mode"]), []).append((item, result))
    tables = [_scores(arms), _paired(arms), _times(arms), _speeds(arms), _replies(arms), _failures(arms)]
    return Report(
        kind="humaneval",
        title="HumanEval" + (f", the first {options.limit} problems" if options.limit else ""),
        metrics=tuple(metric for arm, rows in arms.items() for metric in _metrics(*arm, rows)),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(options, info, results, arms)),
        flags=report_flags(info, results),
    )


def _metrics(target: str, mode: str, rows: Rows) -> Iterator[Metric]:
    passed = _passed(rows)
    samples = tuple((item.values["task"], 100.0 * ok) for (item, _), ok in zip(rows, passed, strict=True))
    yield Metric("pass@1", mode, target, "%", "higher", scale_estimate(stats.pass_rate(passed), 100), samples)
    tokens, wall, generation = _sums(rows)
    if tokens and wall:
        yield Metric("effective", mode, target, "tok/s", "higher", Estimate(tokens / wall, len(rows)))
    if tokens and generation:
        yield Metric("tg", mode, target, "tok/s", "higher", Estimate(tokens / generation, len(rows)))


def _passed(rows: Rows) -> list[bool]:
    return [bool(result.values["passed"]) for _, result in rows]


def _sums(rows: Rows) -> tuple[int, float, float]:
    """Generated tokens, wall seconds, generation seconds."""
    tokens = sum(result.values["generated_tokens"] or 0 for _, result in rows)
    wall = sum(result.seconds for _, result in rows)
    generation = sum(result.values["parts"]["answer"] + result.values["parts"]["thinking"] for _, result in rows)
    return tokens, wall, generation


def _scores(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), arm in arms.items():
        passed = _passed(arm)
        low, high = stats.wilson(sum(passed), len(passed))
        error = stats.standard_error([float(ok) for ok in passed])
        rate = f"{100 * sum(passed) / len(passed):.2f} %"
        spread = f"± {100 * error:.2f}" if error is not None else units.UNKNOWN
        rows.append(
            (target, mode, f"{sum(passed)} of {len(passed)}", rate, spread, f"{100 * low:.1f} – {100 * high:.1f}")
        )
    columns = ("target", "mode", "passed", "pass@1", "stderr", "95 % (Wilson)")
    return ReportTable("pass@1", columns, tuple(rows), "stderr as lm-eval computes it: sd (n-1) / sqrt(n)")


def _paired(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (first, first_rows), (second, second_rows) in combinations(arms.items(), 2):
        if first[0] != second[0] and first[1] != second[1]:
            continue
        passed = {item.values["task"]: bool(result.values["passed"]) for item, result in first_rows}
        pairs = [
            (passed[item.values["task"]], bool(result.values["passed"]))
            for item, result in second_rows
            if item.values["task"] in passed
        ]
        if not pairs:
            continue
        lost, won = pairs.count((True, False)), pairs.count((False, True))
        p = stats.mcnemar(lost, won)
        names = (first[1], second[1]) if first[0] == second[0] else (" ".join(first), " ".join(second))
        verdict = "indistinguishable" if p >= 0.05 else "better" if won > lost else "worse"
        gain = f"{100 * (won - lost) / len(pairs):+.1f}"
        rows.append((f"{names[1]} vs {names[0]}", len(pairs), won, lost, gain, f"{p:.3g}", verdict))
    columns = ("", "problems", "won", "lost", "points", "p", "")
    return ReportTable("Paired comparison", columns, tuple(rows), "McNemar's exact test, two-sided")


def _times(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), arm in arms.items():
        wall = sum(result.seconds for _, result in arm)
        if not wall:
            continue
        parts = [sum(result.values["parts"][name] for _, result in arm) for name in TIME_PARTS]
        shares = [f"{units.duration(part)} ({part / wall:.0%})" if part else units.UNKNOWN for part in parts]
        rows.append((target, mode, units.duration(wall), *shares, f"{sum(parts) / wall:.1%}"))
    columns = ("target", "mode", "wall", *TIME_PARTS, "total")
    note = "sums over all problems; prefill, reprocessed, thinking and answer are the server's own timings"
    return ReportTable("Wall time", columns, tuple(rows), note)


def _speeds(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), arm in arms.items():
        tokens, wall, generation = _sums(arm)
        if not tokens or not wall:
            continue
        peak = max((result.values["peak"] for _, result in arm if result.values.get("peak")), default=None)
        effective = tokens / wall
        ratio = f"{effective / peak:.0%}" if peak else None
        rows.append(
            (target, mode, tokens, peak, tokens / generation if generation else None, effective, ratio, wall / len(arm))
        )
    columns = ("target", "mode", "tokens", "peak", "server-side", "effective", "effective/peak", "s/problem")
    return ReportTable("tok/s", columns, tuple(rows), "peak: the fastest reply; effective: tokens over wall time")


def _replies(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), arm in arms.items():
        ends = Counter(str(r.values.get("end") or r.values.get("finish_reason") or "?") for _, r in arm)
        notices: Counter[str] = Counter()
        for _, result in arm:
            notices.update(result.values.get("notices") or {})
        if restarts := sum(result.values.get("restarts") or 0 for _, result in arm):
            notices["asked again"] = restarts
        rounds = [result.values["rounds"] for _, result in arm if result.values.get("rounds")]
        mean_rounds = sum(rounds) / len(rounds) if rounds else None
        sources = Counter(result.values["source"] or "none" for _, result in arm)
        rows.append((target, mode, mean_rounds, _counts(ends), _counts(sources), _counts(notices) or units.UNKNOWN))
    columns = ("target", "mode", "rounds", "ended", "code from", "notices")
    return ReportTable("Replies", columns, tuple(rows))


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def _failures(arms: Arms) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    codes: list[str] = []
    for (target, mode), arm in arms.items():
        for item, result in arm:
            if not result.values["passed"]:
                code = str(result.values["code"])
                why = f"{result.values['verdict']}: {result.values['why']}"
                rows.append((item.values["task"], mode, target, len(code), why[:160]))
                codes.append(code)
    columns = ("problem", "mode", "target", "code", "why")
    note = f"code: characters; each program had {CPU_SECONDS} s of CPU time"
    return ReportTable("Failed problems", columns, tuple(rows), note, tuple(codes))


def _notes(options: HumanEvalOptions, info: RunInfo, results: ScoredItems, arms: Arms) -> Iterator[str]:
    if any(result.values["source"] == "reasoning" for rows in arms.values() for _, result in rows):
        yield "Some code was taken from reasoning_content, because the reply had no other text."
    tokens = options.reply_tokens("vanilla")
    if any(mode == "vanilla" for _, mode in arms) and tokens != 1024:
        yield f"vanilla ran with max_tokens {tokens}; lm-eval uses 1,024."
    if info.plan.parallel > 1:
        yield f"{info.plan.parallel} problems ran at a time: times are sums over problems, not the run's wall time."
    yield from closing_notes(info, results)
