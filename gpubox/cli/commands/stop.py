"""``gpubox stop [PROFILE]``."""

from __future__ import annotations

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.operations import outcome_values, run_and_report, run_on_instance
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.server.instance import instance_names, observe


@click.command("stop")
@click.argument("profile", required=False)
@click.option("--all", "everything", is_flag=True, help="Companions too.")
@click.option(
    "--json", "as_json", is_flag=True, help="The outcome as one JSON object; of --all with a list of results."
)
@click.pass_obj
def command(context: Context, profile: str | None, everything: bool, as_json: bool) -> None:
    """Stop the active server, or the companion PROFILE. Requests in flight are cut off."""
    wanted = instance_names(context.paths) if everything else [_slot(context, profile)]
    alive = [slot for slot in wanted if observe(context.paths, slot).running]
    if not alive:
        message = observe(context.paths, wanted[0]).message if wanted else ""
        raise GpuboxError("Nothing is running.", message, code=ExitCode.NOT_RUNNING)
    if everything:
        _stop_all(context, alive, as_json)
    else:
        run_and_report(context, alive[0], lambda s: s.stop(), as_json=as_json)


def _stop_all(context: Context, wanted: list[str], as_json: bool) -> None:
    """One that does not stop keeps none of the others running; the first error is raised at the end."""
    first: GpuboxError | None = None
    results = []
    for slot in wanted:
        finished, error = run_on_instance(context, slot, lambda s: s.stop())
        results.append(outcome_values(context, slot, finished, error))
        first = first or error
        if finished and not error and not as_json:
            output.emit(f"{finished.message} ({units.duration(finished.seconds)})")
        if error and error.code == ExitCode.INTERRUPTED:
            break
    if as_json:
        output.emit_json({**output.error_values(first), "results": results})
    if first:
        raise first


def _slot(context: Context, profile: str | None) -> str:
    if profile is None:
        return MAIN_INSTANCE
    for slot in instance_names(context.paths):
        running = observe(context.paths, slot).running
        if running and running.launch.profile == profile:
            return slot
    raise GpuboxError(f"{profile} is not running.", "`gpubox ps` lists what is.", code=ExitCode.NOT_RUNNING)
