"""The options and prompts of a HumanEval run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.bench.kinds.shared import convert_options
from gpubox.errors import UsageError

MODE_WEIGHTS = {"vanilla": 1.0, "chat": 1.5, "agentic": 5.0}
"""Mode -> its relative cost. vanilla: the bare completion, as the local-completions model of lm-eval 0.4.12 asks and
scores it. chat: one chat answer. agentic: several rounds of writing, running and fixing in the sandbox."""
MODES = tuple(MODE_WEIGHTS)
STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""From lm-eval's humaneval.yaml. The model's end-of-text token is added."""
SYSTEM_PROMPT = "You are a careful Python programmer."
CHAT_PROMPT = (
    "Complete this Python function. Answer with the whole function and the imports it needs in one ```python block."
    "\n\n```python\n{}\n```"
)
AGENT_PROMPT = (
    "Complete this Python function. Write the whole function with the imports it needs, run it together with the "
    "examples of its docstring and a few checks of your own, and mend it until they pass. The last program that "
    "defines the function and ran without an error is your solution.\n\n```python\n{}\n```"
)


@dataclass(frozen=True, slots=True)
class HumanEvalOptions:
    """The options of one HumanEval run."""

    modes: tuple[str, ...] = ("vanilla",)
    limit: int | None = None
    """Only the first so many problems; ``None``: all 164."""
    max_tokens: int | None = None
    """Of one reply. Default: 1,024 in vanilla, 2,048 otherwise, 8,192 with thinking."""
    rounds: int = 5
    thinking: bool = False
    sampling: Mapping[str, int | float] = field(default_factory=dict)
    """Of chat and agentic, over the greedy defaults. vanilla is always greedy."""

    def reply_tokens(self, mode: str) -> int:
        """The max_tokens of one reply."""
        return self.max_tokens or (1024 if mode == "vanilla" else 8192 if self.thinking else 2048)

    @property
    def effective_sampling(self) -> dict[str, int | float]:
        return {"temperature": 0.0, "seed": 1234, **self.sampling}

    def problems(self) -> list[Problem]:
        """The problems to ask."""
        return list(load_problems().values())[: self.limit]


def parse_options(values: Mapping[str, Any]) -> HumanEvalOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, HumanEvalOptions)
    if unknown := [mode for mode in options.modes if mode not in MODES]:
        raise UsageError(f"There is no mode {unknown[0]!r}.", f"Choose from: {', '.join(MODES)}, all.")
    if not options.modes or len(set(options.modes)) < len(options.modes):
        raise UsageError("Name at least one mode, and each mode only once.")
    if (options.limit is not None and options.limit < 1) or options.rounds < 1 or (options.max_tokens or 1) < 1:
        raise UsageError("--limit, --rounds and --max-tokens must be at least 1.")
    return options
