"""What every kind of run needs of the command line: whom to measure, may it begin, run it, show it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_SLOT

if TYPE_CHECKING:
    from gpubox.bench.model import Plan, RunInfo, Target
    from gpubox.bench.store import Run


def targets_of(context: Context, profiles: Sequence[str], url: str | None, model: str) -> list[Target]:
    """What is to be measured: the profiles, the server at ``url``, else what runs now. Raises GpuboxError."""
    from gpubox.bench.model import Target
    from gpubox.bench.stand import changed
    from gpubox.server.slot import observe

    if url is not None:
        if profiles:
            raise UsageError("--url measures a server by its address: it takes no profile.")
        return [target_at(url, model)]
    if model:
        raise UsageError("--model belongs to --url.", "A profile names its own model.")
    names = list(dict.fromkeys(profiles))
    if not names:
        running = observe(context.paths, MAIN_SLOT).running
        if running is None:
            raise GpuboxError(
                "Nothing is running.", "Name a profile: `gpubox ls` lists them.", code=ExitCode.NOT_RUNNING
            )
        names = [running.launch.profile]
    found = [Target(name, profile=name) for name in names]
    for target in found:
        changed(context.profile(target.profile), target)
    return found


def target_at(url: str, model: str = "") -> Target:
    """The server at ``url``. Raises UsageError where that is no address, or may hold a secret."""
    from gpubox.bench.model import Target
    from gpubox.server.address import server_root

    root = server_root(url)
    return Target(root.partition("://")[2], url=root, model=model)


def fetch_models(context: Context, targets: Sequence[Target]) -> None:
    """Downloads what has to be downloaded, before anything is stopped."""
    from gpubox.cli.operate import ensure_model

    if context.plan_only:
        return
    for name in dict.fromkeys(target.profile for target in targets if target.profile):
        ensure_model(context, context.profile(name))


def ask_if_busy(context: Context, *, now: bool) -> None:
    """Raises GpuboxError where somebody is being answered and the owner does not want to begin all the same."""
    import asyncio

    from gpubox.bench.planning import busy_slots

    if now or not (busy := asyncio.run(busy_slots(context.paths, context.config))):
        return
    words = f"Somebody is being answered by {'; '.join(busy)}."
    if not diagnostics.stderr_is_terminal() or not click.confirm(f"{words} Begin when it is idle?", err=True):
        raise GpuboxError(words, "--now stops it in the middle; else try again when it is idle.")


def begin(context: Context, plan: Plan, *, now: bool, as_json: bool) -> None:
    """Makes a run of ``plan``, executes it and shows its report. Raises GpuboxError as the run does."""
    if context.plan_only:
        tell_plan(context, plan, as_json=as_json)
        return
    ask_if_busy(context, now=now)
    perform(context, lambda runner: runner.run(plan), None, now=now, as_json=as_json)


def tell_plan(context: Context, plan: Plan, *, as_json: bool) -> None:
    """What ``plan`` would do."""
    from gpubox import units
    from gpubox.bench.planning import outline

    found = outline(plan, context.paths)
    if as_json:
        names = [target.name for target in plan.targets]
        output.emit_json({
            "kind": plan.kind, "targets": names, "items": found.items, "starts": list(found.starts),
            "gives_back": found.gives_back, "seconds": found.seconds,
        })  # fmt: skip
        return
    output.emit(f"{plan.kind}: {found.items} items")
    shown = [*found.starts[:6], *(["..."] if len(found.starts) > 6 else [])]
    count = f"{len(found.starts)} {'start' if len(found.starts) == 1 else 'starts'}"
    output.emit(f"{count}: {', '.join(shown)}" if found.starts else "starts and stops no server")
    if found.starts:
        output.emit(
            f"afterwards {found.gives_back} runs again" if found.gives_back else "afterwards nothing runs, as now"
        )
    if found.seconds is not None:
        output.emit(f"a run like this took {units.seconds(found.seconds)}")


def go_on(context: Context, run: Run, *, now: bool, as_json: bool) -> None:
    """As ``begin``, with a run that was cut off."""
    perform(context, lambda runner: runner.resume(run), run, now=now, as_json=as_json)


def perform(context: Context, work: Any, run: Run | None, *, now: bool, as_json: bool) -> None:
    from gpubox.bench.events import BenchEvent, RunEnded, RunStarted
    from gpubox.bench.report.heads import head_of
    from gpubox.bench.runner import Runner
    from gpubox.bench.store import find_run
    from gpubox.cli.bench.live import Live
    from gpubox.cli.operate import run_operation

    show = Live()
    seen: list[RunInfo] = []

    def emit(event: BenchEvent) -> None:
        if isinstance(event, RunStarted | RunEnded):
            seen[:] = [event.run]
        show(event)

    runner = Runner(context.paths, context.config, context.profile, emit, go_now=now)
    error: GpuboxError | None = None
    try:
        run_operation(_as_coroutine(work(runner)))
    except GpuboxError as caught:
        error = caught
    except KeyboardInterrupt:
        error = diagnostics.interrupted()
    if not seen:
        assert error is not None
        raise error
    run = run or find_run(context.paths, seen[0].id)
    print_report(context, run, as_json=as_json, error=error)
    head_of(run)  # kept beside the results, so that lists need not work it out
    if error:
        hint = error.hint or f"What was measured is kept; `gpubox bench resume {run.id}` goes on."
        raise GpuboxError(error.message, hint, code=error.code)


async def _as_coroutine(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


def print_report(
    context: Context, run: Run, *, as_json: bool, error: GpuboxError | None = None, plots: bool = False
) -> None:
    """The report of what there is, as text or as one JSON object."""
    from gpubox.bench.report.build import report_values, told
    from gpubox.bench.report.text import rows, texts

    found = told(run, context.profile)
    if as_json:
        output.emit_json({**output.error_values(error), **report_values(found)})
    elif found.report.metrics or found.report.tables or not error:
        width = output.width()
        output.emit_text(
            "\n".join(texts(rows(found.info, found.report, width=width, plots=plots, beside=found.beside)))
        )
