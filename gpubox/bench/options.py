"""The options of every benchmark kind, declared once for the command line and for the form of the Bench screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

KIND_SUMMARIES: Mapping[str, str] = {
    "speed": "prompt and generation speed, TTFT and draft acceptance",
    "ab": "two profiles, or one profile with and without a change",
    "sweep": "a grid of flag values: which one is fastest",
    "tune": "the fastest flags of a profile that fit",
    "soak": "minutes of an agent's load: slowdowns and growing memory",
    "quality": "how far quants and KV types are from a reference",
    "humaneval": "pass@1 on the 164 HumanEval problems",
    "suite": "twelve tasks of coding, reasoning, tool use and speed",
}
"""What each kind measures, in at most 60 characters: the form has one line for it."""
URL_KINDS = frozenset({"speed", "soak", "humaneval", "suite"})
"""Kinds that can measure a server by its address instead of a profile."""


@dataclass(frozen=True, slots=True)
class BenchOption:
    """One option of ``gpubox bench KIND``; with ``in_form`` also a row of the form."""

    name: str
    """The flag without its dashes."""
    help: str
    """A phrase without a full stop; at most 28 characters for a row of the form."""
    type: Literal["integer", "number", "text", "list", "integers", "choice", "switch"] = "integer"
    default: str = ""
    """What the benchmark does without the option, as text."""
    metavar: str = "N"
    minimum: float = 1
    maximum: int | None = None
    exclusive: bool = False
    """``minimum`` itself is refused."""
    choices: tuple[tuple[str, str], ...] = ()
    """(value, its words in the form); the first is the default, with the value ``""``."""
    repeated: bool = False
    required: bool = False
    example: str = ""
    detail: str = ""
    """More help, for the command line only."""
    key: str = ""
    """The name in ``Plan.options``; ``""``: ``name`` with underscores."""
    in_form: bool = False

    @property
    def label(self) -> str:
        """The name of the form's row."""
        return self.name.removeprefix("no-")

    @property
    def values(self) -> tuple[str, ...]:
        """What an option with choices accepts."""
        values = tuple(value for value, _ in self.choices if value)
        return (self.default, *values) if self.default and self.default not in values else values


