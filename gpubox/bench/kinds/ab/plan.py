"""The questions of an A/B run and their order. Pure.

If the sides need different servers, each start of a server answers every prompt once. The starts are randomised in
blocks of four, two of each side, so that neither a drift nor a slow wander favours a side (``bench.start_comparison``).
If no restart is needed, each prompt is asked in the order A B B A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox.bench.benchmark import check_items
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.model import Item, Target
from gpubox.bench.questions import DOMAINS, Question, question_values, questions
from gpubox.bench.start_comparison import random_order
from gpubox.errors import UsageError

STARTS, TOKENS = 6, 128
PROMPTS, PROMPTS_OF_ONE_SERVER = 4, 10
"""Per domain. With restarts the starts are the sample, on one server the prompts are, so it asks more of them."""
ROUNDS = 2
"""How often each side answers a prompt on one server: A B B A."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: a target, and how requests differ there."""

    name: str
    target: str
    thinking: bool = False
    raw: bool = False
    """Sent as plain text to ``/v1/completions``."""


@dataclass(frozen=True, slots=True)
class AbOptions:
    """The options of one run."""

    sides: tuple[Side, ...]
    """Two; the second is compared with the first."""
    prompts: int | None = None
    """Per domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = TOKENS
    starts: int = STARTS
    """The most starts of each side; a clear verdict ends the run earlier."""
    context_tokens: int = 0

    @property
    def one_server(self) -> bool:
        """Whether both sides ask the same server, without restarts."""
        return len({side.target for side in self.sides}) == 1


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> AbOptions:
    """The options from a plan. Raises UsageError if one is invalid."""
    options = convert_options(values, AbOptions)
    names = {target.name for target in targets}
    if len(options.sides) != 2 or len({side.name for side in options.sides}) != 2:
        raise UsageError("An ab run has two sides of different names.")
    if any(side.target not in names for side in options.sides):
        raise UsageError("A side of this ab run has no target.")
    if options.starts < 1:
        raise UsageError("Each side needs a start.", "Write: --starts 6")
    if options.one_server and "starts" in values:
        raise UsageError("Both sides ask one server: nothing is restarted.", "Leave out --starts.")
    check_items(2 * (ROUNDS if options.one_server else options.starts) * len(questions_of(options)))
    return options


def questions_of(options: AbOptions) -> list[Question]:
    """The questions that every side is asked. Raises UsageError."""
    default = PROMPTS_OF_ONE_SERVER if options.one_server else PROMPTS
    prompts = default if options.prompts is None else options.prompts
    return questions(prompts, options.max_tokens, options.domains, options.context_tokens)


def start_order(options: AbOptions, seed: int) -> list[Side]:
    """The side of each start."""
    return [options.sides[number] for number in random_order(2, options.starts, seed)]


def items_of(options: AbOptions, seed: int = 0) -> list[Item]:
    """Every item in order, with one warm-up for each start of a server."""
    asked = questions_of(options)
    items = []
    if options.one_server:
        items += [_item(asked[0], side, f"{side.name}/warm-up", side.target, warmup=True) for side in options.sides]
        for number, question in enumerate(asked):
            for repeat in range(ROUNDS):
                reverse = (number + repeat) % 2  # every other prompt begins with the second side
                for side in options.sides[:: -1 if reverse else 1]:
                    items.append(_item(question, side, f"{side.name}/{repeat + 1}/{question.name}", side.target))
        return items
    for start, side in enumerate(start_order(options, seed), 1):
        group = f"{start:02d}/{side.name}"
        items.append(_item(asked[0], side, f"{group}/warm-up", group, start, warmup=True))
        items += [_item(question, side, f"{group}/{question.name}", group, start) for question in asked]
    return items


def _item(question: Question, side: Side, name: str, group: str, start: int = 0, *, warmup: bool = False) -> Item:
    values = question_values(question, thinking=side.thinking, raw=side.raw)
    weight = question.max_tokens + question.context_tokens / 10
    return Item(name, side.target, {**values, "side": side.name}, warmup, group, weight, start)
