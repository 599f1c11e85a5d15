"""``gpubox tune``: a kind of benchmark with a verb of its own, which also saves what it found."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from gpubox.bench.kinds.tune import KIND
from gpubox.bench.run_store import Run
from gpubox.cli.bench.execution import run_plan
from gpubox.cli.bench.kinds import kind_params, make_plan
from gpubox.cli.context import Context
from gpubox.errors import UsageError

_SAVE = click.Option(
    ["--save"], metavar="NAME", help="Write the tuned profile as NAME if its flags are faster; comments stay."
)


@click.pass_obj
def _run(context: Context, /, save: str | None, dry_run: bool, now: bool, as_json: bool, **values: Any) -> None:
    from gpubox.profiles.edit import copied_text, new_edit

    profile = context.profile(values["profile"])
    if save is not None:
        new_edit(save, copied_text(profile), context.paths)  # a name that cannot be used is refused before the tune
    finish = partial(_save, context, name=save) if save is not None else None
    run_plan(context, make_plan(context, KIND, values), dry_run=dry_run, now=now, as_json=as_json, finish=finish)


def _save(context: Context, run: Run, name: str) -> tuple[str, Mapping[str, Any]]:
    """Writes the profile ``name`` if other flags than the profile's own are to be kept."""
    from gpubox.bench.saved_profile import best_target, save_target

    target = best_target(run)
    if target is None or not target.overrides:
        return f"{name} is not written: no other flags were shown to be faster.", {"saved": None}
    try:
        path = save_target(context.profile(target.profile), target, name, run.id, context.paths)
    except UsageError as error:
        hint = f"The result is kept: gpubox bench save {run.id} --name NAME"
        raise UsageError(error.message, hint) from None
    return f"{name} is written: {path}. `gpubox switch {name}` runs it.", {
        "saved": {"profile": name, "path": str(path)}
    }


command = click.Command("tune", params=[*kind_params(KIND), _SAVE], callback=_run, help=KIND.help)
