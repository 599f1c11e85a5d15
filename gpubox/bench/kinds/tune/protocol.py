"""The protocol of a tune: its options, and what each start is asked, fitted to the time that it was given. Pure.

The load of the goal ``agent`` is a few agents at once that share a long system prompt, each for a few turns. All
streams begin together. Each sends the shared prefix and a file, gets an answer of a fixed length, appends a tool's
output and goes on; the cache is used as an agent would. The rate is turns per minute: all turns over the time from the
first request to the last token. It pays for reading the prefix (once per slot), for new text at depth, for generation
beside other streams, and for waiting if there are fewer slots than streams.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpubox.bench.benchmark import check_items
from gpubox.bench.compare.contest import FINALISTS, ONCE
from gpubox.bench.compare.starts import MIN_STARTS
from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.kinds.tune.progress import FlagChange, Goal
from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, RawRecord, Result, Target
from gpubox.bench.overrides import format_flag_value
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.questions import DOMAINS, Question, context_filler, questions
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue

if TYPE_CHECKING:
    from gpubox.bench.target_server import TargetServer


FILE_WORDS, OUTPUT_WORDS = 150, 60
_TOKENS_PER_WORD = 2
"""At most, of filler text."""
_TEMPLATE_TOKENS = 256


def needed_context(load: Protocol) -> int:
    """Tokens of the longest conversation, at most."""
    words = FILE_WORDS + OUTPUT_WORDS * load.turns
    return load.context_tokens + _TOKENS_PER_WORD * words + load.turns * load.max_tokens + _TEMPLATE_TOKENS


async def run_load(load: Protocol, item: Item, target_server: TargetServer) -> dict[str, Any]:
    """Puts the load on the active target: every turn and the time of all. Raises GpuboxError as ``measure_request``."""
    prefix = await context_filler(target_server, load.context_tokens)
    began = time.perf_counter()
    streams = [asyncio.create_task(_stream(number, prefix, load, item, target_server, began))
               for number in range(load.streams)]  # fmt: skip
    try:
        turns = [turn for own in await asyncio.gather(*streams) for turn in own]
    finally:
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return {"turns": turns, "wall_seconds": time.perf_counter() - began}


async def _stream(
    number: int, prefix: str, load: Protocol, item: Item, target_server: TargetServer, began: float
) -> list[dict[str, Any]]:
    """The turns of one agent. Its texts depend on its number alone, so every start gets the same load."""
    tasks = CHAT_PROMPTS["code"]
    task = f"{tasks[number % len(tasks)]}\n\nThe file:\n{filler_text(FILE_WORDS, seed=1000 + number)}"
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": task}]
    turns = []
    for turn in range(load.turns):
        at = time.perf_counter() - began
        body = {
            "messages": messages,
            "max_tokens": load.max_tokens,
            "temperature": 0.0,
            "top_k": 1,
            "seed": 1,
            "cache_prompt": True,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        reply = (await measure_request(target_server, item.id, body))["reply"]
        turns.append({"stream": number, "turn": turn, "at": round(at, 3), "reply": reply})
        output = filler_text(OUTPUT_WORDS, seed=2000 + 100 * number + turn)
        messages = [
            *messages,
            {"role": "assistant", "content": reply["text"] or reply["reasoning"]},
            {"role": "user", "content": f"Output:\n{output}\n\nGo on."},
        ]
    return turns


def load_result(item: Item, raw: RawRecord) -> Result:
    """The result of one load: turns per minute, and medians of its turns."""
    replies = [stored_reply(turn) for turn in raw.data["turns"]]
    seconds = float(raw.data["wall_seconds"])
    if not replies or seconds <= 0 or any(not reply.generated_tokens for reply in replies):
        return Result(item.id, error="a turn had no answer")
    values: dict[str, Any] = {
        "agent": 60 * len(replies) / seconds,
        "turn_seconds": statistics.median(reply.wall_seconds for reply in replies),
        "generated_tokens": sum(reply.generated_tokens or 0 for reply in replies),
        "cached_tokens": sum(reply.cached_tokens or 0 for reply in replies),
        "prompt_tokens": sum(reply.prompt_tokens or 0 for reply in replies),
    }
    for name in ("ttft_seconds", "tg", "pp"):
        known = [value for reply in replies if (value := getattr(reply, name)) is not None]
        values[name] = statistics.median(known) if known else None
    return Result(item.id, values)


OWN = "own flags"
MAX_STARTS = 16
"""Of each finalist."""
ENOUGH = 0.03
"""A tune ends when no set of flags can win by more than this."""
CALIBRATION_TOKENS = 16
CALIBRATION_CONTEXT: Mapping[Goal, int] = {"tg": 64, "pp": 256, "agent": 64}
"""The first question shows how fast the box is; what every start is asked is then chosen."""
_QUESTION_TOKENS = 60
"""Of a prompt without its context, roughly."""
_TURN_TOKENS = 250
"""That an agent's turn reads besides the shared prefix, roughly."""
_RESERVE = 0.9
"""Of the time; the rest is for starts that take longer."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What one start is asked."""

    prompts: int = 2
    """Of each domain; 0: one prompt in all."""
    max_tokens: int = 64
    """Of each answer."""
    context_tokens: int = 512
    """Before each prompt; with the goal ``agent`` the length of the shared prefix."""
    streams: int = 3
    """Conversations at once, with the goal ``agent``."""
    turns: int = 3
    """Of each conversation, with the goal ``agent``."""

    @property
    def questions(self) -> list[Question]:
        """Raises UsageError."""
        domains = DOMAINS if self.prompts else DOMAINS[:1]
        return questions(max(1, self.prompts), self.max_tokens, domains, self.context_tokens)


