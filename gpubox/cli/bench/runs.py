"""The verbs of ``gpubox bench`` for stored runs. Reports are redacted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click

from gpubox import units
from gpubox.bench.run_store import find_run
from gpubox.cli import diagnostics, output
from gpubox.cli.bench.execution import execute, fetch_models, print_report, print_rows
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.views.rows import Table


@click.command("ls")
@json_option
@click.pass_obj
def ls_command(context: Context, as_json: bool) -> None:
    """List all runs, the newest last."""
    from gpubox.bench.report.run_summaries import run_summaries

    rows: list[tuple[str, ...]] = []
    values: list[dict[str, Any]] = []
    for summary in run_summaries(context.paths):
        info = summary.info
        if info is None:
            rows.append((summary.id, units.UNKNOWN, "damaged", units.UNKNOWN, units.UNKNOWN, summary.problem))
            values.append({"id": summary.id, "state": "damaged", "message": summary.problem})
            continue
        took = units.duration(info.seconds) if info.seconds else units.UNKNOWN
        pending = f"{summary.restore_pending} not restored" if summary.restore_pending else ""
        warnings = f"! {', '.join(summary.flags)}" if summary.flags else ""
        remarks = "; ".join(filter(None, (summary.headline, warnings, pending, summary.problem)))
        rows.append((summary.id, info.plan.kind, info.state, f"{summary.done}/{info.items}", took, remarks))
        values.append(
            {
                "id": summary.id,
                "kind": info.plan.kind,
                "targets": [target.name for target in info.plan.targets],
                "state": info.state,
                "items_done": summary.done,
                "items_failed": summary.failed,
                "items": info.items,
                "headline": summary.headline or None,
                "seconds": info.seconds,
                "created_at": info.created_at,
                "flags": list(summary.flags),
                "message": info.message or None,
            }
        )
    if as_json:
        output.emit_json({"runs": values})
    else:
        empty = "There are no runs yet. `gpubox bench speed` makes one."
        output.emit_table(Table(rows, ("RUN", "KIND", "STATE", "DONE", "TOOK", ""), empty))


@click.command("show")
@click.argument("run", default="last")
@click.option("--no-plots", is_flag=True, help="Print tables only.")
@json_option
@click.pass_obj
def show_command(context: Context, run: str, no_plots: bool, as_json: bool) -> None:
    """Show the report of RUN: an id, a part of one, or `last` (the default)."""
    print_report(context, find_run(context.paths, run), as_json=as_json, plots=not no_plots)


@click.command("compare")
@click.argument("first")
@click.argument("second", default="last")
@click.option("--no-plots", is_flag=True, help="Print the table only.")
@json_option
@click.pass_obj
def compare_command(context: Context, first: str, second: str, no_plots: bool, as_json: bool) -> None:
    """Compare SECOND with FIRST, row by row: better, regression or noise.

    Without SECOND, the last run is compared. Two runs of the same profile differ, too. gpubox estimates this noise from
    its past runs on this machine; without such runs it assumes a value, and the report says so. Prompts of both runs
    are paired; pass rates use McNemar's test. p values are corrected over all rows (Holm). A difference below 1 %
    counts as noise; use `gpubox bench ab` for smaller differences.
    """
    from gpubox.bench.report.load import load_comparison

    comparison = load_comparison(find_run(context.paths, first), find_run(context.paths, second))
    if as_json:
        from msgspec import to_builtins

        output.emit_json({"comparison": to_builtins(comparison)})
        return
    from gpubox.bench.report.run_comparison import comparison_rows

    print_rows(comparison_rows(comparison, output.width(), plots=not no_plots))


@click.command("leaderboard")
@click.argument("kind", default="")
@json_option
@click.pass_obj
def leaderboard_command(context: Context, kind: str, as_json: bool) -> None:
    """Rank the profiles by their last finished run of KIND; without KIND, of every ranked kind."""
    from gpubox.bench.report.load import load_leaderboards

    leaderboards = load_leaderboards(context.paths, kind)
    if as_json:
        from msgspec import to_builtins

        output.emit_json({"leaderboards": to_builtins(leaderboards)})
        return
    from gpubox.bench.report.leaderboard import leaderboard_rows

    print_rows(leaderboard_rows(leaderboards, output.width()))


@click.command("frontier")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--by", type=click.Choice(["kl", "perplexity"]), default="kl", metavar="MEASURE",
              help="The quality: kl or perplexity. [default: kl]")  # fmt: skip
@click.option("--no-plots", is_flag=True, help="Print the table only.")
@json_option
@click.pass_obj
def frontier_command(context: Context, runs: tuple[str, ...], by: str, no_plots: bool, as_json: bool) -> None:
    """Show quality against speed against VRAM for quants and KV types.

    A point is one launch that a quality run has measured (`gpubox bench quality`). Its tg comes from stored runs of the
    same launch: same model file, engine and flags. A point is on the frontier if no other one is better in one of the
    three and no worse in the others. RUNS: quality and speed runs to use; without them, the newest quality run, those
    that compare with it, and all speeds.
    """
    from typing import cast

    from gpubox.bench.report.load import load_frontier

    frontier = load_frontier(context.paths, runs, cast(Any, by))
    if as_json:
        from msgspec import to_builtins

        output.emit_json({"frontier": to_builtins(frontier)})
        return
    from gpubox.bench.report.frontier_picture import frontier_rows

    print_rows(frontier_rows(frontier, output.width(), plots=not no_plots))


@click.command("export")
@click.argument("what", nargs=-1)
@click.option("--md", "form", flag_value="md", help="Write Markdown. [default]")
@click.option("--json", "form", flag_value="json", help="Write JSON.")
@click.option("--csv", "form", flag_value="csv", help="Write CSV.")
@click.option("--svg", "form", flag_value="svg", help="Write charts.")
@click.option("--output", "-o", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Write into FILE.")
@click.pass_obj
def export_command(context: Context, what: Sequence[str], form: str | None, file: str | None) -> None:
    """Write WHAT for sharing: a run, `compare A B`, `leaderboard [KIND]` or `frontier [RUN...]`.

    Without WHAT, the last run. Paths, host names and keys are left out.

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


