"""``gpubox bench save|give-back``: what is left to do with the box after a run."""

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
    from gpubox.bench.keep import default_name, kept_profile, target_to_keep
    from gpubox.bench.store import find_run
    from gpubox.profiles.writing import save_profile

    found = find_run(context.paths, run)
    target = target_to_keep(found, cell)
    base = context.profile(target.profile)
    made, header = kept_profile(base, target, name or default_name(base, target), found.id)
    path = save_profile(made, context.paths, overwrite=force, header=header)
    if as_json:
        output.emit_json({"profile": made.name, "path": str(path), "cell": target.name, "run": found.id})
    else:
        output.emit(f"{made.name}: {header} `gpubox switch {made.name}` runs it.")


@click.command("give-back")
@json_option
@click.pass_obj
def give_back_command(context: Context, as_json: bool) -> None:
    """Bring back what ran before a run that was killed, without going on with the run."""
    from gpubox.bench.debts import debt, give_back
    from gpubox.cli.operate import Progress, run_operation

    info = debt(context.paths)
    if info is None:
        raise UsageError("No run that was cut off has left its server behind.", "`gpubox status` says what runs.")
    show = Progress()

    async def work() -> str:
        from gpubox.bench.events import BenchEvent, Serving

        def emit(event: BenchEvent) -> None:
            if isinstance(event, Serving):
                show(event.event)

        return await give_back(info, context.paths, context.config, emit)

    back = run_operation(work())
    if as_json:
        output.emit_json({"run": info.id, "profile": back or None})
    else:
        output.emit(f"{back} is back." if back else "Nothing runs, as before.")
