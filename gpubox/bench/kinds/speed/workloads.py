"""The options of a speed run, its presets, and the workloads they amount to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gpubox.bench.kinds.shared import convert_options
from gpubox.bench.prompts import CHAT_PROMPTS, GAME_PROMPT, SPEED_PROMPTS, SPEED_TOKENS
from gpubox.errors import UsageError

Prefix = Literal["cold", "warm"]
Sampling = Mapping[str, int | float]
CHAT_SEEDS = (42, 1337, 2024)
DEPTH_PROMPT = "short"
"""The one prompt that is asked at a depth: 128 tokens, as llama-bench's ``tg128 @ d8192``."""
MAX_STREAMS = 64
QUICK_DEPTH, QUICK_TOKENS, QUICK_REPEATS = 8192, 64, 3
"""In a minute at 20 tok/s: two cells of four answers, and two of two streams."""
PRESETS = {
    "": "short, medium, long and code answers, cold; at each depth a short one, cold and warm",
    "quick": "short answers, the same behind 8,192 tokens of context, and two requests at once",
    "game": "one HTML game of 2,000 tokens, ten times (temperature 0.6, top_k 20)",
    "lengths": "128, 512 and 2,048 tokens, three times each, temperature 0, median",
    "chat": "50 chat prompts of 64 tokens in code, math and general, three seeds, greedy",
}
PRESET_OVERRIDES: Mapping[str, tuple[str, ...]] = {
    "quick": ("repeats", "starts", "max_tokens", "thinking"),
    "game": ("max_tokens", "starts"),
    "lengths": ("max_tokens", "thinking", "starts"),
    "chat": ("max_tokens", "starts"),
}
"""Preset -> the options that may be given with it."""


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """The options of one speed run."""

    preset: str = ""
    prompts: tuple[str, ...] = tuple(SPEED_PROMPTS)
    depths: tuple[int, ...] = (0, 8192, 32768)
    """Tokens of context before the question."""
    prefixes: tuple[Prefix, ...] = ("cold", "warm")
    """cold: the prompt cache is off; warm: the prompt is in the cache."""
    repeats: int = 5
    """Of each workload per start."""
    starts: int = 1
    """Of each server. Several targets are started in random order."""
    warmups: int = 1
    max_tokens: int | None = None
    """For every prompt instead of its own."""
    sampling: Sampling = field(default_factory=lambda: {"temperature": 0.0, "seed": 1})
    thinking: bool = False
    streams: tuple[int, ...] = ()
    """Numbers of requests at once; if given, nothing else is measured."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One request and how often it is repeated: one row of the report."""

    prompt: str
    text: str
    max_tokens: int
    prefix: Prefix
    depth: int
    sampling: Sampling
    repeats: int
    warmups: int
    fixed_length: bool = True
    """Generate exactly ``max_tokens``: ignore the end-of-text token."""
    domain: str = ""
    """Only where the prompts are the sampling unit: the row of the report they belong to."""
    thinking: bool = False

    @property
    def id(self) -> str:
        return f"{self.prompt}/{self.prefix}/d{self.depth}"

    @property
    def greedy(self) -> bool:
        """Whether every repeat gives the same answer, so that its acceptance is one observation."""
        return self.sampling.get("temperature") == 0

    @property
    def weight(self) -> float:
        """Relative cost: generated tokens, plus a tenth of the prompt tokens."""
        return self.max_tokens + (self.depth / 10 if self.prefix == "cold" else 0)


def parse_options(values: Mapping[str, Any]) -> SpeedOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SpeedOptions)
    if options.streams:
        options = _checked_streams(options, values)
    if options.preset == "quick" and "repeats" not in values:
        options = replace(options, repeats=QUICK_REPEATS)
    if options.preset not in PRESETS:
        raise UsageError(f"There is no preset {options.preset!r}.", f"Choose from: {', '.join(filter(None, PRESETS))}.")
    if unknown := [name for name in options.prompts if name not in SPEED_PROMPTS]:
        raise UsageError(f"There is no prompt {unknown[0]!r}.", f"Choose from: {', '.join(SPEED_PROMPTS)}.")
    if options.repeats < 1 or options.starts < 1 or options.warmups < 0 or any(depth < 0 for depth in options.depths):
        raise UsageError("Repeats and starts must be at least 1, warm-ups and depths at least 0.")
    if not options.prompts or not options.depths or not options.prefixes:
        raise UsageError("There is nothing to measure.", "Name at least one prompt, depth and prefix.")
    return options


