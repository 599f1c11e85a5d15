"""``gpubox restart [PROFILE]``."""

from __future__ import annotations

import click

from gpubox.cli.context import Context
from gpubox.cli.operations import check_waiting_options, ensure_model, run_and_report, waiting_options
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.server.instance import observe
from gpubox.server.supervisor import instance_of


@click.command("restart")
@click.argument("profile", required=False)
@waiting_options
@click.option("--yes", "-y", is_flag=True, help="Open a non-loopback host without an API key.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
@click.pass_obj
def command(context: Context, profile: str | None, now: bool, wait: float | None, yes: bool, as_json: bool) -> None:
    """Stop and start the profile that runs (or the companion PROFILE), as its file says today."""
    check_waiting_options(now, wait)
    name = profile or _active(context)
    found = context.profile(name)
    running = observe(context.paths, instance_of(found)).running
    if profile and running and running.launch.profile != profile:
        raise GpuboxError(f"{running.launch.profile} runs, not {profile}.", f"`gpubox switch {profile}` replaces it.")
    ensure_model(context, found)
    run_and_report(
        context,
        instance_of(found),
        lambda s: s.restart(found, stop_now=now, allow_exposed=yes, wait=wait),
        as_json=as_json,
    )


def _active(context: Context) -> str:
    view = observe(context.paths, MAIN_INSTANCE)
    launch = view.running.launch if view.running else view.state.last_good
    if launch is None:
        raise GpuboxError(
            "Nothing runs and nothing ran before.", "`gpubox start PROFILE` starts one.", code=ExitCode.NOT_RUNNING
        )
    return launch.profile
