"""What a post says about a model: name, quant, parameters; from the GGUF header, else from what the run recorded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from gpubox import units
from gpubox.bench.model import Provenance
from gpubox.errors import GpuboxError
from gpubox.models.gguf import SHARD_NAME, GgufFile, check_gguf
from gpubox.models.quants import quant_label

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
