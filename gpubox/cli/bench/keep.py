"""``gpubox bench save|restore``: what is left to do with the box after a run."""

from __future__ import annotations

import click

from gpubox.cli import output
from gpubox.cli.bench.options import json_option
from gpubox.cli.context import Context
from gpubox.errors import UsageError


@click.command("save")
@click.argument("run", default="last")
@click.option(
    "--cell", default="", metavar="NAME", help="Another cell (or side) than the best, as the report calls it."
)
@click.option("--name", default="", help="Of the new profile.")
@click.option("--force", is_flag=True, help="Replace a profile of that name.")
@json_option
@click.pass_obj
def save_command(context: Context, run: str, cell: str, name: str, force: bool, as_json: bool) -> None:
    """Write the best cell of RUN, a sweep, as a profile; of other runs the side that --cell names."""
    from gpubox.bench.run_store import find_run
    from gpubox.bench.saved_profile import default_profile_name, profile_of_target, target_to_save
    from gpubox.profiles.writer import save_profile

    found = find_run(context.paths, run)
    target = target_to_save(found, cell)
    base = context.profile(target.profile)
    made, header = profile_of_target(base, target, name or default_profile_name(base, target), found.id)
    path = save_profile(made, context.paths, overwrite=force, header=header)
    if as_json:
        output.emit_json({"profile": made.name, "path": str(path), "cell": target.name, "run": found.id})
    else:
        output.emit(f"{made.name}: {header} `gpubox switch {made.name}` runs it.")


@click.command("restore")
@json_option
@click.pass_obj
def restore_command(context: Context, as_json: bool) -> None:
    """Bring back what ran before a run that was killed, without going on with the run."""
    from gpubox.bench.recovery import pending_restore, restore
    from gpubox.cli.operations import OperationOutput, run_cancellable

    info = pending_restore(context.paths)
    if info is None:
        raise UsageError("No run that was cut off has left its server behind.", "`gpubox status` says what runs.")
    show = OperationOutput()

    async def work() -> str:
        from gpubox.bench.events import BenchEvent, TargetServerEvent

        def emit(event: BenchEvent) -> None:
            if isinstance(event, TargetServerEvent):
                show(event.event)

        return await restore(info, context.paths, context.config, emit)

    back = run_cancellable(work())
    if as_json:
        output.emit_json({"run": info.id, "profile": back or None})
    else:
        output.emit(f"{back} is back." if back else "Nothing runs, as before.")
