"""``gpubox find TEXT``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubDownload, HubProgress
from gpubox.models.hub_search import HubQuant, HubRepository, choose_quant, named_reference, read_repository
from gpubox.models.local_models import LocalModel
from gpubox.planner.before_download import LaunchIdea
from gpubox.planner.finder import Finder, HubAnswer
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import changed_flags
from gpubox.planner.settings import parse_settings
from gpubox.views.memory import memory_line, plan_fields
from gpubox.views.rows import Table

_REDRAW_SECONDS = 0.2
MAX_TEXT_CHARS = 300
PlannedQuants = Sequence[tuple[HubQuant, MemoryPlan | None]]
"""The plans are None if no header was read."""


@click.command("find")
@click.argument("text")
@click.option("--limit", default=4, type=click.IntRange(1, 20), help="Repositories to show. [default: 4]")
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

    TEXT is words of a name, or a repository: user/name or user/name:QUANT. gpubox plans the memory of a new profile, as
    `gpubox import` makes it, from the header of each model. It reads a few megabytes and downloads no model.

    \b
    ✓  it fits
    ◐  it fits barely, or only if the engine moves a part of it into RAM
    ✗  it does not fit
    """
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(f"TEXT is longer than {MAX_TEXT_CHARS} characters.", "Write some words of a model's name.")
    finder = Finder(context.paths, context.config)
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
    if not as_json:
        _print_local(local, plans)
    planned: list[tuple[HubRepository, PlannedQuants]] = []
    answer = HubAnswer()
    problems: tuple[GpuboxError, ...] = ()
    if not disk:
        try:
            with HubClient() as client:
                answer = _search(finder, client, text, limit)
                problems = answer.problems
                for repository in answer.repositories:
                    chosen = (choose_quant(repository, wanted),) if wanted else repository.quants
                    quants = _plan(finder, client, repository, chosen, idea, no_plan, bool(wanted))
                    planned.append((repository, quants))
                    if not as_json:
                        _print_repository(repository, quants, answer.on_disk)
        except GpuboxError as problem:
            problems = (problem,)
    if as_json:
        output.emit_json({
            "on_disk": [_local_values(model, plans[model.path]) for model in local],
            "on_hub": [_repository_values(*each, answer.on_disk) for each in planned],
            "hub_problems": [str(error) for error in problems],
        })  # fmt: skip
    for error in problems:
        diagnostics.show_error(error)
    if local or planned:
        return ExitCode.OK
    if problems:
        return ExitCode.FAILED
    raise GpuboxError(f"Nothing matches {text!r}.", "Use fewer words.")


def _search(finder: Finder, client: HubClient, text: str, limit: int) -> HubAnswer:
    diagnostics.redraw("  asking Hugging Face …")
    answer = finder.on_hub(client, text, limit)
    diagnostics.redraw("")
    return answer


def _plan(
    finder: Finder, client: HubClient, repository: HubRepository, quants: Sequence[HubQuant], idea: LaunchIdea,
    no_plan: bool, may_dry_run: bool,
) -> PlannedQuants:  # fmt: skip
    if no_plan:
        return [(quant, None) for quant in quants]
    done = itertools.count()

    def show() -> None:
        diagnostics.redraw(f"  reading headers of {repository.name}: {next(done)} of {len(quants)}")

    show()
    plans = finder.plan_quants(client, repository, quants, idea, show, may_dry_run=may_dry_run)
    diagnostics.redraw("")
    return list(zip(quants, plans, strict=True))


# -- text -------------------------------------------------------------------------------------------------


def _print_local(models: Sequence[LocalModel], plans: dict[Any, MemoryPlan]) -> None:
    if models:
        output.emit("On this machine")
        rows = [
            (f"  {model.name}", units.file_size(model.size_bytes), model.place, memory_line(plans[model.path]))
            for model in models
        ]
        output.emit_table(Table(rows))


def _print_repository(repository: HubRepository, quants: PlannedQuants, on_disk: Collection[str]) -> None:
    downloads = "" if repository.downloads is None else f"  {repository.downloads:,} downloads"
    gated = "  gated: ask its owner for access" if repository.gated else ""
    output.emit(f"{repository.name}{downloads}  {repository.updated}{gated}".rstrip())
    output.emit_table(
        Table([
            (
                f"  {quant.label}", units.file_size(quant.size_bytes), _shards(quant),
                "MTP" if _has_draft_head(plan) else "",
                "on disk" if repository.reference(quant) in on_disk else "", memory_line(plan) if plan else "",
            )
            for quant, plan in quants
        ])
    )  # fmt: skip
    if not quants:
        output.emit("  It holds no GGUF model.")
    extras = [("vision", file.name, file.size_bytes) for file in repository.projectors]
    extras += [("draft", draft.files[0].name, draft.size_bytes) for draft in repository.drafts]
    for kind, name, size in extras:
        output.emit(f"  {kind}: {name}  {units.file_size(size)}")


def _has_draft_head(plan: MemoryPlan | None) -> bool | None:
    """Whether the model contains a draft head; None if its header was not read."""
    return plan.draft_head if plan and plan.devices else None


def _shards(quant: HubQuant) -> str:
    return f"{len(quant.files)} shards" if len(quant.files) > 1 else ""


# -- JSON -------------------------------------------------------------------------------------------------


def _local_values(model: LocalModel, plan: MemoryPlan) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "place": model.place,
        "shards": model.shards,
        "plan": plan_fields(plan),
    }


def _repository_values(repository: HubRepository, quants: PlannedQuants, on_disk: Collection[str]) -> dict[str, Any]:
    return {
        "repository": repository.name,
        "revision": repository.revision,
        "downloads": repository.downloads,
        "updated": repository.updated or None,
        "gated": repository.gated,
        "quants": [
            {
                "quant": quant.label,
                "model": repository.reference(quant),
                "size_bytes": quant.size_bytes,
                "files": [file.name for file in quant.files],
                "draft_head": _has_draft_head(plan),
                "on_disk": repository.reference(quant) in on_disk,
                "plan": plan_fields(plan) if plan else None,
            }
            for quant, plan in quants
        ],
        "projectors": [{"file": file.name, "size_bytes": file.size_bytes} for file in repository.projectors],
        "drafts": [{"file": draft.files[0].name, "size_bytes": draft.size_bytes} for draft in repository.drafts],
    }


# -- download ---------------------------------------------------------------------------------------------


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
        path = job.run(client, _ProgressLine())
    diagnostics.redraw("")
    values = {"model": model, "path": str(path), "size_bytes": job.total_bytes, "ok": True}
    output.emit_result(f"{model}  {path}", values, as_json=as_json)
    return ExitCode.OK


class _ProgressLine:
    """Draws the progress of a download on one line, a few times a second."""

    def __init__(self) -> None:
        self._drawn_at = float("-inf")

    def __call__(self, progress: HubProgress) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            diagnostics.redraw(f"  {progress_words(progress)}")


def progress_words(progress: HubProgress) -> str:
    """``3.1 of 17.3 GB  82 MB/s  ~2:53 left``."""
    amount = f"{units.file_size(progress.done_bytes)} of {units.file_size(progress.total_bytes)}"
    if progress.phase == "check":
        return f"checking what is here already: {amount}"
    if progress.waiting:
        return f"{amount}  {progress.waiting}"
    rate = f"  {units.file_size(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    left = f"  ~{units.duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{amount}{rate}{left}"
