"""The verbs of ``gpubox bench`` for stored runs. What they print is redacted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from gpubox import units
from gpubox.bench.run_store import Run, find_run
from gpubox.cli import diagnostics, output
from gpubox.cli.bench.execution import execute, fetch_models, print_report
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.views.rows import Table

VIEWS = {
    "leaderboard": "rank the profiles; of many RUNS the default",
    "post": "a Markdown block for a forum, without names of paths, hosts or profiles",
    "card": "the same as a picture (SVG)",
}
"""What ``show --as`` makes of runs."""
FORMS = {"markdown": ".md", "csv": ".csv", "json": ".json", "svg": ".svg"}
"""How ``show --as`` writes it, and the file names that choose it."""


@click.command("ls")
@json_option
@click.pass_obj
def ls_command(context: Context, as_json: bool) -> None:
    """List all runs, the newest last."""
    from gpubox.bench.report.run_summaries import run_summaries
    from gpubox.views.fields import json_fields

    summaries = run_summaries(context.paths)
    if as_json:
        properties = ("state", "kind", "targets", "items", "seconds", "created_at")
        output.emit_json({"runs": [json_fields(own, *properties, without=("info", "metrics")) for own in summaries]})
        return
    rows: list[tuple[str, ...]] = []
    for own in summaries:
        took = units.duration(own.seconds) if own.seconds else units.UNKNOWN
        pending = f"{own.restore_pending} not restored" if own.restore_pending else ""
        warnings = f"! {', '.join(own.doubts)}" if own.doubts and not own.headline else ""  # else it says so
        says = ": ".join(filter(None, (", ".join(own.targets[:2]), own.headline)))
        sentence = "; ".join(filter(None, (says, warnings, pending, own.problem)))
        of = f"/{own.items}" if own.kind != "tune" else ""  # it needs few of its items
        done = f"{own.done}{of}" if own.info else units.UNKNOWN
        rows.append((sentence, own.kind or units.UNKNOWN, own.state, done, took, own.id))
    empty = "There are no runs yet. `gpubox bench speed` makes one."
    output.emit_table(Table(rows, ("RESULT", "KIND", "STATE", "DONE", "TOOK", "RUN"), empty))


@click.command("show")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--as", "forms", multiple=True, type=click.Choice([*VIEWS, *FORMS]), metavar="FORM",
              help="What to make of RUNS, and how to write it; see below.")  # fmt: skip
@click.option("--no-plots", is_flag=True, help="Print tables only.")
@click.option("--output", "-o", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write into FILE; .md, .csv, .json or .svg chooses the form.")  # fmt: skip
@json_option
@click.pass_obj
def show_command(
    context: Context, runs: tuple[str, ...], forms: tuple[str, ...], no_plots: bool, file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the report of a RUN, compare two, or rank the profiles of several.

    A RUN is an id, a part of one, or `last` (the default). Two runs are compared as second against first; which is
    faster is told from all stored runs of both, or the report says what would tell it. Paths, host names and keys are
    left out.

    \b
    --as leaderboard  rank the profiles; a RUN that is a part of several ids means all of these runs
    --as post         a Markdown block for a forum, without names of profiles; card: a picture (SVG)
    --as markdown     write it as Markdown; csv, json, svg likewise

    \b
    gpubox bench show A B -o compare.svg
    gpubox bench show --as leaderboard --as csv
    gpubox bench show last --as card -o card.svg
    """
    view, form = _chosen(runs, [*forms, *(["json"] if as_json else [])], file)
    if view in ("post", "card"):
        _show_post(context, find_run(context.paths, runs[0] if runs else "last"), view, form, file)
        return
    from gpubox.views.documents import document_rows, document_text, row_texts
    from gpubox.views.runs import run_documents

    documents = run_documents(context.paths, view, runs)
    if form or file:
        _write(document_text(documents, form), file)
        return
    for number, document in enumerate(documents):
        rows = document_rows(document, output.width(), plots=not no_plots and view != "leaderboard")
        output.emit_text("\n".join([*([""] if number else []), *row_texts(rows)]))


