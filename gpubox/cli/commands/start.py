"""``gpubox start PROFILE``."""

from __future__ import annotations

import click

from gpubox.cli.context import Context
from gpubox.cli.operations import ensure_model, run_and_report
from gpubox.server.supervisor import instance_of


@click.command("start")
@click.argument("profile")
@click.option("--yes", "-y", is_flag=True, help="Open a non-loopback host without an API key.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
@click.pass_obj
def command(context: Context, profile: str, yes: bool, as_json: bool) -> None:
    """Start PROFILE where nothing runs (a companion: beside what runs) and prove one token."""
    found = context.profile(profile)
    ensure_model(context, found)
    run_and_report(context, instance_of(found), lambda s: s.start(found, allow_exposed=yes), as_json=as_json)
