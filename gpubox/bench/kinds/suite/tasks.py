"""The thirteen rows of the suite: what is asked, in which category, for how many points. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.kinds.suite import task_prompts
from gpubox.errors import UsageError

Category = Literal["coding", "reasoning", "tools", "speed"]
SYSTEM_PROMPT = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """One row."""

    id: str
    name: str
    category: Category
    points: int
    """The most its scorer gives. Categories average shares of it."""
    prompt: str
    max_tokens: int | None = None
    """The exact length of a speed answer; ``None``: the run's limit."""


TASKS: dict[str, SuiteTask] = {
    task.id: task
    for task in (
        SuiteTask("1.1", "todo app", "coding", 100, task_prompts.TODO),
        SuiteTask("1.2", "URL shortener", "coding", 100, task_prompts.SHORTENER),
        SuiteTask("1.3", "LRU cache", "coding", 100, task_prompts.LRU),
        SuiteTask("2.1", "bug fix", "coding", 100, task_prompts.BUGFIX),
        SuiteTask("2.2", "pagination", "coding", 100, task_prompts.PAGINATION),
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
    """The options of one suite run."""

    tasks: tuple[str, ...] = tuple(TASKS)
    repeats: int = 1
    """Answers to each task but speed: their mean counts, their range is shown."""
    compat: bool = False
    """Aggregate the scores as the article did."""
    ref_tps: float | None = None
    """The tok/s that are worth 100 points of speed, for a run of one profile."""
    max_tokens: int | None = None
    """Of an answer. Default: 4,096, or 8,192 if the chat template has thinking."""
    speed_tokens: int | None = None
    """For all speed rows instead of their own, to try the suite out."""
    sampling: Mapping[str, int | float] = field(default_factory=dict)
    """Of tasks 1 to 4, over the profile's own. Speed always has temperature 0."""


def parse_options(values: Mapping[str, Any]) -> SuiteOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SuiteOptions)
    if unknown := [task for task in options.tasks if task not in TASKS]:
        raise UsageError(f"There is no task {unknown[0]!r}.", f"Choose from: {', '.join(TASKS)}.")
    counts = (options.repeats, options.max_tokens, options.speed_tokens)
    if not options.tasks or any(count is not None and count < 1 for count in counts):
        raise UsageError("A suite needs at least one task, one repeat and one token.")
    check_items(options.repeats * len(options.tasks))
    if options.ref_tps is not None and options.ref_tps <= 0:
        raise UsageError("--ref-tps must be above 0.")
    return options