def _chosen(runs: Sequence[str], forms: Sequence[str], file: Path | None) -> tuple[str, str]:
    """What to show, and how to write it; raises UsageError if the options contradict each other."""
    views = [form for form in dict.fromkeys(forms) if form in VIEWS]
    written = [form for form in dict.fromkeys(forms) if form in FORMS]
    if len(views) > 1 or len(written) > 1:
        raise UsageError(f"--as {' and --as '.join(views if len(views) > 1 else written)} cannot be combined.")
    view = views[0] if views else ("report", "report", "compare", "leaderboard")[min(3, len(runs))]
    if view in ("post", "card") and len(runs) > 1:
        raise UsageError(f"A {view} is of one run.")
    suffixes = {suffix: form for form, suffix in FORMS.items()}
    form = written[0] if written else suffixes.get(file.suffix.lower(), "markdown") if file else ""
    if (view == "card" and form not in ("", "svg", "json", "markdown")) or (view == "post" and form in ("csv", "svg")):
        raise UsageError(f"A {view} is not written as {form}.")
    return view, form


def _show_post(context: Context, run: Run, view: str, form: str, file: Path | None) -> None:
    from gpubox.bench.report.post import make_post, post_values
    from gpubox.bench.report.post_forms import post_markdown, post_svg

    post = make_post(run)
    if form == "json":
        output.emit_json({"post": post_values(post)})
        return
    _write(post_svg(post) if view == "card" else post_markdown(post), file)


def _write(text: str, file: Path | None) -> None:
    """Into the file, or to stdout. Raises GpuboxError."""
    if file is None:
        output.emit_verbatim(text.removesuffix("\n"))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuboxError(f"{file} cannot be written: {error.strerror}.") from None
    diagnostics.note(f"Wrote {file}.")


@click.command("resume")
@click.argument("run", default="last")
@click.option("--now", is_flag=True, help="Start even if a request is running; it is cut off.")
@click.option("--rescore", is_flag=True, help="Only score the stored replies again; measure nothing.")
@click.option("--restore", is_flag=True, help="Only restore the server that ran before a killed run.")
@json_option
@click.pass_obj
def resume_command(context: Context, run: str, now: bool, rescore: bool, restore: bool, as_json: bool) -> None:
    """Continue RUN (default: the last run): measure what has no result yet."""
    if rescore and restore:
        raise UsageError("--rescore and --restore cannot be combined.")
    if restore:
        _restore(context, as_json)
        return
    stored = find_run(context.paths, run)
    if rescore:
        _rescore(context, stored, as_json)
        return
    info = stored.info
    if info.state == "finished" and not info.restore_pending:
        diagnostics.note(f"{stored.id} is finished; there is nothing left to do.")
        print_report(context, stored, as_json=as_json)
        return
    fetch_models(context, info.plan.targets)
    execute(context, stored, now=now, as_json=as_json)


def _rescore(context: Context, run: Run, as_json: bool) -> None:
    import asyncio

    from gpubox.bench.plan_runner import rescore_run

    count, changed = asyncio.run(rescore_run(run, context.config))
    outcome = f"{len(changed)} results changed: {', '.join(changed[:8])}" if changed else "every result is the same."
    values = {"id": run.id, "scored": count, "changed": changed}
    output.emit_result(f"Scored {count} measurements again; {outcome}", values, as_json=as_json)


def _restore(context: Context, as_json: bool) -> None:
    from gpubox.bench.events import BenchEvent, TargetServerEvent
    from gpubox.bench.target_server import pending_restore, restore
    from gpubox.cli.operations import OperationOutput
    from gpubox.concurrency import run_cancellable

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


@click.command("rm")
@click.argument("runs", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def rm_command(context: Context, runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete RUNS and all their results."""
    stored = [find_run(context.paths, run) for run in runs]
    names = ", ".join(run.id for run in stored)
    if not diagnostics.confirmed(f"Delete {names}?", "Deleting runs needs your confirmation.", yes=yes):
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
