"""``gpubox ls``."""

from __future__ import annotations

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.planner import plan_profiles
from gpubox.planner.verdict import MemoryVerdict, judge
from gpubox.profiles.loader import hides_shipped, visible_profiles
from gpubox.server.engine_compatibility import EngineCompatibility, compatibility_by_profile
from gpubox.server.instance import instance_names, observe
from gpubox.server.state import load_state


@click.command("ls")
@click.argument("text", required=False)
@click.option("--all", "all_", is_flag=True, help="List shipped profiles even if you have your own.")
@json_option
@click.pass_obj
def command(context: Context, text: str | None, all_: bool, as_json: bool) -> int:
    """List profiles whose name, title or description contains TEXT; without TEXT, all.

    \b
    ●  it runs
    ✓  it can be started
    !  it cannot be started, with the reason
    →  it runs elsewhere

    The list also says whether a profile would fit into memory, as far as gpubox knows it without asking the engine.
    `gpubox fit` asks the engine.

    Exits 1 if none contains TEXT.
    """
    views = (observe(context.paths, instance) for instance in instance_names(context.paths))
    running = {view.running.launch.profile for view in views if view.running}
    profiles = [
        p
        for p in context.catalog.profiles.values()
        if not text or text.lower() in f"{p.name} {p.title} {p.description}".lower()
    ]
    hidden = 0
    if not (text or all_ or as_json) and hides_shipped(profiles, context.config.shipped_profiles):
        last = load_state(context.paths.instance_state(MAIN_INSTANCE)).last_good
        visible = visible_profiles(profiles, running | ({last.profile} if last else set()))
        hidden, profiles = len(profiles) - len(visible), visible
    compatibility = compatibility_by_profile(profiles, context.paths, context.config)
    ready = [p for p in profiles if compatibility[p.name].ok and compatibility[p.name].model_present]
    verdicts = {name: judge(plan) for name, plan in plan_profiles(ready, context.paths, context.config).items()}
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
                        "upstream": p.upstream or None,
                        "aliases": list(p.aliases),
                        "engine": compatibility[p.name].engine or None,
                        "engine_accepts": compatibility[p.name].ok,
                        "refusal": compatibility[p.name].why or None,
                        "model_present": compatibility[p.name].model_present,
                        "model_fetchable": compatibility[p.name].fetchable,
                        "model_missing": compatibility[p.name].missing or None,
                        "memory_verdict": verdicts[p.name].fit if p.name in verdicts else "unknown",
                        "memory_spare_bytes": verdicts[p.name].spare_bytes if p.name in verdicts else None,
                    }
                    for p in profiles
                ],
                "broken": {name: str(error) for name, error in context.catalog.broken.items()},
                "alias_clashes": list(context.catalog.clashes),
            }
        )
        return ExitCode.OK if profiles or not text else ExitCode.FAILED
    rows = [
        (
            "→" if p.elsewhere else _mark(p.name in running, compatibility[p.name], verdicts.get(p.name)),
            p.name,
            p.title,
            p.elsewhere or compatibility[p.name].summary or (verdicts[p.name].words if p.name in verdicts else ""),
        )
        for p in profiles
    ]
    output.emit_table(rows)
    if hidden:
        diagnostics.note(
            f"{hidden} shipped profiles are hidden; `gpubox ls --all` lists them, `gpubox ls TEXT` finds them."
        )
    for error in context.catalog.broken.values():
        diagnostics.show_error(error)
    for clash in context.catalog.clashes:
        diagnostics.note(f"  ! {clash}")
    if not profiles and text:
        raise GpuboxError(f"No profile contains {text!r}.", "`gpubox ls` lists them all.")
    return ExitCode.OK


def _mark(running: bool, checked: EngineCompatibility, memory: MemoryVerdict | None) -> str:
    can_start = checked.ok and (checked.model_present or checked.fetchable) and not (memory and memory.fit == "short")
    return "●" if running else "✓" if can_start else "!"
