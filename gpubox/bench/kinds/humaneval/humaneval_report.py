"""A HumanEval run's results -> its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.compare.words import more_answers
from gpubox.bench.kinds.humaneval.grader import CPU_SECONDS
from gpubox.bench.kinds.humaneval.replies import TIME_PARTS
from gpubox.bench.kinds.shared import closing_notes, ranking_verdict, report_doubts
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import Metric, Report, ReportTable, Value
from gpubox.bench.report.prompt_metrics import scale_estimate
from gpubox.bench.stats import Estimate

Rows = list[tuple[Item, Result]]
Groups = dict[tuple[str, str], Rows]
"""(target, mode) -> its measured items."""
LEVEL = 0.05


def summarise(limit: int | None, vanilla_tokens: int, info: RunInfo, results: ScoredItems) -> Report:
    """Which solved most, pass@1 by target and mode, their pairs, the failures, and the wall time by part.

    ``limit``: of problems; ``vanilla_tokens``: the max_tokens of a vanilla reply.
    """
    groups: Groups = {}
    for item, result in results:
        if result.ok:
            groups.setdefault((item.target, item.values["mode"]), []).append((item, result))
    pairs = _pairs(groups)
    speeds = ("tokens", "peak", "server-side", "effective", "effective/peak", "s/problem")
    tables = [
        _table("pass@1", ("passed", "pass@1", "stderr", "95 % (Wilson)"), groups, _score_cells,
               "stderr as lm-eval computes it: sd (n-1) / sqrt(n)"),
        _pair_table(pairs),
        _table("Wall time", ("wall", "reading", "read again", *TIME_PARTS[2:], "total"), groups, _time_cells,
               "sums over all problems; reading, read again, thinking and answer are the server's own timings"),
        _table("tok/s", speeds, groups, _speed_cells, "peak: the fastest reply; effective: tokens over wall time"),
        _table("Replies", ("rounds", "ended", "code from", "notices"), groups, _reply_cells),
        _failures(groups),
    ]  # fmt: skip
    return Report(
        kind="humaneval",
        title="HumanEval" + (f", the first {limit} problems" if limit else ""),
        verdict=_verdict(groups, pairs, more_answers(info)),
        metrics=tuple(metric for group, rows in groups.items() for metric in _metrics(*group, rows)),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(vanilla_tokens, info, results, groups)),
        doubts=report_doubts(info, results),
    )


def _metrics(target: str, mode: str, rows: Rows) -> Iterator[Metric]:
    passed = _passed_by_task(rows)
    samples = tuple((task, 100.0 * ok) for task, ok in passed.items())
    rate = stats.pass_rate(list(passed.values()))
    yield Metric("pass@1", mode, target, "%", "higher", scale_estimate(rate, 100), samples)
    tokens, wall, generation = _sums(rows)
    if tokens and wall:
        yield Metric("effective", mode, target, "tok/s", "higher", Estimate(tokens / wall, len(rows)))
    if tokens and generation:
        yield Metric("tg", mode, target, "tok/s", "higher", Estimate(tokens / generation, len(rows)))


def _passed_by_task(rows: Rows) -> dict[str, bool]:
    return {item.values["task"]: bool(result.values["passed"]) for item, result in rows}


def _sums(rows: Rows) -> tuple[int, float, float]:
    """Generated tokens, wall seconds, generation seconds."""
    tokens = sum(result.values["generated_tokens"] or 0 for _, result in rows)
    wall = sum(result.seconds for _, result in rows)
    generation = sum(result.values["parts"]["answer"] + result.values["parts"]["thinking"] for _, result in rows)
    return tokens, wall, generation


def _table(
    title: str, columns: Sequence[str], groups: Groups, cells_of: Callable[[Rows], Sequence[Value]], note: str = ""
) -> ReportTable:
    """A row for each target and mode for which ``cells_of`` gives cells."""
    rows = [(*names, *cells) for names, rows in groups.items() if (cells := cells_of(rows))]
    return ReportTable(title, ("target", "mode", *columns), tuple(rows), note)


def _score_cells(rows: Rows) -> Sequence[Value]:
    passed = list(_passed_by_task(rows).values())
    low, high = stats.wilson(sum(passed), len(passed))
    error = stats.standard_error([float(ok) for ok in passed])
    spread = f"± {100 * error:.2f}" if error is not None else units.UNKNOWN
    rate = f"{100 * sum(passed) / len(passed):.2f} %"
    return f"{sum(passed)} of {len(passed)}", rate, spread, f"{100 * low:.1f} – {100 * high:.1f}"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two targets in one mode, or one target in two, on the problems that both were asked."""

    names: tuple[str, str]
    problems: int
    won: int
    """By the second alone."""
    lost: int
    p: float
    """Of McNemar's exact test, corrected for all pairs (Holm)."""


def _names(groups: Groups) -> dict[tuple[str, str], str]:
    """How each group is called: by its mode, its target, or both if there are several of both."""
    targets, modes = ({group[place] for group in groups} for place in (0, 1))
    return {
        group: group[1] if len(targets) == 1 else group[0] if len(modes) == 1 else " ".join(group) for group in groups
    }


