"""A HumanEval run's results -> its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.kinds.humaneval.grader import CPU_SECONDS
from gpubox.bench.kinds.humaneval.options import HumanEvalOptions
from gpubox.bench.kinds.humaneval.replies import TIME_PARTS
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.prompt_metrics import scale_estimate
from gpubox.bench.stats import Estimate

Rows = list[tuple[Item, Result]]


def summarise(options: HumanEvalOptions, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
    """pass@1 by target and mode; the modes against each other; what failed; where the wall clock went."""
    arms: dict[tuple[str, str], Rows] = {}
    for item, result in results:
        arms.setdefault((item.target, item.values["mode"]), []).append((item, result))
    good = {arm: own for arm, rows in arms.items() if (own := [row for row in rows if row[1].ok])}
    tables = [_scores(good), _between(good), _times(good), _speeds(good), _health(good), _failed(good)]
    return Report(
        kind="humaneval",
        title="HumanEval" + (f", the first {options.limit} problems" if options.limit else ""),
        metrics=tuple(metric for arm, rows in good.items() for metric in _metrics(*arm, rows)),
        tables=tuple(table for table in tables if table and table.rows),
        notes=tuple(_notes(options, info, results, good)),
        flags=(*info.flags, *(flag for _, result in results for flag in result.flags)),
    )


def _metrics(target: str, mode: str, rows: Rows) -> Iterator[Metric]:
    passed = [bool(result.values["passed"]) for _, result in rows]
    samples = tuple((item.values["task"], 100.0 * ok) for (item, _), ok in zip(rows, passed, strict=True))
    yield Metric("pass@1", mode, target, "%", "higher", scale_estimate(stats.pass_rate(passed), 100), samples)
    tokens, wall, writing = _sums(rows)
    if tokens and wall:
        yield Metric("effective", mode, target, "tok/s", "higher", Estimate(tokens / wall, len(rows)))
    if tokens and writing:
        yield Metric("tg", mode, target, "tok/s", "higher", Estimate(tokens / writing, len(rows)))


def _scores(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), own in good.items():
        passed = [bool(result.values["passed"]) for _, result in own]
        low, high = stats.wilson(sum(passed), len(passed))
        error = stats.standard_error([float(ok) for ok in passed])
        share = f"{100 * sum(passed) / len(passed):.2f} %"
        spread = f"± {100 * error:.2f}" if error is not None else units.UNKNOWN
        rows.append(
            (target, mode, f"{sum(passed)} of {len(passed)}", share, spread, f"{100 * low:.1f} – {100 * high:.1f}")
        )
    columns = ("target", "mode", "passed", "pass@1", "standard_error", "95 % (Wilson)")
    return ReportTable("pass@1", columns, tuple(rows), "stderr as lm-eval gives it: sd (n-1) over the root of n")


def _between(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (first, a), (second, b) in combinations(good.items(), 2):
        if first[0] != second[0] and first[1] != second[1]:
            continue
        held = {item.values["task"]: bool(result.values["passed"]) for item, result in a}
        pairs = [(held[i.values["task"]], bool(r.values["passed"])) for i, r in b if i.values["task"] in held]
        if not pairs:
            continue
        lost, won = pairs.count((True, False)), pairs.count((False, True))
        p = stats.mcnemar(lost, won)
        names = (first[1], second[1]) if first[0] == second[0] else (" ".join(first), " ".join(second))
        verdict = "indistinguishable" if p >= 0.05 else "better" if won > lost else "worse"
        gain = f"{100 * (won - lost) / len(pairs):+.1f}"
        rows.append((f"{names[1]} against {names[0]}", len(pairs), won, lost, gain, f"{p:.3g}", verdict))
    columns = ("", "problems", "won", "lost", "points", "p", "")
    return ReportTable("The same problems in two ways", columns, tuple(rows), "McNemar's exact test, two-sided")


def _times(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), own in good.items():
        wall = sum(result.seconds for _, result in own)
        if not wall:
            continue
        parts = [sum(result.values["parts"][name] for _, result in own) for name in TIME_PARTS]
        shares = [f"{units.duration(part)} ({part / wall:.0%})" if part else units.UNKNOWN for part in parts]
        rows.append((target, mode, units.duration(wall), *shares, f"{sum(parts) / wall:.1%}"))
    columns = ("target", "mode", "wall", *TIME_PARTS, "in all")
    note = "seconds of all problems together; prompt and tokens by the server's clock"
    return ReportTable("Where the wall clock went", columns, tuple(rows), note)


def _speeds(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), own in good.items():
        tokens, wall, writing = _sums(own)
        if not tokens or not wall:
            continue
        peak = max((r.values["peak"] for _, r in own if r.values.get("peak")), default=None)
        effective = tokens / wall
        share = f"{effective / peak:.0%}" if peak else None
        server = tokens / writing if writing else None
        rows.append((target, mode, tokens, peak, server, effective, share, wall / len(own)))
    columns = ("target", "mode", "tokens", "peak", "server-side", "effective", "effective/peak", "s/problem")
    return ReportTable("tok/s", columns, tuple(rows), "peak: the fastest reply; effective: tokens over wall time")


def _health(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    for (target, mode), own in good.items():
        ends = Counter(str(r.values.get("end") or r.values.get("finish_reason") or "?") for _, r in own)
        odd: Counter[str] = Counter()
        for _, result in own:
            odd.update(result.values.get("notices") or {})
        restarts = sum(result.values.get("restarts") or 0 for _, result in own)
        if restarts:
            odd["asked again"] = restarts
        rounds = [result.values["rounds"] for _, result in own if result.values.get("rounds")]
        mean = sum(rounds) / len(rounds) if rounds else None
        sources = Counter(result.values["source"] or "none" for _, result in own)
        rows.append((target, mode, mean, _counts(ends), _counts(sources), _counts(odd) or units.UNKNOWN))
    return ReportTable(
        "How the replies were", ("target", "mode", "rounds", "ended", "code from", "out of order"), tuple(rows)
    )


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.most_common())


def _failed(good: dict[tuple[str, str], Rows]) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    codes: list[str] = []
    note = f"code: its characters; each program had {CPU_SECONDS} s of CPU time"
    for (target, mode), own in good.items():
        for item, result in own:
            if not result.values["passed"]:
                code = str(result.values["code"])
                why = f"{result.values['verdict']}: {result.values['why']}"
                rows.append((item.values["task"], mode, target, len(code), why[:160]))
                codes.append(code)
    return ReportTable("Failed problems", ("problem", "mode", "target", "code", "why"), tuple(rows), note, tuple(codes))


def _sums(rows: Rows) -> tuple[int, float, float]:
    tokens = sum(result.values["generated_tokens"] or 0 for _, result in rows)
    wall = sum(result.seconds for _, result in rows)
    writing = sum(result.values["parts"]["writing"] + result.values["parts"]["thinking"] for _, result in rows)
    return tokens, wall, writing


def _notes(
    options: HumanEvalOptions, info: RunInfo, results: Sequence[tuple[Item, Result]], good: dict[tuple[str, str], Rows]
) -> Iterator[str]:
    bad = [(item, result) for item, result in results if not result.ok]
    for why, count in Counter(result.error for _, result in bad).items():
        yield f"{count} problems were not measured and count nowhere: {why.rstrip('.')}."
    if any(result.values["source"] == "reasoning" for rows in good.values() for _, result in rows):
        yield "Some code was taken from reasoning_content, because there was no other text."
    if any(mode == "vanilla" for _, mode in good) and options.tokens("vanilla") != 1024:
        yield f"vanilla with {options.tokens('vanilla')} tokens is not what lm-eval does (1,024)."
    if info.plan.parallel > 1:
        yield f"{info.plan.parallel} problems at a time: times are sums over problems, not the run's."
    if len(results) < info.items:
        yield f"{info.items - len(results)} of {info.items} items are not done yet."
