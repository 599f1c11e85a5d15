"""What the planner predicts: the memory of a launch on each device. Frozen values; ``verdict`` judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpubox import units
from gpubox.profiles.profile import FlagValue

Method = Literal["formula", "dry-run"]
DEFAULT_KEEP_FREE_BYTES = 256 * units.MIB
"""What stays free on each card: a little growth while the server works."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The predicted memory of one device, in bytes."""

    device: str
    """``CUDA0``, ``RPC host:port`` or ``Host``."""
    kind: Literal["gpu", "rpc", "host"]
    weights_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    compute_bytes: int
    draft_bytes: int
    """KV cache and compute buffers of the draft context, and the weights of a draft model of its own."""
    draft_compute_bytes: int
    """The part of ``draft_bytes`` that is compute buffers."""
    free_bytes: int | None
    """What is free once the replaced server has stopped; None: unknown."""
    total_memory_bytes: int | None = None
    """What the device has."""
    other_processes: tuple[tuple[str, int], ...] = ()
    """Other programs that hold memory on the device, the largest first."""
    unaccounted_bytes: int = 0
    """What the driver takes beyond the table (its context, kernels), as earlier runs showed, or as is assumed."""
    driver_assumed: bool = False
    """Whether that is assumed."""
    unmeasured_bytes: int = 0
    """What may come on top: the compute buffers of a picture encoder. Not part of the total."""
    mapped_bytes: int = 0
    """The part of the weights that is mapped from the file: the kernel can drop it and read it again."""
    touched_bytes: int = 0
    """What one token needs of the mapped weights, about: of a mixture only the experts that are used."""
    elastic_bytes: int = 0
    """What may be taken beyond the free bytes: swap; with Vulkan memory that the driver moves to the RAM."""

    @property
    def total_bytes(self) -> int:
        """What the launch takes, as far as it is known."""
        parts = (self.weights_bytes, self.kv_bytes, self.recurrent_bytes, self.compute_bytes, self.draft_bytes)
        return sum(parts) + self.unaccounted_bytes

    @property
    def spare_bytes(self) -> int | None:
        """What stays free; negative: what is missing. None if the free bytes are unknown."""
        return None if self.free_bytes is None else self.free_bytes - self.total_bytes


@dataclass(frozen=True, slots=True)
class Solution:
    """Flags with which the profile fits, or reads the least from the disk where none fits."""

    flags: Mapping[str, FlagValue]
    spare_bytes: int | None
    cost: str = ""
    """What the change costs, in words."""
    fits: bool = True

    @property
    def flag_words(self) -> str:
        """``n-cpu-moe=22``, as ``--set`` takes it."""
        return " ".join(f"{name}={value}" for name, value in self.flags.items())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The predicted memory of a launch."""

    profile: str
    devices: tuple[DevicePlan, ...]
    """In the order of the engine, the host last."""
    method: Method
    """formula: from the header, with measured compute buffers. dry-run: all from the engine, because it disagrees."""
    keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES
    doubts: tuple[str, ...] = ()
    """Why this plan is not certain."""
    problem: str = ""
    """Why there is no plan; ``devices`` is empty then."""
    notes: tuple[str, ...] = ()
    draft_head: bool = False
    """Whether the model contains a draft head (only plans of models without a profile say it)."""
    is_estimated: bool = False
    """Whether no run of these flags, nor a law, tells the compute buffers."""
    adapts: Literal["", "context", "layers"] = ""
    """What the engine itself reduces until it fits, because the profile does not set it (``--fit``)."""
    solutions: tuple[Solution, ...] = ()