def _checked_streams(options: SpeedOptions, values: Mapping[str, Any]) -> SpeedOptions:
    """Streams at depth 0 unless depths are given. Raises UsageError."""
    if fixed := [name for name in ("preset", "prompts", "prefixes") if values.get(name)]:
        raise UsageError(f"--streams has prompts of its own: it takes no --{fixed[0].removesuffix('es')}.")
    if any(not 1 <= count <= MAX_STREAMS for count in options.streams):
        raise UsageError(f"A number of streams must be 1 to {MAX_STREAMS}.", "Write: --streams 1,2,4,8")
    if len(set(options.streams)) != len(options.streams):
        raise UsageError("--streams names a number twice.")
    depths = tuple(dict.fromkeys(options.depths)) if "depths" in values else (0,)
    return replace(options, streams=tuple(sorted(options.streams)), depths=depths)


def workloads_of(options: SpeedOptions) -> Sequence[Workload]:
    """Every workload in the order of execution."""
    if options.preset == "game":
        sampling: Sampling = {"temperature": 0.6, "top_k": 20, "min_p": 0.0}
        return [Workload("game", GAME_PROMPT, options.max_tokens or 2000, "cold", 0, sampling, 10, 0)]
    if options.preset == "lengths":
        names = ("short", "medium", "long")
        return [_workload(options, name, "cold", 0, sampling={"temperature": 0.0}, repeats=3) for name in names]
    if options.preset == "chat":
        return _chat_workloads(options)
    if options.preset == "quick":
        quick = replace(options, max_tokens=options.max_tokens or QUICK_TOKENS)
        return [_workload(quick, DEPTH_PROMPT, "cold", 0), _workload(quick, DEPTH_PROMPT, "warm", QUICK_DEPTH)]
    shallow = 0 in options.depths and "cold" in options.prefixes
    workloads = [_workload(options, name, "cold", 0) for name in options.prompts] if shallow else []
    question = DEPTH_PROMPT if DEPTH_PROMPT in options.prompts else options.prompts[0]
    for depth in options.depths:
        workloads += [_workload(options, question, p, depth) for p in options.prefixes if depth or p == "warm"]
    return workloads


def quick_streams(options: SpeedOptions) -> SpeedOptions:
    """What the preset quick asks of two requests at once."""
    tokens = options.max_tokens or QUICK_TOKENS
    return replace(options, streams=(2,), depths=(0,), repeats=min(2, options.repeats), max_tokens=tokens)


def _workload(options: SpeedOptions, name: str, prefix: Prefix, depth: int, **other: Any) -> Workload:
    values = {"sampling": options.sampling, "repeats": options.repeats, "warmups": options.warmups, **other}
    if prefix == "warm":
        values["warmups"] = max(1, values["warmups"])  # the warm-up fills the cache
    tokens = options.max_tokens or SPEED_TOKENS[name]
    return Workload(name, SPEED_PROMPTS[name], tokens, prefix, depth, thinking=options.thinking, **values)


def _chat_workloads(options: SpeedOptions) -> list[Workload]:
    tokens = options.max_tokens or 64
    workloads: list[Workload] = []
    for seed in CHAT_SEEDS:
        sampling = {"temperature": 0.0, "top_k": 1, "seed": seed}
        for domain, prompts in CHAT_PROMPTS.items():
            for number, text in enumerate(prompts, 1):
                name = f"{domain}-{number:02d}-s{seed}"
                warmups = 0 if workloads else 1  # one for the whole run
                workloads.append(
                    Workload(name, text, tokens, "cold", 0, sampling, 1, warmups, fixed_length=False, domain=domain)
                )
    return workloads
