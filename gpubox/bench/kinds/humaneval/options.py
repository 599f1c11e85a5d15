"""What a HumanEval run asks, and how. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpubox.bench.benchmark import check_numbers
from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.errors import UsageError

MODES = {
    "vanilla": "the bare completion, as lm-eval 0.4.12's local-completions asks and scores it",
    "chat": "one answer to the same task in the chat",
    "agentic": "up to five rounds of writing, running and mending in the sandbox",
}
MODE_WEIGHTS = {"vanilla": 1.0, "chat": 1.5, "agentic": 5.0}
STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Of lm-eval's humaneval.yaml; the model's own end of text is added."""
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
    """Of one HumanEval run."""

    modes: tuple[str, ...] = ("vanilla",)
    limit: int | None = None
    """The first so many problems; ``None``: all 164."""
    max_tokens: int | None = None
    """Of one reply: 1,024 vanilla, 2,048 else, 8,192 where the model may think."""
    rounds: int = 5
    thinking: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Of chat and agentic; vanilla is always greedy. Without it they are greedy, too."""

    def tokens(self, mode: str) -> int:
        """Most tokens of one reply."""
        return self.max_tokens or (1024 if mode == "vanilla" else 8192 if self.thinking else 2048)

    @property
    def chosen(self) -> Mapping[str, float]:
        return {"temperature": 0.0, "seed": 1234, **self.sampling}

    def problems(self) -> list[Problem]:
        """Those to ask."""
        return list(load_problems().values())[: self.limit]


def parse_options(values: Mapping[str, Any]) -> HumanEvalOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, HumanEvalOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of a HumanEval run cannot be: {error}.") from None
    check_numbers(values)
    if unknown := [mode for mode in options.modes if mode not in MODES]:
        raise UsageError(f"There is no mode {unknown[0]!r}.", f"There are: {', '.join(MODES)} and all.")
    if not options.modes or len(set(options.modes)) < len(options.modes):
        raise UsageError("Name each mode once, and at least one.")
    if (options.limit is not None and options.limit < 1) or options.rounds < 1 or (options.max_tokens or 1) < 1:
        raise UsageError("Limit, rounds and max-tokens must be at least 1.")
    return options
