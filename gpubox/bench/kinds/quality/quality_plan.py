"""The plan of ``gpubox bench quality``: its targets, their common method, and what can be refused early."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.quality.program import PROGRAM, check_space
from gpubox.bench.kinds.quality.quality_options import SERVED, QualityOptions, parse_options, text_hash, text_of
from gpubox.bench.model import Plan, Target
from gpubox.bench.plan_targets import cell_target, check_overrides, read_overrides, target_by_url
from gpubox.bench.under_way import runs_folder
from gpubox.engines.find import find_beside_engine
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.gguf import Vocabulary, read_vocabulary
from gpubox.models.resolve import profile_model

_BETWEEN_FLAGS = re.compile(r",(?=[a-z][a-z0-9-]*=)")


def make_quality_plan(context: PlanContext, given: dict[str, Any]) -> Plan:
    """Raises GpuboxError if the targets cannot be compared."""
    words, settings = given.pop("targets"), given.pop("set", ())
    targets = [_target(context, word) for word in words]
    if settings:
        if targets[0].url:
            raise UsageError("gpubox cannot change the flags of a server given by its address.", "Leave out --set.")
        base = targets[0]
        changes = read_overrides(context, context.profile(base.profile), settings)
        targets.append(cell_target(base.profile, {**base.overrides, **changes}))
    reference = given.pop("reference", "")
    if reference:
        wanted = _target(context, reference)
        targets = [wanted, *(target for target in targets if target != wanted)]
    targets = _with_own_names(targets)
    for target in targets:
        if not target.url:
            check_overrides(context, target)
    if len(targets) < 2 and not given.get("needle"):
        raise UsageError(
            "There is nothing to compare with the reference.",
            "Name a second profile, or change a flag: --set cache-type-k=q8_0",
        )
    given["reference"] = targets[0].name
    given["method"] = _method(context, targets, given.get("method", ""))
    if text := given.get("text"):
        given["text"] = str(Path(text).expanduser().resolve())
        given["text_sha256"] = text_hash(text_of(QualityOptions("", text=given["text"])))
    if "needle_tokens" in given:
        given["needle"] = True
    plan = Plan("quality", _measured(targets, given), given)
    _check_models(context, targets, parse_options(plan.options, plan.targets))
    return plan


def _target(context: PlanContext, word: str) -> Target:
    """``mine``, ``mine:cache-type-k=q8_0,flash-attn=on`` or an address."""
    if word.startswith(("http://", "https://")):
        return target_by_url(word)
    name, colon, changes = word.partition(":")
    profile = context.profile(name)
    if not colon:
        return Target(name, name)
    return cell_target(name, read_overrides(context, profile, _BETWEEN_FLAGS.split(changes)))


def _with_own_names(targets: Sequence[Target]) -> list[Target]:
    """A target that is named twice is measured twice: how much a figure differs when nothing has changed."""
    named: list[Target] = []
    for target in targets:
        name, number = target.name, 1
        while name in {other.name for other in named}:
            number += 1
            name = f"{target.name} again" if number == 2 else f"{target.name} again {number}"
        named.append(replace(target, name=name))
    return named


def _method(context: PlanContext, targets: Sequence[Target], wanted: str) -> str:
    """The method for all targets: two methods in one table would compare nothing."""
    without = [
        target.name for target in targets
        if target.url or not find_beside_engine(context.config, context.profile(target.profile).engine, PROGRAM)
    ]  # fmt: skip
    if wanted == PROGRAM and without:
        raise UsageError(f"{without[0]} has no {PROGRAM} beside its engine.", "--method server does without it.")
    return wanted or ("server" if without else PROGRAM)


def _measured(targets: Sequence[Target], given: dict[str, Any]) -> tuple[Target, ...]:
    if given["method"] == "server":
        return tuple(targets)
    measured = [replace(target, stopped=True) for target in targets]
    if given.get("needle"):
        measured += [replace(target, name=target.name + SERVED) for target in targets]
    return tuple(measured)


def _check_models(context: PlanContext, targets: Sequence[Target], options: QualityOptions) -> None:
    """Refuses two vocabularies and a full disk before any server stops. Models not yet here are checked in the run."""
    first = None
    for target in targets:
        if target.url:
            continue
        source = profile_model(context.profile(target.profile), context.paths, context.config)
        if source.path is None:
            continue
        own = read_vocabulary(source.path)
        first = first or (target.name, own)
        if own != first[1]:
            raise GpuboxError(two_vocabularies(first[0], first[1], target.name, own), "Compare quants of one model.")
    if first and options.method == PROGRAM:
        needed = check_space(runs_folder(context.paths), first[1].size, options)
        context.note(f"The logits of the reference need up to {units.file_size(needed)} of disk during the run.")


def two_vocabularies(first: str, own: Vocabulary, second: str, other: Vocabulary) -> str:
    """The sentence that refuses to compare two models."""
    return (
        f"{first} and {second} have two vocabularies ({own.size:,} and {other.size:,} tokens"
        f"{'' if own.size != other.size else ' with other texts'}), so their probabilities cannot be compared."
    )
