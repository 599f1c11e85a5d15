"""Reports, comparisons, leaderboards and the run at work as lines of the screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.bench.report.chart import Chart
from gpubox.bench.report.comparison import comparison_charts, comparison_rows
from gpubox.bench.report.leaderboard import Board, leaderboard_rows
from gpubox.bench.report.model import Series
from gpubox.bench.report.plot import Row, plot
from gpubox.bench.report.text import rows
from gpubox.bench.report.words import number
from gpubox.tui.bench.form import ABOUT
from gpubox.tui.cells import Line, fit, gauge, join, line, safe
from gpubox.tui.text import plain

if TYPE_CHECKING:
    from gpubox.bench.model import RunInfo
    from gpubox.bench.planning import Outline
    from gpubox.bench.report.build import Told
    from gpubox.bench.report.compare import RunComparison
    from gpubox.bench.report.live import LiveRun
    from gpubox.telemetry.model import Throughput

ROLES = {
    "": "", "head": "bold", "quiet": "$quiet", "good": "$success", "bad": "$error", "doubt": "$warning",
    "s0": "$primary", "s1": "$accent", "s2": "$success", "s3": "$mem-kv", "s4": "$error", "s5": "$secondary",
}  # fmt: skip
"""A role of a report's row -> its style here."""
WIDEST = 110


def styled(found: Iterable[Row]) -> list[Line]:
    """Rows of a report in the colours of the screen."""
    return [line(*((text, ROLES[role]) for text, role in row)) for row in found]


def report_lines(found: Told, width: int) -> list[Line]:
    """A finished run."""
    made = rows(found.info, found.report, width=width, plots=True, beside=found.beside)
    return [fit(row, width) for row in styled(made)]


def comparison_lines(found: RunComparison, width: int) -> list[Line]:
    """Two runs: the picture first, then the rows."""
    made: list[Row] = list(comparison_rows(found, width))
    for chart in comparison_charts(found):
        made += [(), *plot(chart, min(width, WIDEST))]
    return [fit(row, width) for row in styled(made)]


def board_lines(found: Sequence[Board], width: int) -> list[Line]:
    """The leaderboard."""
    return [fit(row, width) for row in styled(leaderboard_rows(found, width))]


def kind_lines(width: int) -> list[Line]:
    """What the kinds of runs tell, while there is no run to show."""
    found = [fit(line((f"{kind:<11}", "$secondary"), about), width) for kind, about in ABOUT.items()]
    return [*found, (), fit(line(("n", "bold $primary"), (" plans any of them", "$quiet")), width)]


def measured(info: RunInfo) -> str:
    """Whom a run measures: of a sweep the profile and what varies, not each cell."""
    targets = [target for target in info.plan.targets if not target.stopped]
    if info.plan.kind != "sweep":
        return ", ".join(target.name for target in targets) or info.id
    profiles = dict.fromkeys(target.profile for target in targets)
    return " ".join([*profiles, *map(str, info.plan.options.get("axes", ()))])


def live_lines(live: LiveRun, throughput: Throughput | None, width: int) -> list[Line]:
    """The run at work: how far, how fast, and each value so far."""
    info = live.info
    share = live.done / info.items if info.items else 0.0
    left = f"~{units.seconds(live.seconds_left)} left" if live.seconds_left is not None else "no estimate yet"
    failed = (f"   {live.failed} without numbers", "$warning") if live.failed else ("", "")
    found = [
        fit(line((f"{info.plan.kind}  ", "$secondary"), (plain(measured(info)), "bold")), width),
        (),
        gauge(share, min(width, 60), "$primary"),
        line((f"{live.done} of {info.items}", "bold"), ("   ", ""), (left, ""), failed),
        (),
        line(("so far   ", "$quiet"), (live.headline or units.UNKNOWN, "bold")),
        line(("now      ", "$quiet"), (plain(live.now) or units.UNKNOWN, ""), *_server(throughput)),
    ]
    for flag in info.flags:
        found.append(line(("! ", "$warning"), (f"{flag.kind}: {plain(flag.text)}", "$warning")))
    if len(live.values) > 1:
        chart = Chart(live.value_name, "", "item",
                      series=(Series(live.value_name, "", "item", "", live.values),))  # fmt: skip
        found += [(), *styled(plot(chart, min(width, WIDEST), height=8))]
    if live.last:
        found += [(), line(("Last items", "bold"))]
    for result in reversed(live.last):
        mark = ("✓ ", "$success") if result.ok else ("✗ ", "$error")
        tg = result.values.get("tg")
        said = f"tg {number(tg)} tok/s" if isinstance(tg, float) else plain(result.error)
        said = said or {True: "passed", False: "failed"}.get(result.values.get("passed"), "")  # type: ignore[arg-type]
        flags = "".join(f"  ! {flag.kind}" for flag in result.flags)
        names = max(16, min(34, width - 40))
        name, took = f"{safe(result.item, names):<{names}} ", f"{units.seconds(result.seconds):>8}  "
        row = line(mark, name, (took, "$quiet"), (said, "" if result.ok else "$error"), (flags, "$warning"))
        found.append(fit(row, width))
    return found


def _server(found: Throughput | None) -> Line:
    """What the server does at this moment, as the dashboard says it."""
    if found is None or found.state in ("idle", ""):
        return ()
    if found.state == "prefill":
        share = f" {found.prefill_progress:.0%}" if found.prefill_progress is not None else ""
        return line((f"   reading{share}, pp {units.rate(found.pp_tokens_per_second)} tok/s", "$accent"))
    return line((f"   {found.state}, tg {units.rate(found.tg_tokens_per_second)} tok/s", "$accent"))


def outline_words(found: Outline) -> list[str]:
    """What a run will do to the box, a sentence each."""
    said = [f"{found.items} items; no server is started or stopped."]
    if found.starts:
        shown = ", ".join(found.starts[:4]) + (" ..." if len(found.starts) > 4 else "")
        said = [f"{found.items} items. Brings up {shown}; a server that runs just so is not restarted."]
        if found.fresh:
            said = [f"{found.items} items. {len(found.starts)} fresh starts: {shown}."]
        back = found.gives_back
        said.append(f"Afterwards {back} runs again." if back else "Afterwards nothing runs, as now.")
    said.append(
        f"A run like this took {units.seconds(found.seconds)}." if found.seconds else "How long is not known yet."
    )
    return said


def summary_line(runs: int, live: LiveRun | None, marked: int, width: int) -> Line:
    """The line above the list."""
    head = line(("Bench", "bold $primary"), (f"   {runs} {'run' if runs == 1 else 'runs'}", "$quiet"))
    at_work: Line = ()
    if live:
        left = f"  ~{units.seconds(live.seconds_left)} left" if live.seconds_left is not None else ""
        at_work = line(
            ("● ", "$primary"), (f"{live.info.plan.kind} {live.done}/{live.info.items}", ""), (left, "$quiet")
        )
    marks = line((f"{marked} marked", "$accent")) if marked else ()
    return fit(join([head, at_work, marks]), width)
