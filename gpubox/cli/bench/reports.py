"""``gpubox bench show|compare|leaderboard|export``: what the runs came to. All of it is redacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.bench.execution import print_report
from gpubox.cli.bench.options import json_option
from gpubox.cli.context import Context

if TYPE_CHECKING:
    from gpubox.bench.report.chart import Chart
    from gpubox.bench.report.plot import StyledRow
    from gpubox.bench.report.run_comparison import RunComparison


@click.command("show")
@click.argument("run", default="last")
@click.option("--no-plots", is_flag=True, help="Tables only.")
@json_option
@click.pass_obj
def show_command(context: Context, run: str, no_plots: bool, as_json: bool) -> None:
    """The report of RUN (an id, a part of one, or `last`), as far as it is: tables, plots, the articles' figures."""
    from gpubox.bench.run_store import find_run

    print_report(context, find_run(context.paths, run), as_json=as_json, plots=not no_plots)


@click.command("compare")
@click.argument("first")
@click.argument("second", default="last")
@click.option("--no-plots", is_flag=True, help="The table only.")
@json_option
@click.pass_obj
def compare_command(context: Context, first: str, second: str, no_plots: bool, as_json: bool) -> None:
    """SECOND against FIRST, row by row: better, a regression, or noise.

    Speeds of two runs differ by themselves: how much, is taken from past runs of the same profile on this box, else
    assumed and said so. Prompts that both asked are paired (a pass rate by McNemar's test). All rows are corrected
    together (Holm). Differences of less than 1 % are never called one; `gpubox bench ab` tells finer ones.
    """
    found = _comparison(context, first, second)
    if as_json:
        from gpubox.bench.report.formats import values

        output.emit_json({"comparison": values(found)})
        return
    from gpubox.bench.report.run_comparison import comparison_charts, comparison_rows

    _print(comparison_rows(found, output.width()), () if no_plots else comparison_charts(found))


@click.command("leaderboard")
@click.argument("kind", default="")
@json_option
@click.pass_obj
def leaderboard_command(context: Context, kind: str, as_json: bool) -> None:
    """The profiles in order: of each, its last finished run of KIND (of every kind that ranks) under one protocol."""
    from gpubox.bench.report.load import load_leaderboards

    found = load_leaderboards(context.paths, kind)
    if as_json:
        from gpubox.bench.report.formats import values

        output.emit_json({"boards": values(found)})
        return
    from gpubox.bench.report.leaderboard import leaderboard_rows

    _print(leaderboard_rows(found, output.width()), ())


@click.command("export")
@click.argument("what", nargs=-1)
@click.option("--md", "form", flag_value="md", help="Markdown, the default.")
@click.option("--json", "form", flag_value="json")
@click.option("--csv", "form", flag_value="csv")
@click.option("--svg", "form", flag_value="svg", help="Charts with axes.")
@click.option(
    "--output", "-o", "file", type=click.Path(dir_okay=False, path_type=str), help="A file instead of stdout."
)
@click.pass_obj
def export_command(context: Context, what: Sequence[str], form: str | None, file: str | None) -> None:
    """WHAT to share: a run, `compare A B`, or `leaderboard [KIND]`. Without paths, host names and keys.

    \b
    gpubox bench export last --md
    gpubox bench export compare A B --svg -o compare.svg
    gpubox bench export leaderboard speed --csv
    """
    from gpubox.bench.report.formats import export_text, write_export

    text = export_text(context.paths, context.profile, list(what) or ["last"], form or "md")
    if file is None:
        output.emit_verbatim(text.removesuffix("\n"))
        return
    from pathlib import Path

    write_export(text, Path(file))
    diagnostics.note(f"Wrote {file}.")


def _comparison(context: Context, first: str, second: str) -> RunComparison:
    from gpubox.bench.report.load import load_comparison
    from gpubox.bench.run_store import find_run

    return load_comparison(find_run(context.paths, first), find_run(context.paths, second))


def _print(rows: Any, charts: Sequence[Chart]) -> None:
    from gpubox.bench.report.plot import plot
    from gpubox.bench.report.report_rows import row_texts

    shown: list[StyledRow] = list(rows)
    for chart in charts:
        shown += [(), *plot(chart, output.width() or 100)]
    output.emit_text("\n".join(row_texts(shown)))
