"""``gpubox bench suite``."""

from __future__ import annotations

from typing import Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models, resolve_targets
from gpubox.cli.bench.options import endpoint_options, run_options
from gpubox.cli.bench.speed import comma_list
from gpubox.cli.context import Context


@click.command("suite")
@click.argument("profiles", nargs=-1)
@click.option("--tasks", metavar="LIST", help="Some of 1.1 to 5.3.  [default: all]")
@click.option(
    "--repeat", type=click.IntRange(1), metavar="K", help="Answers to each task, the mean counts.  [default: 1]"
)
@click.option("--compat", is_flag=True, help="Aggregate as the article did.")
@click.option(
    "--ref-tps",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="The speed that is worth 100 points, where one profile is measured alone.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="Of one answer.  [default: 4096; thinking: 8192]"
)
@click.option("--speed-tokens", type=click.IntRange(2), metavar="N", help="Of each speed row: to try the suite out.")
@click.option("--temperature", type=click.FloatRange(0), metavar="T", help="Of tasks 1 to 4.  [default: the profile's]")
@endpoint_options
@run_options
@click.pass_obj
def suite_command(
    context: Context,
    profiles: tuple[str, ...],
    tasks: str | None,
    repeat: int | None,
    compat: bool,
    ref_tps: float | None,
    max_tokens: int | None,
    speed_tokens: int | None,
    temperature: float | None,
    url: str | None,
    model: str,
    now: bool,
    as_json: bool,
) -> None:
    """The 12-task comparison of PROFILES (of what runs now, where none is named): a leaderboard of points.

    Code generation, multi-file edits, reasoning, tool use and speed; 40/20/20/20. Programs run in the sandbox. What
    cannot be run on this box shows keywords only and counts in no total; it is never 0.
    """
    from gpubox.bench.kinds.suite.tasks import parse_options
    from gpubox.bench.model import Plan

    given: dict[str, Any] = {
        "tasks": comma_list(tasks),
        "repeat": repeat,
        "compat": compat or None,
        "ref_tps": ref_tps,
        "max_tokens": max_tokens,
        "speed_tokens": speed_tokens,
        "sampling": {"temperature": temperature} if temperature is not None else None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    parse_options(options)
    targets = resolve_targets(context, profiles, url, model)
    fetch_models(context, targets)
    execute_plan(context, Plan("suite", tuple(targets), options), now=now, as_json=as_json)
