"""Converts the texts of llama-server's flags to values, as the handlers in common/arg.cpp do.

A bad text raises ValueError with the message that llama-server prints after ``error while handling argument``, even if
that is only the name of C++'s ``std::stoi``. ``xllamacpp`` is that module, which holds the enums.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpubox.storage import read_json
from gpubox.units import MIB

Convert = Callable[[Any, str], Any]
T = TypeVar("T")

_INTEGER = re.compile(r"\s*[+-]?\d+")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)", re.I)
TRUE, _FALSE, _AUTO = {"on", "enabled", "true", "1"}, {"off", "disabled", "false", "0"}, {"auto", "-1"}
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SEED_RANDOM = 0xFFFFFFFF


def boolean(text: str) -> bool:
    """The value of a switch that is set by an environment variable (``parse_bool_value``)."""
    if text in TRUE or text in _FALSE:
        return text in TRUE
    raise ValueError("invalid boolean value")


def integer(xllamacpp: Any, text: str) -> int:
    match = _INTEGER.match(text)
    if not match or not -(2**31) <= int(match[0]) < 2**31:
        raise ValueError("stoi")
    return int(match[0])


def number(xllamacpp: Any, text: str, function: str = "stof") -> float:
    match = _NUMBER.match(text)
    if not match:
        raise ValueError(function)
    return float(match[0])


def text(xllamacpp: Any, text: str) -> str:
    return text


def by_type(xllamacpp: Any, text: str) -> Any:
    """Stands for the converter of the attribute's own type; see ``converter_of``."""
    raise NotImplementedError


def converter_of(convert: Convert | None, value: object) -> Convert | None:
    """``convert``, or what suits the type of the attribute's present ``value``; None for a switch."""
    return {bool: None, int: integer, float: number, str: text}[type(value)] if convert is by_type else convert


