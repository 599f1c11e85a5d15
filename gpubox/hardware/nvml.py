"""The one funnel to the NVIDIA driver. A query it does not support is ``None``, never an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

QUERY_SECONDS = 3.0
"""A driver that has not answered by then is not waited for: a lost GPU can block a query for ever."""


HANGS = "the NVIDIA driver does not answer"
_hung: list[threading.Thread] = []
"""The query that never came back, if one did not: no other is sent behind it."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one card. ``vram_bytes`` is ``None`` under WSL2 and in most containers."""

    pid: int
    name: str | None
    vram_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as the driver describes it now; ``None`` where it does not say."""

    index: int
    name: str | None
    vram_total_bytes: int | None
    vram_used_bytes: int | None
    utilization_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    power_limit_watts: float | None
    pcie_rx_bytes_per_second: int | None
    pcie_tx_bytes_per_second: int | None
    processes: tuple[GpuProcess, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class DriverReading:
    """All cards at one instant, or the reason why there are none."""

    gpus: tuple[Gpu, ...]
    driver_version: str | None = None
    problem: str = ""


def read_driver(*, details: bool = True) -> DriverReading:
    """Asks the driver about every card; ``details=False`` asks for memory only.

    Takes at most QUERY_SECONDS: the driver is asked in a thread of its own that is left behind when it hangs.
    """
    if _hung and _hung[0].is_alive():
        return DriverReading((), problem=HANGS)
    box: list[DriverReading] = []
    thread = threading.Thread(target=lambda: box.append(_read_safely(details)), daemon=True, name="nvml")
    thread.start()
    thread.join(QUERY_SECONDS)
    if box:
        return box[0]
    _hung[:] = [thread]
    return DriverReading((), problem=HANGS)


def vram_used() -> tuple[int, ...] | None:
    """Bytes in use on each card, or ``None`` when no card can be asked."""
    used = [gpu.vram_used_bytes for gpu in read_driver(details=False).gpus]
    return tuple(u for u in used if u is not None) or None


def _read_safely(details: bool) -> DriverReading:
    try:
        return _read(details)
    except Exception as error:  # a broken binding or driver must not print a traceback from its thread
        return DriverReading((), problem=f"the NVIDIA driver cannot be asked: {error}")


def _read(details: bool) -> DriverReading:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return DriverReading((), problem=_no_driver(pynvml, error))
    try:
        count = _ask(pynvml, pynvml.nvmlDeviceGetCount) or 0
        version = _ask(pynvml, pynvml.nvmlSystemGetDriverVersion)
        gpus = [_card(pynvml, index, details) for index in range(count)]
        return DriverReading(tuple(gpu for gpu in gpus if gpu), version, _problem(pynvml, count))
    finally:
        _ask(pynvml, pynvml.nvmlShutdown)


def _ask(pynvml: Any, query: Callable[..., Any], *args: Any) -> Any:
    try:
        return query(*args)
    except (pynvml.NVMLError, UnicodeDecodeError):  # the binding decodes names as UTF-8
        return None


def _no_driver(pynvml: Any, error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return "no NVIDIA driver"
    return f"the NVIDIA driver fails: {error}"


def _problem(pynvml: Any, count: int) -> str:
    if not count:
        return "the driver sees no GPU"
    lost = []
    for index in range(count):
        try:
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError_GpuIsLost:
            lost.append(str(index))
        except pynvml.NVMLError:
            continue  # not supported here, which is no fault
    return f"GPU {', '.join(lost)} LOST: it fell off the bus; only a reboot brings it back" if lost else ""


def _card(pynvml: Any, index: int, details: bool) -> Gpu | None:
    handle = _ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    memory = _ask(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
    total, used = (memory.total, memory.used) if memory else (None, None)
    if not details:
        return Gpu(index, None, total, used, None, None, None, None, None, None)
    name = _ask(pynvml, pynvml.nvmlDeviceGetName, handle)
    utilization = _ask(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(pynvml, pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _ask(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    throughput = pynvml.nvmlDeviceGetPcieThroughput
    rx = _ask(pynvml, throughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)  # KB/s over the last 20 ms
    tx = _ask(pynvml, throughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    return Gpu(
        index=index,
        name=name.decode() if isinstance(name, bytes) else name,
        vram_total_bytes=total,
        vram_used_bytes=used,
        utilization_percent=utilization.gpu if utilization else None,
        temperature_celsius=_ask(pynvml, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_watts=power / 1000 if power is not None else None,
        power_limit_watts=limit / 1000 if limit is not None else None,
        pcie_rx_bytes_per_second=rx * 1000 if rx is not None else None,
        pcie_tx_bytes_per_second=tx * 1000 if tx is not None else None,
        processes=_processes(pynvml, handle),
    )


def _processes(pynvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, GpuProcess] = {}
    for query in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _ask(pynvml, query, handle) or ():
            name = _ask(pynvml, pynvml.nvmlSystemGetProcessName, process.pid)
            text = name.decode(errors="replace") if isinstance(name, bytes) else name
            found[process.pid] = GpuProcess(process.pid, text and text.strip(), process.usedGpuMemory)
    return tuple(found.values())