def _pairs(groups: Groups) -> list[_Pair]:
    names, pairs = _names(groups), []
    for (first, first_rows), (second, second_rows) in combinations(groups.items(), 2):
        passed, second_passed = _passed_by_task(first_rows), _passed_by_task(second_rows)
        both = [(passed[task], ok) for task, ok in second_passed.items() if task in passed]
        if both and (first[0] == second[0] or first[1] == second[1]):
            lost, won = both.count((True, False)), both.count((False, True))
            pairs.append(_Pair((names[first], names[second]), len(both), won, lost, stats.mcnemar(lost, won)))
    corrected = stats.holm([pair.p for pair in pairs])
    return [replace(pair, p=p) for pair, p in zip(pairs, corrected, strict=True)]


def _pair_table(pairs: Sequence[_Pair]) -> ReportTable:
    rows = []
    for pair in pairs:
        verdict = "cannot tell" if pair.p > LEVEL else "better" if pair.won > pair.lost else "worse"
        gain = f"{100 * (pair.won - pair.lost) / pair.problems:+.1f}"
        label = f"{pair.names[1]} vs {pair.names[0]}"
        rows.append((label, pair.problems, pair.won, pair.lost, gain, f"{pair.p:.3g}", verdict))
    note = "McNemar's exact test, two-sided" + (", corrected for all pairs" if len(pairs) > 1 else "")
    return ReportTable("Paired comparison", ("", "problems", "won", "lost", "points", "p", ""), tuple(rows), note)


def _verdict(groups: Groups, pairs: Sequence[_Pair], tells: str) -> str:
    """How many problems were solved; of several groups, which solved the most."""
    names = _names(groups)
    solved = {names[group]: sum(_passed_by_task(rows).values()) for group, rows in groups.items()}
    if len(groups) < 2:
        return "".join(
            f"{group[0]} solved {solved[names[group]]} of {len(rows)} problems." for group, rows in groups.items()
        )
    ranked = sorted(solved, key=lambda name: -solved[name])
    better = {(first if pair.lost > pair.won else second, second if pair.lost > pair.won else first)
              for pair in pairs if pair.p <= LEVEL for first, second in [pair.names]}  # fmt: skip
    behind = [name for name in ranked[1:] if (ranked[0], name) in better]
    return ranking_verdict(
        ranked, behind, "solved the most problems", "solved more problems than", "which solves more", tells
    )


def _time_cells(rows: Rows) -> Sequence[Value]:
    wall = sum(result.seconds for _, result in rows)
    if not wall:
        return ()
    parts = [sum(result.values["parts"][name] for _, result in rows) for name in TIME_PARTS]
    shares = [f"{units.duration(part)} ({part / wall:.0%})" if part else units.UNKNOWN for part in parts]
    return units.duration(wall), *shares, f"{sum(parts) / wall:.1%}"


def _speed_cells(rows: Rows) -> Sequence[Value]:
    tokens, wall, generation = _sums(rows)
    if not tokens or not wall:
        return ()
    peak = max((result.values["peak"] for _, result in rows if result.values.get("peak")), default=None)
    effective = tokens / wall
    ratio = f"{effective / peak:.0%}" if peak else None
    return tokens, peak, tokens / generation if generation else None, effective, ratio, wall / len(rows)


def _reply_cells(rows: Rows) -> Sequence[Value]:
    all_values = [result.values for _, result in rows]
    ends = Counter(str(values.get("end") or values.get("finish_reason") or "?") for values in all_values)
    notices: Counter[str] = Counter()
    for values in all_values:
        notices.update(values.get("notices") or {})
    if restarts := sum(values.get("restarts") or 0 for values in all_values):
        notices["asked again"] = restarts
    rounds = [values["rounds"] for values in all_values if values.get("rounds")]
    sources = Counter(values["source"] or "none" for values in all_values)
    mean_rounds = sum(rounds) / len(rounds) if rounds else None
    return mean_rounds, _counts(ends), _counts(sources), _counts(notices) or units.UNKNOWN


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def _failures(groups: Groups) -> ReportTable:
    rows: list[tuple[Value, ...]] = []
    codes: list[str] = []
    for (target, mode), group in groups.items():
        for item, result in group:
            if not result.values["passed"]:
                code = str(result.values["code"])
                why = f"{result.values['verdict']}: {result.values['why']}"
                rows.append((item.values["task"], mode, target, len(code), why[:160]))
                codes.append(code)
    columns = ("problem", "mode", "target", "code", "why")
    note = f"code: characters; each program had {CPU_SECONDS} s of CPU time"
    return ReportTable("Failed problems", columns, tuple(rows), note, tuple(codes))


def _notes(vanilla_tokens: int, info: RunInfo, results: ScoredItems, groups: Groups) -> Iterator[str]:
    if any(result.values["source"] == "reasoning" for rows in groups.values() for _, result in rows):
        yield "Some code was taken from reasoning_content, because the reply had no other text."
    if any(mode == "vanilla" for _, mode in groups) and vanilla_tokens != 1024:
        yield f"vanilla ran with max_tokens {vanilla_tokens}; lm-eval uses 1,024."
    if info.plan.parallel > 1:
        yield f"{info.plan.parallel} problems ran at a time: times are sums over problems, not the run's wall time."
    yield from closing_notes(info, results)
