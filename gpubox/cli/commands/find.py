"""``gpubox find TEXT``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, json_option
from gpubox.engines.option_values import parse_settings
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubDownload, HubProgress
from gpubox.models.hub_search import HubQuant, HubRepository, choose_quant, named_reference, read_repository
from gpubox.planner.finder import Finder, HubAnswer, LaunchIdea
from gpubox.planner.planner import changed_flags
from gpubox.views import models as views
from gpubox.views.marks import MEMORY, legend

_REDRAW_SECONDS = 0.2
MAX_TEXT_CHARS = 300


@click.command("find", epilog=legend(MEMORY))
@click.argument("text", default="")
@click.option("--limit", default=4, type=click.IntRange(1, 20), metavar="N", cls=PlainHelpOption,
              help="Show N repositories, at most 20. [default: 4]")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="Plan with this flag; repeatable.")
@click.option("--like", metavar="PROFILE", help="Plan with the flags of PROFILE.")
@click.option("--disk", is_flag=True, help="Search only this machine.")
@click.option("--no-plan", is_flag=True, help="Do not read the headers on Hugging Face.")
@click.option("--download", is_flag=True, help="Download the quant that TEXT names (user/name:QUANT).")
@click.option("--mmproj", is_flag=True, help="With --download: also download the smallest vision projector.")
@json_option
@click.pass_obj
def command(
    context: Context, text: str, limit: int, settings: tuple[str, ...], like: str | None, disk: bool, no_plan: bool,
    download: bool, mmproj: bool, as_json: bool,
) -> int:  # fmt: skip
    """Find models on this machine and on Hugging Face, and say which would fit.

    TEXT is words of a name, or a repository: user/name or user/name:QUANT. Without it, this machine's are listed.
    gpubox plans the memory of a new profile, as `gpubox import` makes it, from the header of each model. It reads a few
    megabytes and downloads no model.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(f"TEXT is longer than {MAX_TEXT_CHARS} characters.", "Write some words of a model's name.")
    finder = Finder(context.paths, context.config)
    disk = disk or not text.strip()
    if download:
        return _download(context, finder, text, mmproj, as_json)
    model = context.profile(like) if like else None
    changes = parse_settings(settings)
    # A removed flag is also one that a new profile would get.
    removed = {name: None for name, value in changes.items() if value is None}
    flags = {**changed_flags(model.flags if model else {}, changes), **removed}
    idea = replace(finder.idea(), flags=flags, engine=model.engine if model else "")
    reference = named_reference(text)
    wanted = reference.quant if reference else ""
    local = finder.on_disk(text)
    plans = {model.path: finder.plan_local(model, idea) for model in local}
    if local and not as_json:
        output.emit("On this machine")
        output.emit_table(views.local_models_table(local, plans))
    planned: list[tuple[HubRepository, views.PlannedQuants]] = []
    answer = HubAnswer()
    problems: tuple[GpuboxError, ...] = ()
    if not disk:
        try:
            with HubClient() as client:
                diagnostics.redraw("  asking Hugging Face …")
                answer = finder.on_hub(client, text, limit)
                diagnostics.redraw("")
                problems = answer.problems
                for repository in answer.repositories:
                    chosen = (choose_quant(repository, wanted),) if wanted else repository.quants
                    quants = _plan(finder, client, repository, chosen, idea, no_plan, bool(wanted))
                    planned.append((repository, quants))
                    if not as_json:
                        output.emit(views.repository_title(repository))
                        output.emit_table(views.quants_table(repository, quants, answer.on_disk))
                        for line in views.extra_files(repository):
                            output.emit(f"  {line}")
        except GpuboxError as problem:
            problems = (problem,)
    if as_json:
        output.emit_json({
            "on_disk": [views.local_model_values(model, plans[model.path]) for model in local],
            "on_hub": [views.repository_values(*each, answer.on_disk) for each in planned],
            "hub_problems": [str(error) for error in problems],
        })  # fmt: skip
    for error in problems:
        diagnostics.show_error(error)
    if local or planned:
        return ExitCode.OK
    if problems:
        return ExitCode.FAILED
    if not text.strip():
        raise GpuboxError("No model is on this machine.", "`gpubox find TEXT` searches Hugging Face.")
    raise GpuboxError(f"Nothing matches {text!r}.", "Use fewer words.")


def _plan(
    finder: Finder, client: HubClient, repository: HubRepository, quants: Sequence[HubQuant], idea: LaunchIdea,
    no_plan: bool, may_dry_run: bool,
) -> views.PlannedQuants:  # fmt: skip
    if no_plan:
        return [(quant, None) for quant in quants]
    done = itertools.count()

    def show() -> None:
        diagnostics.redraw(f"  reading headers of {repository.name}: {next(done)} of {len(quants)}")

    show()
    plans = finder.plan_quants(client, repository, quants, idea, show, may_dry_run=may_dry_run)
    diagnostics.redraw("")
    return list(zip(quants, plans, strict=True))


def _download(context: Context, finder: Finder, text: str, mmproj: bool, as_json: bool) -> int:
    reference = named_reference(text)
    if reference is None:
        raise UsageError(f"{text!r} names no repository.", "Write: gpubox find user/name:QUANT --download")
    with HubClient() as client:
        repository = read_repository(client, reference.repo)
        quant = choose_quant(repository, reference.quant)
        files = list(quant.files)
        if mmproj:
            if not repository.projectors:
                raise GpuboxError(f"{repository.name} has no vision projector.", "Leave out --mmproj.")
            files.append(min(repository.projectors, key=lambda file: file.size_bytes or 0))
        job = HubDownload(repository, files)
        model = repository.reference(quant)
        if not job.is_complete:
            job.check_space()
            present = f" ({units.file_size(job.present_bytes)} are here already)" if job.present_bytes else ""
            diagnostics.note(
                f"  {model}  {units.file_size(job.total_bytes)}{present} into {job.cache}, "
                f"{units.file_size(job.free_bytes)} free"
            )
        path = job.run(client, _progress_line())
    diagnostics.redraw("")
    values = {"model": model, "path": str(path), "size_bytes": job.total_bytes, "ok": True}
    output.emit_result(f"{model}  {path}", values, as_json=as_json)
    return ExitCode.OK


def _progress_line() -> Callable[[HubProgress], None]:
    """Draws the progress of a download on one line, a few times a second."""
    due = 0.0

    def show(progress: HubProgress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REDRAW_SECONDS
            diagnostics.redraw(f"  {views.progress_words(progress)}")

    return show
