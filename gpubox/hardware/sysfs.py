"""AMD and Intel cards, from sysfs. NVIDIA's own driver shows nothing there."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from gpubox.hardware.gpu import Gpu, scaled

SYSFS = Path("/sys")
_NVIDIA = "0x10de"
_MAKERS = {"amdgpu": "AMD", "i915": "Intel", "xe": "Intel"}
_INTEGRATED_INTEL = "0000:00:02.0"
"""The address of the GPU inside an Intel processor. It has no memory of its own, so it is not listed."""


def read_sysfs_gpus(root: Path = SYSFS) -> tuple[Gpu, ...]:
    """The AMD and Intel cards, numbered from 0 in the kernel's order. Never raises.

    Of a suspended card only name and memory are read, so that it is not woken. sysfs shows neither link nor processes.
    """
    gpus: list[Gpu] = []
    for card in _cards(root):
        uevent = _uevent(card / "device")
        driver = uevent.get("DRIVER", "")
        if driver not in _MAKERS or uevent.get("PCI_SLOT_NAME") == _INTEGRATED_INTEL:
            continue
        fields = {**_identity(card / "device", uevent, driver), **_memory(card, driver)}
        if _text(card / "device/power/runtime_status") != "suspended":
            fields |= _activity(card, driver) | _sensors(card / "device/hwmon", driver)
        gpus.append(Gpu(len(gpus), driver=driver, processes_known=False, **fields))
    return tuple(gpus)


def has_nvidia_card(root: Path = SYSFS) -> bool:
    """Whether there is an NVIDIA card, with or without its driver."""
    try:
        devices = sorted((root / "bus/pci/devices").iterdir())
    except OSError:
        return False
    display = ("0x0300", "0x0302")  # PCI classes: VGA and 3D controller
    return any(
        _text(device / "vendor") == _NVIDIA and (_text(device / "class") or "").startswith(display)
        for device in devices
    )


def _cards(root: Path) -> list[Path]:
    """``card0``, ``card1``, ... without their connectors (``card0-DP-1``)."""
    try:
        cards = [path for path in (root / "class/drm").iterdir() if re.fullmatch(r"card\d+", path.name)]
    except OSError:
        return []
    return sorted(cards, key=lambda path: int(path.name[4:]))


def _uevent(device: Path) -> dict[str, str]:
    """DRIVER, PCI_ID and PCI_SLOT_NAME of a card."""
    lines = (_text(device / "uevent") or "").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _identity(device: Path, uevent: dict[str, str], driver: str) -> dict[str, Any]:
    slot, pci_id = uevent.get("PCI_SLOT_NAME"), uevent.get("PCI_ID")
    generic = f"{_MAKERS[driver]} GPU {pci_id.lower()}" if pci_id else f"{_MAKERS[driver]} GPU"
    return {
        "name": _text(device / "product_name") or generic,  # only some cards have a product name
        "uuid": _text(device / "unique_id"),
        "bus_id": f"{slot:0>16}" if slot else None,  # NVML writes the domain with 8 digits
    }


def _memory(card: Path, driver: str) -> dict[str, Any]:
    device = card / "device"
    if driver == "amdgpu":
        return {
            "vram_total_bytes": _number(device / "mem_info_vram_total"),
            "vram_used_bytes": _number(device / "mem_info_vram_used"),
        }
    # Only some kernels show the size, and the use is often visible to root only.
    total = _number(device / "tile0/physical_vram_size_bytes") or _number(card / "lmem_total_bytes")
    free = _number(card / "lmem_avail_bytes")
    return {
        "vram_total_bytes": total,
        "vram_used_bytes": total - free if total is not None and free is not None else None,
    }


def _activity(card: Path, driver: str) -> dict[str, Any]:
    device = card / "device"
    if driver == "amdgpu":
        return {
            "utilization_percent": _number(device / "gpu_busy_percent"),
            "memory_utilization_percent": _number(device / "mem_busy_percent"),
        }
    return {"clock_sm_mhz": _number(device / "tile0/gt0/freq0/act_freq", card / "gt_act_freq_mhz")}


def _sensors(folder: Path, driver: str) -> dict[str, Any]:
    """hwmon's units are microwatts, millidegrees, hertz and 255ths."""
    try:
        hwmon = min(folder.iterdir())
    except (OSError, ValueError):
        return {}
    cap = _number(hwmon / "power1_cap") or _number(hwmon / "power1_max")
    first = "temp2" if driver == "xe" else "temp1"  # xe: temp2 is the package, temp3 the memory
    full = _number(hwmon / "pwm1_max")
    fields: dict[str, Any] = {
        "power_watts": scaled(_number(hwmon / "power1_average", hwmon / "power1_input"), 1e6),
        "power_limit_watts": scaled(cap or None, 1e6),
        "temperature_celsius": _rounded(hwmon / f"{first}_input", 1000),
        "temperature_limit_celsius": _rounded(hwmon / f"{first}_crit", 1000) or None,
        "fan_percent": _rounded(hwmon / "pwm1", full / 100) if full else None,
    }
    if driver == "amdgpu":
        fields["clock_sm_mhz"] = _rounded(hwmon / "freq1_input", 1e6)
        fields["clock_memory_mhz"] = _rounded(hwmon / "freq2_input", 1e6)
    return fields


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:  # missing, or the card is suspended or in reset
        return None


def _number(*paths: Path) -> int | None:
    """The number in the first of these files that holds one."""
    for path in paths:
        with contextlib.suppress(ValueError):
            return int(_text(path) or "")
    return None


def _rounded(path: Path, divisor: float) -> int | None:
    number = _number(path)
    return None if number is None else round(number / divisor)
