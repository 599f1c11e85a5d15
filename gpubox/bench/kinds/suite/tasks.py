"""The thirteen rows: what is asked, in which category, and of how many points. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gpubox.bench.benchmark import check_items, check_numbers
from gpubox.bench.kinds.suite import task_prompts
from gpubox.errors import UsageError

Category = Literal["coding", "editing", "reasoning", "tools", "speed"]
SYSTEM_PROMPT = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """One row. ``points`` is what its scorer gives at most; the aggregation works with shares of it."""

    id: str
    name: str
    category: Category
    points: int
    prompt: str
    max_tokens: int | None = None
    """Fixed, whatever the model would end with (speed); ``None``: the run's budget."""


TASKS: dict[str, SuiteTask] = {
    task.id: task
    for task in (
        SuiteTask("1.1", "todo app", "coding", 100, task_prompts.TODO),
        SuiteTask("1.2", "URL shortener", "coding", 100, task_prompts.SHORTENER),
        SuiteTask("1.3", "LRU cache", "coding", 100, task_prompts.LRU),
        SuiteTask("2.1", "bug fix", "editing", 100, task_prompts.BUGFIX),
        SuiteTask("2.2", "pagination", "editing", 100, task_prompts.PAGINATION),
        SuiteTask("3.1", "debug log", "reasoning", 10, task_prompts.debug_log_prompt()),
        SuiteTask("3.2", "architecture", "reasoning", 10, task_prompts.ARCHITECTURE),
        SuiteTask("3.3", "Bayes", "reasoning", 5, task_prompts.BAYES),
        SuiteTask("4.1", "structured output", "tools", 5, task_prompts.STRUCTURED),
        SuiteTask("4.2", "tool sequencing", "tools", 5, task_prompts.SEQUENCING),
        SuiteTask("5.1", "short", "speed", 0, task_prompts.SPEED["short"], 128),
        SuiteTask("5.2", "medium", "speed", 0, task_prompts.SPEED["medium"], 512),
        SuiteTask("5.3", "long", "speed", 0, task_prompts.SPEED["long"], 2048),
    )
}
SPEED_RUNS = 3


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Of one suite run."""

    tasks: tuple[str, ...] = tuple(TASKS)
    repeat: int = 1
    """Answers to each task but speed: their mean counts, their range is shown."""
    compat: bool = False
    """Aggregate as the article did."""
    ref_tps: float | None = None
    """100 points of speed, where the run has one profile only."""
    max_tokens: int | None = None
    """4,096, or 8,192 where the template thinks."""
    speed_tokens: int | None = None
    """For all speed rows instead of their own (a trial of the suite, not the suite)."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Of tasks 1 to 4; without it the profile's own. Speed is always at temperature 0."""


def parse_options(values: Mapping[str, Any]) -> SuiteOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, SuiteOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of a suite run cannot be: {error}.") from None
    check_numbers(values)
    if unknown := [task for task in options.tasks if task not in TASKS]:
        raise UsageError(f"There is no task {unknown[0]!r}.", f"There are: {', '.join(TASKS)}.")
    if not options.tasks or options.repeat < 1 or any((n or 1) < 1 for n in (options.max_tokens, options.speed_tokens)):
        raise UsageError("At least one task, one repeat and one token.")
    check_items(options.repeat * len(options.tasks))
    if options.ref_tps is not None and options.ref_tps <= 0:
        raise UsageError("The reference speed must be more than 0 tok/s.")
    return options
