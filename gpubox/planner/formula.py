"""The memory of a launch from the header alone: weights, caches and drafts, but no compute buffers. Pure.

llama.cpp (build 11434): src/llama-context.cpp (cells), src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp,
src/llama-memory-recurrent.cpp. Checked against the buffer lines of real loads by tests/perf/fit_truth.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpubox.models.gguf import GgufFile
from gpubox.planner.launch_flags import LaunchFlags
from gpubox.planner.model_shape import LayerShape, ModelShape, read_shape
from gpubox.planner.placement import LayerDevices, ModelWeights, place_layers, used_tensors
from gpubox.telemetry.device_memory import HOST

CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""``--cache-type-k`` -> (elements per block, bytes per block)."""
_PADDING = 256


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model's header, prepared for many plans."""

    file: GgufFile
    shape: ModelShape
    weights: ModelWeights
    touched: ModelWeights
    """What one token needs of the weights: no more than a row of the embedding, and the experts that it uses."""

    @classmethod
    def of(cls, file: GgufFile) -> LoadedModel:
        shape = read_shape(file)
        used = ModelWeights(used_tensors(file.tensors, shape), shape)
        return cls(file, shape, ModelWeights(file.tensors, shape), used)


@dataclass(frozen=True, slots=True)
class OffloadDevice:
    """A device that the engine may use, without the host."""

    key: str
    free_bytes: int | None
    """At the time of the load; decides the split over several devices."""


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


@dataclass(frozen=True, slots=True)
class FormulaParts:
    """Bytes by device. ``draft_kv`` and ``draft_weights`` belong to the draft."""

    weights: Mapping[str, int]
    kv: Mapping[str, int]
    recurrent: Mapping[str, int]
    draft_kv: Mapping[str, int]
    draft_weights: Mapping[str, int]
    encoder: Mapping[str, int]
    """Weights of the picture encoder."""
    touched: int
    """What one token needs of the weights on the host, about."""
    where: LayerDevices
    cells: CacheCells
    ubatch: int
    windowed: bool
    """Whether some layers have a sliding window."""
    cpu_expert_layers: int
    """Layers whose experts are kept on the host by flags."""
    split: tuple[float, ...]
    """The shares of the devices that are used."""
    doubts: tuple[str, ...] = field(default=())


def calculate(
    model: LoadedModel,
    draft: LoadedModel | None,
    flags: LaunchFlags,
    devices: Sequence[OffloadDevice],
    encoder_bytes: int = 0,
) -> FormulaParts:
    """The parts of a launch. ``draft`` is the draft model of ``flags.draft``, if it has one of its own,
    ``encoder_bytes`` the weights of the picture encoder.

    Raises ValueError if the flags contradict the model.
    """
    shape = model.shape
    doubts = [*shape.doubts, *flags.doubts]
    used, doubt = _used_devices(flags.devices, flags, devices)
    doubts += doubt
    shares = _shares(flags, used, doubts)
    where = place_layers(len(shape.layers), flags.gpu_layers, [d.key for d in used], shares)
    cells = count_cells(flags, shape)
    touched = model.touched.on_devices(where, flags.overrides, draft_head=flags.mtp).get(HOST, 0)
    draft_kv: Mapping[str, int] = {}
    draft_weights: Mapping[str, int] = {}
    if flags.draft and flags.draft.model and draft:
        doubts += [f"the draft model: {doubt}" for doubt in draft.shape.doubts]
        wanted = flags.devices if flags.draft.devices is None else flags.draft.devices
        draft_used, doubt = _used_devices(wanted, flags, devices)
        doubts += doubt
        draft_shares = _shares(flags, draft_used, doubts)
        draft_where = place_layers(
            len(draft.shape.layers), flags.draft.gpu_layers, [d.key for d in draft_used], draft_shares
        )
        draft_weights = draft.weights.on_devices(draft_where, flags.draft.overrides, draft_head=False)
        types = flags.draft.type_k, flags.draft.type_v
        draft_kv = kv_bytes(draft.shape, cells, draft_where, flags, types)
    elif flags.draft and flags.draft.model:
        doubts.append("the draft model could not be read")
    elif flags.draft:
        types = flags.draft.type_k, flags.draft.type_v
        draft_kv = kv_bytes(shape, cells, where, flags, types, draft_head=True)
    return FormulaParts(
        weights=model.weights.on_devices(where, flags.overrides, draft_head=flags.mtp),
        kv=kv_bytes(shape, cells, where, flags, (flags.type_k, flags.type_v)),
        recurrent=recurrent_bytes(shape, where, flags),
        draft_kv=draft_kv,
        draft_weights=draft_weights,
        touched=touched + (model.weights.tied_bytes if where.output == HOST else 0),
        encoder={used[0].key if used and flags.encoder_on_device else HOST: encoder_bytes} if encoder_bytes else {},
        where=where,
        cells=cells,
        ubatch=effective_ubatch(flags, flags.context or shape.trained_context),
        windowed=any(layer.windowed for layer in shape.layers),
        cpu_expert_layers=flags.cpu_expert_layers,
        split=tuple(shares),
        doubts=tuple(dict.fromkeys(doubts)),
    )


def _used_devices(
    wanted: tuple[str, ...] | None, flags: LaunchFlags, devices: Sequence[OffloadDevice]
) -> tuple[list[OffloadDevice], list[str]]:
    """The devices that layers are offloaded to, in llama.cpp's order, and what is unclear about them."""
    used = list(devices)
    doubts = []
    if wanted is not None:
        by_name = {name: device for device in devices for name in (device.key, device.key.removeprefix("RPC "))}
        rpc = [device for device in devices if device.key.startswith("RPC ")]
        by_name |= {f"RPC{index}": device for index, device in enumerate(rpc)}
        used = [by_name[name] for name in wanted if name in by_name]
        doubts += [f"the device {name}" for name in wanted if name not in by_name]
    if flags.split_mode == "none" and used:
        if flags.main_gpu >= len(used):
            doubts.append(f"main-gpu {flags.main_gpu} of {len(used)} devices")
        used = [used[flags.main_gpu]] if 0 <= flags.main_gpu < len(used) else []
    return used, doubts


def _shares(flags: LaunchFlags, used: Sequence[OffloadDevice], doubts: list[str]) -> list[float]:
    """The split over the devices: as given, else by free memory."""
    given = list(flags.tensor_split[: len(used)])
    given += [0.0] * (len(used) - len(given))
    if any(given):
        return given
    if len(used) > 1:
        if any(device.free_bytes is None for device in used):
            doubts.append("the split over several devices, whose free memory is unknown")
            return [1.0] * len(used)
        return [float(device.free_bytes or 0) for device in used]
    return [1.0] * len(used)


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
