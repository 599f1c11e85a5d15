"""The readings of one card through NVML, query by query. An unsupported query gives ``None``, never an exception."""

from __future__ import annotations

from typing import Any

from gpubox.hardware.gpu import GpuProcess, scaled
from gpubox.hardware.process import process_name

_NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
"""NVML's value for "unknown" (NVML_VALUE_NOT_AVAILABLE)."""
_GPU, _SM_CLOCK, _MEMORY_CLOCK, _SLOWDOWN, _GPU_MAX = 0, 1, 2, 1, 3

ProcessNames = dict[int, str | None]
"""A cache of process names by pid."""


class NvmlBinding:
    """The pynvml module, with queries that do not raise."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.answered = False
        """Whether a query since ``begin`` was answered."""
        self.lost = False
        """Whether a query since ``begin`` reported that the GPU is lost."""
        self.refusal = ""
        """The last error since ``begin``, other than "not supported"."""

    def begin(self) -> None:
        """Resets ``answered``, ``lost`` and ``refusal``, before the queries about one card."""
        self.answered, self.lost, self.refusal = False, False, ""

    def ask(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """The answer of ``nvml<function>``; ``None`` if driver or binding has none."""
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
        """As ``ask``, for text: older bindings return bytes."""
        value = self.ask(function, *args)
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        return value.strip() if isinstance(value, str) else None

    @property
    def unreachable(self) -> bool:
        """Whether the card is lost: the driver says so, or every query since ``begin`` failed."""
        return self.lost or bool(self.refusal and not self.answered)


_absent = object()


def memory_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """The fields of ``Gpu`` about memory."""
    memory = nvml.ask("DeviceGetMemoryInfo", handle)
    return {
        "vram_total_bytes": getattr(memory, "total", None),
        "vram_used_bytes": getattr(memory, "used", None),
    }


def fast_fields(nvml: NvmlBinding, handle: Any, names: ProcessNames) -> dict[str, Any]:
    """The fields of ``Gpu`` that change with every token."""
    utilization = nvml.ask("DeviceGetUtilizationRates", handle)
    processes = _processes(nvml, handle, names)
    return {
        **memory_fields(nvml, handle),
        "utilization_percent": getattr(utilization, "gpu", None),
        "memory_utilization_percent": getattr(utilization, "memory", None),
        "power_watts": scaled(nvml.ask("DeviceGetPowerUsage", handle), 1000),
        "clock_sm_mhz": nvml.ask("DeviceGetClockInfo", handle, _SM_CLOCK),
        "clock_memory_mhz": nvml.ask("DeviceGetClockInfo", handle, _MEMORY_CLOCK),
        "processes": processes or (),
        "processes_known": processes is not None,
    }


def slow_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """The fields of ``Gpu`` that change slowly or never."""
    generation = nvml.ask("DeviceGetCurrPcieLinkGeneration", handle) or None
    width = nvml.ask("DeviceGetCurrPcieLinkWidth", handle) or None
    temperature = nvml.ask("DeviceGetTemperature", handle, _GPU)
    capability = nvml.ask("DeviceGetCudaComputeCapability", handle)
    return {
        "name": nvml.text("DeviceGetName", handle),
        "uuid": nvml.text("DeviceGetUUID", handle),
        "bus_id": _bus_id(nvml, handle),
        "power_limit_watts": scaled(nvml.ask("DeviceGetEnforcedPowerLimit", handle), 1000),
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
        "compute_capability": ".".join(map(str, capability)) if capability else None,
    }


def traffic_fields(nvml: NvmlBinding, handle: Any) -> dict[str, Any]:
    """The fields of ``Gpu`` about PCIe traffic. The driver measures each direction for 20 ms before it answers."""
    module = nvml.module
    into = nvml.ask("DeviceGetPcieThroughput", handle, module.NVML_PCIE_UTIL_RX_BYTES)
    out = nvml.ask("DeviceGetPcieThroughput", handle, module.NVML_PCIE_UTIL_TX_BYTES)
    return {
        "pcie_rx_bytes_per_second": into * 1000 if into is not None else None,
        "pcie_tx_bytes_per_second": out * 1000 if out is not None else None,
    }


def _processes(nvml: NvmlBinding, handle: Any, names: ProcessNames) -> tuple[GpuProcess, ...] | None:
    """The processes of both lists, each once; ``None`` if the driver gives neither list."""
    lists = [nvml.ask(f"DeviceGet{kind}RunningProcesses", handle) for kind in ("Compute", "Graphics")]
    if lists == [None, None]:
        return None
    vram: dict[int, int | None] = {}
    for process in (process for listed in lists for process in listed or ()):
        used = process.usedGpuMemory
        used = None if used in _NOT_AVAILABLE else used
        before = vram.get(process.pid)
        # A process that computes and draws is on both lists with the same total.
        vram[process.pid] = used if before is None else max(before, used or 0)
    return tuple(GpuProcess(pid, _name(nvml, pid, names), used) for pid, used in vram.items())


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
    margin = nvml.ask("DeviceGetMarginTemperature", handle)  # newer cards report only the distance to it
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


# Bytes per second of one PCIe lane in one direction, after line coding and before packet headers (which cost another
# 10-20 %): transfer rate x coding / 8. PCI Express Base Specification: 1.x 2.5 GT/s and 2.x 5 GT/s at 8b/10b; 3.x 8,
# 4.0 16 and 5.0 32 GT/s at 128b/130b; 6.x 64 and 7.0 128 GT/s in flits of 256 bytes, of which CRC and FEC leave 242.
_LANE_BYTES_PER_SECOND = {
    1: 2_500_000_000 * 8 / 10 / 8,
    2: 5_000_000_000 * 8 / 10 / 8,
    3: 8_000_000_000 * 128 / 130 / 8,
    4: 16_000_000_000 * 128 / 130 / 8,
    5: 32_000_000_000 * 128 / 130 / 8,
    6: 64_000_000_000 * 242 / 256 / 8,
    7: 128_000_000_000 * 242 / 256 / 8,
}


def link_bytes_per_second(generation: int | None, width: int | None) -> int | None:
    """The most that a link of ``generation`` with ``width`` lanes carries each way; ``None`` if one is unknown."""
    lane = _LANE_BYTES_PER_SECOND.get(generation or 0)
    return round(lane * width) if lane and width else None


_IDLE = 0x1
# NVML reference, "NvmlClocksEventReasons". The order is that of the result, the most common cause first.
_THROTTLE_REASONS = {
    0x4: "power cap",
    0x20: "thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x8: "hw slowdown",
    0x200: "board limit",
    0x400: "reliability",
    0x10: "sync boost",
    0x2: "application clocks",
    0x100: "display clocks",
}


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The reasons in ``bits`` (nvmlDeviceGetCurrentClocksEventReasons). Idle is none; an unknown bit is a number."""
    reasons = [reason for bit, reason in _THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~(_IDLE | sum(_THROTTLE_REASONS))
    return (*reasons, f"reason {unknown:#x}") if unknown else tuple(reasons)
