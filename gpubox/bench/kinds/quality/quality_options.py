"""The options of a ``quality`` run, its text and its items."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.model import Item, Target
from gpubox.errors import GpuboxError, UsageError
from gpubox.storage import read_text

MIN_CONTEXT, MIN_CHUNKS = 128, 2
MAX_TEXT_BYTES = 64 << 20
BYTES_PER_TOKEN = 2.5
"""Fewer than any tokenizer has for English and code, so that an estimate made with it is too large, not too small."""
TEXT_FILE = Path(__file__).with_name("text.txt")
"""Written for gpubox: four short essays and stories, parts of its own README, and modules of its own source code.

It never changes, like the prompts: old figures would lose their meaning.
"""


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """The options of one run."""

    reference: str
    """The target that all others are compared with."""
    context: int = 512
    """Tokens of a chunk. Its second half is predicted."""
    chunks: int = 0
    """At most so many; 0: the whole text."""
    text: str = ""
    """The path of another text; empty: the one that ships with gpubox."""
    text_sha256: str = ""

    @property
    def text_path(self) -> Path:
        return Path(self.text) if self.text else TEXT_FILE


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> QualityOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, QualityOptions)
    if options.reference not in (target.name for target in targets):
        raise UsageError(f"The reference {options.reference} is no target of this run.")
    if options.context < MIN_CONTEXT or options.context % 2:
        raise UsageError(
            f"A chunk has an even number of at least {MIN_CONTEXT} tokens, not {options.context}.",
            "512 is what published figures use: --context 512",
        )
    if options.chunks and options.chunks < MIN_CHUNKS:
        raise UsageError("One chunk has no interval.", f"--chunks {MIN_CHUNKS} or more; without it, the whole text.")
    return options


def text_of(options: QualityOptions) -> str:
    """The text. Raises GpuboxError if it cannot be read, or has changed since the run was planned."""
    try:
        text = read_text(options.text_path, MAX_TEXT_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise GpuboxError(f"The text {options.text_path} cannot be read: {reason}.") from None
    if options.text_sha256 and text_hash(text) != options.text_sha256:
        raise GpuboxError(
            f"The text {options.text_path} has changed since this run began.", "Begin a new run: figures of two texts "
            "do not compare."
        )  # fmt: skip
    return text


def text_hash(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def max_chunks(options: QualityOptions) -> int:
    """The most chunks that the text can have; raises GpuboxError if it cannot be read."""
    most = max(1, int(len(text_of(options).encode()) / BYTES_PER_TOKEN / options.context))
    return min(most, options.chunks) if options.chunks else most


def items_of(options: QualityOptions, targets: Sequence[Target]) -> list[Item]:
    """The whole text for each target, the reference first."""
    first_reference = sorted(targets, key=lambda target: target.name != options.reference)
    check_items(len(targets))
    return [Item(f"{target.name}:text", target.name, {}, weight=1000) for target in first_reference]
