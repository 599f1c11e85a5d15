"""What a post says about a model and its launch: name, quant, parameters; the flags that differ from the defaults.

The model is read from its GGUF header, else from what the run recorded. Only flags of LISTED are written, and only
values of a harmless form: what a post shows is chosen, not filtered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpubox import units
from gpubox.bench.model import Provenance
from gpubox.engines.capabilities import EngineOption
from gpubox.engines.option_values import option_default, option_kind
from gpubox.engines.replaced_flags import REPLACED_FLAGS
from gpubox.errors import GpuboxError
from gpubox.interchange.given_options import GivenOption, read_options
from gpubox.interchange.reference_options import long_names, reference_options
from gpubox.models.gguf import SHARD_NAME, GgufFile, check_gguf
from gpubox.models.quants import quant_label
from gpubox.profiles.argv import SECRET_NAME

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""``general.file_type`` -> quant, from llama.cpp's include/llama.h (``llama_ftype``, build 11434)."""
_EXPERTS = re.compile(r"_exps\.")
"""The tensors that hold all experts of a layer, of which a token uses some."""
_NAMELESS = re.compile(r"(?:sha256[-_:])?[0-9a-f]{16,}|model|ggml-model", re.I)


@dataclass(frozen=True, slots=True)
class PostModel:
    """One model. ``None`` is unknown."""

    name: str
    quant: str = ""
    parameters: int | None = None
    active_parameters: int | None = None
    """An estimate of how many of them one token uses; only for a mixture of experts."""
    size_bytes: int | None = None
    bits_per_weight: float | None = None

    def details(self, *, quant: bool = True) -> str:
        """``Q4_K_M, 34.7 B parameters (~3.4 B active), 21.7 GB, 5.0 bits per weight``."""
        active = f" (~{billions(self.active_parameters)} active)" if self.active_parameters else ""
        return ", ".join(filter(None, (
            (self.quant if quant else "") if self.quant else f"quant {units.UNKNOWN}",
            f"{billions(self.parameters)} parameters{active}" if self.parameters else f"parameters {units.UNKNOWN}",
            units.file_size(self.size_bytes) if self.size_bytes else "",
            f"{self.bits_per_weight:.1f} bits per weight" if self.bits_per_weight else "",
        )))  # fmt: skip


def read_model(provenance: Provenance) -> PostModel:
    """The model of one target. Reads the header of its file if that is the file that was measured."""
    file = _same_file(provenance)
    name = SHARD_NAME.sub("", Path(provenance.model_path.replace("\\", "/")).name).removesuffix(".gguf")
    quant = quant_label(name)
    if file and _NAMELESS.fullmatch(name):
        name = file.name
    name = name[: -len(quant)].rstrip("-._") if quant and name.upper().endswith(quant) else name
    if file is None:
        return PostModel(name or units.UNKNOWN, quant, size_bytes=provenance.model_bytes)
    kind = file.metadata.get("general.file_type")
    quant = quant or (FILE_TYPES.get(kind, "") if isinstance(kind, int) else "")
    parameters = sum(math.prod(tensor.dimensions) for tensor in file.tensors)
    weights = sum(tensor.size_bytes for tensor in file.tensors)
    return PostModel(
        name or file.name, quant, parameters or None, _active(file, parameters), file.size,
        8 * weights / parameters if parameters else None,
    )  # fmt: skip


def _same_file(provenance: Provenance) -> GgufFile | None:
    """The file that was measured, if it is still there with the size that it had."""
    if not provenance.model_path.endswith(".gguf") and not provenance.model_bytes:
        return None
    try:
        file = check_gguf(Path(provenance.model_path))
    except GpuboxError:
        return None
    return file if file.size == provenance.model_bytes else None


def _active(file: GgufFile, parameters: int) -> int | None:
    count, used = (file.metadata.get(f"{file.architecture}.expert_{key}") for key in ("count", "used_count"))
    if not (isinstance(count, int) and isinstance(used, int) and 0 < used < count):
        return None
    experts = sum(math.prod(tensor.dimensions) for tensor in file.tensors if _EXPERTS.search(tensor.name))
    return round(parameters - experts * (1 - used / count)) if experts else None


def billions(count: int | None) -> str:
    """``34.7 B``, ``135 M``."""
    if count is None:
        return units.UNKNOWN
    return f"{count / 1e9:.1f} B" if count >= 999.5e6 else f"{count / 1e6:.0f} M"


LISTED = tuple(Path(__file__).with_name("post_flags.txt").read_text(encoding="ascii").split())
"""Flags that change speed, memory or answers, in the order of a post; no address, log or template."""
MAX_VALUE = 100
"""Letters of one value; what is longer is cut."""
_PLAIN = re.compile(r"[+-]?[A-Za-z0-9][A-Za-z0-9_.+,:-]*")
_TENSORS = re.compile(r"[\w.,()|\\*+?^$=\[\]{}-]+")
"""A pattern of tensor names and the buffer they go to: ``blk\\.(1|2)\\.ffn_.*=CPU``."""
_NUMBERS = re.compile(r"[+-]?[\d.]+(?:[,-][\d.]+)*")
_OWN_NAME = re.compile(r"[a-z][a-z0-9-]{1,30}")
_RPC_DEVICE = re.compile(r"RPC\[[^\]]*\]")
_MODELS = {"spec-draft-model", "mmproj"}
_FILES = {"lora", "lora-scaled", "control-vector"}
"""Perhaps the owner's own work: their names stay private."""
_PATTERNS = {"override-tensor", "spec-draft-override-tensor", "override-kv"}
_NUMERIC = {"tensor-split", "fit-target", "spec-synth-rates", "cpu-mask", "cpu-range"}
Flags = dict[str, str]
"""Name in LISTED -> how a post writes the flag and its value: ``n-gpu-layers`` -> ``-ngl 99``."""


