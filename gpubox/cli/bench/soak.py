"""``gpubox bench soak``."""

from __future__ import annotations

from typing import Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models, resolve_targets
from gpubox.cli.bench.options import endpoint_options, run_options
from gpubox.cli.bench.plan_outline import print_outline
from gpubox.cli.context import Context


@click.command("soak")
@click.argument("profiles", nargs=-1)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True, metavar="N")
@click.option("--max-tokens", type=click.IntRange(2), metavar="N", help="Of each answer.  [default: 128]")
@click.option(
    "--context", "depth", type=click.IntRange(512), metavar="N", help="Longest conversation. [default: 16384]"
)
@click.option("--window", type=click.FloatRange(0, min_open=True), metavar="S", help="Seconds a row.  [default: 20]")
@endpoint_options
@run_options
@click.pass_obj
def soak_command(
    context: Context,
    profiles: tuple[str, ...],
    minutes: float,
    max_tokens: int | None,
    depth: int | None,
    window: float | None,
    url: str | None,
    model: str,
    now: bool,
    as_json: bool,
) -> None:
    """Minutes of an agent's load on PROFILES (on what runs now, where none is named): does the speed hold?

    Conversations that grow by tool results and begin anew, answer after answer: tg, TTFT and acceptance, VRAM and RAM,
    temperature, clocks and power over time; what sinks, creeps, or goes in cycles of fast and slow answers.
    """
    from gpubox.bench.model import Plan

    given: dict[str, Any] = {
        "minutes": minutes,
        "max_tokens": max_tokens,
        "context_tokens": depth,
        "window_seconds": window,
    }
    targets = resolve_targets(context, profiles, url, model)
    plan = Plan("soak", tuple(targets), {name: value for name, value in given.items() if value is not None})
    print_outline(context, plan)
    fetch_models(context, targets)
    execute_plan(context, plan, now=now, as_json=as_json)
