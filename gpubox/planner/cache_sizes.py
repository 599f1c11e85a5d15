"""Bytes of the KV caches and recurrent states on each device. Pure.

llama.cpp (build 11434): src/llama-context.cpp (cells), src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp,
src/llama-memory-recurrent.cpp. Checked against the buffer lines of real loads by tests/perf/fit_truth.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gpubox.planner.launch_flags import LaunchFlags
from gpubox.planner.model_shape import LayerShape, ModelShape
from gpubox.planner.placement import LayerDevices
from gpubox.telemetry.memory_breakdown import HOST

CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""``--cache-type-k`` -> (elements per block, bytes per block)."""
_PADDING = 256


@dataclass(frozen=True, slots=True)
class CacheCells:
    """How many tokens the caches hold."""

    context: int
    """Of all slots, padded: ``llama_n_ctx``."""
    cells: int
    """Of one stream."""
    streams: int
    windowed_cells: int
    """Of one stream, in layers with a sliding window."""


def count_cells(flags: LaunchFlags, shape: ModelShape) -> CacheCells:
    """The cells of the caches for these flags. Raises ValueError if the context's size is unknown."""
    context = flags.context or shape.trained_context
    if context <= 0:
        raise ValueError("the header does not say for how many tokens the model was trained")
    ubatch = effective_ubatch(flags, context)
    context, streams = _pad(context), 1
    if not flags.unified:
        streams = flags.slots
        context = _pad(context // streams) * streams
    cells = context // streams
    windowed = cells
    if shape.window and not flags.swa_full:
        windowed = _pad(min(cells, shape.window * (flags.slots if flags.unified else 1) + ubatch))
    return CacheCells(context, cells, streams, windowed)


def effective_ubatch(flags: LaunchFlags, context: int) -> int:
    """The tokens of one computation: no more than the batch, which is no more than the context."""
    batch = min(context, flags.batch) if flags.batch > 0 else context
    return min(batch, flags.ubatch if flags.ubatch > 0 else batch)


def kv_bytes(
    shape: ModelShape, cells: CacheCells, where: LayerDevices, flags: LaunchFlags, types: tuple[str, str], *,
    draft_head: bool = False,
) -> Mapping[str, int]:  # fmt: skip
    """Bytes of the KV cache on each device. ``draft_head``: of the draft head's layers instead of the trunk's.

    Raises ValueError for an unknown cache type, or one whose blocks do not divide the heads.
    """
    bytes_of: dict[str, int] = defaultdict(int)
    padded = shape.v_padded and flags.flash_attention == "off"
    widest = max((layer.v_width for layer in shape.layers), default=0) if padded else 0
    first, last = (shape.trunk, len(shape.layers)) if draft_head else (0, shape.trunk)
    sizes: dict[LayerShape, int] = {}  # most layers are alike
    for index in range(first, last):
        layer = shape.layers[index]
        if not layer.k_width:
            continue
        device = where.layers[index] if flags.kv_on_device else HOST
        if layer not in sizes:
            sizes[layer] = _layer_bytes(layer, cells, types, widest)
        bytes_of[device] += sizes[layer]
    return dict(bytes_of)


def recurrent_bytes(shape: ModelShape, where: LayerDevices, flags: LaunchFlags) -> Mapping[str, int]:
    """Bytes of the recurrent states on each device."""
    bytes_of: dict[str, int] = defaultdict(int)
    rows = flags.slots * (1 + (flags.rollback_tokens if shape.rollback else 0))
    for index, layer in enumerate(shape.layers[: shape.trunk]):
        if layer.recurrent_bytes:
            bytes_of[where.layers[index] if flags.kv_on_device else HOST] += layer.recurrent_bytes * rows
    return dict(bytes_of)


def _layer_bytes(layer: LayerShape, cells: CacheCells, types: tuple[str, str], widest: int) -> int:
    count = (cells.windowed_cells if layer.windowed else cells.cells) * cells.streams
    v_width = widest if widest and layer.v_width else layer.v_width
    return count * (_row(layer.k_width, types[0]) + _row(v_width, types[1]))


def _row(width: int, kind: str) -> int:
    block, block_bytes = CACHE_TYPES.get(kind, (0, 0))
    if not block:
        raise ValueError(f"the cache type {kind} is unknown")
    if width % block:
        raise ValueError(f"the cache type {kind} does not divide rows of {width}")
    return width // block * block_bytes


def _pad(count: int) -> int:
    return -(-count // _PADDING) * _PADDING
