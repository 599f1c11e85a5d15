"""The table of llama-server's flags -> attributes of xllamacpp.CommonParams. Other flags are refused.

The key is any long spelling of a flag. All spellings, placeholders, environment variables and help texts are in
``embedded_help.txt``, a part of the ``--help`` of llama.cpp build 11434; what each flag does is in common/arg.cpp.
CommonParams has no attribute for ``--device``, ``--rpc``, ``--lora``, ``--override-kv``, ``--log-file``,
``--top-n-sigma``, ``--grammar`` and downloads, and that of ``--log-jsonl`` has no effect, so they are missing here.

A bad text raises ValueError with the message that llama-server prints after ``error while handling argument``, even if
that is only the name of C++'s ``std::stoi``. ``xllamacpp`` is that module, which holds the enums.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


MAX_VERBOSITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Setter:
    """What one flag sets in CommonParams."""

    targets: tuple[str, ...]
    """Attributes of CommonParams, dotted."""
    convert: Convert | None = None
    """Converts the flag's text to its value; ``None`` for a switch."""
    on: Any = True
    """The value that a switch sets; its negative form sets ``not on``."""
    collect: bool = False
    """Whether several values add up (tensor overrides) instead of replacing each other."""
    then: Callable[[Any, Any, Any], None] | None = None
    """What else to do; called with xllamacpp, the CommonParams and the value."""


def _to(target: str, convert: Convert | None = None, *others: str, on: Any = True) -> Setter:
    return Setter((target, *others), convert, on)


def _plain(flag: str, target: str) -> Setter:
    attribute = target.removeprefix("!") or flag.replace("-", "_")
    return Setter((attribute,), by_type, on=not target.startswith("!"))


def _draft(name: str, convert: Convert) -> Setter:
    return _to(f"speculative.draft.{name}", convert)


def _experts(prefix: str, convert: Convert, switch: bool = False) -> Setter:
    # a switch gets an empty text
    return Setter((f"{prefix}tensor_buft_overrides",), convert, on=None if switch else True, collect=True)


def _up_to_1024(name: str, lowest: int = 1) -> Convert:
    return bounded(lowest, 1024, f"ngram {name} must be between {lowest} and 1024 inclusive")


def _ngram(kind: str) -> dict[str, Setter]:
    prefix = f"speculative.{kind.replace('-', '_')}"
    return {
        f"spec-{kind}-size-n": _to(f"{prefix}.size_n", _up_to_1024("size N")),
        f"spec-{kind}-size-m": _to(f"{prefix}.size_m", _up_to_1024("size M")),
        f"spec-{kind}-min-hits": _to(f"{prefix}.min_hits", bounded(1, error="ngram min hits must be at least 1")),
    }


def _last_n(flag: str) -> Convert:
    return bounded(0, error=f"error: invalid {flag} = {{}}\n")


def _set_thinking(xllamacpp: Any, params: Any, value: Any) -> None:
    if value != -1:
        kwargs = {**params.default_template_kwargs, "enable_thinking": "true" if value else "false"}
        params.default_template_kwargs = kwargs


def _set_rank_pooling(xllamacpp: Any, params: Any, value: Any) -> None:
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def _set_explicit_origins(xllamacpp: Any, params: Any, value: Any) -> None:
    params.cors_origins_explicit = True


_LOAD_MODES = {
    "auto": "LLAMA_LOAD_MODE_AUTO", "none": "LLAMA_LOAD_MODE_NONE", "mmap": "LLAMA_LOAD_MODE_MMAP",
    "mlock": "LLAMA_LOAD_MODE_MLOCK", "mmap+mlock": "LLAMA_LOAD_MODE_MMAP_MLOCK", "dio": "LLAMA_LOAD_MODE_DIRECT_IO",
}  # fmt: skip
_REASONING = {
    "none": "COMMON_REASONING_FORMAT_NONE", "auto": "COMMON_REASONING_FORMAT_AUTO",
    "deepseek": "COMMON_REASONING_FORMAT_DEEPSEEK", "deepseek-legacy": "COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY",
}  # fmt: skip


def _named(prefix: str, *names: str) -> Mapping[str, str]:
    return {name: f"{prefix}_{name.upper()}" for name in names}


