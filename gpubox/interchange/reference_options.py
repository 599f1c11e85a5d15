"""The options of a reference build of llama-server, from its ``--help``: imports work without an engine."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gpubox.engines.capabilities import Capabilities, EngineOption, parse_help
from gpubox.engines.replaced_flags import REPLACED_FLAGS

TRUE, FALSE = {"1", "true", "on", "enabled"}, {"0", "false", "off", "disabled"}
_HELP = Path(__file__).parent / "data" / "llama-server.help.txt"


@cache
def reference_options() -> Capabilities:
    """The options of build 11434: their names and numbers of values."""
    return parse_help(_HELP.read_text(encoding="utf-8"))


def long_name(short: str) -> str | None:
    """The long name of a short option (``ngl`` -> ``n-gpu-layers``), or ``None``."""
    option = reference_options().option(short)
    if option is None:
        return None
    if short.startswith("n") and option.value is None:  # "-nr" is "--no-repack"
        negative = next((n for n in (*option.names, *option.negatives) if n.startswith("no-") and len(n) > 6), None)
        if negative and short not in {option.names[0], option.long}:
            return negative
    return reference_options().canonical(short)


@cache
def long_names() -> frozenset[str]:
    """The names with two dashes; the parsed help does not distinguish them from short ones."""
    return frozenset(re.findall(r"--([A-Za-z][\w-]*)", _HELP.read_text(encoding="utf-8")))


def option_for_variable(variable: str) -> EngineOption | None:
    """The option of an environment variable such as ``LLAMA_ARG_CTX_SIZE``, or ``None``."""
    return next((option for option in reference_options().options if option.env == variable), None)


def variable_arguments(variable: str, value: str) -> list[str] | None:
    """The arguments that one of llama-server's variables stands for; ``None`` for other variables.

    ``LLAMA_ARG_NO_X`` disables X with any value (common/arg.cpp ``get_value_from_env``, b11434). Variables of replaced
    options stand for the old option.
    """
    if not variable.startswith("LLAMA_ARG_"):
        return None
    if option := option_for_variable(variable):
        return flag_arguments(option.long, value)
    if (option := option_for_variable(variable.replace("LLAMA_ARG_NO_", "LLAMA_ARG_", 1))) and option.negatives:
        return [f"--no-{option.long}"]
    name = variable.removeprefix("LLAMA_ARG_").lower().replace("_", "-")
    if name not in REPLACED_FLAGS:
        return None
    if REPLACED_FLAGS[name].takes:
        return [f"--{name}", value]
    off = name if value.lower() in TRUE else f"no-{name}"
    return [f"--{off}"] if off in REPLACED_FLAGS else []


def flag_arguments(name: str, value: str) -> list[str]:
    """``name = value`` of an INI file or of the environment as arguments of llama-server."""
    option = reference_options().option(name)
    dashed = f"-{name}" if option and name.replace("_", "-") not in long_names() else f"--{name}"
    bare = option.value is None if option else value.lower() in {"true", "false"}
    if not bare:
        return [dashed, value]
    if value.lower() in TRUE:
        return [dashed]
    if value.lower() not in FALSE:
        return [dashed, value]
    return [f"--no-{name}"] if option is None or option.negatives else []


def model_arguments(model: str) -> list[str]:
    """The arguments of llama-server for a profile's ``model``; a file is not searched."""
    if model.startswith("hf:"):
        return ["--hf-repo", model.removeprefix("hf:")]
    return ["--model", model]