@click.command("post")
@click.argument("run", default="last")
@click.option("--markdown", is_flag=True, help="Print the Markdown block. [default without --svg]")
@click.option("--svg", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the card into FILE.")
@json_option
@click.pass_obj
def post_command(context: Context, run: str, markdown: bool, file: str | None, as_json: bool) -> None:
    """Make RUN (default: the last run) ready to paste: a card (SVG) and a Markdown block.

    Both name the model, card, driver, engine, the flags that differ from llama-server's defaults, and every figure with
    its interval and n. They hold no path, host, address, user, key or name of a profile. Doubts about a run stay on it.

    \b
    gpubox bench post last
    gpubox bench post last --svg card.svg
    """
    from pathlib import Path

    from gpubox.bench.report.formats import write_export
    from gpubox.bench.report.post import make_post, post_values
    from gpubox.bench.report.post_card import post_svg
    from gpubox.bench.report.post_text import post_markdown

    post = make_post(find_run(context.paths, run))
    if file is not None:
        write_export(post_svg(post), Path(file))
        diagnostics.note(f"Wrote {file}.")
    if as_json:
        output.emit_json({"post": post_values(post)})
    elif markdown or file is None:
        output.emit_verbatim(post_markdown(post).removesuffix("\n"))


@click.command("resume")
@click.argument("run", default="last")
@click.option("--now", is_flag=True, help="Start even if a request is running; it is cut off.")
@json_option
@click.pass_obj
def resume_command(context: Context, run: str, now: bool, as_json: bool) -> None:
    """Continue RUN (default: the last run): measure what has no result yet."""
    stored = find_run(context.paths, run)
    info = stored.info
    if info.state == "finished" and not info.restore_pending:
        diagnostics.note(f"{stored.id} is finished; there is nothing left to do.")
        print_report(context, stored, as_json=as_json)
        return
    fetch_models(context, info.plan.targets)
    execute(context, stored, now=now, as_json=as_json)


@click.command("rescore")
@click.argument("run", default="last")
@json_option
@click.pass_obj
def rescore_command(context: Context, run: str, as_json: bool) -> None:
    """Score the stored replies of RUN (default: the last run) again, for example after a change of the scorer."""
    import asyncio

    from gpubox.bench.plan_runner import rescore_run

    stored = find_run(context.paths, run)
    count, changed = asyncio.run(rescore_run(stored, context.config))
    outcome = f"{len(changed)} results changed: {', '.join(changed[:8])}" if changed else "every result is the same."
    values = {"id": stored.id, "scored": count, "changed": changed}
    output.emit_result(f"Scored {count} items again; {outcome}", values, as_json=as_json)


@click.command("save")
@click.argument("run", default="last")
@click.option("--cell", default="", metavar="NAME", help="Save the cell or side NAME. [default: the best cell]")
@click.option("--name", default="", metavar="NAME", help="Name the new profile. [default: made from the cell]")
@click.option("--force", is_flag=True, help="Replace a profile with that name.")
@json_option
@click.pass_obj
def save_command(context: Context, run: str, cell: str, name: str, force: bool, as_json: bool) -> None:
    """Save the best cell of the sweep or tune RUN (default: the last run) as a profile. Comments stay.

    If RUN is neither, --cell names the side to save.
    """
    from gpubox.bench.saved_profile import default_profile_name, profile_of_target, save_target, target_to_save

    stored = find_run(context.paths, run)
    target = target_to_save(stored, cell)
    base = context.profile(target.profile)
    profile, header = profile_of_target(base, target, name or default_profile_name(base, target), stored.id)
    path = save_target(base, target, profile.name, stored.id, context.paths, overwrite=force)
    values = {"profile": profile.name, "path": str(path), "cell": target.name, "run": stored.id}
    output.emit_result(f"{profile.name}: {header} `gpubox switch {profile.name}` runs it.", values, as_json=as_json)


@click.command("restore")
@json_option
@click.pass_obj
def restore_command(context: Context, as_json: bool) -> None:
    """Restore the server that ran before a killed benchmark. The run can still be resumed."""
    from gpubox.bench.events import BenchEvent, TargetServerEvent
    from gpubox.bench.recovery import pending_restore, restore
    from gpubox.cancellation import run_cancellable
    from gpubox.cli.operations import OperationOutput

    info = pending_restore(context.paths)
    if info is None:
        raise UsageError("No interrupted run has a server to restore.", "`gpubox status` shows what runs.")
    show = OperationOutput()

    def emit(event: BenchEvent) -> None:
        if isinstance(event, TargetServerEvent):
            show(event.event)

    profile = run_cancellable(restore(info, context.paths, context.config, emit))
    text = f"{profile} runs again." if profile else "Nothing runs, as before the benchmark."
    output.emit_result(text, {"run": info.id, "profile": profile or None}, as_json=as_json)


@click.command("rm")
@click.argument("runs", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def rm_command(context: Context, runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete RUNS and all their results."""
    stored = [find_run(context.paths, run) for run in runs]
    names = ", ".join(run.id for run in stored)
    if not yes:
        if not diagnostics.stderr_is_terminal():
            raise UsageError("Deleting runs needs your confirmation.", "Add --yes.")
        if not click.confirm(f"Delete {names}?", err=True):
            return
    for run in stored:
        with contextlib.suppress(GpuboxError):  # a damaged run can be deleted, too
            info = run.info
            if info.restore_pending and info.previous:
                name = info.previous.profile
                diagnostics.note(
                    f"  ! {name} ran before {run.id} and does not run again; `gpubox switch {name}` starts it."
                )
        run.remove()
    output.emit_result(f"Deleted: {names}", {"removed": [run.id for run in stored]}, as_json=as_json)
