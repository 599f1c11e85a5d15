"""What a kind of benchmark is: one object that its verb, its form, the runner and the reports are made from.

A kind is a module below ``gpubox.bench.kinds`` with a ``KIND``. It loads neither the benchmark nor its plan maker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.profiles.profile import Profile


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


@dataclass(frozen=True, slots=True)
class KindArgument:
    """What ``gpubox bench KIND`` takes without a flag, and the rows of the form that choose it."""

    key: str = "profiles"
    metavar: str = ""
    many: bool = False
    required: bool = False
    rows: tuple[tuple[str, str], ...] = (("profile", "Profile to measure"),)
    """Label and explanation of each row; every row chooses one profile."""


PROFILES = KindArgument(many=True)
"""Any number of profiles; without one what runs now."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of benchmark."""

    name: str
    summary: str
    """What it measures, in at most 60 characters: the form has one line for it."""
    help: str
    """Of its verb."""
    benchmark: str
    """``module:class`` of its ``Benchmark``, imported at the first use."""
    options: tuple[BenchOption, ...] = ()
    arguments: tuple[KindArgument, ...] = (PROFILES,)
    takes_url: bool = False
    """Whether it can measure a server by its address instead of a profile."""
    explained: bool = False
    """It starts servers many times, or takes long: the plan is printed first."""
    counts_tokens: bool = False
    """Its items have their number of tokens as weight."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a plan is made from, besides arguments and options."""

    paths: Paths
    config: Config
    profile: Callable[[str], Profile]
    """Raises UsageError if there is none of that name."""
    note: Callable[[str], None] = lambda text: None
    """Tells the owner something that he should know before the run."""


DOMAINS = BenchOption("domains", "Any of code, math, general", "list", "all", "LIST")
PROMPTS = BenchOption("prompts", "Prompts per domain", maximum=17, in_form=True)
ANSWER_TOKENS = BenchOption("max-tokens", "Tokens per answer", minimum=2, in_form=True)
CONTEXT = BenchOption("context", "Context tokens before each prompt", minimum=0, key="context_tokens")
STARTS = BenchOption("starts", "Starts of each server", in_form=True)
SET = BenchOption(
    "set",
    "Changed flag of B",
    "text",
    metavar="FLAG=VALUE",
    repeated=True,
    example="n-cpu-moe=20",
    detail="an empty value removes the flag",
    in_form=True,
)
TEMPERATURE = BenchOption("temperature", "Temperature of chat and agentic", "number", "0", "T", minimum=0)
THINKING = BenchOption("thinking", "Let a thinking model think", "switch")