FIRST_CHOICE: Mapping[Goal, Protocol] = {
    "tg": Protocol(),
    "pp": Protocol(1, 8, 2048),
    "agent": Protocol(1, 48, 2048),
}
"""With enough time."""
_SHORTER: Mapping[Goal, Sequence[Mapping[str, int]]] = {
    "tg": (
        {"max_tokens": 48, "context_tokens": 256},
        {"prompts": 1, "max_tokens": 48, "context_tokens": 128},
        {"prompts": 1, "max_tokens": 32, "context_tokens": 64},
        {"prompts": 1, "max_tokens": 24, "context_tokens": 0},
        {"prompts": 0, "max_tokens": 24, "context_tokens": 0},
    ),
    "pp": (
        {"context_tokens": 1024},
        {"context_tokens": 512},
        {"context_tokens": 256},
        {"prompts": 0, "context_tokens": 256},
    ),
    "agent": (
        {"max_tokens": 32, "context_tokens": 1024},
        {"max_tokens": 24, "context_tokens": 512, "turns": 2},
        {"max_tokens": 16, "context_tokens": 128, "turns": 2},
    ),
}
"""What is asked if time is short, the longest first."""


@dataclass(frozen=True, slots=True)
class AxisRecord:
    """One axis of a tune, as its plan keeps it."""

    flag: str
    labels: tuple[str, ...]
    """Its values as they are written."""
    more_vram: int = 0
    """1: a higher level needs more VRAM, -1: less; 0: unknown, or neither."""
    more_ram: int = 0


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of one tune."""

    axes: tuple[AxisRecord, ...]
    cells: Mapping[str, tuple[int, ...]]
    """The level on each axis of every target of the plan, by its name."""
    goal: Goal = "tg"
    minutes: float = 30.0
    prompts: int | None = None
    """As the other fields of ``Protocol``: given by the owner. ``None``: chosen by the time there is."""
    max_tokens: int | None = None
    context_tokens: int | None = None
    streams: int | None = None
    turns: int | None = None
    most_context: int | None = None
    """What a slot holds before the prompt."""
    lossy: tuple[str, ...] = ()
    """The cells that change the profile's answers."""
    pruned: Mapping[str, int] = field(default_factory=dict)
    """Why sets of flags are no cells -> their number."""

    def protocols(self) -> list[Protocol]:
        """What a start may be asked, the longest first."""
        names = ("prompts", "max_tokens", "context_tokens", "streams", "turns")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        first = FIRST_CHOICE[self.goal]
        chosen = [replace(first, **{**shorter, **given}) for shorter in ({}, *_SHORTER[self.goal])]
        if self.most_context is not None and self.context_tokens is None:
            chosen = [replace(each, context_tokens=min(each.context_tokens, self.most_context)) for each in chosen]
        return chosen

    @property
    def calibration(self) -> Question:
        """The first question of all. Raises UsageError."""
        contexts = [CALIBRATION_CONTEXT[self.goal], self.most_context, self.context_tokens]
        context = min(tokens for tokens in contexts if tokens is not None)
        return questions(1, CALIBRATION_TOKENS, DOMAINS[:1], context)[0]

    def needs_no_less(self, cell: str, failed: str, memory: str) -> bool:
        """Whether ``cell`` needs at least as much VRAM or RAM as ``failed`` on every axis."""
        for axis, own, other in zip(self.axes, self.cells[cell], self.cells[failed], strict=True):
            direction = axis.more_vram if memory == "VRAM" else axis.more_ram
            if own != other and (own - other) * direction <= 0:
                return False
        return True


