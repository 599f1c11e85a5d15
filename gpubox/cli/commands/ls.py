"""``gpubox ls``."""

from __future__ import annotations

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.loader import hides_shipped, visible_profiles
from gpubox.server.engine_compatibility import EngineCompatibility, compatibility_by_profile
from gpubox.server.instance import instance_names, observe
from gpubox.server.state import load_state


@click.command("ls")
@click.argument("search", required=False)
@click.option("--all", "all_", is_flag=True, help="The shipped ones too, where you have profiles of your own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(context: Context, search: str | None, all_: bool, as_json: bool) -> int:
    """The profiles: ● runs, ✓ can be started, ! cannot, and why. SEARCH narrows by name or text (exit 1: none)."""
    running = {v.launch.profile for s in instance_names(context.paths) if (v := observe(context.paths, s).running)}
    profiles = [
        p
        for p in context.catalog.profiles.values()
        if not search or search.lower() in f"{p.name} {p.title} {p.description}".lower()
    ]
    hidden = 0
    if not (search or all_ or as_json) and hides_shipped(profiles, context.config.shipped_profiles):
        last = load_state(context.paths.instance_state(MAIN_INSTANCE)).last_good
        shown = visible_profiles(profiles, running | ({last.profile} if last else set()))
        hidden, profiles = len(profiles) - len(shown), shown
    fits = compatibility_by_profile(profiles, context.paths, context.config)
    if as_json:
        output.emit_json(
            {
                "profiles": [
                    {
                        "name": p.name,
                        "title": p.title or None,
                        "running": p.name in running,
                        "shipped": p.shipped,
                        "companion": p.companion,
                        "engine": fits[p.name].engine or None,
                        "engine_accepts": fits[p.name].ok,
                        "refusal": fits[p.name].why or None,
                        "model_present": fits[p.name].model_present,
                        "model_fetchable": fits[p.name].fetchable,
                        "model_missing": fits[p.name].missing or None,
                    }
                    for p in profiles
                ],
                "broken": {name: str(error) for name, error in context.catalog.broken.items()},
            }
        )
        return ExitCode.OK if profiles or not search else ExitCode.FAILED
    rows = [(_mark(p.name in running, fits[p.name]), p.name, p.title, fits[p.name].words) for p in profiles]
    output.emit_table(rows)
    if hidden:
        diagnostics.note(f"{hidden} shipped profiles are not listed; --all lists them, a search looks at them too.")
    for error in context.catalog.broken.values():
        diagnostics.show_error(error)
    if not profiles and search:
        raise GpuboxError(f"No profile matches {search!r}.", "`gpubox ls` lists them all.")
    return ExitCode.OK


def _mark(running: bool, fit: EngineCompatibility) -> str:
    return "●" if running else "✓" if fit.ok and (fit.model_present or fit.fetchable) else "!"
