"""AMD and Intel cards, from sysfs, and the processes on them, from /proc. NVIDIA's own driver shows nothing there.

A GPU in an AMD processor has a few hundred MiB of its own (VRAM) and takes the rest from the RAM (GTT): both together
are its memory. Kernel: Documentation/gpu/amdgpu/driver-misc.rst, Documentation/gpu/drm-usage-stats.rst.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox.hardware.gpu import Gpu, GpuProcess, pci_address, scaled

SYSFS = Path("/sys")
PROC = Path("/proc")
DrmProcesses = Mapping[tuple[int, ...], Sequence[tuple[int, str | None, int, int]]]
"""PCI address -> pid, name, and the bytes that a process has on the card and of the RAM that the card uses."""
_MEMORY_KEY = re.compile(r"drm-(resident|memory|total)-(vram|local|gtt)\d*")
_KIB = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NVIDIA = "0x10de"
_MAKERS = {"amdgpu": "AMD", "i915": "Intel", "xe": "Intel"}
_INTEGRATED_INTEL = "0000:00:02.0"
"""The address of the GPU inside an Intel processor. It has no memory of its own, so it is not listed."""


def read_sysfs_gpus(root: Path = SYSFS, processes: DrmProcesses | None = None) -> tuple[Gpu, ...]:
    """The AMD and Intel cards, numbered from 0 in the kernel's order. Never raises.

    Of a suspended card only name and memory are read, so that it is not woken. sysfs shows no link.
    ``processes``: those of ``read_drm_processes``, if they were read.
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
        on_card = (processes or {}).get(pci_address(fields["bus_id"]) or (), ())
        shares = fields.get("shared_total_bytes") is not None
        known = tuple(GpuProcess(pid, name, own + shared * shares) for pid, name, own, shared in on_card)
        gpus.append(Gpu(len(gpus), driver=driver, processes=known, processes_known=bool(known), **fields))
    return tuple(gpus)


def read_drm_processes(proc: Path = PROC) -> DrmProcesses:
    """The owner's processes on AMD and Intel cards, from ``/proc/PID/fdinfo``. Never raises."""
    on_cards: dict[tuple[int, ...], list[tuple[int, str | None, int, int]]] = {}
    for folder in _folders(proc):
        clients: dict[tuple[tuple[int, ...], str], tuple[int, int]] = {}
        for file in _folders(folder / "fd"):
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith("/dev/dri/"):
                    text = (folder / "fdinfo" / file.name).read_text(encoding="utf-8", errors="replace")
                    if client := _drm_client(text):
                        clients[client[0]] = client[1]  # several files of one client show the same memory
        for address in {address for address, _ in clients}:
            sizes = [size for (at, _), size in clients.items() if at == address]
            own, shared = (sum(column) for column in zip(*sizes, strict=True))
            on_cards.setdefault(address, []).append((int(folder.name), _text(folder / "comm"), own, shared))
    return on_cards


def _folders(folder: Path) -> list[Path]:
    """The numbered entries of a folder of /proc; empty if it is gone, or another user's."""
    try:
        return [folder / name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - half the time of iterdir
    except OSError:
        return []


def _drm_client(text: str) -> tuple[tuple[tuple[int, ...], str], tuple[int, int]] | None:
    """Card and client of one open file, and the bytes that it has on the card and of the RAM."""
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    address = pci_address(fields.get("drm-pdev"))
    sizes: dict[str, dict[str, int]] = {}
    for key, value in fields.items():
        number, _, unit = value.partition(" ")
        if (match := _MEMORY_KEY.fullmatch(key)) and number.isdecimal() and unit in _KIB:
            kind = sizes.setdefault(match[1], {})
            place = "gtt" if match[2] == "gtt" else "own"
            kind[place] = kind.get(place, 0) + int(number) * _KIB[unit]
    shown = next((sizes[kind] for kind in ("resident", "memory", "total") if kind in sizes), None)
    if address is None or shown is None:
        return None
    return (address, fields.get("drm-client-id", "")), (shown.get("own", 0), shown.get("gtt", 0))


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
        total, used = _number(device / "mem_info_vram_total"), _number(device / "mem_info_vram_used")
        gtt, gtt_used = _number(device / "mem_info_gtt_total"), _number(device / "mem_info_gtt_used")
        if total is None or used is None or gtt is None or gtt_used is None or not _in_processor(device):
            return {"vram_total_bytes": total, "vram_used_bytes": used}
        return {
            "vram_total_bytes": total + gtt,
            "vram_used_bytes": used + gtt_used,
            "shared_total_bytes": gtt,
            "shared_used_bytes": gtt_used,
        }
    # Only some kernels show the size, and the use is often visible to root only.
    total = _number(device / "tile0/physical_vram_size_bytes") or _number(card / "lmem_total_bytes")
    free = _number(card / "lmem_avail_bytes")
    return {
        "vram_total_bytes": total,
        "vram_used_bytes": total - free if total is not None and free is not None else None,
    }


def _in_processor(device: Path) -> bool:
    """Whether an AMD GPU is a part of the processor: only such a one measures the north bridge, or has no limits.

    amdgpu_pm.c ``hwmon_attributes_visible``: in1 (vddnb) is shown for APUs only, fan and power limit for cards only.
    """
    hwmon = next(device.glob("hwmon/hwmon*"), None)
    return hwmon is not None and (
        (hwmon / "in1_input").exists() or not any((hwmon / name).exists() for name in ("pwm1", "power1_cap"))
    )


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