def shown_flags(argv: Sequence[str]) -> Flags:
    """The listed flags in ``argv`` (the binary first) that differ from the defaults, each in its shortest form."""
    last: dict[str, GivenOption] = {}
    for given in read_options(argv[1:], reference_options(), []):
        last[_listed_name(given.name)] = given  # the last one wins, as in llama-server
    shown = {name: text for name in LISTED if name in last and (text := _text(name, last[name]))}
    return shown | {name: _unknown(name, given) for name, given in last.items() if _is_unknown(name)}


def default_text(name: str) -> str:
    """How a post writes the default of a flag in LISTED: ``-fa auto``; ``default mmap`` if the help gives no value."""
    option = reference_options().option(name)
    default = option_default(option) if option and option_kind(option) != "switch" else ""
    return f"{_shortest(name)} {default}" if _PLAIN.fullmatch(default) else f"default {name}"


@cache
def _names_listed() -> Mapping[str, str]:
    """The engine's own name -> the name in LISTED."""
    return {reference_options().canonical(name): name for name in LISTED}


def _listed_name(name: str) -> str:
    """Of any spelling, also of the form that switches it off; a flag that is not listed keeps its name."""
    option = reference_options().option(name)
    known = _names_listed().get(option.long if option else name)
    bare = name.removeprefix("no-")
    return known or (bare if option is None and bare in LISTED else name)


def _text(name: str, given: GivenOption) -> str:
    option = reference_options().option(name)
    if value := ",".join(given.values):
        return "" if option and _same(option, value) else _shown(name, value)
    off = given.name in option.negatives if option else given.name.startswith("no-")
    default = option_default(option).split(" ")[0] if option else ""
    if default in (("disabled", "false") if off else ("enabled", "true")):
        return ""
    return _shortest_off(name) if off else _shortest(name)


def _is_unknown(name: str) -> bool:
    """Whether only a fork or a newer build has the flag; it may matter."""
    known = name in LISTED or name in REPLACED_FLAGS or reference_options().option(name) is not None
    return not known and bool(_OWN_NAME.fullmatch(name)) and not SECRET_NAME.search(name)


def _unknown(name: str, given: GivenOption) -> str:
    value = ",".join(given.values)
    return f"--{name} {value if _NUMBERS.fullmatch(value) else '<value>'}" if value else f"--{name}"


def _same(option: EngineOption, value: str) -> bool:
    """Whether ``value`` is the default that the help names."""
    default = option_default(option)
    if not default or option_kind(option) == "switch":
        return False
    try:
        return float(default) == float(value)
    except ValueError:
        return default == value


def _shown(name: str, value: str) -> str:
    flag, shown = _shortest(name), "".join(_value(name, value))
    return f"{flag} {shown}".rstrip()


def _value(name: str, value: str) -> Iterator[str]:
    """``value`` if its form is that of a value; a name that says what stood there, otherwise."""
    value = _RPC_DEVICE.sub("RPC", value)
    option = reference_options().option(name)
    if name == "rpc":
        yield f"<{len(value.split(','))} server{'s' if ',' in value else ''}>"
    elif name in _MODELS:
        file = value.split(",")[0].rpartition("/")[2]
        yield file if file.endswith(".gguf") and _PLAIN.fullmatch(file) else "<file>"
    elif name in _FILES:
        yield "<file>"
    elif name == "spec-draft-hf":
        yield value.rpartition("/")[2] if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", value) else "<model>"
    elif name in _PATTERNS:
        yield _cut(value) if _TENSORS.fullmatch(value) else "<pattern>"
    elif name in _NUMERIC or (option and option_kind(option) == "number"):
        yield value if _NUMBERS.fullmatch(value) or value in _words(option) else "<value>"
    else:
        yield value if len(value) <= 32 and _PLAIN.fullmatch(value) else "<value>"


def _words(option: EngineOption | None) -> frozenset[str]:
    """The words that a number may be instead: ``auto``, ``all``, and the choices of the help."""
    return frozenset({"auto", "all", *(option.allowed if option else ())})


def _cut(value: str) -> str:
    return value if len(value) <= MAX_VALUE else f"{value[: MAX_VALUE - 1]}…"


@cache
def _shortest(name: str) -> str:
    """The shortest spelling with its dashes: ``-ngl`` of ``n-gpu-layers``."""
    option = reference_options().option(name)
    on = [spelling for spelling in option.names if spelling not in option.negatives] if option else [name]
    return min(map(_dashed, on), key=len)


@cache
def _shortest_off(name: str) -> str:
    option = reference_options().option(name)
    return min(map(_dashed, option.negatives), key=len) if option and option.negatives else f"--no-{name}"


def _dashed(name: str) -> str:
    return f"--{name}" if name in long_names() or len(name) > 6 else f"-{name}"
