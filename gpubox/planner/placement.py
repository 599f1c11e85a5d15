"""Which device each layer and each tensor is loaded to. Pure.

llama.cpp (build 11434): src/llama-model.cpp ``load_tensors`` (layers, split points), src/llama-model-loader.cpp
``create_tensor`` (overrides, tied output).
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpubox.models.gguf_header import GGML_BLOCKS, GgufTensor
from gpubox.planner.launch_flags import EXPERTS, HOST_BUFFER
from gpubox.planner.model_shape import LAYER_TENSOR, ModelShape
from gpubox.telemetry.device_memory import HOST, device_key

_INPUT = ("token_embd", "per_layer_token_embd", "token_types", "position_embd", "altup_", "token_embd_norm")
_ALIGNMENT = 128
"""Of tensors in a buffer on a device."""
_NESTED = re.compile(r"[+*}]\)*[+*{]|\([^()]*[+*}][^()]*\)[+*{]")
"""A repetition of a repetition, such as ``(a+)+``."""
_ONE_LAYER = re.compile(r"blk\\\.(\d{1,4})\\\.")
_EXPERT_TENSOR = re.compile(EXPERTS)
_CUDA_ROW = 512
"""ggml-cuda pads the last row of a quantized tensor to a multiple of so many elements."""


@dataclass(frozen=True, slots=True)
class LayerDevices:
    """The device of each layer, and of the output."""

    layers: tuple[str, ...]
    output: str


def place_layers(count: int, gpu_layers: int, devices: Sequence[str], split: Sequence[float]) -> LayerDevices:
    """The last ``gpu_layers`` of ``count`` layers and the output go to ``devices``, in the proportions ``split``.

    ``split`` has one number for each device. As llama.cpp, it calculates with single precision.
    """
    if not devices:
        return LayerDevices((HOST,) * count, HOST)
    first, on_devices = max(count + 1 - gpu_layers, 0), min(gpu_layers, count + 1)
    total, points = 0.0, []
    for share in split:
        total = _single(total + _single(share))
        points.append(total)
    points = [_single(point / total) if total > 0 else 1.0 for point in points]

    def device(layer: int) -> str:
        if layer < first or layer - first >= on_devices:
            return HOST
        position = _single((layer - first) / on_devices)
        index = sum(point <= position for point in points)
        return devices[min(index, len(devices) - 1)]

    return LayerDevices(tuple(device(layer) for layer in range(count)), device(count))


class ModelWeights:
    """The tensors of one model, prepared so that many placements are counted quickly."""

    def __init__(self, tensors: Sequence[GgufTensor], shape: ModelShape) -> None:
        self._tensors = tensors
        self._shape = shape
        self._layer_of = [_layer(tensor.name, shape) for tensor in tensors]
        self._by_layer: dict[int, list[int]] | None = None
        self._matches: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[bool, list[int]] = {}
        self._sums: dict[bool, dict[int, int]] = {}
        self._tied = next((i for i, t in enumerate(tensors) if t.name == "token_embd.weight"), None)

    def on_devices(
        self, where: LayerDevices, overrides: Sequence[tuple[str, str]], *, draft_head: bool
    ) -> Mapping[str, int]:
        """Bytes of weights on each device. ``draft_head``: whether the tensors of the draft head are loaded.

        Raises ValueError for a pattern of ``overrides`` that is not a regular expression.
        """
        shape = self._shape
        bytes_of: dict[str, int] = defaultdict(int)
        last = len(shape.layers) if draft_head else shape.trunk
        by_host, by_device = self._sums_of(False), self._sums_of(True)
        for layer, size in by_host.items():
            if layer >= last:
                continue
            device = self._device(layer, where)
            bytes_of[device] += by_device[layer] if _pads(device) else size
        sizes = self._sizes[False], self._sizes[True]
        moved: set[int] = set()
        for pattern, buffer in overrides:
            target = HOST if buffer == HOST_BUFFER else device_key(buffer)
            for index in self._matching(pattern):
                layer = self._layer_of[index]
                if index in moved or layer >= last:
                    continue
                moved.add(index)
                before = self._device(layer, where)
                bytes_of[before] -= sizes[_pads(before)][index]
                bytes_of[target] += sizes[_pads(target)][index]
        if shape.tied_output and self._tied is not None and where.output != HOST:
            bytes_of[where.output] += sizes[_pads(where.output)][self._tied]
        return dict(bytes_of)

    @property
    def tied_bytes(self) -> int:
        """The embedding if it is the output, too; else 0."""
        return self._tensors[self._tied].size_bytes if self._shape.tied_output and self._tied is not None else 0

    @staticmethod
    def _device(layer: int, where: LayerDevices) -> str:
        return HOST if layer == _INPUT_LAYER else where.output if layer == _OUTPUT_LAYER else where.layers[layer]

    def _sums_of(self, on_device: bool) -> dict[int, int]:
        if on_device not in self._sums:
            sizes = [_size(tensor, on_device) for tensor in self._tensors]
            sums: dict[int, int] = defaultdict(int)
            for layer, size in zip(self._layer_of, sizes, strict=True):
                sums[layer] += size
            self._sizes[on_device], self._sums[on_device] = sizes, sums
        return self._sums[on_device]

    def _of_layer(self, layer: int) -> list[int]:
        if self._by_layer is None:
            self._by_layer = defaultdict(list)
            for index, of in enumerate(self._layer_of):
                self._by_layer[of].append(index)
        return self._by_layer.get(layer, [])

    def _matching(self, pattern: str) -> tuple[int, ...]:
        if pattern not in self._matches:
            if _NESTED.search(pattern):
                raise ValueError(f"override-tensor has the pattern {pattern!r}, which could take too long to match")
            try:
                search: Callable[[str], object] = re.compile(pattern).search
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"override-tensor has the pattern {pattern!r}: {error}") from None
            # Of a pattern for one layer only its tensors need a look: there may be one for each layer.
            layer = _ONE_LAYER.match(pattern)
            among = self._of_layer(int(layer[1])) if layer else range(len(self._tensors))
            self._matches[pattern] = tuple(i for i in among if search(self._tensors[i].name))
        return self._matches[pattern]


_INPUT_LAYER, _OUTPUT_LAYER = -2, -1


def used_tensors(tensors: Sequence[GgufTensor], shape: ModelShape) -> list[GgufTensor]:
    """The tensors with the size that one token reads of them, but for an output that is tied to the embedding."""

    def share(name: str) -> float:
        if _layer(name, shape) == _INPUT_LAYER:
            return 0.0
        return shape.expert_share if _EXPERT_TENSOR.search(name) else 1.0

    return [tensor._replace(size_bytes=int(tensor.size_bytes * share(tensor.name))) for tensor in tensors]


def _layer(name: str, shape: ModelShape) -> int:
    if match := LAYER_TENSOR.match(name):
        return int(match[1])
    if name.startswith("rope_"):  # shared by the layers; a few hundred bytes
        return 0 if shape.layers else _INPUT_LAYER
    return _INPUT_LAYER if name.startswith(_INPUT) else _OUTPUT_LAYER


def _pads(device: str) -> bool:
    """Whether tensors are padded in the buffers of a device: on cards, for their matrix kernels."""
    return device != HOST and not device.startswith("RPC ")


def _size(tensor: GgufTensor, on_device: bool) -> int:
    """Bytes in a buffer. On a device quantized rows are padded for the matrix kernels (ggml-cuda)."""
    if not on_device:
        return tensor.size_bytes
    size = tensor.size_bytes
    block, block_bytes = GGML_BLOCKS.get(tensor.type, (1, 0))
    if block > 1 and tensor.dimensions and (rest := tensor.dimensions[0] % _CUDA_ROW):
        size += (_CUDA_ROW - rest) // block * block_bytes
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _single(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except (OverflowError, struct.error):
        return float("inf")
