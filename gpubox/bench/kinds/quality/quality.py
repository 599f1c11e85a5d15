"""``quality``: KL divergence, same top token and perplexity against a reference, and needle retrieval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.course import Batch, Course
from gpubox.bench.events import Note
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.quality import needle, program
from gpubox.bench.kinds.quality.figures import figures_of, quality_name
from gpubox.bench.kinds.quality.probabilities import TextTokens, execute_chunk, read_tokens
from gpubox.bench.kinds.quality.program_output import ChunkFigures, read_divergence, read_perplexity
from gpubox.bench.kinds.quality.quality_options import items_of, parse_options
from gpubox.bench.kinds.quality.quality_plan import make_quality_plan, two_vocabularies
from gpubox.bench.kinds.quality.quality_report import summarise
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.model import Item, Plan, Provenance, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.provenance import read_stopped_provenance
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError, UsageError
from gpubox.models.gguf import Vocabulary, read_vocabulary
from gpubox.models.resolve import profile_model
from gpubox.profiles.profile import Profile
from gpubox.server.supervisor import OperationFailed
from gpubox.storage import private_folder

BASE = "reference.logits"


class Quality(Benchmark):
    """One item is a llama-perplexity over the whole text, one chunk of it, or one needle."""

    kind = "quality"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._targets = {target.name: target for target in plan.targets}
        self._tokens: dict[str, TextTokens] = {}
        self._fillers: dict[str, dict[int, str]] = {}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        return make_quality_plan(context, given)

    def items(self) -> Sequence[Item]:
        return items_of(self.options, self.plan.targets)

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        part = item.values["part"]
        if part == "needle":
            return exceeds_context(needle.needed_context(item), item.target, active)
        if part == "chunk":
            return exceeds_context(self.options.context + 1, item.target, active)
        if item.target != self.options.reference:
            failed = [
                result.error for other, result in results if other.target == self.options.reference and not result.ok
            ]
            if failed:
                return f"the reference {self.options.reference} was not measured: {failed[0].rstrip('.')}"
        return ""

    def course(self) -> Course:
        """A server's tokenizer decides how many chunks the text has: its chunks end with the text."""
        items, ended = self.items(), set()
        for number, item in enumerate(items, 1):
            if item.values["part"] == "chunk" and item.target in ended:
                continue
            results = yield Batch([item], len(items) - number)
            if results[-1][1].values.get("ended"):
                ended.add(item.target)
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
        part = item.values["part"]
        if part == "needle":
            return await needle.execute(item, target_server, self._fillers.setdefault(item.target, {}))
        if part == "program":
            return await self._run_program(item, target_server)
        if item.target not in self._tokens:
            self._tokens[item.target] = await read_tokens(self.options, target_server)
        return await execute_chunk(item, self.options, self._tokens[item.target], target_server)

    async def _run_program(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
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
        part = item.values["part"]
        if part == "needle":
            return needle.score(item, raw)
        if part == "chunk":
            return Result(item.id, dict(raw.data))
        try:
            figures = self._read(item, raw)
        except GpuboxError as error:  # the output is kept: `rescore` reads it again
            return Result(item.id, error=error.message)
        return Result(item.id, {"figures": json_values(figures), "context": raw.data["context"]})

    def _read(self, item: Item, raw: RawRecord) -> ChunkFigures:
        text, chunks = str(raw.data["out"]), int(raw.data["chunks"])
        if item.target == self.options.reference:
            return read_perplexity(text, chunks)
        return read_divergence(text, chunks, int(raw.data["context"]))

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: ScoredItems) -> str:
        parts = []
        for label, figures in figures_of(self.options, results).items():
            if label != self.options.reference and figures.kl:
                mean = sum(figures.kl.values()) / len(figures.kl)
                parts.append(f"{label} {quality_name(self.options)} {format_number(mean)}")
        return ", ".join(parts[:3])


def json_values(value: Any) -> Any:
    """``value`` as it comes back from its file: lists, not tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _vocabulary(profile: Profile, target_server: TargetServer) -> Vocabulary:
    source = profile_model(profile, target_server.paths, target_server.config)
    if source.path is None:
        raise GpuboxError(f"{profile.name}: the model {profile.model} is not on this machine.")
    return read_vocabulary(source.path)
