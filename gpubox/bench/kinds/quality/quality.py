"""``quality``: KL divergence, same top token and perplexity against a reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.events import Note
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.quality import program
from gpubox.bench.kinds.quality.figures import figures_of
from gpubox.bench.kinds.quality.program import PROGRAM, ChunkFigures, check_space, read_divergence, read_perplexity
from gpubox.bench.kinds.quality.quality_options import QualityOptions, items_of, parse_options, text_hash, text_of
from gpubox.bench.kinds.quality.quality_report import summarise
from gpubox.bench.model import Item, Plan, Provenance, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import cell_target, check_overrides, read_overrides
from gpubox.bench.provenance import read_stopped_provenance
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.bench.under_way import runs_folder
from gpubox.concurrency import run_in_thread
from gpubox.engines.find import find_beside_engine
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.gguf import Vocabulary, read_vocabulary
from gpubox.models.resolve import profile_model
from gpubox.profiles.profile import Profile
from gpubox.server.supervisor import OperationFailed
from gpubox.storage import private_folder

_BETWEEN_FLAGS = re.compile(r",(?=[a-z][a-z0-9-]*=)")


def make_quality_plan(context: PlanContext, given: dict[str, Any]) -> Plan:
    """Raises GpuboxError if the targets cannot be compared."""
    words, settings = given.pop("targets"), given.pop("set", ())
    targets = [_target(context, word) for word in words]
    if settings:
        base = targets[0]
        changes = read_overrides(context, context.profile(base.profile), settings)
        targets.append(cell_target(base.profile, {**base.overrides, **changes}))
    reference = given.pop("reference", "")
    if reference:
        wanted = _target(context, reference)
        targets = [wanted, *(target for target in targets if target != wanted)]
    targets = _with_own_names(targets)
    for target in targets:
        check_overrides(context, target)
        if not find_beside_engine(context.config, context.profile(target.profile).engine, PROGRAM):
            raise program.no_program(target.name)
    if len(targets) < 2:
        raise UsageError(
            "There is nothing to compare with the reference.",
            "Name a second profile, or change a flag: --set cache-type-k=q8_0",
        )
    given["reference"] = targets[0].name
    if text := given.get("text"):
        given["text"] = str(Path(text).expanduser().resolve())
        given["text_sha256"] = text_hash(text_of(QualityOptions("", text=given["text"])))
    plan = Plan("quality", tuple(replace(target, stopped=True) for target in targets), given)
    _check_models(context, targets, parse_options(plan.options, plan.targets))
    return plan


def _target(context: PlanContext, word: str) -> Target:
    """``mine``, or ``mine:cache-type-k=q8_0,flash-attn=on``."""
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


def _check_models(context: PlanContext, targets: Sequence[Target], options: QualityOptions) -> None:
    """Refuses two vocabularies and a full disk before any server stops. Models not yet here are checked in the run."""
    first = None
    for target in targets:
        source = profile_model(context.profile(target.profile), context.paths, context.config)
        if source.path is None:
            continue
        own = read_vocabulary(source.path)
        first = first or (target.name, own)
        if own != first[1]:
            raise GpuboxError(two_vocabularies(first[0], first[1], target.name, own), "Compare quants of one model.")
    if first:
        needed = check_space(runs_folder(context.paths), first[1].size, options)
        context.note(f"The logits of the reference need up to {units.file_size(needed)} of disk during the run.")


def two_vocabularies(first: str, own: Vocabulary, second: str, other: Vocabulary) -> str:
    """The sentence that refuses to compare two models."""
    return (
        f"{first} and {second} have two vocabularies ({own.size:,} and {other.size:,} tokens"
        f"{'' if own.size != other.size else ' with other texts'}), so their probabilities cannot be compared."
    )


BASE = "reference.logits"


class Quality(Benchmark):
    """One item is a llama-perplexity over the whole text."""

    kind = "quality"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._targets = {target.name: target for target in plan.targets}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        return make_quality_plan(context, given)

    def items(self) -> Sequence[Item]:
        return items_of(self.options, self.plan.targets)

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        if item.target != self.options.reference:
            failed = [
                result.error for other, result in results if other.target == self.options.reference and not result.ok
            ]
            if failed:
                return f"the reference {self.options.reference} was not measured: {failed[0].rstrip('.')}"
        return ""

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        if isinstance(error, OperationFailed):
            return error.cause.sentence
        return error.message.rstrip(".") if isinstance(error, UsageError) else ""

    async def stopped_provenance(
        self, target: Target, target_server: TargetServer, say: Callable[[str], None]
    ) -> Provenance | None:
        profile = target_server.profile_of(target)
        return await read_stopped_provenance(target.name, profile, target_server.paths, target_server.config, say)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        """The reference writes its logits; every other target reads them. They are written again if they are gone."""
        reference = target_server.profile_of(self._targets[self.options.reference])
        vocabulary = await run_in_thread(_vocabulary, reference, target_server)
        if item.target == self.options.reference:
            output = await self._write_base(item, reference, vocabulary, target_server, again=False)
            return program.program_values(output, vocabulary.size)
        profile = target_server.profile_of(self._targets[item.target])
        own = await run_in_thread(_vocabulary, profile, target_server)
        if own != vocabulary:
            raise GpuboxError(two_vocabularies(self.options.reference, vocabulary, item.target, own))
        base = self.scratch / BASE
        header = await run_in_thread(program.read_base, base)
        if header is None or (header.context, header.vocabulary) != (self.options.context, vocabulary.size):
            await self._write_base(item, reference, vocabulary, target_server, again=True)
        argv = await run_in_thread(
            program.program_argv, profile, self.options, target_server.paths, target_server.config
        )
        argv += ["--kl-divergence", "--kl-divergence-base", str(base)]
        output = await program.run_program(argv, profile.env, lambda text: target_server.report_progress(item.id, text))
        return program.program_values(output, vocabulary.size)

    async def _write_base(
        self, item: Item, reference: Profile, vocabulary: Vocabulary, target_server: TargetServer, *, again: bool
    ) -> program.ProgramOutput:
        base, part = self.scratch / BASE, self.scratch / f"{BASE}.part"
        private_folder(self.scratch)
        part.unlink(missing_ok=True)
        base.unlink(missing_ok=True)
        needed = program.check_space(self.scratch, vocabulary.size, self.options)
        again_text = " again, because the file of an earlier session is gone" if again else ""
        target_server.emit(
            Note(
                f"The logits of {self.options.reference} are written{again_text}: up to {units.file_size(needed)}, "
                "deleted at the end of the run."
            )
        )
        argv = await run_in_thread(
            program.program_argv, reference, self.options, target_server.paths, target_server.config
        )
        argv += ["--kl-divergence-base", str(part)]
        output = await program.run_program(
            argv, reference.env, lambda text: target_server.report_progress(item.id, f"reference, {text}")
        )
        header = await run_in_thread(program.read_base, part)
        if header is None or (header.context, header.vocabulary, header.chunks) != (
            output.context, vocabulary.size, output.chunks,
        ):  # fmt: skip
            part.unlink(missing_ok=True)
            raise GpuboxError(
                "llama-perplexity did not write all logits of the reference.", "The disk may be full: `df -h`."
            )
        part.replace(base)
        return output

    async def score(self, item: Item, raw: RawRecord) -> Result:
        try:
            figures = self._read(item, raw)
        except GpuboxError as error:  # the output is kept: `rescore` reads it again
            return Result(item.id, error=error.message)
        values = msgspec.json.decode(msgspec.json.encode(figures))  # as it comes back from its file: lists, not tuples
        return Result(item.id, {"figures": values, "context": raw.data["context"]})

    def _read(self, item: Item, raw: RawRecord) -> ChunkFigures:
        text, chunks = str(raw.data["out"]), int(raw.data["chunks"])
        if item.target == self.options.reference:
            return read_perplexity(text, chunks)
        return read_divergence(text, chunks, int(raw.data["context"]))

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: ScoredItems) -> str:
        parts = []
        for label, figures in figures_of(results).items():
            if label != self.options.reference and figures.kl:
                mean = sum(figures.kl.values()) / len(figures.kl)
                parts.append(f"{label} KL {format_number(mean)}")
        return ", ".join(parts[:3])


def _vocabulary(profile: Profile, target_server: TargetServer) -> Vocabulary:
    source = profile_model(profile, target_server.paths, target_server.config)
    if source.path is None:
        raise GpuboxError(f"{profile.name}: the model {profile.model} is not on this machine.")
    return read_vocabulary(source.path)
