"""What an ab run asks, and in which order. Pure.

Where the arms need different servers the order is A B B A in blocks: each block asks every prompt, the way back in the
opposite order, so that for each prompt both arms have the same mean time and a steady drift cancels. Two blocks of one
arm that meet are one start. Where no restart is needed, A B B A is the order of each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.asking import DOMAINS, Question, questions, with_question
from gpubox.bench.limits import check_items, check_numbers
from gpubox.bench.model import Item, Target
from gpubox.errors import UsageError

PROMPTS, TOKENS, ROUNDS = 10, 128, 2


@dataclass(frozen=True, slots=True)
class Arm:
    """One side: a target, and what of the request differs there."""

    name: str
    target: str
    thinking: bool = False
    raw: bool = False
    """As plain text to ``/v1/completions``."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of one ab run."""

    arms: tuple[Arm, ...]
    """Two; the second is compared with the first."""
    prompts: int = PROMPTS
    """Of each domain."""
    domains: tuple[str, ...] = DOMAINS
    max_tokens: int = TOKENS
    rounds: int = ROUNDS
    """How often each arm answers each prompt; even, so that A B B A comes out."""
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Rounds of one arm that follow each other."""

    arm: Arm
    rounds: tuple[int, ...]


def options_of(values: Mapping[str, Any], targets: Sequence[Target]) -> Options:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, Options)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of an ab run cannot be: {error}.") from None
    check_numbers(values)
    names = {target.name for target in targets}
    if len(options.arms) != 2 or len({arm.name for arm in options.arms}) != 2:
        raise UsageError("An ab run has two arms of different names.")
    if any(arm.target not in names for arm in options.arms):
        raise UsageError("An arm of this ab run has no target.")
    if options.rounds < 2 or options.rounds % 2:
        raise UsageError("The order A B B A needs an even number of rounds.", "Write: --rounds 2")
    check_items(2 * options.rounds * len(asked(options)))
    return options


def asked(options: Options) -> list[Question]:
    """Its prompts. Raises UsageError."""
    return questions(options.prompts, options.max_tokens, options.domains, options.context_tokens)


def blocks(options: Options) -> list[Block]:
    """A B B A as stretches of one arm: A, BB, AA, ..."""
    found: list[Block] = []
    for number in range(options.rounds):
        for arm in options.arms if number % 2 == 0 else options.arms[::-1]:
            if found and found[-1].arm == arm:
                found[-1] = Block(arm, (*found[-1].rounds, number + 1))
            else:
                found.append(Block(arm, (number + 1,)))
    return found


def items_of(options: Options) -> list[Item]:
    """Every item in order; one warm-up for each start of a server."""
    first, second = options.arms
    if first.target == second.target:
        return _interleaved(options)
    made = []
    for place, block in enumerate(blocks(options), 1):
        group = f"{place}/{block.arm.name}"
        made.append(_item(asked(options)[0], block.arm, f"{group}/warm-up", group, warmup=True))
        for number in block.rounds:
            order = asked(options)[:: 1 if number % 2 else -1]
            made += [_item(question, block.arm, f"{group}/{number}/{question.name}", group) for question in order]
    return made


def _interleaved(options: Options) -> list[Item]:
    made = [_item(asked(options)[0], arm, f"{arm.name}/warm-up", "all", warmup=True) for arm in options.arms]
    for place, question in enumerate(asked(options)):
        for number in range(options.rounds):
            turned = (place + number) % 2  # and every other prompt begins with the second arm
            for arm in options.arms[:: -1 if turned else 1]:
                made.append(_item(question, arm, f"{arm.name}/{number + 1}/{question.name}", "all"))
    return made


def _item(question: Question, arm: Arm, name: str, group: str, *, warmup: bool = False) -> Item:
    values = with_question(question, thinking=arm.thinking, raw=arm.raw)
    weight = question.max_tokens + question.context_tokens / 10
    return Item(name, arm.target, {**values, "arm": arm.name}, warmup, group, weight)
