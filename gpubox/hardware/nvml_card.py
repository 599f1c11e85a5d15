"""What NVML says about one card, asked query by query: what is not supported is ``None``, never an exception."""

from __future__ import annotations

from typing import Any

from gpubox.hardware.gpu import GpuProcess
from gpubox.hardware.pcie import link_bytes_per_second
from gpubox.hardware.process import process_name
from gpubox.hardware.throttle import throttle_reasons

_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
"""What NVML answers for a number that it does not have (NVML_VALUE_NOT_AVAILABLE)."""
_GPU, _SM_CLOCK, _MEMORY_CLOCK, _SLOWDOWN, _GPU_MAX = 0, 1, 2, 1, 3

ProcessNames = dict[int, str | None]
"""The names of processes that are known already, by pid."""


class NvmlBinding:
    """The pynvml module, asked politely. ``module`` stays open to what must raise."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.answered = False
        """Whether a query since ``begin`` had an answer."""
        self.lost = False
        """Whether one since ``begin`` said that the GPU is lost."""
        self.refusal = ""
        """The last refusal since ``begin`` that is not a mere lack of support."""

    def begin(self) -> None:
        """Forgets what earlier queries met."""
        self.answered, self.lost, self.refusal = False, False, ""

    def ask(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """The answer of ``nvml<function>``, or ``None`` when driver or binding has none."""
        query: Any = getattr(self.module, f"nvml{function}", _absent)
        if query is _absent:  # an older binding
            return None
        try:
            value = query(*args, **kwargs)
        except self.module.NVMLError as error:
            self.lost |= isinstance(error, self.module.NVMLError_GpuIsLost)
            if not isinstance(error, self.module.NVMLError_NotSupported):
                self.refusal = str(error)
            return None
        except UnicodeDecodeError:  # the binding decodes names as UTF-8
            return None
        self.answered = True
        return None if isinstance(value, int) and value in _NOT_AVAILABLE else value

    def text(self, function: str, *args: Any) -> str | None:
        """The same for words: older bindings give bytes."""
        value = self.ask(function, *args)
        words = value.decode(errors="replace") if isinstance(value, bytes) else value
        return words.strip() if isinstance(words, str) else None

    @property
    def gone(self) -> bool:
        """Whether the card met since ``begin`` is lost: it says so, or it refuses everything for no good reason."""
        return self.lost or bool(self.refusal and not self.answered)


_absent = object()


def memory_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """Memory, as fields of ``Gpu``."""
    memory = nvml.ask("DeviceGetMemoryInfo", handle)
    return {
        "vram_total_bytes": memory.total if memory else None,
        "vram_used_bytes": memory.used if memory else None,
    }


def fast_fields(nvml: NvmlBinding, handle: Any, names: ProcessNames) -> dict[str, Any]:
    """What moves with every token, as fields of ``Gpu``."""
    utilization = nvml.ask("DeviceGetUtilizationRates", handle)
    power = nvml.ask("DeviceGetPowerUsage", handle)
    processes = _processes(nvml, handle, names)
    return {
        **memory_fields(nvml, handle),
        "utilization_percent": utilization.gpu if utilization else None,
        "memory_utilization_percent": getattr(utilization, "memory", None),
        "power_watts": power / 1000 if power is not None else None,
        "clock_sm_mhz": nvml.ask("DeviceGetClockInfo", handle, _SM_CLOCK),
        "clock_memory_mhz": nvml.ask("DeviceGetClockInfo", handle, _MEMORY_CLOCK),
        "processes": processes or (),
        "processes_known": processes is not None,
    }


def slow_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """What changes in seconds or never, as fields of ``Gpu``."""
    limit = nvml.ask("DeviceGetEnforcedPowerLimit", handle)
    generation = nvml.ask("DeviceGetCurrPcieLinkGeneration", handle) or None
    width = nvml.ask("DeviceGetCurrPcieLinkWidth", handle) or None
    temperature = nvml.ask("DeviceGetTemperature", handle, _GPU)
    return {
        "name": nvml.text("DeviceGetName", handle),
        "uuid": nvml.text("DeviceGetUUID", handle),
        "bus_id": _bus_id(nvml, handle),
        "power_limit_watts": limit / 1000 if limit is not None else None,
        "fan_percent": nvml.ask("DeviceGetFanSpeed", handle),
        "temperature_celsius": temperature,
        "temperature_limit_celsius": _temperature_limit(nvml, handle, temperature),
        "throttle_reasons": _throttle(nvml, handle),
        "pcie_generation": generation,
        "pcie_width": width,
        "pcie_max_generation": nvml.ask("DeviceGetMaxPcieLinkGeneration", handle) or None,
        "pcie_max_width": nvml.ask("DeviceGetMaxPcieLinkWidth", handle) or None,
        "pcie_link_bytes_per_second": link_bytes_per_second(generation, width),
        "vram_reserved_bytes": _reserved(nvml, handle),
    }


def traffic_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """PCIe traffic, as fields of ``Gpu``. The driver counts for 20 ms each way before it answers, in KB/s."""
    module = nvml.module
    into = nvml.ask("DeviceGetPcieThroughput", handle, module.NVML_PCIE_UTIL_RX_BYTES)
    out = nvml.ask("DeviceGetPcieThroughput", handle, module.NVML_PCIE_UTIL_TX_BYTES)
    return {
        "pcie_rx_bytes_per_second": into * 1000 if into is not None else None,
        "pcie_tx_bytes_per_second": out * 1000 if out is not None else None,
    }


def _processes(nvml: NvmlBinding, handle: Any, names: ProcessNames) -> tuple[GpuProcess, ...] | None:
    """The processes of both lists, each once; ``None`` when the driver gives neither list."""
    lists = [nvml.ask(f"DeviceGet{kind}RunningProcesses", handle) for kind in ("Compute", "Graphics")]
    if lists == [None, None]:
        return None
    found: dict[int, int | None] = {}
    for process in (process for listed in lists for process in listed or ()):
        used = process.usedGpuMemory
        used = None if used in _NOT_AVAILABLE else used
        before = found.get(process.pid)
        # One that computes and draws is on both lists with the same sum.
        found[process.pid] = used if before is None else max(before, used or 0)
    return tuple(GpuProcess(pid, _name(nvml, pid, names), used) for pid, used in found.items())


def _name(nvml: NvmlBinding, pid: int, names: ProcessNames) -> str | None:
    if pid not in names:
        names[pid] = process_name(pid) or nvml.text("SystemGetProcessName", pid) or None
    return names[pid]


def _bus_id(nvml: NvmlBinding, handle: Any) -> str | None:
    info = nvml.ask("DeviceGetPciInfo", handle)
    bus_id = getattr(info, "busId", None)
    return bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id


def _temperature_limit(nvml: NvmlBinding, handle: Any, temperature: int | None) -> int | None:
    for threshold in (_SLOWDOWN, _GPU_MAX):
        if limit := nvml.ask("DeviceGetTemperatureThreshold", handle, threshold):
            return int(limit)
    margin = nvml.ask("DeviceGetMarginTemperature", handle)  # newer cards give the distance only
    margin = getattr(margin, "marginTemperature", margin)
    return temperature + margin if temperature is not None and isinstance(margin, int) else None


def _throttle(nvml: NvmlBinding, handle: Any) -> tuple[str, ...] | None:
    for function in ("DeviceGetCurrentClocksEventReasons", "DeviceGetCurrentClocksThrottleReasons"):
        bits = nvml.ask(function, handle)
        if bits is not None:
            return throttle_reasons(bits)
    return None


def _reserved(nvml: NvmlBinding, handle: Any) -> int | None:
    version = getattr(nvml.module, "nvmlMemory_v2", None)
    memory = nvml.ask("DeviceGetMemoryInfo", handle, version=version) if version else None
    return getattr(memory, "reserved", None)
