"""An ab run's results -> its report: the paired ratio of each prompt, its interval, and what may be said."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.bench import stats
from gpubox.bench.ab.plan import Arm, Options, asked, blocks
from gpubox.bench.asking import question_of
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.report.metrics import acceptance, over_prompts
from gpubox.bench.report.model import Better, Metric, Report, Table, Value
from gpubox.bench.stats import Comparison, Pair

Scored = Sequence[tuple[Item, Result]]
# name in the report, value's name, unit, what is better
MEASURES: tuple[tuple[str, str, str, Better], ...] = (
    ("tg", "tg", "tok/s", "higher"),
    ("effective", "effective", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
)
WORDS = {
    "faster": "{b} is faster than {a}",
    "slower": "{b} is slower than {a}",
    "indistinguishable": "{b} and {a} are indistinguishable",
    "too few": "too few prompts to compare {b} with {a}",
}


def summarise(options: Options, info: RunInfo, results: Scored) -> Report:
    """Each arm's figures by domain and over all, the comparisons, and the loads where servers were restarted."""
    metrics: list[Metric] = []
    for arm in options.arms:
        for domain in ("", *(options.domains if len(options.domains) > 1 else ())):
            rows = rows_of(arm, results, domain)
            measures = MEASURES[:1] if domain else MEASURES
            metrics += over_prompts(arm.name, domain or "all", rows, measures, info.plan.seed)
            metrics += acceptance(arm.name, domain or "all", rows, info.plan.seed)
    compared = _compared(options, info, results)
    return Report(
        kind="ab",
        title=" against ".join(arm.name for arm in reversed(options.arms)),
        metrics=tuple(metrics),
        tables=(*_table(options, compared, results), *_loads(options, results)),
        notes=tuple(_notes(options, info, results, compared)),
        flags=(*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags)),
    )


def rows_of(arm: Arm, results: Scored, domain: str = "") -> list[tuple[Item, Result]]:
    """What ``arm`` measured, warm-ups left out; of one domain where it is named."""
    return [
        (item, result)
        for item, result in results
        if result.ok and not item.warmup and item.values["arm"] == arm.name
        and domain in ("", question_of(item).domain)
    ]  # fmt: skip


def pairs_of(options: Options, results: Scored, key: str, domain: str = "") -> list[Pair]:
    """Prompts that both arms answered. Rates as they are; of times the inverse, so that higher is faster."""
    found: list[dict[str, list[float]]] = []
    for arm in options.arms:
        mine: dict[str, list[float]] = {}
        for item, result in rows_of(arm, results, domain):
            value = result.values.get(key)
            if value:
                mine.setdefault(question_of(item).name, []).append(1 / value if key == "ttft_seconds" else value)
        found.append(mine)
    first, second = found
    return [
        Pair(one.domain, tuple(first[one.name]), tuple(second[one.name]))
        for one in asked(options)
        if one.name in first and one.name in second
    ]


Compared = list[tuple[str, str, Comparison]]


def _compared(options: Options, info: RunInfo, results: Scored) -> Compared:
    made: Compared = []
    for name, key, _, _ in MEASURES:
        for domain in ("", *(options.domains if len(options.domains) > 1 and key == "tg" else ())):
            if pairs := pairs_of(options, results, key, domain):
                made.append((name, domain or "all", stats.compare(pairs, seed=info.plan.seed)))
    return made


def _table(options: Options, compared: Compared, results: Scored) -> list[Table]:
    if not compared:
        return []
    first, second = options.arms
    rows: list[tuple[Value, ...]] = [
        (name, domain, found.ratio, found.low, found.high, found.least, found.most, found.n, found.verdict)
        for name, domain, found in compared
    ]
    if totals := _totals(options, results):
        rows.append(("tg, tokens over seconds of all", "all", totals, None, None, None, None, None, ""))
    columns = ("", "prompts", "ratio", "95 % CI from", "to", "least", "most", "n", "verdict")
    note = "the geometric mean of each prompt's own ratio, above 1 where the first is faster"
    return [Table(f"{second.name} over {first.name}", columns, tuple(rows), note)]


def _totals(options: Options, results: Scored) -> float | None:
    rates = []
    for arm in options.arms:
        values = [result.values for _, result in rows_of(arm, results) if result.values.get("generation_seconds")]
        seconds = sum(value["generation_seconds"] for value in values)
        rates.append(sum(value["generated_tokens"] for value in values) / seconds if seconds else 0.0)
    return rates[1] / rates[0] if all(rates) else None


def _loads(options: Options, results: Scored) -> list[Table]:
    """How long each start took: what mmap and load modes change beside the rates."""
    rows: list[tuple[Value, ...]] = []
    for arm in options.arms:
        warm = [r.values.get("load_seconds") for i, r in results if i.warmup and i.values["arm"] == arm.name]
        seconds = [float(value) for value in warm if value is not None]
        if seconds and options.arms[0].target != options.arms[1].target:
            rows.append((arm.name, len(seconds), min(seconds), max(seconds)))
    return [Table("Loads", ("", "starts", "s, least", "s, most"), tuple(rows))] if rows else []


def _notes(options: Options, info: RunInfo, results: Scored, compared: Compared) -> list[str]:
    first, second = options.arms
    notes = []
    if compared:
        found = compared[0][2]
        words = WORDS[found.verdict].format(a=first.name, b=second.name)
        ends = f", 95 % interval {_percent(found.low)} to {_percent(found.high)}" if found.low else ""
        notes.append(f"In tg {words}: {_percent(found.ratio)}{ends}, over {found.n} prompts.")
    if first.target == second.target:
        notes.append("Both arms asked one server, prompt by prompt; nothing was restarted.")
    else:
        order = ", ".join(f"{block.arm.name} x{len(block.rounds)}" for block in blocks(options))
        notes.append(f"Order of the rounds: {order}.")
    failed = [(item, result) for item, result in results if not result.ok and not item.warmup]
    notes += [f"Not measured: {item.id}: {result.error}." for item, result in failed[:3]]
    if len(failed) > 3:
        notes.append(f"And {len(failed) - 3} more were not measured.")
    if len(results) < info.items:
        notes.append(f"{info.items - len(results)} of {info.items} items are not done yet.")
    return notes


def _percent(ratio: float | None) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if ratio is not None else "—"
