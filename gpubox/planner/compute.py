"""Compute buffers: from earlier measurements and the law by which they grow, else an estimate. Pure.

With flash attention and the KV cache on the device, a buffer is ``ubatch * (alpha + 2 * cells)`` bytes: the mask of f16
for each cell of one stream, and what does not depend on the context (measured with llama.cpp build 11434 on three
models: exact to 0.01 MiB). Without flash attention, with several devices (pipeline copies) or the KV cache on the host
it grows otherwise; there two measurements at different contexts give the slope, or each context is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpubox.models.gguf import GgufFile

Certainty = Literal["measured", "law", "near"]
"""measured: these very flags. law: the same structure at another context. near: a similar structure, or an estimate."""
MASK_BYTES = 2
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Structure:
    """What the compute buffers of a launch depend on."""

    family: str
    """A hash of engine, models and all flags but those below."""
    gpu_layers: int
    cpu_expert_layers: int
    slots: int
    ubatch: int
    cells: int
    """Of one stream, those of windowed layers added."""
    layers: int
    lawful: bool
    """Whether the law for flash attention holds: one device at most, KV cache on it."""
    linear: bool
    """Whether the buffers grow linearly with the cells at all."""

    def same_graph(self, other: Structure) -> bool:
        """Whether only the size of the context differs."""
        return (
            self.family == other.family
            and self.gpu_layers == other.gpu_layers
            and self.cpu_expert_layers == other.cpu_expert_layers
            and self.slots == other.slots
            and self.ubatch == other.ubatch
        )

    def distance(self, other: Structure) -> tuple[int, ...]:
        """How far two structures of one family are apart, in what changes the buffers most."""
        return (
            int(_band(self.gpu_layers, self.layers) != _band(other.gpu_layers, other.layers)),
            int(_band(self.cpu_expert_layers, self.layers) != _band(other.cpu_expert_layers, other.layers)),
            abs(self.ubatch - other.ubatch),
            abs(self.cpu_expert_layers - other.cpu_expert_layers),
            abs(self.gpu_layers - other.gpu_layers),
            abs(self.slots - other.slots),
            abs(self.cells - other.cells),
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the engine says of one model with given flags, in bytes by device. Weights and context are whole MiB."""

    weights: Mapping[str, int] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=dict)
    """KV cache and recurrent states."""
    compute: Mapping[str, int] = field(default_factory=dict)
    """To 0.01 MiB; rounded down to MiB too if the engine prints only its table."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a dry run, or a real one, said of one structure."""

    structure: Structure
    main: Measurement
    draft: Measurement = field(default_factory=Measurement)


@dataclass(frozen=True, slots=True)
class ComputeBuffers:
    """The compute buffers of a launch, in bytes by device."""

    main: Mapping[str, int]
    draft: Mapping[str, int]
    certainty: Certainty


def predict(structure: Structure, runs: Iterable[MeasuredRun]) -> ComputeBuffers | None:
    """The compute buffers of ``structure``, from the runs of its family; None if there is none."""
    family = [run for run in runs if run.structure.family == structure.family]
    same = sorted(
        (run for run in family if run.structure.same_graph(structure)),
        key=lambda run: abs(run.structure.cells - structure.cells),
    )
    if same and same[0].structure.cells == structure.cells:
        return ComputeBuffers(same[0].main.compute, same[0].draft.compute, "measured")
    if same and structure.lawful and _obey_law(same):
        return _by_law(same[0], structure, "law")
    if len(same) > 1 and structure.linear:
        return _by_line(same[0], same[1], structure)
    if family:
        return _by_law(min(family, key=lambda run: run.structure.distance(structure)), structure, "near")
    return None


def estimate(
    model: GgufFile, ubatch: int, context: int, devices: Sequence[str], host: str, *, flash: bool
) -> ComputeBuffers:
    """About what the buffers take that were never measured: rows of the widest layer for each token, and the mask.

    Measured with llama.cpp build 11434, flash attention on, a dense, a hybrid MoE and a sliding-window model at 4K and
    32K: 3 to 12 % more than the engine takes, never less. Without it the scores of all heads come on top.
    ``devices``: those that hold weights; without one the ``host`` computes all.
    """

    def number(key: str) -> int:
        value = model.metadata.get(f"{model.architecture}.{key}", 0)
        widest = max(value, default=0) if isinstance(value, tuple) else value
        return int(widest) if isinstance(widest, int) and 0 < widest < 1 << 24 else 0

    experts = number("expert_feed_forward_length") * number("expert_used_count")
    rows = 4 * number("embedding_length") + 4 * max(number("feed_forward_length"), experts)
    scores = 0 if flash else _F32_BYTES * number("attention.head_count")
    size = ubatch * (_F32_BYTES * rows + (MASK_BYTES + scores) * context)
    on_host = size // 4 if devices else size
    return ComputeBuffers({**dict.fromkeys(devices, size), host: on_host}, {}, "near")


def _obey_law(runs: Sequence[MeasuredRun]) -> bool:
    """Whether the runs of one structure agree with the law, to 1 %."""
    first, *others = runs
    return all(
        abs(size - predicted.get(device, 0)) <= max(size, 1) / 100
        for other in others
        for predicted in (_scaled(first.main.compute, first.structure, other.structure),)
        for device, size in other.main.compute.items()
    )


def _by_law(run: MeasuredRun, wanted: Structure, certainty: Certainty) -> ComputeBuffers:
    main, draft = (_scaled(each.compute, run.structure, wanted) for each in (run.main, run.draft))
    return ComputeBuffers(main, draft, certainty)


def _scaled(sizes: Mapping[str, int], known: Structure, wanted: Structure) -> dict[str, int]:
    scaled = {}
    for device, size in sizes.items():
        mask = MASK_BYTES * known.ubatch * known.cells
        rest = max(0, size - mask) / max(1, known.ubatch)
        grown = MASK_BYTES * wanted.cells if size > mask else size / max(1, known.ubatch)
        scaled[device] = round(wanted.ubatch * (rest + grown)) if size > mask else size
    return scaled


def _by_line(first: MeasuredRun, second: MeasuredRun, wanted: Structure) -> ComputeBuffers:
    step = (wanted.cells - first.structure.cells) / (second.structure.cells - first.structure.cells)

    def line(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
        return {device: max(0, round(size + (two.get(device, size) - size) * step)) for device, size in one.items()}

    main, draft = line(first.main.compute, second.main.compute), line(first.draft.compute, second.draft.compute)
    return ComputeBuffers(main, draft, "law")


def _band(count: int, layers: int) -> str:
    """none, a few, some, almost all, all: the buffers change where the first and the last layers move."""
    if count <= 0:
        return "none"
    if count >= layers:
        return "all"
    return "few" if count <= 2 else "most" if count >= layers - 2 else "some"
