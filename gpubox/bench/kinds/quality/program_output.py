"""What llama-perplexity prints -> figures of each chunk. Pure.

Format: build 11434, tools/perplexity/perplexity.cpp, ``perplexity`` (``[1]19.7487,[2]26.4348,`` on stdout) and
``kl_divergence`` (a table with one row for each chunk, then statistics over all tokens). Every figure of a row is the
mean over all chunks so far, rounded; a chunk's own figure is the difference of two rows. The rounding of the running
mean of KL (5e-6 at most) grows to about 1e-5 times the number of the chunk, has mean 0, and makes intervals wider.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubox.errors import GpuboxError

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
        "gpubox knows the output of build 11434; `--method server` does without the program.",
    )
