"""``gpubox switch PROFILE``."""

from __future__ import annotations

import click

from gpubox.cli.context import Context
from gpubox.cli.operations import check_waiting_options, ensure_model, run_and_report, waiting_options
from gpubox.errors import UsageError
from gpubox.server.supervisor import instance_of


@click.command("switch")
@click.argument("profile")
@waiting_options
@click.option("--yes", "-y", is_flag=True, help="Open a non-loopback host without an API key.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
@click.pass_obj
def command(context: Context, profile: str, now: bool, wait: float | None, yes: bool, as_json: bool) -> None:
    """Replace what runs by PROFILE; if it does not come up, what ran before runs again.

    Everything checkable is checked while the old server still answers. Ctrl-C goes back, too.
    """
    check_waiting_options(now, wait)
    found = context.profile(profile)
    if found.companion:
        raise UsageError(f"{profile} runs beside the active profile.", f"`gpubox start {profile}` starts it.")
    ensure_model(context, found)
    run_and_report(
        context,
        instance_of(found),
        lambda s: s.switch(found, stop_now=now, allow_exposed=yes, wait=wait),
        as_json=as_json,
    )
