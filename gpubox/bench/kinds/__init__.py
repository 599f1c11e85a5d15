"""The kinds of benchmark, a module or a package each. A new kind is its module and a line here.

A package's main file has its name (``ab/ab.py``), ``*_report.py`` turns its results into a ``Report``.

shared.py  what several kinds need: options, ids, the context check, parts of a report
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpubox.bench.kind import Kind

KIND_MODULES = [
    "gpubox.bench.kinds.speed",
    "gpubox.bench.kinds.ab",
    "gpubox.bench.kinds.sweep",
    "gpubox.bench.kinds.tune",
    "gpubox.bench.kinds.soak",
    "gpubox.bench.kinds.quality",
    "gpubox.bench.kinds.humaneval",
    "gpubox.bench.kinds.suite",
]
"""Each has a ``KIND``, in the order of help and form."""


def all_kinds() -> dict[str, Kind]:
    """Every kind by its name. Cheap: no benchmark is imported."""
    kinds: list[Kind] = [importlib.import_module(module).KIND for module in KIND_MODULES]
    return {kind.name: kind for kind in kinds}
