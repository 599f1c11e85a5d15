"""llama-perplexity, the engine's own program: its command line, its file of logits, a run of it, and what it prints.

Format: build 11434, tools/perplexity/perplexity.cpp, ``perplexity`` (``[1]19.7487,[2]26.4348,`` on stdout) and
``kl_divergence`` (a table with one row for each chunk, then statistics over all tokens). Every figure of a row is the
mean over all chunks so far, rounded; a chunk's own figure is the difference of two rows. The rounding of the running
mean of KL (5e-6 at most) grows to about 1e-5 times the number of the chunk, has mean 0, and makes intervals wider.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kinds.quality.quality_options import QualityOptions, max_chunks
from gpubox.children import engine_environment, guarded
from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities, parse_help, repeated_flags
from gpubox.engines.find import Engine, choose_engine, find_beside_engine
from gpubox.engines.query import run_engine
from gpubox.errors import GpuboxError
from gpubox.hardware.process import kill_group
from gpubox.models.resolve import profile_model
from gpubox.paths import Paths
from gpubox.profiles.argv import flag_argv
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line
from gpubox.server.launch import expand_paths
from gpubox.storage import free_bytes

_RUNNING_PPL = re.compile(r"\[(\d+)\]\s*([^,\s]+),")
_NUMBER = r"(-?[\d.]+|-?nan|-?inf)"
_ROW = re.compile(
    rf"^\s*(\d+)\s+{_NUMBER} ±\s+{_NUMBER}\s+{_NUMBER} ±\s+{_NUMBER}\s+{_NUMBER} ±\s+{_NUMBER}"
    rf"\s+{_NUMBER} ±\s+{_NUMBER} %\s+{_NUMBER} ±\s+{_NUMBER} %\s*$"
)
_USED = (2, 6, 10)
"""The groups of perplexity, KL divergence and same top token. The errors of two equal models can be -nan: the root of
a negative rounding error."""
_NAMES = r"Mean +KLD|99\.0% +KLD|Median +KLD|Mean PPL\(Q\)|Same top p"
_STATISTIC = re.compile(rf"^({_NAMES}) *: +{_NUMBER}(?: ± +{_NUMBER})?")
_STATISTICS = {
    "Mean KLD": "kl", "99.0% KLD": "kl_99", "Median KLD": "kl_median", "Mean PPL(Q)": "perplexity",
    "Same top p": "same_top",
}  # fmt: skip
COUNT_LINE = re.compile(r"\b(?:over|calculating perplexity over) (\d+) chunks, n_ctx=(\d+)")
"""On stderr: the number of chunks and the tokens of each."""


@dataclass(frozen=True, slots=True)
class ChunkFigures:
    """The figures of each chunk, in order."""

    log_perplexity: tuple[float, ...]
    """The mean negative log-likelihood of a token, in nats."""
    kl: tuple[float, ...] = ()
    """The mean KL divergence of a token from the reference, in nats."""
    same_top: tuple[float, ...] = ()
    """The share of tokens for which both rank the same token first, 0 to 1."""
    totals: tuple[tuple[str, float, float | None], ...] = ()
    """(name, value, standard error) as the program printed them over all tokens: kl, kl_median, kl_99, ..."""

    def total(self, name: str) -> float | None:
        """One of ``totals``."""
        return next((value for key, value, _ in self.totals if key == name), None)


def scored_tokens(context: int) -> int:
    """How many tokens of a chunk are predicted: perplexity.cpp leaves the first half and the first token out."""
    return context - 1 - context // 2


def read_perplexity(text: str, chunks: int) -> ChunkFigures:
    """The output of a run that only computes perplexity. Raises GpuboxError if a chunk is missing."""
    pairs = [(int(number), _finite(value, f"chunk {number}")) for number, value in _RUNNING_PPL.findall(text)]
    _check_numbers([number for number, _ in pairs], chunks)
    return ChunkFigures(tuple(_own([math.log(value) for _, value in pairs])))


def read_divergence(text: str, chunks: int, context: int) -> ChunkFigures:
    """The output of a run with ``--kl-divergence``. Raises GpuboxError if a chunk or a statistic is missing."""
    rows: list[list[float]] = []
    totals: list[tuple[str, float, float | None]] = []
    numbers: list[int] = []
    for line in text.splitlines():
        if match := _ROW.match(line):
            numbers.append(int(match[1]))
            rows.append([_finite(match[place], f"chunk {match[1]}") for place in _USED])
        elif match := _STATISTIC.match(line):
            name = _STATISTICS[" ".join(match[1].split())]
            error = float(match[3]) if match[3] else math.nan
            totals.append((name, _finite(match[2], name), error if math.isfinite(error) else None))
    _check_numbers(numbers, chunks)
    if missing := set(_STATISTICS.values()) - {name for name, _, _ in totals}:
        raise _unreadable(f"its statistics lack {', '.join(sorted(missing))}")
    per_chunk = scored_tokens(context)
    counts = [round(row[2] / 100 * per_chunk * number) for number, row in enumerate(rows, 1)]
    same = [(after - before) / per_chunk for before, after in zip([0, *counts], counts, strict=False)]
    return ChunkFigures(
        tuple(_own([math.log(row[0]) for row in rows])),
        tuple(value + 0.0 for value in _own([row[1] for row in rows])),
        tuple(same),
        tuple(totals),
    )


def chunks_done(text: str) -> int:
    """The number of the last chunk in the output so far."""
    numbers = [int(match[1]) for line in text.splitlines()[-3:] if (match := _ROW.match(line))]
    numbers += [int(number) for number, _ in _RUNNING_PPL.findall(text[-400:])]
    return max(numbers, default=0)


def _own(running: Sequence[float]) -> Iterable[float]:
    """Each chunk's own figure from the running means."""
    before = 0.0
    for number, mean in enumerate(running, 1):
        total = number * mean
        yield total - before
        before = total


