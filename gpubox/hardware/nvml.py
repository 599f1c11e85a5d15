"""The one funnel to the NVIDIA driver, asked once. A query it does not support is ``None``, never an exception.

What is watched goes through ``nvml_reader.DriverReader``. AMD and Intel cards are in the same readings (``sysfs``).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess, unknown_gpu
from gpubox.hardware.nvml_card import NvmlBinding, fast_fields, memory_fields, slow_fields, traffic_fields
from gpubox.hardware.sysfs import SYSFS, has_nvidia_card, read_sysfs_gpus

__all__ = [
    "DRIVER_HANGS",
    "QUERY_SECONDS",
    "DriverReading",
    "Gpu",
    "GpuProcess",
    "import_nvml",
    "init_problem",
    "lost_problem",
    "read_driver",
    "vram_used",
    "with_sysfs_gpus",
]

QUERY_SECONDS = 3.0
"""A driver that has not answered by then is not waited for: a lost GPU can block a query for ever."""

DRIVER_HANGS = "the NVIDIA driver does not answer"
NO_DRIVER = "no NVIDIA driver"
NO_GPU = "the driver sees no GPU"
_hung: list[threading.Thread] = []
"""The query that never came back, if one did not: no other is sent behind it."""


def read_driver(*, details: bool = True, sysfs: Path = SYSFS) -> DriverReading:
    """Asks the drivers about every card; ``details=False`` asks for memory only. A lost card is in ``problem``.

    Takes at most QUERY_SECONDS: the driver is asked in a thread of its own that is left behind when it hangs.
    """
    if _hung and _hung[0].is_alive():
        return DriverReading((), problem=DRIVER_HANGS)
    box: list[DriverReading] = []
    thread = threading.Thread(target=lambda: box.append(_read_safely(details, sysfs)), daemon=True, name="nvml")
    thread.start()
    thread.join(QUERY_SECONDS)
    if box:
        return box[0]
    _hung[:] = [thread]
    return DriverReading((), problem=DRIVER_HANGS)


def vram_used() -> tuple[int, ...] | None:
    """Bytes in use on each card, or ``None`` when no card can be asked."""
    used = [gpu.vram_used_bytes for gpu in read_driver(details=False).gpus]
    return tuple(u for u in used if u is not None) or None


def import_nvml() -> Any:
    """The binding. Imported late: a machine without the driver pays nothing. Raises whatever a broken one raises."""
    import pynvml

    return pynvml


def init_problem(module: Any, error: Exception) -> str:
    """Why NVML could not be opened, in the owner's words."""
    if isinstance(error, module.NVMLError_LibraryNotFound):
        return NO_DRIVER
    return f"the NVIDIA driver fails: {error}"


def lost_problem(cards: list[int], since: str = "", why: str = "") -> str:
    """What is said of lost ``cards``: ``since`` a time of day, ``why`` where the driver says otherwise."""
    numbers, when = ", ".join(str(card) for card in cards), f" at {since}" if since else ""
    return f"GPU {numbers} LOST{when}: {why or 'it fell off the bus; only a reboot brings it back'}"


def with_sysfs_gpus(reading: DriverReading, others: tuple[Gpu, ...], nvidia_card: bool) -> DriverReading:
    """``reading`` and behind it the cards of ``others``. A box without ``nvidia_card`` lacks no driver for it."""
    if not others:
        return reading
    first = 1 + max((gpu.index for gpu in reading.gpus), default=-1)
    gpus = (*reading.gpus, *(replace(gpu, index=first + i) for i, gpu in enumerate(others)))
    needless = reading.problem in (NO_DRIVER, NO_GPU) and not nvidia_card
    return replace(reading, gpus=gpus, problem="" if needless else reading.problem)


def _read_safely(details: bool, sysfs: Path) -> DriverReading:
    try:
        reading = _read(details)
    except Exception as error:  # a broken binding or driver must not print a traceback from its thread
        reading = DriverReading((), problem=f"the NVIDIA driver cannot be asked: {error}")
    others = read_sysfs_gpus(sysfs)
    return with_sysfs_gpus(reading, others, bool(others) and has_nvidia_card(sysfs))


def _has_library() -> bool:
    # Half a millisecond against the eight that importing the binding takes, on every box without the driver.
    if "pynvml" in sys.modules:
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _read(details: bool) -> DriverReading:
    if not _has_library():
        return DriverReading((), problem=NO_DRIVER)
    module = import_nvml()
    nvml = NvmlBinding(module)
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        return DriverReading((), problem=init_problem(module, error))
    try:
        count = nvml.ask("DeviceGetCount") or 0
        version = nvml.text("SystemGetDriverVersion")
        gpus, lost = [], []
        for index in range(count):
            nvml.begin()
            handle = nvml.ask("DeviceGetHandleByIndex", index)
            if handle is not None:
                fields = _fields(nvml, handle, details)
                gpus.append(replace(unknown_gpu(index), **fields, lost=nvml.lost))
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