def fitted_protocol(options: TuneOptions, load_seconds: float, pp: float | None, tg: float | None) -> Protocol:
    """The longest protocol with which the time is enough to start every cell once and to compare the best."""
    protocols, cells = options.protocols(), len(options.cells)
    finalists = 1 + min(FINALISTS, cells - 1)
    starts = (0 if cells == finalists else 1.5 * min(cells, ONCE)) + (MIN_STARTS + 2) * finalists
    for protocol in protocols:
        if starts * (load_seconds + _seconds(options.goal, protocol, pp, tg)) <= _RESERVE * 60 * options.minutes:
            return protocol
    return protocols[-1]


def _seconds(goal: Goal, protocol: Protocol, pp: float | None, tg: float | None) -> float:
    """How long a start is asked, about."""
    reading, writing = 1 / pp if pp else 0.0, 1 / tg if tg else 0.0
    if goal == "agent":
        turns = protocol.streams * protocol.turns
        read = protocol.streams * protocol.context_tokens + turns * _TURN_TOKENS
        return read * reading + turns * protocol.max_tokens * writing
    each = (protocol.context_tokens + _QUESTION_TOKENS) * reading + protocol.max_tokens * writing
    return (1 + len(protocol.questions)) * each


def flag_changes(options: TuneOptions, overrides: Mapping[str, FlagValue]) -> list[FlagChange]:
    """What ``overrides`` change in the profile."""
    own = {axis.flag: axis.labels[level] for axis, level in zip(options.axes, options.cells[OWN], strict=True)}
    return [FlagChange(flag, own.get(flag, ""), format_flag_value(value)) for flag, value in overrides.items()]


def parse_options(values: Mapping[str, Any], targets: Sequence[Target]) -> TuneOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, TuneOptions)
    names = {target.name for target in targets}
    if OWN not in options.cells or set(options.cells) != names or targets[0].name != OWN:
        raise UsageError("The cells of this tune are not its targets.")
    shape = [len(axis.labels) for axis in options.axes]
    for place in options.cells.values():
        if len(place) != len(shape) or any(not 0 <= at < count for at, count in zip(place, shape, strict=True)):
            raise UsageError("A cell of this tune is beyond its axes.")
    if len(names) < 2:
        raise UsageError("There is nothing to tune: no other set of flags is left.", "Name values: --over threads=4,8")
    longest = options.protocols()[0]
    if not options.minutes > 0 or min(longest.streams, longest.turns) < 1 or longest.max_tokens < 2:
        raise UsageError("A tune needs time, at least one prompt and answers of at least two tokens.")
    check_items(MAX_STARTS * len(longest.questions))
    return options
