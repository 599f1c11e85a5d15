"""What every kind of run needs of the command line: whom to measure, may it begin, run it, show it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE

if TYPE_CHECKING:
    from gpubox.bench.model import Plan, RunInfo, Target
    from gpubox.bench.run_store import Run


def resolve_targets(context: Context, profiles: Sequence[str], url: str | None, model: str) -> list[Target]:
    """What is to be measured: the profiles, the server at ``url``, else what runs now. Raises GpuboxError."""
    from gpubox.bench.model import Target
    from gpubox.bench.overrides import apply_overrides
    from gpubox.server.instance import observe

    if url is not None:
        if profiles:
            raise UsageError("--url measures a server by its address: it takes no profile.")
        return [target_by_url(url, model)]
    if model:
        raise UsageError("--model belongs to --url.", "A profile names its own model.")
    names = list(dict.fromkeys(profiles))
    if not names:
        running = observe(context.paths, MAIN_INSTANCE).running
        if running is None:
            raise GpuboxError(
                "Nothing is running.", "Name a profile: `gpubox ls` lists them.", code=ExitCode.NOT_RUNNING
            )
        names = [running.launch.profile]
    found = [Target(name, profile=name) for name in names]
    for target in found:
        apply_overrides(context.profile(target.profile), target)
    return found


def target_by_url(url: str, model: str = "") -> Target:
    """The server at ``url``. Raises UsageError where that is no address, or may hold a secret."""
    from gpubox.bench.model import Target
    from gpubox.server.address import server_root

    root = server_root(url)
    return Target(root.partition("://")[2], url=root, model=model)


def fetch_models(context: Context, targets: Sequence[Target]) -> None:
    """Downloads what has to be downloaded, before anything is stopped."""
    from gpubox.cli.operations import ensure_model

    if context.dry_run:
        return
    for name in dict.fromkeys(target.profile for target in targets if target.profile):
        ensure_model(context, context.profile(name))


def confirm_if_busy(context: Context, *, now: bool) -> None:
    """Raises GpuboxError where somebody is being answered and the owner does not want to begin all the same."""
    import asyncio

    from gpubox.bench.plan_outline import busy_slots

    if now or not (busy := asyncio.run(busy_slots(context.paths, context.config))):
        return
    words = f"Somebody is being answered by {'; '.join(busy)}."
    if not diagnostics.stderr_is_terminal() or not click.confirm(f"{words} Begin when it is idle?", err=True):
        raise GpuboxError(words, "--now stops it in the middle; else try again when it is idle.")


def execute_plan(context: Context, plan: Plan, *, now: bool, as_json: bool) -> None:
    """Makes a run of ``plan``, executes it and shows its report. Raises GpuboxError as the run does."""
    if context.dry_run:
        print_plan(context, plan, as_json=as_json)
        return
    confirm_if_busy(context, now=now)
    perform(context, lambda runner: runner.run(plan), None, now=now, as_json=as_json)


def print_plan(context: Context, plan: Plan, *, as_json: bool) -> None:
    """What ``plan`` would do."""
    from gpubox import units
    from gpubox.bench.plan_outline import outline_plan

    found = outline_plan(plan, context.paths)
    if as_json:
        names = [target.name for target in plan.targets]
        output.emit_json({
            "kind": plan.kind, "targets": names, "items": found.items, "starts": list(found.starts),
            "restored_profile": found.restored_profile, "seconds": found.seconds, "tokens": found.tokens,
        })  # fmt: skip
        return
    output.emit(f"{plan.kind}: {found.items} items")
    shown = [*found.starts[:6], *(["..."] if len(found.starts) > 6 else [])]
    count = f"{len(found.starts)} {'start' if len(found.starts) == 1 else 'starts'}"
    output.emit(f"{count}: {', '.join(shown)}" if found.starts else "starts and stops no server")
    if found.starts:
        output.emit(
            f"afterwards {found.restored_profile} runs again"
            if found.restored_profile
            else "afterwards nothing runs, as now"
        )
    if found.seconds is not None:
        output.emit(f"a run like this took {units.duration(found.seconds)}")


def resume_run(context: Context, run: Run, *, now: bool, as_json: bool) -> None:
    """As ``execute_plan``, with a run that was cut off."""
    perform(context, lambda runner: runner.resume(run), run, now=now, as_json=as_json)


def perform(context: Context, work: Any, run: Run | None, *, now: bool, as_json: bool) -> None:
    from gpubox.bench.events import BenchEvent, RunEnded, RunStarted
    from gpubox.bench.plan_runner import PlanRunner
    from gpubox.bench.report.run_summaries import run_summary
    from gpubox.bench.run_store import find_run
    from gpubox.cli.bench.run_progress import RunProgressOutput
    from gpubox.cli.operations import run_cancellable

    show = RunProgressOutput()
    seen: list[RunInfo] = []

    def emit(event: BenchEvent) -> None:
        if isinstance(event, RunStarted | RunEnded):
            seen[:] = [event.run]
        show(event)

    runner = PlanRunner(context.paths, context.config, context.profile, emit, stop_now=now)
    error: GpuboxError | None = None
    try:
        run_cancellable(_as_coroutine(work(runner)))
    except GpuboxError as caught:
        error = caught
    except KeyboardInterrupt:
        error = diagnostics.interrupted()
    if not seen:
        assert error is not None
        raise error
    run = run or find_run(context.paths, seen[0].id)
    print_report(context, run, as_json=as_json, error=error)
    run_summary(run)  # kept beside the results, so that lists need not work it out
    if error:
        hint = error.hint or f"What was measured is kept; `gpubox bench resume {run.id}` goes on."
        raise GpuboxError(error.message, hint, code=error.code)


async def _as_coroutine(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


def print_report(
    context: Context, run: Run, *, as_json: bool, error: GpuboxError | None = None, plots: bool = False
) -> None:
    """The report of what there is, as text or as one JSON object."""
    from gpubox.bench.report.load import bundle_values, load_report
    from gpubox.bench.report.report_rows import report_rows, row_texts

    found = load_report(run, context.profile)
    if as_json:
        output.emit_json({**output.error_values(error), **bundle_values(found)})
    elif found.report.metrics or found.report.tables or not error:
        width = output.width()
        output.emit_text(
            "\n".join(row_texts(report_rows(found.info, found.report, width=width, plots=plots, references=found.references)))
        )
