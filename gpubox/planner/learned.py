"""What real runs teach: what launches took beyond the planner's table (driver context, kernels), and compute buffers.

The driver says what a server held when it was ready (the record has it), its log says what llama.cpp allocated; the
difference is kept for each profile and device. A profile that never ran gets the least that another one with the
same engine took: the driver's context.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox.engines.capabilities import Capabilities
from gpubox.hardware.gpu import DriverReading
from gpubox.paths import Paths
from gpubox.profiles.profile import TOP_LEVEL_FLAGS, FlagValue
from gpubox.server.log import LISTENS
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RunningServer
from gpubox.storage import read_bytes, read_json, write_atomically
from gpubox.telemetry.memory_breakdown import MemoryBreakdown
from gpubox.units import MIB

_SCHEMA = 1
_FILE_BYTES = 1024 * 1024
_LOG_HEAD_BYTES = 2 * 1024 * 1024
_MAX_ROWS, _MAX_LAUNCHES = 500, 50
_DRY_RUN = "*"
"""In place of a profile's name."""
ASSUMED_DRIVER_BYTES = 500 * MIB
"""For the driver's context on a card that no run was seen on (published for CUDA: 343 to 456 MiB)."""


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
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps({"schema": _SCHEMA, **kept}).encode())

    def _read(self) -> tuple[dict[str, int], list[str]]:
        try:
            stored: Any = read_json(read_bytes(self._file, _FILE_BYTES), own=True)
            if stored["schema"] != _SCHEMA:
                return {}, []
            rows = {str(key): int(size) for key, size in stored["rows"].items()}
            return rows, [str(launch) for launch in stored["launches"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
