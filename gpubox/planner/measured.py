"""What planning keeps on disk: the runs that were measured, and what launches took beyond the planner's table.

The driver says what a server held when it was ready (the record has it), its log says what llama.cpp allocated; the
difference (driver context, kernels) is kept for each profile and device. A profile that never ran gets the least that
another one with the same engine took, or a dry run showed: the driver's context.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpubox.engines.capabilities import Capabilities
from gpubox.hardware.gpu import DriverReading
from gpubox.paths import Paths
from gpubox.planner.compute import MeasuredRun, Measurement, Structure
from gpubox.profiles.profile import TOP_LEVEL_FLAGS, FlagValue
from gpubox.server.log import LISTENS
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RunningServer
from gpubox.storage import read_cache, write_cache
from gpubox.telemetry.device_memory import MemoryBreakdown
from gpubox.units import MIB

_FILE_BYTES = 4 * 1024 * 1024
_LOG_HEAD_BYTES = 2 * 1024 * 1024
_MAX_RUNS = 128
"""Of one family. The oldest are dropped."""
_MAX_ROWS, _MAX_LAUNCHES = 500, 50
_DRY_RUN = "*"
"""In place of a profile's name."""
ASSUMED_DRIVER_BYTES = 500 * MIB
"""For the driver's context on a card that no run was seen on (published for CUDA: 343 to 456 MiB)."""


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
        family = run.structure.family
        present = self._read(family)  # another gpubox may have added some
        runs = [old for old in present if old.structure != run.structure]
        runs = [*runs, run][-_MAX_RUNS:]
        self._families[family] = runs
        write_cache(self._folder / f"{family}.json", family, [asdict(each) for each in runs])

    def _read(self, family: str) -> list[MeasuredRun]:
        try:
            return [
                _run(values, family)
                for values in read_cache(self._folder / f"{family}.json", family, _FILE_BYTES) or []
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []


def _run(values: Mapping[str, Any], family: str) -> MeasuredRun:
    structure = Structure(**values["structure"])
    numbers = (structure.gpu_layers, structure.cpu_expert_layers, structure.slots, structure.ubatch, structure.cells)
    if structure.family != family or not all(isinstance(number, int) for number in numbers):
        raise ValueError("a run of another family")
    main, draft = (
        Measurement(*(_sizes(values[part][name]) for name in ("weights", "context", "compute")))
        for part in ("main", "draft")
    )
    return MeasuredRun(structure, main, draft)


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    return {str(device): int(size) for device, size in values.items()}


class Unaccounted:
    """Bytes by profile, engine and device. Losing them costs only accuracy."""

    def __init__(self, paths: Paths) -> None:
        self._file = paths.plans / "unaccounted.json"

    def of_devices(self, profile: str, engine: str, devices: Iterable[str]) -> dict[str, int]:
        """What a profile took on each device beyond the table, or else the least that another one took there.

        A device that no run was seen on is missing.
        """
        rows, _ = self._read()
        beyond = {}
        for device in devices:
            end = _key("", engine, device)
            seen = [size for key, size in rows.items() if key.endswith(end)]
            if seen:
                beyond[device] = rows.get(_key(profile, engine, device), min(seen))
        return beyond

    def learn_driver(self, engine: str, sizes: Mapping[str, int]) -> None:
        """Keeps what the driver's context took on each device in a dry run."""
        rows, launches = self._read()
        self._write(rows | {_key(_DRY_RUN, engine, device): size for device, size in sizes.items()}, launches)

    def is_new(self, running: RunningServer) -> bool:
        """Whether nothing was learned from this launch yet, and it is ready."""
        return running.ready_at is not None and running.launch_id not in self._read()[1]

    def learn(self, running: RunningServer, breakdown: MemoryBreakdown, reading: DriverReading) -> None:
        """Keeps what ``running`` took on each card, and that it was read."""
        from gpubox.telemetry.device_memory import device_key_of  # a list of profiles need not pay its 60 ms

        rows, launches = self._read()
        held = {index: size for index, size in running.loaded_vram if index not in running.whole_card_gpus}
        for gpu in reading.gpus:
            key = device_key_of(gpu, breakdown)
            if key and gpu.index in held and (table := breakdown.total_of(key)):
                rows[_key(running.launch.profile, running.launch.engine, key)] = max(0, held[gpu.index] - table)
        self._write(rows, [*launches, running.launch_id])

    def _write(self, rows: dict[str, int], launches: list[str]) -> None:
        kept = {"rows": dict(list(rows.items())[-_MAX_ROWS:]), "launches": launches[-_MAX_LAUNCHES:]}
        write_cache(self._file, "unaccounted", kept)

    def _read(self) -> tuple[dict[str, int], list[str]]:
        try:
            kept = read_cache(self._file, "unaccounted", _FILE_BYTES) or {"rows": {}, "launches": []}
            rows = {str(key): int(size) for key, size in kept["rows"].items()}
            return rows, [str(launch) for launch in kept["launches"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}, []


def _key(profile: str, engine: str, device: str) -> str:
    return f"{profile}|{engine}|{device}"


def read_breakdown(log: Path) -> MemoryBreakdown:
    """What a server's log says about its memory, up to the end of the load."""
    breakdown = MemoryBreakdown()
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            text = file.read(_LOG_HEAD_BYTES).decode(errors="replace")
        for line in text.splitlines():
            _, event = parse_event(line)
            if event:
                breakdown.feed(event)
            if LISTENS.search(line):
                break
    return breakdown


def flags_of_argv(argv: Sequence[str], capabilities: Capabilities) -> dict[str, FlagValue]:
    """The flags in a launch's command line, without model and address."""
    flags: dict[str, FlagValue] = {}
    words = iter(argv)
    for word in words:
        option = capabilities.option(word) if word.startswith("-") else None
        if option is None:
            continue
        name = word.lstrip("-")
        value: FlagValue = True if option.value is None else next(words, "")
        if option.long not in TOP_LEVEL_FLAGS and name not in TOP_LEVEL_FLAGS:
            flags[name] = value
    return flags
