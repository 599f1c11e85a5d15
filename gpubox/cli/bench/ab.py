"""``gpubox bench ab``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models, target_by_url
from gpubox.cli.bench.options import run_options
from gpubox.cli.bench.plan_outline import capabilities_of, parse_settings, print_outline, random_seed
from gpubox.cli.context import Context
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.bench.kinds.ab.plan import Arm
    from gpubox.bench.model import Target

VARIATIONS = ("mtp", "mmap", "thinking", "completion")


@click.command("ab")
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="FLAG=VALUE", help="A flag of B; an empty value leaves it out."
)
@click.option(
    "--vary", type=click.Choice(VARIATIONS), help="A with MTP, mmap or thinking the other way, or without chat."
)
@click.option(
    "--prompts", type=click.IntRange(1, 17), metavar="N", help="Of each domain.  [default: 4; 10 of one server]"
)
@click.option("--domains", metavar="LIST", help="Of code, math, general.  [default: all]")
@click.option("--max-tokens", type=click.IntRange(2), metavar="N", help="Of each answer.  [default: 128]")
@click.option(
    "--context", "depth", type=click.IntRange(0), metavar="N", help="Tokens before each question. [default: 0]"
)
@click.option(
    "--starts", type=click.IntRange(1), metavar="N", help="Of each side at most; a clear verdict ends it. [default: 6]"
)
@run_options
@click.pass_obj
def ab_command(
    context: Context,
    first: str,
    second: str | None,
    settings: tuple[str, ...],
    vary: str | None,
    prompts: int | None,
    domains: str | None,
    max_tokens: int | None,
    depth: int | None,
    starts: int | None,
    now: bool,
    as_json: bool,
) -> None:
    """Which is faster: profile A or profile B, or A against itself with a flag changed (--set, --vary).

    The same prompts, greedy, of a fixed length, uncached, to every start of A and of B, in an order drawn at random.
    Starts of one command line differ too: so it takes at least four of each, and ends after four where the verdict is
    clear. Two ways to ask one server (--vary thinking) take turns prompt by prompt, without a restart. A and B may be
    http:// addresses of servers that run already: gpubox cannot restart those, and says what that leaves open.
    """
    from gpubox.bench.model import Plan

    arms, targets = _sides(context, first, second, settings, vary)
    given: dict[str, Any] = {
        "prompts": prompts,
        "domains": [word.strip() for word in domains.split(",") if word.strip()] if domains else None,
        "max_tokens": max_tokens,
        "starts": starts,
        "context_tokens": depth,
    }
    import msgspec

    options = {name: value for name, value in given.items() if value is not None}
    arms_ = [msgspec.to_builtins(arm) for arm in arms]
    plan = Plan("ab", tuple(targets), {**options, "arms": arms_}, seed=random_seed())
    print_outline(context, plan)
    fetch_models(context, targets)
    execute_plan(context, plan, now=now, as_json=as_json)


def _sides(
    context: Context, first: str, second: str | None, settings: tuple[str, ...], vary: str | None
) -> tuple[list[Arm], list[Target]]:
    """The two arms, and one target where both ask the same server. Raises UsageError, GpuboxError."""
    from gpubox.bench.kinds.ab.plan import Arm
    from gpubox.bench.model import Target

    if second is None and not settings and not vary:
        raise UsageError("There is only one side.", "Name a second profile, or change a flag: --set spec-type=none")
    if first.startswith("http") or (second or "").startswith("http"):
        return _by_address(first, second, settings, vary)
    one = Target(first, profile=first)
    profile = context.profile(first)
    _check(context, one)
    name = second or first
    if vary in ("thinking", "completion") and second is None and not settings:
        words = {"thinking": "thinking", "completion": "as plain text"}[vary]
        return [
            Arm(first, first),
            Arm(f"{first} {words}", first, thinking=vary == "thinking", raw=vary == "completion"),
        ], [one]
    if vary:
        if second is not None or settings:
            raise UsageError("--vary changes A alone: it goes with neither B nor --set.")
        from gpubox.bench.overrides import toggle_mmap, toggle_mtp, with_flag_keys

        capabilities = capabilities_of(context, profile)
        words, changes = toggle_mtp(profile) if vary == "mtp" else toggle_mmap(profile, capabilities)
        other = Target(f"{first} {words}", first, with_flag_keys(changes, profile, capabilities))
    else:
        from gpubox.bench.kinds.sweep.grid import cell_name

        base = context.profile(name)
        changes = parse_settings(settings, base, capabilities_of(context, base)) if settings else {}
        if name == first and not changes:
            return [Arm(first, first), Arm(f"{first} again", first)], [one]
        other = Target(" ".join(filter(None, (name, cell_name(changes)))), name, changes)
    _check(context, other)
    return [Arm(one.name, one.name), Arm(other.name, other.name)], [one, other]


def _by_address(
    first: str, second: str | None, settings: tuple[str, ...], vary: str | None
) -> tuple[list[Arm], list[Target]]:
    from gpubox.bench.kinds.ab.plan import Arm

    if second is None or settings or vary:
        raise UsageError("A server by its address cannot be changed.", "Name two addresses: ab http://A http://B")
    for url in (first, second):
        if "://" not in url:  # a profile's name would pass for a host
            raise UsageError(f"{url!r} is not the address of a server.", "Name two addresses: ab http://A http://B")
    made = [target_by_url(first), target_by_url(second)]
    if made[0] == made[1]:
        return [Arm(made[0].name, made[0].name), Arm(f"{made[0].name} again", made[0].name)], made[:1]
    return [Arm(target.name, target.name) for target in made], made


def _check(context: Context, target: Target) -> None:
    from gpubox.bench.overrides import check_overrides

    profile = context.profile(target.profile)
    check_overrides(target, profile, capabilities_of(context, profile))
