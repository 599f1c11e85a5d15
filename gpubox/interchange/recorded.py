"""llama-server's options as a recorded ``--help`` states them: import works where no engine is installed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gpubox.engines.capabilities import Capabilities, Option, parse_help

_HELP = Path(__file__).parent / "data" / "llama-server.help.txt"


@cache
def recorded() -> Capabilities:
    """The options of the recorded build (11434). It only spells names and counts values; it refuses nothing."""
    return parse_help(_HELP.read_text(encoding="utf-8"))


def long_name(short: str) -> str | None:
    """The long name for an option typed with one dash (``ngl`` -> ``n-gpu-layers``), or ``None``."""
    option = recorded().option(short)
    if option is None:
        return None
    if short.startswith("n") and option.value is None:  # "-nr" switches off what "--repack" switches on
        negative = next((n for n in (*option.names, *option.negatives) if n.startswith("no-") and len(n) > 6), None)
        if negative and short not in {option.names[0], option.long}:
            return negative
    return recorded().canonical(short)


@cache
def long_names() -> frozenset[str]:
    """The names that are typed with two dashes; the parsed help does not tell them from short ones."""
    return frozenset(re.findall(r"--([A-Za-z][\w-]*)", _HELP.read_text(encoding="utf-8")))


def option_of_variable(variable: str) -> Option | None:
    """The option that an environment variable such as ``LLAMA_ARG_CTX_SIZE`` sets, or ``None``."""
    return next((option for option in recorded().options if option.env == variable), None)


def model_argv(model: str) -> list[str]:
    """A profile's ``model`` in llama-server's own words, the file not looked for."""
    if model.startswith("hf:"):
        return ["--hf-repo", model.removeprefix("hf:")]
    return ["--model", model]
