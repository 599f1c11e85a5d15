"""The options of a ``quality`` run, its text and its items."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.model import Item, Target
from gpubox.errors import GpuboxError, UsageError
from gpubox.storage import read_text

Method = Literal["llama-perplexity", "server"]
MIN_CONTEXT, MIN_CHUNKS = 128, 2
MAX_SERVER_CHUNKS = 200
POSITIONS = 32
"""Of each chunk, for which the server is asked: each costs one request."""
NEEDLE_DEPTHS = (10, 30, 50, 70, 90)
"""Where in the context the needle is, in percent."""
NEEDLES = 3
"""Different needles at each depth."""
MAX_TEXT_BYTES = 64 << 20
BYTES_PER_TOKEN = 2.5
"""Fewer than any tokenizer has for English and code, so that an estimate made with it is too large, not too small."""
SERVED = " served"
"""Ends the name of a target that needs its server, in a run whose other figures come from llama-perplexity."""
TEXT_FILE = Path(__file__).with_name("text.txt")
"""Written for gpubox: four short essays and stories, parts of its own README, and modules of its own source code.

It never changes, like the prompts: old figures would lose their meaning.
"""


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """The options of one run."""

    reference: str
    """The target that all others are compared with."""
    method: Method = "llama-perplexity"
    context: int = 512
    """Tokens of a chunk. Its second half is predicted."""
    chunks: int = 0
    """At most so many; 0: the whole text."""
    needle: bool = False
    needle_tokens: tuple[int, ...] = (2048, 8192)
    """The lengths of the contexts in which a needle is looked for."""
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
    if options.method == "server" and options.chunks > MAX_SERVER_CHUNKS:
        raise UsageError(f"At most {MAX_SERVER_CHUNKS} chunks are asked of a server: --chunks {MAX_SERVER_CHUNKS}")
    if options.needle and any(tokens < 256 for tokens in options.needle_tokens):
        raise UsageError("A needle needs a context of at least 256 tokens.", "--needle-tokens 2048,8192")
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


def label_of(target: str) -> str:
    """The target's name in reports."""
    return target.removesuffix(SERVED)


def server_chunks(options: QualityOptions) -> int:
    """The number of chunks that a server is asked for: fixed before its tokenizer is known.

    A chunk beyond the end of the text is skipped.
    """
    return options.chunks or min(MAX_SERVER_CHUNKS, max_chunks(options))


def items_of(options: QualityOptions, targets: Sequence[Target]) -> list[Item]:
    """The reference first; of each target its chunks (or its whole llama-perplexity), then its needles."""
    main = [target for target in targets if not target.name.endswith(SERVED)]
    main.sort(key=lambda target: target.name != options.reference)
    items: list[Item] = []
    for target in main:
        if options.method == "llama-perplexity":
            items.append(Item(f"{target.name}:text", target.name, {"part": "program"}, weight=1000))
        else:
            count = server_chunks(options)
            items += [
                Item(f"{target.name}:{number:03d}", target.name, {"part": "chunk", "chunk": number}, weight=40)
                for number in range(1, count + 1)
            ]
            items += _needles(options, target)
    for target in targets:
        if target.name.endswith(SERVED):
            items += _needles(options, target)
    check_items(len(items))
    return items


def _needles(options: QualityOptions, target: Target) -> list[Item]:
    if not options.needle:
        return []
    return [
        Item(
            f"{label_of(target.name)}:needle/{tokens}/{depth:02d}/{number}",
            target.name,
            {"part": "needle", "tokens": tokens, "depth": depth, "number": number},
            weight=tokens / 20,
        )
        for tokens in options.needle_tokens
        for depth in NEEDLE_DEPTHS
        for number in range(1, NEEDLES + 1)
    ]
