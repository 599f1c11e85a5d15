"""``gpubox bench speed``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models, resolve_targets
from gpubox.cli.bench.options import endpoint_options, run_options
from gpubox.cli.bench.plan_outline import random_seed
from gpubox.cli.context import Context
from gpubox.errors import UsageError


@click.command("speed")
@click.argument("profiles", nargs=-1)
@click.option("--preset", default="", metavar="NAME", help="quick, game, lengths or chat: a fixed protocol.")
@click.option("--prompts", metavar="LIST", help="Of short, medium, long, code.  [default: all]")
@click.option("--depths", metavar="LIST", help="Tokens of context before the question.  [default: 0,8192,32768]")
@click.option("--prefix", type=click.Choice(["cold", "warm", "both"]), default="both", show_default=True)
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="Of each cell.  [default: 5]")
@click.option("--starts", type=click.IntRange(1), metavar="N", help="Of each server.  [default: 1]")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Generate N tokens, whatever the prompt.")
@click.option("--thinking", is_flag=True, help="Let a model that thinks do so.")
@click.option(
    "--price",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DOLLARS",
    help="What the box cost; else price-dollars of config.toml.",
)
@endpoint_options
@click.option("--no-llama-bench", is_flag=True, help="Leave out the rows of the engine's own llama-bench.")
@run_options
@click.pass_obj
def speed_command(
    context: Context,
    profiles: tuple[str, ...],
    preset: str,
    prompts: str | None,
    depths: str | None,
    prefix: str,
    repeats: int | None,
    starts: int | None,
    max_tokens: int | None,
    thinking: bool,
    price: float | None,
    url: str | None,
    model: str,
    no_llama_bench: bool,
    now: bool,
    as_json: bool,
) -> None:
    """TTFT, pp, tg and draft acceptance of PROFILES (of what runs now, where none is named), as a client gets them.

    Answers of a fixed length, temperature 0, thinking off, a cold and a warm prefix, at several depths: one warm-up
    and N repeats each, with mean, sd, median and range; with --starts the 95 % interval over starts. Presets: game
    (ten 2,000-token runs of one HTML game), lengths (128, 512, 2,048 tokens, three runs each), chat (50 prompts in
    code, math and general arms, three seeds).
    """
    from gpubox.bench.kinds.speed import llama_bench
    from gpubox.bench.kinds.speed.workloads import parse_options
    from gpubox.bench.model import Plan

    given: dict[str, Any] = {
        "preset": preset or None,
        "prompts": comma_list(prompts),
        "depths": comma_integers(depths, "--depths"),
        "prefixes": None if prefix == "both" else [prefix],
        "repeats": repeats,
        "starts": starts,
        "max_tokens": max_tokens,
        "thinking": thinking or None,
        "price": price if price is not None else context.config.price_dollars,
    }
    options = {name: value for name, value in given.items() if value is not None}
    parse_options(options)
    if url and starts:
        raise UsageError("gpubox cannot restart a server by its address.", "Leave out --starts.")
    _refuse_beside(preset, options)
    targets = resolve_targets(context, profiles, url, model)
    fetch_models(context, targets)
    if not url and not preset and not no_llama_bench:
        found = [context.profile(target.profile) for target in targets]
        targets += [llama_bench.llama_bench_target(p) for p in found if llama_bench.find_llama_bench(p, context.config)]
    execute_plan(
        context, Plan("speed", tuple(targets), options, seed=random_seed() if starts else 0), now=now, as_json=as_json
    )


def _refuse_beside(preset: str, options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that the preset decides: it would be left aside without a word."""
    from gpubox.bench.kinds.speed.workloads import PRESET_OVERRIDES

    asked = [name for name in options if name not in ("preset", "price")]
    if preset and (fixed := [name for name in asked if name not in PRESET_OVERRIDES[preset]]):
        option = {"prefixes": "prefix"}.get(fixed[0], fixed[0]).replace("_", "-")
        raise UsageError(
            f"The preset {preset} is a fixed protocol: it takes no --{option}.",
            f"It takes: {', '.join('--' + name.replace('_', '-') for name in PRESET_OVERRIDES[preset])}.",
        )


def comma_list(text: str | None) -> list[str] | None:
    """A comma list."""
    return [word.strip() for word in text.split(",") if word.strip()] if text is not None else None


def comma_integers(text: str | None, option: str) -> list[int] | None:
    """A comma list of whole numbers. Raises UsageError."""
    try:
        return [int(word) for word in comma_list(text) or ()] if text is not None else None
    except ValueError:
        raise UsageError(f"{option} takes whole numbers, not {text!r}.", f"Write: {option} 0,8192") from None