_DOMAINS = BenchOption("domains", "Any of code, math, general", "list", "all", "LIST")
_PROMPTS = BenchOption("prompts", "Prompts per domain", maximum=17, in_form=True)
_ANSWER_TOKENS = BenchOption("max-tokens", "Tokens per answer", minimum=2, in_form=True)
_CONTEXT = BenchOption("context", "Context tokens before each prompt", minimum=0, key="context_tokens")
_STARTS = BenchOption("starts", "Starts of each server", in_form=True)
_SET = BenchOption(
    "set", "Changed flag of B", "text", metavar="FLAG=VALUE", repeated=True, example="n-cpu-moe=20",
    detail="an empty value removes the flag", in_form=True,
)  # fmt: skip
_TEMPERATURE = BenchOption("temperature", "Temperature of chat and agentic", "number", "0", "T", minimum=0)
_THINKING = BenchOption("thinking", "Let a thinking model think", "switch")
KIND_OPTIONS: Mapping[str, tuple[BenchOption, ...]] = {
    "speed": (
        BenchOption("preset", "Fixed protocol", "choice", metavar="NAME", choices=(
            ("", "short to long, code, depths"), ("quick", "quick: short and code"),
            ("game", "game: 2,000 tokens, ten times"), ("lengths", "lengths: 128, 512, 2,048"),
            ("chat", "chat: 50 prompts, three seeds"),
        ), in_form=True),
        BenchOption("prompts", "Any of short, medium, long, code", "list", "all", "LIST"),
        BenchOption("depths", "Context before the prompt", "integers", "0,8192,32768", "LIST", in_form=True),
        BenchOption("streams", "Requests at once", "integers", metavar="LIST", example="1,2,4,8", in_form=True,
                    detail="the report gives tg of all together and of each, and the knee: the number of streams that "
                           "no larger one beats by 5 %; the server needs as many slots (flag parallel)"),
        BenchOption("prefix", "Prompt cache", "choice", "both", "STATE", choices=(
            ("", "cold and warm"), ("cold", "cold"), ("warm", "warm"),
        ), key="prefixes"),
        BenchOption("repeats", "Repeats of each cell", default="5", in_form=True),
        replace(_STARTS, default="1"),
        BenchOption("max-tokens", "Tokens per answer", default="set by the prompt", in_form=True),
        _THINKING,
        BenchOption("price", "Price of the machine, for tg per $1,000", "number",
                    "price-dollars of config.toml", "DOLLARS", minimum=0, exclusive=True),
        BenchOption("no-llama-bench", "Do not run llama-bench", "switch", choices=(
            ("", "if installed"), ("--no-llama-bench", "skipped"),
        ), in_form=True),
    ),
    "ab": (
        _SET,
        BenchOption("vary", "Change one setting of A", "choice", metavar="SETTING", choices=(
            ("", "none"), ("mtp", "MTP"), ("mmap", "mmap"), ("thinking", "thinking"), ("completion", "/v1/completions"),
        ), in_form=True),
        replace(_STARTS, help="At most N starts per side", default="6", detail="a clear verdict ends the run earlier"),
        replace(_PROMPTS, default="4; 10 with one server"),
        _DOMAINS,
        replace(_ANSWER_TOKENS, default="128"),
        replace(_CONTEXT, default="0"),
    ),
    "sweep": (
        BenchOption("over", "Flag and its values", "text", metavar="FLAG=VALUES", repeated=True,
                    example="n-cpu-moe=16..28:2", in_form=True,
                    detail="a range with its step, or a list (16,20); model=A.gguf,B.gguf compares files; required "
                           "with a single profile"),
        replace(_SET, help="Changed flag of every cell", detail=""),
        BenchOption("by", "Speed to compare", "choice", "tg", "SPEED", choices=(
            ("", "tg"), ("pp", "pp"), ("effective", "effective"),
        ), detail="effective counts the prompt's time, too", in_form=True),
        replace(_STARTS, help="Starts of each finalist", default="4"),
        BenchOption("finalists", "Cells compared at the end", default="4", minimum=2, in_form=True),
        replace(_PROMPTS, default="3"),
        _DOMAINS,
        replace(_ANSWER_TOKENS, default="64"),
        replace(_CONTEXT, default="512; 0 for draft windows"),
    ),
    "tune": (
        BenchOption("goal", "What is to be fast", "choice", "tg", "GOAL", choices=(
            ("", "tg: generation"), ("pp", "pp: prompts"), ("agent", "agent: turns of agents"),
        ), detail="agent is a few agents at once with a shared prefix", in_form=True),
        BenchOption("keep-free", "Free memory on each card", "text", "1GiB", "SIZE", in_form=True),
        BenchOption("minutes", "Time in minutes", "number", "30", minimum=0, exclusive=True, in_form=True),
        BenchOption("over", "Flag and its values", "text", metavar="FLAG=VALUES", repeated=True,
                    example="threads=4,8", detail="instead of those that gpubox chooses", in_form=True),
        BenchOption("kv-types", "KV cache types to try", "list", metavar="LIST", example="f16,q8_0",
                    detail="they change the answers: compare their quality as well", in_form=True),
        replace(_PROMPTS, default="2; pp: 1", in_form=False),
        replace(_ANSWER_TOKENS, default="64; pp: 8; agent: 48", in_form=False),
        replace(_CONTEXT, help="Context tokens, or the agents' shared prefix",
                default="512; 0 with draft windows; pp, agent: 2048"),
        BenchOption("streams", "Agents at once", default="3", maximum=64),
        BenchOption("turns", "Turns of each agent", default="3", maximum=64),
    ),
    "soak": (
        BenchOption("minutes", "Duration in minutes", "number", "15", minimum=0, exclusive=True, in_form=True),
        replace(_ANSWER_TOKENS, default="128", in_form=False),
        BenchOption("context", "Longest conversation in tokens", default="16384", minimum=512, key="context_tokens"),
        BenchOption("window", "Seconds per row of the report", "number", "20", "S", minimum=0, exclusive=True,
                    key="window_seconds"),
    ),
    "quality": (
        BenchOption("reference", "Target to compare with", "text", "the first", "TARGET"),
        replace(_SET, help="A with this flag as a target", in_form=True),
        BenchOption("chunks", "Chunks of the text", default="all", minimum=2, in_form=True),
        BenchOption("context", "Tokens of a chunk", default="512", minimum=128, in_form=True),
        BenchOption("needle", "Needles in long contexts", "switch", choices=(
            ("", "not asked"), ("--needle", "asked"),
        ), in_form=True),
        BenchOption("needle-tokens", "Lengths of the contexts with needles", "integers", "2048,8192", "LIST"),
        BenchOption("method", "Who computes it", "choice", "", "METHOD", choices=(
            ("", "llama-perplexity, if there"), ("llama-perplexity", "llama-perplexity"),
            ("server", "server: top tokens"),
        ), in_form=True),
        BenchOption("text", "Another text, of your own", "text", metavar="FILE"),
    ),
    "humaneval": (
        BenchOption("mode", "How each problem is asked", "choice", "vanilla", "MODE", choices=(
            ("", "vanilla: as lm-eval"), ("chat", "chat: one answer"), ("agentic", "agentic: five rounds"),
            ("all", "all three, compared"),
        ), key="modes", in_form=True),
        BenchOption("limit", "First N problems", default="164", in_form=True),
        BenchOption("parallel", "Problems at a time", default="1", maximum=256, in_form=True),
        BenchOption("max-tokens", "Tokens per reply", default="1024 for vanilla, else 2048"),
        BenchOption("rounds", "Rounds of the agentic mode", default="5"),
        _TEMPERATURE,
        replace(_THINKING, help="Let a thinking model think in chat and agentic"),
    ),
    "suite": (
        BenchOption("tasks", "Tasks to run, such as 1.1,5.3", "list", "all", "LIST"),
        BenchOption("repeats", "Answers per task", default="1", detail="their mean counts", in_form=True),
        BenchOption("compat", "Totals as in the article", "switch", choices=(
            ("", "of all tasks"), ("--compat", "as in the article"),
        ), in_form=True),
        BenchOption("ref-tps", "tok/s that score 100", "number", "the fastest of several profiles", "RATE",
                    minimum=0, exclusive=True),
        BenchOption("max-tokens", "Tokens per answer", default="4096; thinking: 8192", in_form=True),
        BenchOption("speed-tokens", "Tokens of each speed task, for a quick trial", minimum=2),
        replace(_TEMPERATURE, help="Temperature of groups 1 to 4", default="the profile's"),
    ),
}  # fmt: skip
