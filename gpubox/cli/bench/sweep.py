"""``gpubox bench sweep``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models
from gpubox.cli.bench.options import run_options
from gpubox.cli.bench.plan_outline import capabilities_of, parse_settings, print_outline, random_seed
from gpubox.cli.context import Context
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.bench.model import Plan


@click.command("sweep")
@click.argument("profile")
@click.option("--over", "overs", multiple=True, required=True, metavar="FLAG=VALUES", help="8192,16384 or 16..28:2")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="A flag of every cell.")
@click.option(
    "--by", type=click.Choice(["tg", "pp", "effective"]), default="tg", show_default=True, help="Best at what."
)
@click.option("--prompts", type=click.IntRange(1, 17), metavar="N", help="Of each domain.  [default: 3]")
@click.option("--domains", metavar="LIST", help="Of code, math, general.  [default: all]")
@click.option("--max-tokens", type=click.IntRange(2), metavar="N", help="Of each answer.  [default: 64]")
@click.option(
    "--context", "depth", type=click.IntRange(0), metavar="N",
    help="Tokens before each question.  [default: 512; 0 over draft windows]",
)  # fmt: skip
@click.option("--starts", type=click.IntRange(1), metavar="N", help="Of each cell that is compared.  [default: 4]")
@click.option(
    "--finalists", type=click.IntRange(2), metavar="N", help="Cells compared after one start of each.  [default: 4]"
)
@run_options
@click.pass_obj
def sweep_command(
    context: Context,
    profile: str,
    overs: tuple[str, ...],
    settings: tuple[str, ...],
    by: str,
    prompts: int | None,
    domains: str | None,
    max_tokens: int | None,
    depth: int | None,
    starts: int | None,
    finalists: int | None,
    now: bool,
    as_json: bool,
) -> None:
    """PROFILE over a grid of flags: which cell loads, and which is the fastest by how sure a margin.

    Each cell has one start; then the fastest, and the profile's own, are compared on fresh starts in random order (a
    small grid at once). A cell that cannot load is kept with its reason; one that needs no less VRAM or RAM is then
    not tried. What ran before runs again afterwards. `gpubox bench save last` writes the best cell as a profile. A
    draft window (spec-draft-n-max) under synthetic acceptance needs --set spec-synth-len=L: spec-synth-rates wants as
    many rates as the window is long.
    """
    given: dict[str, Any] = {
        "by": by,
        "prompts": prompts,
        "domains": [word.strip() for word in domains.split(",") if word.strip()] if domains else None,
        "max_tokens": max_tokens,
        "starts": starts,
        "finalists": finalists,
        "context_tokens": depth,
    }
    plan = plan_of(context, profile, overs, settings, {k: v for k, v in given.items() if v is not None})
    print_outline(context, plan)
    fetch_models(context, plan.targets)
    execute_plan(context, plan, now=now, as_json=as_json)


def plan_of(
    context: Context, name: str, overs: tuple[str, ...], settings: tuple[str, ...], options: dict[str, Any]
) -> Plan:
    """The sweep in the profile's own keys. Raises UsageError for what the engine will not know in any cell."""
    from gpubox.bench.kinds.sweep.grid import DRAFT_WINDOW_FLAGS, grid_targets, parse_axis
    from gpubox.bench.model import Plan
    from gpubox.bench.overrides import check_overrides, flag_key

    profile = context.profile(name)
    capabilities = capabilities_of(context, profile)
    base = parse_settings(settings, profile, capabilities)
    axes = [parse_axis(text) for text in overs]
    axes = [replace(axis, flag=flag_key(axis.flag, profile, capabilities)) for axis in axes]
    targets = grid_targets(name, axes, base)
    windows = [axis for axis in axes if axis.flag in DRAFT_WINDOW_FLAGS]
    rates = {**profile.flags, **base}.get("spec-synth-rates", "")
    if windows and rates != "":
        raise UsageError(
            "spec-synth-rates needs exactly as many rates as the draft window is long.",
            "Sweep the window with --set spec-synth-rates= --set spec-synth-len=2.5",
        )
    check_overrides(targets[0], profile, capabilities)
    now = {**profile.flags, **base}
    own = {axis.flag: now[axis.flag] for axis in axes if axis.flag in now}
    options = {"axes": [axis.flag for axis in axes], **({"context_tokens": 0} if windows else {}), **options}
    if own:
        options["profile_values"] = {flag: list(value) if isinstance(value, tuple) else value for flag, value in own.items()}
    return Plan("sweep", tuple(targets), options, seed=random_seed())
