"""Reports, comparisons, leaderboards and the run at work as lines of the screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.bench.options import KIND_SUMMARIES
from gpubox.bench.report.chart import Chart
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.leaderboard import Leaderboard, leaderboard_rows
from gpubox.bench.report.model import Series
from gpubox.bench.report.plot import StyledRow, plot
from gpubox.bench.report.report_rows import report_rows
from gpubox.bench.report.run_comparison import comparison_charts, comparison_rows
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import StyledLine, gauge, join_lines, sanitize_to_width, styled_line, truncate_line

if TYPE_CHECKING:
    from gpubox.bench.model import RunInfo
    from gpubox.bench.report.load import ReportBundle
    from gpubox.bench.report.run_comparison import RunComparison
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.telemetry.snapshot import Throughput

ROLE_STYLES = {
    "": "", "head": "bold", "quiet": "$quiet", "good": "$success", "bad": "$error", "doubt": "$warning",
    "s0": "$primary", "s1": "$accent", "s2": "$success", "s3": "$mem-kv", "s4": "$error", "s5": "$secondary",
}  # fmt: skip
"""A role of a report's row -> its style here."""
CHART_COLUMNS = 110


def styled_rows(found: Iterable[StyledRow]) -> list[StyledLine]:
    """Rows of a report in the colours of the screen."""
    return [styled_line(*((text, ROLE_STYLES[role]) for text, role in row)) for row in found]


def report_lines(found: ReportBundle, width: int) -> list[StyledLine]:
    """A finished run."""
    made = report_rows(found.info, found.report, width=width, plots=True, references=found.references)
    return [truncate_line(row, width) for row in styled_rows(made)]


def comparison_lines(found: RunComparison, width: int) -> list[StyledLine]:
    """Two runs: the picture first, then the rows."""
    made: list[StyledRow] = list(comparison_rows(found, width))
    for chart in comparison_charts(found):
        made += [(), *plot(chart, min(width, CHART_COLUMNS))]
    return [truncate_line(row, width) for row in styled_rows(made)]


def leaderboard_lines(found: Sequence[Leaderboard], width: int) -> list[StyledLine]:
    """The leaderboard."""
    return [truncate_line(row, width) for row in styled_rows(leaderboard_rows(found, width))]


def kind_overview_lines(width: int) -> list[StyledLine]:
    """What the kinds of runs tell, while there is no run to show."""
    found = [
        truncate_line(styled_line((f"{kind:<11}", "$secondary"), about), width)
        for kind, about in KIND_SUMMARIES.items()
    ]
    return [*found, (), truncate_line(styled_line(("n", "bold $primary"), (" plans any of them", "$quiet")), width)]


def measured_label(info: RunInfo) -> str:
    """Whom a run measures: of a sweep the profile and what varies, not each cell."""
    targets = [target for target in info.plan.targets if not target.stopped]
    if info.plan.kind != "sweep":
        return ", ".join(target.name for target in targets) or info.id
    profiles = dict.fromkeys(target.profile for target in targets)
    return " ".join([*profiles, *map(str, info.plan.options.get("axes", ()))])


def active_run_lines(live: RunProgress, throughput: Throughput | None, width: int) -> list[StyledLine]:
    """The run at work: how far, how fast, and each value so far."""
    info = live.info
    share = live.done / info.items if info.items else 0.0
    left = f"~{units.duration(live.seconds_left)} left" if live.seconds_left is not None else "no estimate yet"
    failed = (f"   {live.failed} without numbers", "$warning") if live.failed else ("", "")
    found = [
        truncate_line(
            styled_line((f"{info.plan.kind}  ", "$secondary"), (sanitize_line(measured_label(info)), "bold")), width
        ),
        (),
        gauge(share, min(width, 60), "$primary"),
        styled_line((f"{live.done} of {info.items}", "bold"), ("   ", ""), (left, ""), failed),
        (),
        styled_line(("so far   ", "$quiet"), (live.headline or units.UNKNOWN, "bold")),
        styled_line(("now      ", "$quiet"), (sanitize_line(live.now) or units.UNKNOWN, ""), *_server(throughput)),
    ]
    for flag in info.flags:
        found.append(styled_line(("! ", "$warning"), (f"{flag.kind}: {sanitize_line(flag.text)}", "$warning")))
    if len(live.values) > 1:
        chart = Chart(live.value_name, "", "item",
                      series=(Series(live.value_name, "", "item", "", live.values),))  # fmt: skip
        found += [(), *styled_rows(plot(chart, min(width, CHART_COLUMNS), height=8))]
    if live.last:
        found += [(), styled_line(("Last items", "bold"))]
    for result in reversed(live.last):
        mark = ("✓ ", "$success") if result.ok else ("✗ ", "$error")
        tg = result.values.get("tg")
        said = f"tg {format_number(tg)} tok/s" if isinstance(tg, float) else sanitize_line(result.error)
        said = said or {True: "passed", False: "failed"}.get(result.values.get("passed"), "")  # type: ignore[arg-type]
        flags = "".join(f"  ! {flag.kind}" for flag in result.flags)
        names = max(16, min(34, width - 40))
        name, took = f"{sanitize_to_width(result.item, names):<{names}} ", f"{units.duration(result.seconds):>8}  "
        row = styled_line(mark, name, (took, "$quiet"), (said, "" if result.ok else "$error"), (flags, "$warning"))
        found.append(truncate_line(row, width))
    return found


def _server(found: Throughput | None) -> StyledLine:
    """What the server does at this moment, as the dashboard says it."""
    if found is None or found.state in ("idle", ""):
        return ()
    if found.state == "prefill":
        share = f" {found.prefill_progress:.0%}" if found.prefill_progress is not None else ""
        return styled_line((f"   reading{share}, pp {units.rate(found.pp_tokens_per_second)} tok/s", "$accent"))
    return styled_line((f"   {found.state}, tg {units.rate(found.tg_tokens_per_second)} tok/s", "$accent"))


def summary_line(runs: int, live: RunProgress | None, marked: int, width: int) -> StyledLine:
    """The line above the list."""
    head = styled_line(("Bench", "bold $primary"), (f"   {runs} {'run' if runs == 1 else 'runs'}", "$quiet"))
    at_work: StyledLine = ()
    if live:
        left = f"  ~{units.duration(live.seconds_left)} left" if live.seconds_left is not None else ""
        at_work = styled_line(
            ("● ", "$primary"), (f"{live.info.plan.kind} {live.done}/{live.info.items}", ""), (left, "$quiet")
        )
    marks = styled_line((f"{marked} marked", "$accent")) if marked else ()
    return truncate_line(join_lines([head, at_work, marks]), width)
