"""``gpubox bench ls|show|resume|rescore|rm``: the runs there are."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.bench.execution import fetch_models, print_report, resume_run
from gpubox.cli.bench.options import json_option
from gpubox.cli.context import Context
from gpubox.errors import GpuboxError, UsageError


@click.command("ls")
@json_option
@click.pass_obj
def ls_command(context: Context, as_json: bool) -> None:
    """Every run, the newest last."""
    from gpubox.bench.report.run_summaries import run_summaries

    rows: list[tuple[str, ...]] = []
    values: list[dict[str, Any]] = []
    for head in run_summaries(context.paths):
        info = head.info
        if info is None:
            rows.append((head.id, units.UNKNOWN, "damaged", units.UNKNOWN, units.UNKNOWN, head.problem))
            values.append({"id": head.id, "state": "damaged", "message": head.problem})
            continue
        took = units.duration(info.seconds) if info.seconds else units.UNKNOWN
        restore_pending = f"{head.restore_pending} ran before" if head.restore_pending else ""
        doubts = f"! {', '.join(head.flags)}" if head.flags else ""
        words = "; ".join(filter(None, (head.headline, doubts, restore_pending, head.problem)))
        rows.append((head.id, info.plan.kind, info.state, f"{head.done}/{info.items}", took, words))
        values.append(
            {
                "id": head.id,
                "kind": info.plan.kind,
                "targets": [target.name for target in info.plan.targets],
                "state": info.state,
                "items_done": head.done,
                "items_failed": head.failed,
                "items": info.items,
                "headline": head.headline or None,
                "seconds": info.seconds,
                "created_at": info.created_at,
                "flags": list(head.flags),
                "message": info.message or None,
            }
        )
    if as_json:
        output.emit_json({"runs": values})
    elif rows:
        output.emit_table(rows, header=("RUN", "KIND", "STATE", "DONE", "TOOK", ""))
    else:
        output.emit("There is no run yet. `gpubox bench speed` makes one.")


@click.command("resume")
@click.argument("run", default="last")
@click.option("--now", is_flag=True, help="Do not wait for requests that are being answered.")
@json_option
@click.pass_obj
def resume_command(context: Context, run: str, now: bool, as_json: bool) -> None:
    """Go on with RUN: only what has no result yet is done."""
    from gpubox.bench.run_store import find_run

    found = find_run(context.paths, run)
    info = found.info
    if info.state == "finished" and not info.restore_pending:
        diagnostics.note(f"{found.id} is finished; nothing is left to do.")
        print_report(context, found, as_json=as_json)
        return
    fetch_models(context, info.plan.targets)
    resume_run(context, found, now=now, as_json=as_json)


@click.command("rescore")
@click.argument("run", default="last")
@json_option
@click.pass_obj
def rescore_command(context: Context, run: str, as_json: bool) -> None:
    """Score the stored replies of RUN again: the same scores, or a scorer that was changed."""
    import asyncio

    from gpubox.bench.plan_runner import rescore_run
    from gpubox.bench.run_store import find_run

    found = find_run(context.paths, run)
    count, changed = asyncio.run(rescore_run(found, context.config))
    if as_json:
        output.emit_json({"id": found.id, "scored": count, "changed": changed})
    elif changed:
        output.emit(f"{count} items scored again, {len(changed)} with another result: {', '.join(changed[:8])}")
    else:
        output.emit(f"{count} items scored again; every result is the same.")


@click.command("rm")
@click.argument("runs", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def rm_command(context: Context, runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete RUNS with all that was measured."""
    from gpubox.bench.run_store import find_run

    found = [find_run(context.paths, words) for words in runs]
    names = ", ".join(run.id for run in found)
    if not yes:
        if not diagnostics.stderr_is_terminal():
            raise UsageError("Deleting a run asks first.", "Say --yes.")
        if not click.confirm(f"Delete {names}?", err=True):
            return
    for run in found:
        with contextlib.suppress(GpuboxError):  # a damaged one can go as well
            info = run.info
            if info.restore_pending and info.previous:
                name = info.previous.profile
                diagnostics.note(f"  ! {name} ran before {run.id} and is not back: `gpubox switch {name}` does that.")
        run.remove()
    if as_json:
        output.emit_json({"removed": [run.id for run in found]})
    else:
        output.emit(f"Deleted: {names}")