def word_list(xllamacpp: Any, text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def word_set(xllamacpp: Any, text: str) -> set[str]:
    return set(word_list(xllamacpp, text))


def checked(convert: Convert, accepts: Callable[[Any], bool], error: str = "invalid value") -> Convert:
    """``convert`` for the values that ``accepts`` accepts. ``error`` is the message for others; ``{}`` is the value."""

    def convert_and_check(xllamacpp: Any, text: str) -> Any:
        value = convert(xllamacpp, text)
        if not accepts(value):
            raise ValueError(error.format(value))
        return value

    return convert_and_check


def bounded(lowest: int, highest: int = 2**31 - 1, error: str = "invalid value") -> Convert:
    """An integer between the two."""
    return checked(integer, lambda value: lowest <= value <= highest, error)


def except_zero(lowest: int, error: str) -> Convert:
    """An integer that is neither 0 nor lower than ``lowest``."""
    return checked(integer, lambda value: value != 0 and value >= lowest, error)


repeat_penalty = checked(
    number, lambda value: 0 < value < float("inf"), "error: repeat-penalty must be finite and greater than 0\n"
)
synth_length = checked(partial(number, function="stod"), lambda value: not value < 0)
hosts = checked(word_list, bool, "--host requires at least one address")


def directory(xllamacpp: Any, text: str) -> str:
    if not text or not Path(text).is_dir():
        raise ValueError(f"not a directory: {text}")
    return text if text.endswith("/") else text + "/"


def file_content(xllamacpp: Any, text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"error: failed to open file '{text}'\n") from None


def keys_in_file(xllamacpp: Any, text: str) -> list[str]:
    lines = file_content(xllamacpp, text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def seed(xllamacpp: Any, text: str) -> int:
    match = _INTEGER.match(text)
    if not match:
        raise ValueError("stoul")
    return int(match[0]) & SEED_RANDOM  # -1 wraps to "random", as in C++


def one_of(enum: str, values: Mapping[str, str], error: str = "invalid value") -> Convert:
    """The name of an enum member of xllamacpp. ``error`` is the message for others; ``{}`` in it is the text."""

    def convert(xllamacpp: Any, text: str) -> Any:
        if text not in values:
            raise ValueError(error.format(text))
        return getattr(getattr(xllamacpp, enum), values[text])

    return convert


def tri_state(flag: str, on: Any, off: Any, auto: Any) -> Convert:
    """``on|off|auto`` in all of llama.cpp's spellings. A callable value is called with xllamacpp."""

    def convert(xllamacpp: Any, text: str) -> Any:
        for spellings, value in ((TRUE, on), (_FALSE, off), (_AUTO, auto)):
            if text in spellings and value is not None:
                return value(xllamacpp) if callable(value) else value
        raise ValueError(f"error: unknown value for --{flag}: '{text}'\n")

    return convert


def enum_member(enum: str, name: str) -> Callable[[Any], Any]:
    return lambda xllamacpp: getattr(getattr(xllamacpp, enum), name)


def cache_type(xllamacpp: Any, text: str) -> Any:
    if text not in CACHE_TYPES:
        raise ValueError(f"Unsupported cache type: {text}")
    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{text.upper()}")


def gpu_layers(xllamacpp: Any, text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or integer(xllamacpp, text)


def spec_types(xllamacpp: Any, text: str) -> list[Any]:
    types = []
    for word in text.split(","):
        name = f"COMMON_SPECULATIVE_TYPE_{word.upper().replace('-', '_')}"
        if word == "count" or word != word.lower() or not hasattr(xllamacpp.common_speculative_type, name):
            raise ValueError(f"unknown speculative type: {word}")
        types.append(getattr(xllamacpp.common_speculative_type, name))
    return types


def log_colors(xllamacpp: Any, text: str) -> None:
    """xllamacpp has no attribute for it, but llama.cpp's default ``auto`` obeys the variable ``NO_COLOR``."""
    if text in _FALSE:
        os.environ["NO_COLOR"] = "1"
    elif text in TRUE:
        raise ValueError("the embedded engine cannot force colors on")
    elif text not in _AUTO:
        raise ValueError(f"error: unknown value for --log-colors: '{text}'\n")


def draft_sampling(xllamacpp: Any, text: str) -> bool:
    if text not in {"greedy", "probabilistic"}:
        raise ValueError("invalid value, must be one of: greedy, probabilistic")
    return text == "probabilistic"


def rates(xllamacpp: Any, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError("stod") from None


def fit_target(xllamacpp: Any, text: str) -> list[int]:
    """Margins in MiB -> bytes for each of xllamacpp's 16 devices. A single margin is for all devices."""
    try:
        margins = [int(word) * MIB for word in re.split(r"[,/]", text)]
    except ValueError:
        raise ValueError("stoull") from None
    size = len(xllamacpp.CommonParams().fit_params_target)
    return margins * size if len(margins) == 1 else _for_all_devices(margins, size, 1024 * MIB)


def tensor_split(xllamacpp: Any, text: str) -> list[float]:
    shares = [number(xllamacpp, word) for word in re.split(r"[,/]", text)]
    return _for_all_devices(shares, len(xllamacpp.CommonParams().tensor_split), 0.0)


def _for_all_devices(values: list[T], size: int, rest: T) -> list[T]:
    if len(values) > size:
        raise ValueError(f"got {len(values)} input configs, but system only has {size} devices")
    return values + [rest] * (size - len(values))


def overrides(xllamacpp: Any, text: str) -> list[str]:
    if not text:
        raise ValueError("invalid value")
    xllamacpp.CommonParams().tensor_buft_overrides = text  # raises llama.cpp's error for anything but PATTERN=BUFFER
    return text.split(",")


# llama.cpp's common/common.h LLM_FFN_EXPS_REGEX
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def all_experts(xllamacpp: Any, text: str) -> list[str]:
    return [f"{_EXPERTS}=CPU"]


def first_experts(xllamacpp: Any, text: str) -> list[str]:
    count = bounded(0)(xllamacpp, text)
    return [rf"blk\.{layer}{_EXPERTS}=CPU" for layer in range(count)]


def template_kwargs(xllamacpp: Any, text: str) -> dict[str, str]:
    """A JSON object. Each value stays JSON text, as llama.cpp stores it."""
    try:
        values = read_json(text)
    except ValueError as error:
        raise ValueError(f"not a JSON object: {error}") from None
    if not isinstance(values, dict):  # llama-server accepts and ignores it
        raise ValueError("not a JSON object")
    return {key: json.dumps(value) for key, value in values.items()}
