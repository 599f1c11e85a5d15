"""What several kinds of benchmark need: option parsing, the context check, Python parsing, parts of a report."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpubox.bench.benchmark import check_numbers
from gpubox.bench.model import Flag, Item, Result, RunInfo
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.bench.target_server import ActiveTarget

Options = TypeVar("Options")
Results = Sequence[tuple[Item, Result]]


def convert_options(values: Mapping[str, Any], options_type: type[Options]) -> Options:
    """A plan's options as ``options_type``. Raises UsageError for a wrong type or a number out of range."""
    try:
        options = msgspec.convert(values, options_type)
    except msgspec.ValidationError as error:
        raise UsageError(f"Invalid benchmark options: {error}.") from None
    check_numbers(values)
    return options


def exceeds_context(tokens: int, server: ActiveTarget | None) -> str:
    """Why a request of ``tokens`` (prompt and answer) does not fit one slot; empty if it fits or nothing is known."""
    size = server.context_tokens if server else None
    return f"needs a context of {tokens:,} tokens; a slot has {size:,}" if size and size < tokens else ""


def parse_python(code: str) -> ast.Module | None:
    """The syntax tree of a Python program; ``None`` if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def report_flags(info: RunInfo, results: Results) -> tuple[Flag, ...]:
    """The flags of the run and of every item but warm-ups."""
    return (*info.flags, *(flag for item, result in results if not item.warmup for flag in result.flags))


def unfinished_note(info: RunInfo, results: Results, unit: str = "items") -> Iterator[str]:
    """A note on what is left to do; none if the run is complete."""
    if len(results) < info.items:
        yield f"{info.items - len(results)} of {info.items} {unit} are not done yet."
