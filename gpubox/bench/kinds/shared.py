"""What several kinds of benchmark need: options, ids, the context check, parts of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpubox.bench.benchmark import check_numbers
from gpubox.bench.model import Doubt, Plan, Result, RunInfo, ScoredItems, Target
from gpubox.bench.report.formatting import item_words
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.bench.target_server import ActiveTarget

Options = TypeVar("Options")


def convert_options(values: Mapping[str, Any], options_type: type[Options]) -> Options:
    """A plan's options as ``options_type``. Raises UsageError for a wrong type or a number out of range."""
    try:
        options = msgspec.convert(values, options_type)
    except msgspec.ValidationError as error:
        raise UsageError(f"Invalid benchmark options: {error}.") from None
    check_numbers(values)
    return options


def id_prefix(plan: Plan, target: Target) -> str:
    """What the ids of the target's items begin with: its name, if the plan has several targets."""
    return f"{target.name}:" if len(plan.targets) > 1 else ""


def exceeds_context(tokens: int, target: str, active: ActiveTarget | None) -> str:
    """Why a request of ``tokens`` (prompt and answer) does not fit a slot of ``target``.

    Empty if it fits, or if ``target`` does not run yet.
    """
    size = active.context_tokens if active and active.target.name == target else None
    return f"needs a context of {tokens:,} tokens; a slot has {size:,}" if size and size < tokens else ""


def report_doubts(info: RunInfo, results: ScoredItems) -> tuple[Doubt, ...]:
    """The doubts of the run and of every item but warm-ups."""
    return (*info.doubts, *(doubt for item, result in results if not item.warmup for doubt in result.doubts))


def timing_notes(results: Sequence[Result]) -> Iterator[str]:
    """Whether the client measured the times."""
    if any(result.values.get("timed_by") == "client" for result in results):
        yield "This server sends no timings: pp and tg are measured by the client and include the network."


def closing_notes(info: RunInfo, results: ScoredItems) -> Iterator[str]:
    """What was not measured, and how much is left to do."""
    yield from missing_notes(results)
    yield from unfinished_note(info, results)


def missing_notes(results: ScoredItems) -> Iterator[str]:
    """What was not measured, a sentence for each reason."""
    names: dict[str, list[str]] = {}
    for item, result in results:
        if not result.ok and not item.warmup:
            name = item.id if item.group in ("", item.target) else item.group
            names.setdefault(result.error.rstrip("."), []).append(name)
    for reason, failed in sorted(names.items()):
        yield f"Not measured: {name_list(list(dict.fromkeys(map(item_words, failed))))}: {reason}."


def unfinished_note(info: RunInfo, results: ScoredItems) -> Iterator[str]:
    """How much is left to do, if the run is not complete."""
    if len(results) < info.items:
        yield f"{info.items - len(results)} of {info.items} measurements are not done yet."


def name_list(names: Sequence[str]) -> str:
    """Up to six names, and how many more there are."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def ranking_verdict(
    names: Sequence[str], behind: Sequence[str], best: str, better_than: str, question: str, tells: str
) -> str:
    """Who did best, as a sentence. ``names``: the best first; ``behind``: those that are shown to be behind it.

    ``tells``: what tells more, where it cannot be told of all.
    """
    if len(behind) == len(names) - 1:
        return f"{names[0]} {best}."
    if behind:
        return f"{names[0]} {better_than} {name_list(behind)}; the others may be as good as it. {tells}"
    return f"Cannot tell {question}: {name_list(names)} differ by no more than chance. {tells}"
