"""``gpubox stop [PROFILE]``."""

from __future__ import annotations

import click

from gpubox.cli.context import Context
from gpubox.cli.operate import operate
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_SLOT
from gpubox.server.slot import observe, slots


@click.command("stop")
@click.argument("profile", required=False)
@click.option("--all", "everything", is_flag=True, help="Companions too.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
@click.pass_obj
def command(context: Context, profile: str | None, everything: bool, as_json: bool) -> None:
    """Stop the active server, or the companion PROFILE. Requests in flight are cut off."""
    wanted = slots(context.paths) if everything else [_slot(context, profile)]
    alive = [slot for slot in wanted if observe(context.paths, slot).running]
    if not alive:
        message = observe(context.paths, wanted[0]).message if wanted else ""
        raise GpuboxError("Nothing is running.", message, code=ExitCode.NOT_RUNNING)
    for slot in alive:
        operate(context, slot, lambda s: s.stop(), as_json=as_json)


def _slot(context: Context, profile: str | None) -> str:
    if profile is None:
        return MAIN_SLOT
    for slot in slots(context.paths):
        running = observe(context.paths, slot).running
        if running and running.launch.profile == profile:
            return slot
    raise GpuboxError(f"{profile} is not running.", "`gpubox ps` lists what is.", code=ExitCode.NOT_RUNNING)