def _finite(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _unreadable(f"{where} has the figure {text[:24]!r}") from None
    if not math.isfinite(value):
        raise GpuboxError(f"The model computes {text} in {where}.", "Its file or these flags do not work.")
    return value


def _check_numbers(numbers: Sequence[int], chunks: int) -> None:
    if not chunks or list(numbers) != list(range(1, chunks + 1)):
        raise _unreadable(f"it has {len(numbers)} of {chunks} chunks")


def _unreadable(why: str) -> GpuboxError:
    return GpuboxError(
        f"The output of llama-perplexity cannot be read: {why}.",
        "gpubox knows the output of build 11434.",
    )


PROGRAM = "llama-perplexity"
SILENCE_SECONDS = 1800.0
"""A program that prints nothing for so long hangs: a batch of chunks takes minutes on the slowest box."""
SPARE_BYTES = 1 << 30
"""Left free on the disk."""
MAX_OUTPUT = 8 << 20
EXIT_SECONDS = 60.0
"""To end after its last output: it frees the model's memory."""
# The flags that decide what is computed, or that the model does not fit without. Of the context and the prompt's
# way, llama-perplexity has its own.
KEPT_FLAGS = frozenset(
    {
        "n-gpu-layers", "gpu-layers", "n-cpu-moe", "cpu-moe", "n-cpu-ffn", "threads", "threads-batch", "batch-size",
        "ubatch-size", "flash-attn", "cache-type-k", "cache-type-v", "kv-offload", "split-mode", "tensor-split",
        "main-gpu", "device", "rpc", "override-tensor", "numa", "mmap", "mlock", "load-mode", "lazy-mode", "direct-io",
        "repack", "no-host", "op-offload", "swa-full", "kv-unified", "fit", "fit-target", "fit-ctx", "override-kv",
        "lora", "lora-scaled", "control-vector", "control-vector-scaled", "control-vector-layer-range", "rope-scaling",
        "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx", "yarn-ext-factor", "yarn-attn-factor",
        "yarn-beta-slow", "yarn-beta-fast", "grp-attn-n", "grp-attn-w", "cpu-mask", "cpu-range", "cpu-strict", "prio",
        "poll",
    }
)  # fmt: skip
_BASE_HEADER = struct.Struct("<8sIii")
_BASE_MAGIC = b"_logits_"


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """One run of the program."""

    argv: tuple[str, ...]
    out: str
    chunks: int
    context: int


@dataclass(frozen=True, slots=True)
class BaseFile:
    """The header of a file of logits (perplexity.cpp, build 11434: magic, n_ctx, n_vocab, n_chunk, tokens, logits)."""

    context: int
    vocabulary: int
    chunks: int

    @property
    def size_bytes(self) -> int:
        """Its size when it is complete."""
        tokens = 4 * self.context * self.chunks
        return _BASE_HEADER.size + tokens + self.chunks * logits_bytes(self.vocabulary, self.context)


def logits_bytes(vocabulary: int, context: int) -> int:
    """Of one chunk: 16 bits for each token of the vocabulary, and two floats, for each predicted token."""
    return scored_tokens(context) * 2 * (2 * ((vocabulary + 1) // 2) + 4)


def no_program(profile: str) -> GpuboxError:
    """The error for an engine without the program."""
    return GpuboxError(
        f"{profile} has no {PROGRAM} beside its engine.",
        "Choose an engine that has it: a build of llama.cpp, or one of `gpubox engines build`.",
    )


def program_argv(profile: Profile, options: QualityOptions, paths: Paths, config: Config) -> list[str]:
    """The command line for a profile, without the file of logits. Raises GpuboxError. Blocks."""
    binary = find_beside_engine(config, profile.engine, PROGRAM)
    source = profile_model(profile, paths, config)
    if binary is None:
        raise no_program(profile.name)
    if source.path is None:
        raise GpuboxError(f"{profile.name}: the model {profile.model} is not on this machine.")
    engine = choose_engine(config, profile.engine)
    capabilities = read_program_help(replace(engine, path=binary, command=(str(binary),)))
    profile = expand_paths(profile, paths, config)
    argv = [str(binary), "--model", str(source.path), "--file", str(options.text_path)]
    argv += ["--ctx-size", str(options.context), *(["--chunks", str(options.chunks)] if options.chunks else [])]
    for name, value in profile.flags.items():
        option = capabilities.option(name)
        names = {name, *((*option.names, *option.negatives) if option else ())}
        if option and any(other.removeprefix("no-") in KEPT_FLAGS or other in KEPT_FLAGS for other in names):
            argv += flag_argv(name, value, repeated_flags(capabilities))
    return argv


def read_program_help(engine: Engine) -> Capabilities:
    """The options of llama-perplexity. Raises GpuboxError if it cannot run or has no KL divergence."""
    capabilities = parse_help(run_engine(engine, ["--help"]).out)
    if capabilities.option("kl-divergence-base") is None:
        raise GpuboxError(f"{engine.path} computes no KL divergence.", "It is too old: build a newer llama.cpp.")
    return capabilities


def check_space(folder: Path, vocabulary: int, options: QualityOptions) -> int:
    """The bytes that the file of logits can need. Raises GpuboxError if the disk of ``folder`` has too few."""
    needed = BaseFile(options.context, vocabulary, max_chunks(options)).size_bytes
    free = free_bytes(folder)
    if free is not None and free < needed + SPARE_BYTES:
        raise GpuboxError(
            f"The logits of the reference need up to {units.file_size(needed)}, and {units.file_size(free)} are free.",
            "Ask for fewer --chunks, or free some disk space.",
        )
    return needed


def read_base(path: Path) -> BaseFile | None:
    """The header of a complete file of logits; ``None`` if it is missing, cut off or something else."""
    try:
        with path.open("rb") as file:
            magic, context, vocabulary, chunks = _BASE_HEADER.unpack(file.read(_BASE_HEADER.size))
        size = path.stat().st_size
    except (OSError, struct.error):
        return None
    base = BaseFile(context, vocabulary, chunks)
    return base if magic == _BASE_MAGIC and size == base.size_bytes else None


async def run_program(argv: Sequence[str], env: Mapping[str, str], report: Callable[[str], None]) -> ProgramOutput:
    """Runs llama-perplexity. ``report`` gets its progress. Raises GpuboxError; leaves no process behind."""
    loop = asyncio.get_running_loop()
    try:
        process = await asyncio.create_subprocess_exec(
            *guarded(argv), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=engine_environment(env), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise GpuboxError(f"{PROGRAM} cannot be started: {error.strerror}.") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    last = [loop.time()]
    texts = {"out": "", "err": ""}

    async def read(name: str, stream: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await stream.read(1 << 16):
            last[0] = loop.time()
            texts[name] = (texts[name] + decoder.decode(data))[-MAX_OUTPUT:]
            counts = COUNT_LINE.search(texts["err"])
            if counts:
                report(f"chunk {chunks_done(texts['out'])} of {counts[1]}")

    readers = [asyncio.create_task(read("out", process.stdout)), asyncio.create_task(read("err", process.stderr))]
    try:
        while not all(reader.done() for reader in readers):
            await asyncio.wait(readers, timeout=max(0.1, last[0] + SILENCE_SECONDS - loop.time()))
            if loop.time() - last[0] >= SILENCE_SECONDS and not all(reader.done() for reader in readers):
                raise GpuboxError(f"{PROGRAM} printed nothing for {SILENCE_SECONDS / 60:.0f} minutes.")
        async with asyncio.timeout(EXIT_SECONDS):
            while process.returncode is None:  # wait() would also wait for the pipe of the guard
                await asyncio.sleep(0.01)
        code = process.returncode
    except TimeoutError:
        raise GpuboxError(f"{PROGRAM} closed its output and did not end.") from None
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        kill_group(process.pid)
        process.stdin.close()
        await process.wait()
    if code:
        raise GpuboxError(f"{PROGRAM} ended with exit code {code}: {_last_error(texts['err'])}")
    counts = COUNT_LINE.search(texts["err"])
    if counts is None:
        raise GpuboxError(f"{PROGRAM} computed nothing: {_last_error(texts['err'])}")
    return ProgramOutput(tuple(argv), texts["out"], int(counts[1]), int(counts[2]))


def _last_error(text: str) -> str:
    """The last line that is an error (`` E ``), else the last one that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if " E " in line[:24]]
    return sanitize_line((errors or lines or ["it said nothing"])[-1])[:240]


def program_values(output: ProgramOutput, vocabulary: int) -> dict[str, Any]:
    """What the raw record keeps."""
    return {
        "argv": list(output.argv), "out": output.out, "chunks": output.chunks, "context": output.context,
        "vocabulary": vocabulary,
    }  # fmt: skip
