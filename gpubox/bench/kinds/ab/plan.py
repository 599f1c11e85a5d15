"""What an ab run asks, and in which order. Pure.

Where the arms need different servers, each start of a server asks every prompt once. The starts stand in blocks of
four, two of each arm, in an order drawn by the plan's seed: so neither a drift nor a slow wander sides with an arm
(see ``bench.starts``). Where no restart is needed, A B B A is the order of each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.model import Item, Target
from gpubox.bench.option_limits import check_items, check_numbers
from gpubox.bench.questions import DOMAINS, Question, question_values, questions
from gpubox.bench.start_comparison import random_order
from gpubox.errors import UsageError

STARTS, TOKENS = 6, 128
PROMPTS, PROMPTS_OF_ONE = 4, 10
"""Of each domain: where servers are restarted, starts are what tells; where one server is asked, prompts are."""
ROUNDS = 2
"""How often each arm answers a prompt where one server is asked: A B B A."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side: a target, and what of the request differs there."""

    name: str
    target: str
    thinking: bool = False
    raw: bool = False
    """As plain text to ``/v1/completions``."""


@dataclass(frozen=True, slots=True)
class AbOptions:
    """Of one ab run."""

    arms: tuple[Arm, ...]
    """Two; the second is compared with the first."""
    prompts: int | None = None
    """Of each domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = TOKENS
    starts: int = STARTS
    """Of each arm at most; a clear verdict ends the run earlier."""
    context_tokens: int = 0

    @property
    def one_server(self) -> bool:
        """Both arms ask the same one; nothing is restarted."""
        return len({arm.target for arm in self.arms}) == 1


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> AbOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, AbOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of an ab run cannot be: {error}.") from None
    check_numbers(values)
    names = {target.name for target in targets}
    if len(options.arms) != 2 or len({arm.name for arm in options.arms}) != 2:
        raise UsageError("An ab run has two arms of different names.")
    if any(arm.target not in names for arm in options.arms):
        raise UsageError("An arm of this ab run has no target.")
    if options.starts < 1:
        raise UsageError("Each arm needs a start.", "Write: --starts 6")
    if options.one_server and "starts" in values:
        raise UsageError("Both arms ask one server: nothing is restarted.", "Leave out --starts.")
    check_items(2 * (ROUNDS if options.one_server else options.starts) * len(questions_of(options)))
    return options


def questions_of(options: AbOptions) -> list[Question]:
    """Its prompts. Raises UsageError."""
    usual = PROMPTS_OF_ONE if options.one_server else PROMPTS
    prompts = usual if options.prompts is None else options.prompts
    return questions(prompts, options.max_tokens, options.domains, options.context_tokens)


def start_order(options: AbOptions, seed: int) -> list[Arm]:
    """The arm of each start."""
    return [options.arms[place] for place in random_order(2, options.starts, seed)]


def items_of(options: AbOptions, seed: int = 0) -> list[Item]:
    """Every item in order; one warm-up for each start of a server."""
    if options.one_server:
        return _interleaved(options)
    made = []
    for place, arm in enumerate(start_order(options, seed), 1):
        group = f"{place:02d}/{arm.name}"
        made.append(_item(questions_of(options)[0], arm, f"{group}/warm-up", group, place, warmup=True))
        made += [_item(question, arm, f"{group}/{question.name}", group, place) for question in questions_of(options)]
    return made


def _interleaved(options: AbOptions) -> list[Item]:
    made = [_item(questions_of(options)[0], arm, f"{arm.name}/warm-up", "all", warmup=True) for arm in options.arms]
    for place, question in enumerate(questions_of(options)):
        for number in range(ROUNDS):
            turned = (place + number) % 2  # and every other prompt begins with the second arm
            for arm in options.arms[:: -1 if turned else 1]:
                made.append(_item(question, arm, f"{arm.name}/{number + 1}/{question.name}", "all"))
    return made


def _item(question: Question, arm: Arm, name: str, group: str, start: int = 0, *, warmup: bool = False) -> Item:
    values = question_values(question, thinking=arm.thinking, raw=arm.raw)
    weight = question.max_tokens + question.context_tokens / 10
    return Item(name, arm.target, {**values, "arm": arm.name}, warmup, group, weight, start)
