"""``gpubox bench humaneval``."""

from __future__ import annotations

from typing import Any

import click

from gpubox.cli.bench.execution import execute_plan, fetch_models, resolve_targets
from gpubox.cli.bench.options import MAX_PARALLEL, endpoint_options, run_options
from gpubox.cli.context import Context


@click.command("humaneval")
@click.argument("profiles", nargs=-1)
@click.option(
    "--mode",
    type=click.Choice(["vanilla", "chat", "agentic", "all"]),
    default="vanilla",
    show_default=True,
    help="The bare completion as lm-eval asks it, one chat answer, or up to five rounds with a sandbox.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, MAX_PARALLEL),
    default=1,
    show_default=True,
    metavar="N",
    help="Problems at a time.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N problems only.")
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="Of one reply.  [default: 1024 vanilla, else 2048]"
)
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Of the agentic mode.  [default: 5]")
@click.option("--temperature", type=click.FloatRange(0), metavar="T", help="Of chat and agentic.  [default: 0]")
@click.option("--thinking", is_flag=True, help="Let a model that thinks do so, in chat and agentic.")
@endpoint_options
@run_options
@click.pass_obj
def humaneval_command(
    context: Context,
    profiles: tuple[str, ...],
    mode: str,
    parallel: int,
    limit: int | None,
    max_tokens: int | None,
    rounds: int | None,
    temperature: float | None,
    thinking: bool,
    url: str | None,
    model: str,
    now: bool,
    as_json: bool,
) -> None:
    """pass@1 of PROFILES (of what runs now, where none is named) on the 164 problems of HumanEval.

    The model's programs run in the sandbox, and so does the grading; without a sandbox there is no run. `--mode all`
    asks each problem in every mode and says what the loop is worth.
    """
    from gpubox.bench.kinds.humaneval.options import MODES, parse_options
    from gpubox.bench.model import Plan

    given: dict[str, Any] = {
        "modes": list(MODES) if mode == "all" else [mode],
        "limit": limit,
        "max_tokens": max_tokens,
        "rounds": rounds,
        "sampling": {"temperature": temperature} if temperature is not None else None,
        "thinking": thinking or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    parse_options(options)
    targets = resolve_targets(context, profiles, url, model)
    fetch_models(context, targets)
    execute_plan(context, Plan("humaneval", tuple(targets), options, parallel), now=now, as_json=as_json)
