"""Models on this machine and on Hugging Face: rows and JSON, with whether they would fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.models.find import LocalModel
from gpubox.models.hub_download import HubProgress
from gpubox.models.hub_search import HubQuant, HubRepository
from gpubox.planner.plan import MemoryPlan
from gpubox.views.fields import json_fields
from gpubox.views.memory import memory_line, plan_fields
from gpubox.views.rows import Table

PlannedQuants = Sequence[tuple[HubQuant, MemoryPlan | None]]
"""The plans are None if no header was read."""


def local_models_table(models: Sequence[LocalModel], plans: Mapping[Path, MemoryPlan]) -> Table:
    """One row for each model on this machine."""
    return Table(
        [
            (f"  {model.name}", units.file_size(model.size_bytes), model.place, memory_line(plans[model.path]))
            for model in models
        ]
    )


def local_model_values(model: LocalModel, plan: MemoryPlan) -> dict[str, Any]:
    """The same as JSON."""
    return {**json_fields(model), "plan": plan_fields(plan)}


def repository_title(repository: HubRepository) -> str:
    """Its name, how often it is downloaded, when it changed."""
    downloads = "" if repository.downloads is None else f"  {repository.downloads:,} downloads"
    gated = "  gated: ask its owner for access" if repository.gated else ""
    return f"{repository.name}{downloads}  {repository.updated}{gated}".rstrip()


def quants_table(repository: HubRepository, quants: PlannedQuants, on_disk: Collection[str]) -> Table:
    """One row for each model of a repository. ``on_disk`` has the references of those that are here."""
    rows = [
        (
            f"  {quant.label}", units.file_size(quant.size_bytes), shards_text(quant),
            "MTP" if draft_head(plan) else "",
            "on disk" if repository.reference(quant) in on_disk else "", memory_line(plan) if plan else "",
        )
        for quant, plan in quants
    ]  # fmt: skip
    return Table(rows, empty="  It holds no GGUF model.")


def extra_files(repository: HubRepository) -> list[str]:
    """The files beside the models, one a line."""
    extras = [("vision", file.name, file.size_bytes) for file in repository.projectors]
    extras += [("draft", draft.files[0].name, draft.size_bytes) for draft in repository.drafts]
    return [f"{kind}: {name}  {units.file_size(size)}" for kind, name, size in extras]


def repository_values(repository: HubRepository, quants: PlannedQuants, on_disk: Collection[str]) -> dict[str, Any]:
    """A repository and its models as JSON."""
    models = [
        {
            **json_fields(quant, "size_bytes"),
            "model": repository.reference(quant),
            "draft_head": draft_head(plan),
            "on_disk": repository.reference(quant) in on_disk,
            "plan": plan_fields(plan) if plan else None,
        }
        for quant, plan in quants
    ]
    return {**json_fields(repository), "quants": models}


def draft_head(plan: MemoryPlan | None) -> bool | None:
    """Whether the model contains a draft head; None if its header was not read."""
    return plan.draft_head if plan and plan.devices else None


def shards_text(quant: HubQuant | None) -> str:
    """``3 shards``; empty for a single file."""
    return f"{len(quant.files)} shards" if quant and len(quant.files) > 1 else ""


def progress_words(progress: HubProgress) -> str:
    """``3.1 GB of 17.3 GB  82 MB/s  ~2:53 left``."""
    amount = f"{units.file_size(progress.done_bytes)} of {units.file_size(progress.total_bytes)}"
    if progress.phase == "check":
        return f"checking what is here already: {amount}"
    if progress.waiting:
        return f"{amount}  {progress.waiting}"
    rate = f"  {units.file_size(progress.bytes_per_second)}/s" if progress.bytes_per_second else ""
    left = f"  ~{units.duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{amount}{rate}{left}"
