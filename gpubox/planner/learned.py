"""What launches took beyond the planner's table, learned from real runs: driver context, kernels, fragmentation.

The driver says what a server held when it was ready (the record has it), its log says what llama.cpp allocated; the
difference is kept for each profile and device. A profile that never ran gets the most that another one with the same
engine took.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpubox.hardware.gpu import DriverReading
from gpubox.paths import Paths
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RunningServer
from gpubox.storage import read_bytes, write_atomically
from gpubox.telemetry.device_memory import device_key_of
from gpubox.telemetry.memory_breakdown import MemoryBreakdown

_SCHEMA = 1
_FILE_BYTES = 1024 * 1024
_LOG_HEAD_BYTES = 2 * 1024 * 1024
_MAX_ROWS = 500


class Unaccounted:
    """Bytes by profile, engine and device. Losing them costs only accuracy."""

    def __init__(self, paths: Paths) -> None:
        self._file = paths.plans / "unaccounted.json"
        self._seen: set[str] = set()

    def of(self, profile: str, engine: str, device: str) -> int:
        """What a profile took on a device beyond the table; 0 if no run is known."""
        rows = self._rows()
        if (own := rows.get(_key(profile, engine, device))) is not None:
            return own
        end = _key("", engine, device)
        return max((size for key, size in rows.items() if key.endswith(end)), default=0)

    def learn(self, running: RunningServer, log: Path, reading: DriverReading) -> None:
        """Keeps what ``running`` took on each card. Each launch is read once."""
        if running.launch_id in self._seen or not running.ready_at or not running.loaded_vram:
            return
        self._seen.add(running.launch_id)
        breakdown = _breakdown(log)
        rows = self._rows()
        changed = dict(rows)
        held = {index: size for index, size in running.loaded_vram if index not in running.whole_card_gpus}
        for gpu in reading.gpus:
            key = device_key_of(gpu, breakdown)
            if key and gpu.index in held and (table := breakdown.total_of(key)):
                changed[_key(running.launch.profile, running.launch.engine, key)] = max(0, held[gpu.index] - table)
        if changed != rows:
            kept = dict(list(changed.items())[-_MAX_ROWS:])
            with contextlib.suppress(OSError):
                write_atomically(self._file, json.dumps({"schema": _SCHEMA, "rows": kept}).encode())

    def _rows(self) -> Mapping[str, int]:
        try:
            stored: Any = json.loads(read_bytes(self._file, _FILE_BYTES))
            return {str(key): int(size) for key, size in stored["rows"].items()} if stored["schema"] == _SCHEMA else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}


def _key(profile: str, engine: str, device: str) -> str:
    return f"{profile}|{engine}|{device}"


def _breakdown(log: Path) -> MemoryBreakdown:
    breakdown = MemoryBreakdown()
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            text = file.read(_LOG_HEAD_BYTES).decode(errors="replace")
        for line in text.splitlines():
            _, event = parse_event(line)
            if event:
                breakdown.feed(event)
            if "listening on http" in line:
                break
    return breakdown