_PLAIN = Path(__file__).with_name("embedded_plain.txt").read_text(encoding="ascii")
"""``flag`` or ``flag=attribute``: those that set one attribute to a value of its own type. ``!``: to the opposite."""
FLAGS: dict[str, Setter] = {
    **{flag: _plain(flag, target) for flag, _, target in (word.partition("=") for word in _PLAIN.split())},
    # the machine
    "numa": _to("numa", one_of(
        "ggml_numa_strategy", _named("GGML_NUMA_STRATEGY", "distribute", "isolate", "numactl"))),
    "load-mode": _to("load_mode", one_of("llama_load_mode", _LOAD_MODES)),
    "lazy-mode": _to("lazy_mode", one_of("llama_lazy_mode", _named("LLAMA_LAZY_MODE", "on", "off", "auto"))),
    "n-gpu-layers": _to("n_gpu_layers", gpu_layers),
    "cpu-moe": _experts("", all_experts, switch=True),
    "n-cpu-moe": _experts("", first_experts),
    "override-tensor": _experts("", overrides),
    "split-mode": _to("split_mode", one_of(
        "llama_split_mode", _named("LLAMA_SPLIT_MODE", "none", "layer", "row", "tensor"))),
    "tensor-split": _to("tensor_split", tensor_split),
    "fit": _to("fit_params", tri_state("fit", True, False, None)),
    "fit-target": _to("fit_params_target", fit_target),
    # the model and its context
    "flash-attn": _to("flash_attn_type", tri_state(
        "flash-attn", enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_DISABLED"),
        enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_AUTO"))),
    "cache-type-k": _to("cache_type_k", cache_type),
    "cache-type-v": _to("cache_type_v", cache_type),
    "rope-scaling": _to("rope_scaling_type", one_of(
        "llama_rope_scaling_type", _named("LLAMA_ROPE_SCALING_TYPE", "none", "linear", "yarn"))),
    "parallel": _to("n_parallel", except_zero(-(2**31), "error: invalid value for n_parallel\n")),
    "checkpoint-min-step": _to("checkpoint_min_step", bounded(0, error="checkpoint-min-step must be non-negative")),
    "sleep-idle-seconds": _to("sleep_idle_seconds", except_zero(-1, "invalid value: cannot be 0 or less than -1")),
    # sampling defaults
    "seed": _to("sampling.seed", seed),
    "repeat-last-n": _to("sampling.penalty_last_n", _last_n("repeat-last-n")),
    "repeat-penalty": _to("sampling.penalty_repeat", repeat_penalty),
    "dry-penalty-last-n": _to("sampling.dry_penalty_last_n", _last_n("dry-penalty-last-n")),
    # speculative decoding
    "spec-type": _to("speculative.types", spec_types),
    "spec-draft-n-max": _draft("n_max", bounded(0)),
    "spec-draft-sampling": _draft("probabilistic", draft_sampling),
    "spec-draft-ngl": _draft("n_gpu_layers", gpu_layers),
    "spec-draft-type-k": _draft("cache_type_k", cache_type),
    "spec-draft-type-v": _draft("cache_type_v", cache_type),
    "spec-draft-override-tensor": _experts("speculative.draft.", overrides),
    "spec-draft-cpu-moe": _experts("speculative.draft.", all_experts, switch=True),
    "spec-draft-n-cpu-moe": _experts("speculative.draft.", first_experts),
    "spec-synth-len": _to("speculative.synth_len", synth_length),
    "spec-synth-rates": _to("speculative.synth_rates", rates),
    "spec-ngram-mod-n-min": _to("speculative.ngram_mod.n_min", _up_to_1024("n-min", 0)),
    "spec-ngram-mod-n-max": _to("speculative.ngram_mod.n_max", _up_to_1024("n-max", 0)),
    "spec-ngram-mod-n-match": _to("speculative.ngram_mod.n_match", _up_to_1024("size N")),
    **_ngram("ngram-simple"),
    **_ngram("ngram-map-k"),
    **_ngram("ngram-map-k4v"),
    # pictures and embeddings
    "pooling": _to("pooling_type", one_of(
        "llama_pooling_type", _named("LLAMA_POOLING_TYPE", "none", "mean", "cls", "last", "rank"))),
    "rerank": Setter(("embedding",), then=_set_rank_pooling),
    # the HTTP server
    "host": _to("hostnames", hosts),
    "alias": _to("model_alias", word_set),
    "tags": _to("model_tags", word_set),
    "api-key": _to("api_keys", word_list),
    "api-key-file": _to("api_keys", keys_in_file),
    "cors-origins": Setter(("cors_origins",), text, then=_set_explicit_origins),
    "timeout": _to("timeout_read", integer, "timeout_write"),
    "slot-save-path": _to("slot_save_path", directory),
    "media-path": _to("media_path", directory),
    # chat
    "chat-template-file": _to("chat_template", file_content),
    "chat-template-kwargs": _to("default_template_kwargs", template_kwargs),
    "reasoning-format": _to("reasoning_format", one_of(
        "common_reasoning_format", _REASONING, "Unknown reasoning format: {}")),
    "reasoning": Setter(("enable_reasoning",), tri_state("reasoning", 1, 0, -1), then=_set_thinking),
    "reasoning-budget": _to("sampling.reasoning_budget_tokens", bounded(-1)),
    # the log
    "verbose": _to("verbosity", on=MAX_VERBOSITY),
    "log-colors": Setter((), log_colors),
}  # fmt: skip
"""Flag (any long spelling) -> what it sets."""
