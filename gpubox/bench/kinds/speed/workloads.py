"""What a speed run measures: its options, the presets, and the cells they come to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gpubox.bench.benchmark import check_numbers
from gpubox.bench.prompts import CHAT_PROMPTS, GAME_PROMPT, SPEED_PROMPTS, SPEED_TOKENS
from gpubox.errors import UsageError

Prefix = Literal["cold", "warm"]
CHAT_SEEDS = (42, 1337, 2024)
DEPTH_PROMPT = "short"
"""The one prompt that is asked at a depth: 128 tokens, as llama-bench's ``tg128 @ d8192``."""
PRESETS = {
    "": "short, medium, long and code answers, cold; at each depth a short one, cold and warm",
    "quick": "short and code answers, cold, five times",
    "game": "one HTML game of 2,000 tokens, ten times (temperature 0.6, top_k 20)",
    "lengths": "128, 512 and 2,048 tokens, three times each, temperature 0, median",
    "chat": "50 chat prompts of 64 tokens in code, math and general arms, three seeds, greedy",
}

PRESET_OVERRIDES: Mapping[str, tuple[str, ...]] = {
    "quick": ("repeats", "starts", "max_tokens", "thinking"),
    "game": ("max_tokens", "starts"),
    "lengths": ("max_tokens", "thinking", "starts"),
    "chat": ("max_tokens", "starts"),
}
"""What of its protocol a preset leaves to the owner."""


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """Of one speed run."""

    preset: str = ""
    prompts: tuple[str, ...] = tuple(SPEED_PROMPTS)
    depths: tuple[int, ...] = (0, 8192, 32768)
    """Tokens of context before the question."""
    prefixes: tuple[Prefix, ...] = ("cold", "warm")
    repeats: int = 5
    """Of each cell in one start."""
    starts: int = 1
    """Of each server; of several targets in an order drawn at random."""
    warmups: int = 1
    max_tokens: int | None = None
    """For every prompt instead of its own."""
    sampling: Mapping[str, float] = field(default_factory=lambda: {"temperature": 0.0, "seed": 1})
    thinking: bool = False
    price: float | None = None
    """What the box cost, in dollars."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the report: the same request, repeated."""

    prompt: str
    text: str
    max_tokens: int
    prefix: Prefix
    depth: int
    sampling: Mapping[str, float]
    repeats: int
    warmups: int
    fixed_length: bool = True
    """Generation goes on to ``max_tokens`` whatever the model would end with."""
    arm: str = ""
    """Where the prompts are the sampling unit: the domain they are reported in."""
    thinking: bool = False

    @property
    def id(self) -> str:
        return f"{self.prompt}/{self.prefix}/d{self.depth}"

    @property
    def greedy(self) -> bool:
        """Every repeat is the same answer: of acceptance one observation."""
        return self.sampling.get("temperature") == 0

    @property
    def weight(self) -> float:
        """Generated tokens, and what a prompt costs beside them."""
        return self.max_tokens + (self.depth / 10 if self.prefix == "cold" else 0)


def parse_options(values: Mapping[str, Any]) -> SpeedOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, SpeedOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of a speed run cannot be: {error}.") from None
    check_numbers(values)
    if options.preset not in PRESETS:
        raise UsageError(f"There is no preset {options.preset!r}.", f"There are: {', '.join(filter(None, PRESETS))}.")
    if unknown := [name for name in options.prompts if name not in SPEED_PROMPTS]:
        raise UsageError(f"There is no prompt {unknown[0]!r}.", f"There are: {', '.join(SPEED_PROMPTS)}.")
    if options.starts < 1:
        raise UsageError("A server is started at least once.")
    if options.repeats < 1 or options.warmups < 0 or any(depth < 0 for depth in options.depths):
        raise UsageError("Repeats must be at least 1, warm-ups and depths at least 0.")
    if not options.prompts or not options.depths or not options.prefixes:
        raise UsageError("There is nothing to measure.", "Name at least one prompt, depth and prefix.")
    return options


def workloads_of(options: SpeedOptions) -> Sequence[Workload]:
    """Every cell in the order of execution."""
    if options.preset == "game":
        sampling = {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
        return [Workload("game", GAME_PROMPT, options.max_tokens or 2000, "cold", 0, sampling, 10, 0)]
    if options.preset == "lengths":
        names = ("short", "medium", "long")
        return [_cell(options, name, "cold", 0, sampling={"temperature": 0.0}, repeats=3) for name in names]
    if options.preset == "chat":
        return _chat(options)
    if options.preset == "quick":
        return [_cell(options, name, "cold", 0) for name in ("short", "code")]
    shallow = [_cell(options, name, "cold", 0) for name in options.prompts if 0 in options.depths]
    question = DEPTH_PROMPT if DEPTH_PROMPT in options.prompts else options.prompts[0]
    cells = shallow if "cold" in options.prefixes else []
    for depth in options.depths:
        cells += [_cell(options, question, p, depth) for p in options.prefixes if depth or p == "warm"]
    return cells


def _cell(options: SpeedOptions, name: str, prefix: Prefix, depth: int, **other: Any) -> Workload:
    values = {"sampling": options.sampling, "repeats": options.repeats, "warmups": options.warmups, **other}
    if prefix == "warm":
        values["warmups"] = max(1, values["warmups"])  # it is what fills the cache
    tokens = options.max_tokens or SPEED_TOKENS[name]
    return Workload(name, SPEED_PROMPTS[name], tokens, prefix, depth, thinking=options.thinking, **values)


def _chat(options: SpeedOptions) -> list[Workload]:
    cells: list[Workload] = []
    for seed in CHAT_SEEDS:
        sampling = {"temperature": 0.0, "top_k": 1, "seed": seed}
        for arm, prompts in CHAT_PROMPTS.items():
            for number, text in enumerate(prompts, 1):
                name = f"{arm}-{number:02d}-s{seed}"
                tokens = options.max_tokens or 64
                first = 1 if not cells else 0  # one warm-up of the whole
                cells.append(Workload(name, text, tokens, "cold", 0, sampling, 1, first, fixed_length=False, arm=arm))
    return cells
