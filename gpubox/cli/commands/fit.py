"""``gpubox fit PROFILE``."""

from __future__ import annotations

from dataclasses import replace

import click

from gpubox.cli import output
from gpubox.cli.commands.edit import check_edit, parse_changes
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError
from gpubox.models.resolve import profile_model
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, MemoryPlan, Solution
from gpubox.planner.planner import Planner, no_plan
from gpubox.planner.solve import MAX_DRY_RUNS, SOLVABLE, solutions, solve
from gpubox.planner.verdict import judge
from gpubox.profiles.edit import edit_profile
from gpubox.profiles.profile import Profile
from gpubox.server.instance import running_servers
from gpubox.server.supervisor import instance_of
from gpubox.units import parse_size
from gpubox.views.memory import device_table, other_programs, plan_fields, plan_lines, solution_line


@click.command("fit")
@click.argument("profile")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Plan with this change; repeatable.")
@click.option("--keep-free", metavar="SIZE", help="Keep SIZE free on each card, such as 1GiB. [default: 256MiB]")
@click.option(
    "--solve", "solved", type=click.Choice(SOLVABLE), multiple=True, help="Find the best value of this flag that fits."
)
@json_option
@click.pass_obj
def command(
    context: Context, profile: str, settings: tuple[str, ...], keep_free: str | None, solved: tuple[str, ...],
    as_json: bool,
) -> int:  # fmt: skip
    """Predict the memory of PROFILE on each device, and whether it fits.

    The memory of the running server counts as free, because a switch stops it first. Of a model that is not here yet,
    the header is read on Hugging Face. Exits 5 if it does not fit.
    """
    target = context.profile(profile)
    keep = parse_size(keep_free) if keep_free else DEFAULT_KEEP_FREE_BYTES
    if settings:
        edit = edit_profile(target, parse_changes(settings, (), target, context), context.paths)
        check_edit(edit, context, hint="")
        target = replace(edit.profile, path=target.path)  # relative paths are those of the profile's own folder
    replaced = running_servers(context.paths, instance_of(target, context.paths))
    planner = Planner(context.paths, context.config)
    situation = None
    try:
        target = _with_header(target, context)
        situation, plan = planner.prepare(target, replaces=replaced, keep_free_bytes=keep, may_dry_run=True)
    except GpuboxError as error:
        plan = no_plan(target.name, error, keep)
    verdict = judge(plan)
    if not as_json:
        _print(plan)  # at once: to find what would fit takes longer
    answers: tuple[Solution, ...] = ()
    if situation and solved:
        tried = [solve(planner, situation, flag, keep_free_bytes=keep, dry_runs=MAX_DRY_RUNS) for flag in solved]
        answers = tuple(answer for answer in tried if answer)
    elif situation and verdict.fit in ("short", "disk"):
        answers = solutions(planner, situation, keep_free_bytes=keep, dry_runs=1)
    if as_json:
        output.emit_json(plan_fields(replace(plan, solutions=answers)))
    else:
        for answer in answers:
            output.emit(f"  {solution_line(answer)}")
        for flag in solved:
            if not any(flag in answer.flags or not answer.flags for answer in answers):
                output.emit(f"  no value of {flag} makes it fit.")
    return ExitCode.WOULD_NOT_FIT if verdict.fit == "short" else ExitCode.OK


def _with_header(profile: Profile, context: Context) -> Profile:
    """``profile``, of a model that is not here with its header on Hugging Face. Raises GpuboxError."""
    here = profile_model(profile, context.paths, context.config).path is not None
    if here or not profile.model.startswith(("demo:", "hf:")):
        return profile
    from gpubox.models.demo_model import parse_demo
    from gpubox.models.hub_client import HubClient
    from gpubox.models.hub_search import choose_quant, read_repository
    from gpubox.models.quants import HfReference, parse_reference
    from gpubox.planner.finder import Finder

    demo = parse_demo(profile.model) if profile.model.startswith("demo:") else None
    reference = HfReference(demo.hub[0], demo.file) if demo else parse_reference(profile.model)
    try:
        with HubClient() as client:
            repository = read_repository(client, reference.repo)
            quant = choose_quant(repository, reference.quant)
            header = Finder(context.paths, context.config).header_of(client, repository, quant)
    except GpuboxError as error:
        raise GpuboxError(
            f"the model is not on this machine yet, and its header cannot be read: {error.message}"
        ) from None
    return replace(profile, model=str(header))


def _print(plan: MemoryPlan) -> None:
    verdict, *grounds = plan_lines(plan)
    output.emit(verdict)
    if plan.devices:
        output.emit_table(device_table(plan))
    for line in [*(f"  {line}" for line in other_programs(plan)), *grounds]:
        output.emit(line)
