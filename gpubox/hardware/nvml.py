"""One reading of all GPUs through NVML, with AMD and Intel cards from sysfs. Never raises.

``nvml_reader.DriverReader`` reads continuously. A query that the driver does not support gives ``None``.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.nvml_card import NvmlBinding, fast_fields, memory_fields, slow_fields, traffic_fields
from gpubox.hardware.sysfs import SYSFS, has_nvidia_card, read_drm_processes, read_sysfs_gpus

QUERY_SECONDS = 3.0
"""The longest wait for the driver. A lost GPU can block a query forever."""

DRIVER_HANGS = "the NVIDIA driver does not answer"
NO_DRIVER = "no NVIDIA driver"
NO_GPU = "the driver sees no GPU"
_hung: list[threading.Thread] = []
"""The query that does not return, if there is one. No other is sent after it."""


def read_driver(*, details: bool = True, sysfs: Path = SYSFS) -> DriverReading:
    """Reads every card; with ``details=False`` only its memory. ``problem`` names lost cards.

    Takes at most QUERY_SECONDS: a thread asks the driver, and is abandoned if it hangs.
    """
    if _hung and _hung[0].is_alive():
        return DriverReading((), problem=DRIVER_HANGS)
    result: list[DriverReading] = []
    thread = threading.Thread(target=lambda: result.append(_read_safely(details, sysfs)), daemon=True, name="nvml")
    thread.start()
    thread.join(QUERY_SECONDS)
    if result:
        return result[0]
    _hung[:] = [thread]
    return DriverReading((), problem=DRIVER_HANGS)


def vram_used() -> tuple[int, ...] | None:
    """Bytes in use on each card; ``None`` if no card can be read."""
    used = [gpu.vram_used_bytes for gpu in read_driver(details=False).gpus]
    return tuple(size for size in used if size is not None) or None


def open_nvml() -> tuple[NvmlBinding | None, str]:
    """NVML, opened, or why it cannot be opened. A broken binding may raise anything."""
    if "pynvml" not in sys.modules:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")  # 0.5 ms; a box without the driver need not import the binding (8 ms)
        except OSError:
            return None, NO_DRIVER
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, NO_DRIVER
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver fails: {error}"
    return NvmlBinding(pynvml), ""


def lost_problem(cards: list[int], since: str = "", why: str = "") -> str:
    """The message about lost ``cards``. ``since``: a time of day. ``why``: the driver's own reason, if it gave one."""
    numbers, when = ", ".join(str(card) for card in cards), f" at {since}" if since else ""
    return f"GPU {numbers} LOST{when}: {why or 'it fell off the bus; only a reboot brings it back'}"


def with_sysfs_gpus(reading: DriverReading, others: tuple[Gpu, ...], nvidia_card: bool) -> DriverReading:
    """``reading`` with the cards of ``others`` appended. Without an ``nvidia_card`` a missing driver is no problem."""
    if not others:
        return reading
    first = 1 + max((gpu.index for gpu in reading.gpus), default=-1)
    gpus = (*reading.gpus, *(replace(gpu, index=first + i) for i, gpu in enumerate(others)))
    irrelevant = reading.problem in (NO_DRIVER, NO_GPU) and not nvidia_card
    return replace(reading, gpus=gpus, problem="" if irrelevant else reading.problem)


def _read_safely(details: bool, sysfs: Path) -> DriverReading:
    try:
        reading = _read(details)
    except Exception as error:  # the thread must not print a traceback
        reading = DriverReading((), problem=f"the NVIDIA driver cannot be queried: {error}")
    others = read_sysfs_gpus(sysfs)
    if others:
        others = read_sysfs_gpus(sysfs, read_drm_processes())
    return with_sysfs_gpus(reading, others, bool(others) and has_nvidia_card(sysfs))


def _read(details: bool) -> DriverReading:
    nvml, problem = open_nvml()
    if nvml is None:
        return DriverReading((), problem=problem)
    try:
        count = nvml.ask("DeviceGetCount") or 0
        version = nvml.text("SystemGetDriverVersion")
        gpus, lost = [], []
        for index in range(count):
            nvml.begin()
            handle = nvml.ask("DeviceGetHandleByIndex", index)
            if handle is not None:
                fields = _fields(nvml, handle, details)
                gpus.append(Gpu(index, **fields, lost=nvml.lost))
            if nvml.lost:
                lost.append(index)
        problem = NO_GPU if not count else lost_problem(lost) if lost else ""
        return DriverReading(tuple(gpus), version, problem)
    finally:
        nvml.ask("Shutdown")


def _fields(nvml: NvmlBinding, handle: Any, details: bool) -> dict[str, Any]:
    if not details:
        return memory_fields(nvml, handle)
    return {**slow_fields(nvml, handle), **fast_fields(nvml, handle, {}), **traffic_fields(nvml, handle)}
