"""The texts of llama-server's flags as values: what common/arg.cpp's handlers do with them, and refuse.

``ValueError`` carries the words that llama-server prints after ``error while handling argument``; where it lets
C++'s ``std::stoi`` speak, so do we. ``x`` is the xllamacpp module: the enums are looked up in it late.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Convert = Callable[[Any, str], Any]

_INTEGER = re.compile(r"\s*[+-]?\d+")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)", re.I)
_TRUE, _FALSE, _AUTO = {"on", "enabled", "true", "1"}, {"off", "disabled", "false", "0"}, {"auto", "-1"}
MIB = 1024 * 1024
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SEED_RANDOM = 0xFFFFFFFF


def truth(text: str) -> bool:
    """``parse_bool_value``: what a switch given by environment variable says."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("invalid boolean value")


def integer(x: Any, text: str) -> int:
    match = _INTEGER.match(text)
    if not match or not -(2**31) <= int(match[0]) < 2**31:
        raise ValueError("stoi")
    return int(match[0])


def bounded(lowest: int, highest: int = 2**31 - 1, words: str = "invalid value") -> Convert:
    """An integer between the two; ``words`` refuse another, ``{}`` in them is its value."""

    def convert(x: Any, text: str) -> int:
        value = integer(x, text)
        if not lowest <= value <= highest:
            raise ValueError(words.format(value))
        return value

    return convert


def except_zero(lowest: int, words: str) -> Convert:
    """An integer that is not 0 and not lower."""

    def convert(x: Any, text: str) -> int:
        value = integer(x, text)
        if value == 0 or value < lowest:
            raise ValueError(words)
        return value

    return convert


def number(x: Any, text: str) -> float:
    match = _NUMBER.match(text)
    if not match:
        raise ValueError("stof")
    return float(match[0])


def repeat_penalty(x: Any, text: str) -> float:
    value = number(x, text)
    if not 0 < value < float("inf"):
        raise ValueError("error: repeat-penalty must be finite and greater than 0\n")
    return value


def synth_length(x: Any, text: str) -> float:
    try:
        value = number(x, text)
    except ValueError:
        raise ValueError("stod") from None
    if value < 0:
        raise ValueError("invalid value")
    return value


def hosts(x: Any, text: str) -> list[str]:
    if not (names := listed(x, text)):
        raise ValueError("--host requires at least one address")
    return names


def text_(x: Any, text: str) -> str:
    return text


def words(x: Any, text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def listed(x: Any, text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def folder(x: Any, text: str) -> str:
    if not text or not Path(text).is_dir():
        raise ValueError(f"not a directory: {text}")
    return text if text.endswith("/") else text + "/"


def content(x: Any, text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"error: failed to open file '{text}'\n") from None


def keys_in_file(x: Any, text: str) -> list[str]:
    return [line.strip() for line in content(x, text).splitlines() if line.strip() and not line.startswith("#")]


def seed(x: Any, text: str) -> int:
    match = _INTEGER.match(text)
    if not match:
        raise ValueError("stoul")
    return int(match[0]) & SEED_RANDOM  # -1 wraps to "random", as in C++


def one_of(enum: str, values: Mapping[str, str], refusal: str = "invalid value") -> Convert:
    """A word that stands for a member of one of xllamacpp's enums; ``{}`` in ``refusal`` is the word."""

    def convert(x: Any, text: str) -> Any:
        if text not in values:
            raise ValueError(refusal.format(text))
        return getattr(getattr(x, enum), values[text])

    return convert


def tri_state(flag: str, on: Any, off: Any, auto: Any) -> Convert:
    """``on|off|auto`` in all of llama.cpp's spellings; a value that is a text is a member of its enum."""

    def convert(x: Any, text: str) -> Any:
        for spellings, value in ((_TRUE, on), (_FALSE, off), (_AUTO, auto)):
            if text in spellings and value is not None:
                return value(x) if callable(value) else value
        raise ValueError(f"error: unknown value for --{flag}: '{text}'\n")

    return convert


def member(enum: str, name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(getattr(x, enum), name)


def cache_type(x: Any, text: str) -> Any:
    if text not in CACHE_TYPES:
        raise ValueError(f"Unsupported cache type: {text}")
    return getattr(x.ggml_type, f"GGML_TYPE_{text.upper()}")


def gpu_layers(x: Any, text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or integer(x, text)


def spec_types(x: Any, text: str) -> list[Any]:
    found = []
    for word in text.split(","):
        name = f"COMMON_SPECULATIVE_TYPE_{word.upper().replace('-', '_')}"
        if word == "count" or word != word.lower() or not hasattr(x.common_speculative_type, name):
            raise ValueError(f"unknown speculative type: {word}")
        found.append(getattr(x.common_speculative_type, name))
    return found


def log_colors(x: Any, text: str) -> None:
    """xllamacpp has no switch for it; llama.cpp's own ``auto`` obeys ``NO_COLOR``, which makes ``off``."""
    if text in _FALSE:
        os.environ["NO_COLOR"] = "1"
    elif text in _TRUE:
        raise ValueError("the embedded engine cannot force colors on")
    elif text not in _AUTO:
        raise ValueError(f"error: unknown value for --log-colors: '{text}'\n")


def draft_sampling(x: Any, text: str) -> bool:
    if text not in {"greedy", "probabilistic"}:
        raise ValueError("invalid value, must be one of: greedy, probabilistic")
    return text == "probabilistic"


def rates(x: Any, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError("stod") from None


def fit_target(x: Any, text: str) -> list[int]:
    """Margins in MiB, as bytes for all of the 16 devices xllamacpp has room for; a single one is for all."""
    try:
        margins = [int(word) * MIB for word in re.split(r"[,/]", text)]
    except ValueError:
        raise ValueError("stoull") from None
    room = len(x.CommonParams().fit_params_target)
    if len(margins) > room:
        raise ValueError(f"got {len(margins)} input configs, but system only has {room} devices")
    return margins * room if len(margins) == 1 else margins + [1024 * MIB] * (room - len(margins))


def tensor_split(x: Any, text: str) -> list[float]:
    shares = [number(x, word) for word in re.split(r"[,/]", text)]
    room = len(x.CommonParams().tensor_split)
    if len(shares) > room:
        raise ValueError(f"got {len(shares)} input configs, but system only has {room} devices")
    return shares + [0.0] * (room - len(shares))


def overrides(x: Any, text: str) -> list[str]:
    if not text:
        raise ValueError("invalid value")
    x.CommonParams().tensor_buft_overrides = text  # refuses what is not PATTERN=BUFFER in llama.cpp's words
    return text.split(",")


# llama.cpp's common/common.h LLM_FFN_EXPS_REGEX
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def all_experts(x: Any, text: str) -> list[str]:
    return [f"{_EXPERTS}=CPU"]


def first_experts(x: Any, text: str) -> list[str]:
    count = bounded(0)(x, text)
    return [rf"blk\.{layer}{_EXPERTS}=CPU" for layer in range(count)]


def template_kwargs(x: Any, text: str) -> dict[str, str]:
    """A JSON object; each value stays JSON text, which is how llama.cpp keeps them."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not a JSON object: {error}") from None
    if not isinstance(values, dict):  # llama-server takes it and does nothing
        raise ValueError("not a JSON object")
    return {key: json.dumps(value) for key, value in values.items()}
