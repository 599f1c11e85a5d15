"""Runs a benchmark from the command line: its targets, its execution, its report."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpubox.bench.kinds import all_kinds
from gpubox.bench.model import Plan, RunInfo, Target
from gpubox.bench.run_store import Run, find_run
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import GpuboxError
from gpubox.views.fields import json_fields, json_value


def fetch_models(context: Context, targets: Sequence[Target]) -> None:
    """Downloads missing models while the old server still runs."""
    from gpubox.bench.overrides import apply_overrides
    from gpubox.cli.operations import ensure_model

    profiles = [apply_overrides(context.profile(target.profile), target) for target in targets if target.profile]
    for profile in {(profile.name, profile.model): profile for profile in profiles}.values():
        ensure_model(context, profile)


def _confirm_waiting(context: Context) -> None:
    """Asks whether to wait if a request is running. Raises GpuboxError if not, and without a terminal."""
    import asyncio

    from gpubox.bench.plan_outline import busy_slots

    if busy := asyncio.run(busy_slots(context.paths, context.config)):
        message = f"A request is running on {'; '.join(busy)}."
        if not diagnostics.stderr_is_terminal() or not click.confirm(f"{message} Start when it is done?", err=True):
            raise GpuboxError(message, "Try again later, or cut it off with --now.")


def _print_outline(context: Context, plan: Plan, *, as_json: bool) -> None:
    """Prints what ``plan`` would do."""
    from gpubox.bench.plan_outline import outline_plan

    outline = outline_plan(plan, context.paths)
    if as_json:
        names = [target.name for target in plan.targets]
        output.emit_json({"kind": plan.kind, "targets": names, **json_fields(outline)})
        return
    first, *others = outline.sentences()
    output.emit_text("\n".join([f"{plan.kind}: {first}", *others]))


def run_plan(context: Context, plan: Plan, *, dry_run: bool, now: bool, as_json: bool) -> None:
    """Fetches missing models, runs ``plan`` and prints the report; ``dry_run``: prints what it would do.

    Raises GpuboxError.
    """
    if dry_run:
        _print_outline(context, plan, as_json=as_json)
        return
    if all_kinds()[plan.kind].explained:
        from gpubox.bench.plan_outline import outline_plan

        for sentence in outline_plan(plan, context.paths).sentences():
            diagnostics.note(f"  {sentence}")
    fetch_models(context, plan.targets)
    execute(context, plan, now=now, as_json=as_json)


def execute(context: Context, work: Plan | Run, *, now: bool, as_json: bool) -> None:
    """Runs a plan, or continues a run, and prints the report. Raises GpuboxError."""
    from gpubox.bench.events import BenchEvent, RunEnded, RunStarted
    from gpubox.bench.plan_runner import PlanRunner
    from gpubox.bench.report.run_summaries import run_summary
    from gpubox.cli.bench.run_progress import RunProgressOutput
    from gpubox.concurrency import run_cancellable

    if not now and not isinstance(work, Run):
        _confirm_waiting(context)
    show = RunProgressOutput()
    last: RunInfo | None = None

    def emit(event: BenchEvent) -> None:
        nonlocal last
        if isinstance(event, RunStarted | RunEnded):
            last = event.run
        show(event)

    runner = PlanRunner(context.paths, context.config, context.profile, emit, stop_now=now)
    error: GpuboxError | None = None
    try:
        run_cancellable(runner.resume(work) if isinstance(work, Run) else runner.run(work))
    except GpuboxError as caught:
        error = caught
    except KeyboardInterrupt:
        error = diagnostics.interrupted()
    if last is None:
        assert error is not None
        raise error
    run = work if isinstance(work, Run) else find_run(context.paths, last.id)
    print_report(context, run, as_json=as_json, error=error)
    run_summary(run)  # writes the summary file, so that lists need not compute it
    if error:
        hint = error.hint or f"The results so far are kept; `gpubox bench resume {run.id}` continues."
        raise GpuboxError(error.message, hint, code=error.code)


def print_report(context: Context, run: Run, *, as_json: bool, error: GpuboxError | None = None) -> None:
    """Prints the report of the results so far, as text or as one JSON object."""
    from gpubox.bench.report.load import load_report
    from gpubox.views.documents import document_rows, row_texts
    from gpubox.views.runs import report_document

    bundle = load_report(run)
    document = report_document(bundle)
    if as_json:
        output.emit_json({**output.error_values(error), **json_value(document.values)})
    elif bundle.report.metrics or bundle.report.tables or not error:
        output.emit_text("\n".join(row_texts(document_rows(document, output.width()))))
