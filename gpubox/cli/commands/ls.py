"""``gpubox ls``."""

from __future__ import annotations

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.planner import plan_profiles
from gpubox.planner.verdict import judge
from gpubox.profiles.loader import visible_profiles
from gpubox.server.instance import instance_names, observe
from gpubox.server.launch import compatibility_by_profile
from gpubox.server.state import load_state
from gpubox.views.marks import PROFILES, legend
from gpubox.views.profile import profile_row, profile_row_values
from gpubox.views.rows import Table


@click.command("ls", epilog=legend(PROFILES, "busy", "broken", "model", "not checked"))
@click.argument("text", required=False)
@click.option("--all", "all_", is_flag=True, help="List the shipped examples, too.")
@json_option
@click.pass_obj
def command(context: Context, text: str | None, all_: bool, as_json: bool) -> int:
    """List profiles whose name, title or description contains TEXT; without TEXT, all.

    The list also says whether a profile would fit into memory, as far as gpubox knows it without asking the engine.
    `gpubox fit` asks the engine.

    Exits 1 if none contains TEXT.
    """
    catalog = context.catalog
    views = (observe(context.paths, instance) for instance in instance_names(context.paths))
    running = {view.running.launch.profile for view in views if view.running}
    sought = (text or "").lower()
    profiles = [p for p in catalog.profiles.values() if sought in f"{p.name} {p.title} {p.description}".lower()]
    hidden = 0
    if not (text or all_ or as_json) and context.config.shipped_profiles == "hide":
        last = load_state(context.paths.instance_state(MAIN_INSTANCE)).last_good
        visible = visible_profiles(profiles, running | ({last.profile} if last else set()))
        hidden, profiles = len(profiles) - len(visible), visible
    checked = compatibility_by_profile(profiles, context.paths, context.config)
    ready = [p for p in profiles if checked[p.name].ok and checked[p.name].model_present]
    plans = plan_profiles(ready, context.paths, context.config)
    verdicts = {name: judge(plan) for name, plan in plans.items()}
    known = [(p, checked[p.name], verdicts.get(p.name), p.name in running) for p in profiles]
    if as_json:
        rows = [profile_row_values(p, engine, memory, running=runs) for p, engine, memory, runs in known]
        broken = {name: str(error) for name, error in catalog.broken.items()}
        output.emit_json({"profiles": rows, "broken": broken, "alias_clashes": list(catalog.clashes)})
        return ExitCode.OK if profiles or not text else ExitCode.FAILED
    output.emit_table(Table([profile_row(p, engine, memory, running=runs) for p, engine, memory, runs in known]))
    if hidden:
        diagnostics.note(f"{hidden} examples are hidden; `gpubox ls --all` lists them, `gpubox ls TEXT` finds them.")
    for error in catalog.broken.values():
        diagnostics.show_error(error)
    for clash in catalog.clashes:
        diagnostics.note(f"  ! {clash}")
    if not profiles and text:
        raise GpuboxError(f"No profile contains {text!r}.", "`gpubox ls` lists them all.")
    return ExitCode.OK
