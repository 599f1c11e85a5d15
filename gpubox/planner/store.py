"""Measurements that planning keeps on disk, a file for each family of launches (see ``compute.Structure``)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpubox.paths import Paths
from gpubox.planner.compute import Point, Structure
from gpubox.planner.dry_run import DryRun
from gpubox.storage import read_bytes, read_json, write_atomically

_SCHEMA = 1
_FILE_BYTES = 4 * 1024 * 1024
_MAX_RUNS = 128
"""Of one family. The oldest are dropped."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One dry run, in bytes by device. The rows of weights and context are rounded down to MiB."""

    point: Point
    weights: Mapping[str, int]
    context: Mapping[str, int]
    draft_weights: Mapping[str, int]
    draft_context: Mapping[str, int]

    @classmethod
    def of(cls, structure: Structure, run: DryRun) -> MeasuredRun:
        draft = run.draft
        return cls(
            Point(structure, run.main.compute, draft.compute if draft else {}),
            run.main.weights,
            run.main.context,
            draft.weights if draft else {},
            draft.context if draft else {},
        )


class RunStore:
    """The measured runs by family. Losing them costs only time."""

    def __init__(self, paths: Paths) -> None:
        self._folder = paths.plans
        self._families: dict[str, list[MeasuredRun]] = {}

    def runs(self, family: str) -> list[MeasuredRun]:
        """The runs of one family, the oldest first."""
        if family not in self._families:
            self._families[family] = self._read(family)
        return self._families[family]

    def add(self, run: MeasuredRun) -> None:
        """Keeps a run, and replaces an earlier one of the same structure."""
        family = run.point.structure.family
        present = self._read(family)  # another gpubox may have added some
        runs = [old for old in present if old.point.structure != run.point.structure]
        runs = [*runs, run][-_MAX_RUNS:]
        self._families[family] = runs
        stored = {"schema": _SCHEMA, "runs": [asdict(each) for each in runs]}
        with contextlib.suppress(OSError):
            write_atomically(self._folder / f"{family}.json", json.dumps(stored).encode())

    def _read(self, family: str) -> list[MeasuredRun]:
        try:
            stored: Any = read_json(read_bytes(self._folder / f"{family}.json", _FILE_BYTES), own=True)
            if stored["schema"] != _SCHEMA:
                return []
            return [_run(values, family) for values in stored["runs"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []


def _run(values: Mapping[str, Any], family: str) -> MeasuredRun:
    point = values["point"]
    structure = Structure(**point["structure"])
    numbers = (structure.gpu_layers, structure.cpu_expert_layers, structure.slots, structure.ubatch, structure.cells)
    if structure.family != family or not all(isinstance(number, int) for number in numbers):
        raise ValueError("a run of another family")
    names = ("weights", "context", "draft_weights", "draft_context")
    tables = [_sizes(values[name]) for name in names]
    return MeasuredRun(Point(structure, _sizes(point["main"]), _sizes(point["draft"])), *tables)


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    return {str(device): int(size) for device, size in values.items()}
