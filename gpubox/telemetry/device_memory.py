"""What each device holds: the log's memory breakdown reconciled with the driver's numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from gpubox.hardware.gpu import Gpu, pci_address
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.telemetry.memory_breakdown import HOST, MemoryBreakdown
from gpubox.telemetry.snapshot import DeviceKind, DeviceMemory


def reconcile_devices(
    breakdown: MemoryBreakdown | None,
    gpus: tuple[Gpu, ...],
    host: HostReading | None,
    process: ProcessReading | None,
    server_pid: int | None,
    loaded_used: dict[int, int],
    loaded_whole: Collection[int] = (),
) -> tuple[DeviceMemory, ...]:
    """Every device: the cards first, then RPC devices, then the host.

    ``loaded_used`` is what the server used after its load, by the driver's index of the card; growth is counted from
    there. For the cards in ``loaded_whole`` it is the use of the whole card, because the driver hid that of the server.
    """
    devices: list[DeviceMemory] = []
    card_keys: set[str] = set()
    for gpu in gpus:
        key = device_key_of(gpu, breakdown)
        if key:
            card_keys.add(key)
        card = _card(gpu, key, breakdown, server_pid, loaded_used.get(gpu.index), gpu.index in loaded_whole)
        devices.append(_within_ram(card, gpu, host))
    if breakdown:
        devices += [_unseen(key, breakdown) for key in breakdown.keys if key != HOST and key not in card_keys]
        if HOST in breakdown.keys:
            devices.append(_host(breakdown, host, process, sum(gpu.shared_used_bytes or 0 for gpu in gpus)))
    return tuple(devices)


def server_vram(gpu: Gpu, server_pid: int | None) -> int | None:
    """Bytes that the server holds on a card, according to the driver; None if it does not report them."""
    return next((p.vram_bytes for p in gpu.processes if p.pid == server_pid and p.vram_bytes is not None), None)


def device_key_of(gpu: Gpu, breakdown: MemoryBreakdown | None) -> str | None:
    """llama.cpp's name of a card: by PCI address, which both report; else by index."""
    if breakdown is None:
        return None
    address = pci_address(gpu.bus_id)
    for key, device in breakdown.devices.items():
        if address and pci_address(device.bus_id) == address:
            return key
    cards = [k for k in breakdown.keys if k.startswith(("CUDA", "ROCm", "Vulkan", "SYCL")) and k[-1:].isdecimal()]
    if any(pci_address(breakdown.devices[k].bus_id) for k in cards if k in breakdown.devices):
        return None
    return next((key for key in cards if re.sub(r"\D", "", key) == str(gpu.index)), None)


def _card(
    gpu: Gpu,
    key: str | None,
    breakdown: MemoryBreakdown | None,
    server_pid: int | None,
    loaded_used: int | None,
    whole_card: bool,
) -> DeviceMemory:
    total, used = gpu.vram_total_bytes, gpu.vram_used_bytes
    known = [(p.name or f"pid {p.pid}", p.vram_bytes) for p in gpu.processes if p.pid != server_pid]
    others = sorted(((name, size) for name, size in known if size is not None), key=lambda pair: -pair[1])
    others_bytes = sum(size for _, size in others)
    hidden = not gpu.processes_known or any(p.vram_bytes is None for p in gpu.processes)
    parts = breakdown.total_of(key) if breakdown and key else 0
    server_bytes = server_vram(gpu, server_pid)
    # Growth is unknown if the driver hid the server's memory at the load and reports it now, or the other way round.
    comparable = server_bytes if not whole_card else used if server_bytes is None else None
    growth = None
    if key and comparable is not None and loaded_used is not None:
        growth = max(0, comparable - loaded_used)
    logged = _logged(key, "gpu", breakdown) if breakdown and key else DeviceMemory(f"GPU {gpu.index}", "gpu")
    return replace(
        logged,
        name=gpu.name,
        gpu_index=gpu.index,
        total_bytes=total,
        growth_bytes=growth,
        other_processes=tuple(others),
        other_processes_bytes=None if hidden and not others else others_bytes,
        unaccounted_bytes=used - parts - others_bytes - (growth or 0) if used is not None else None,
        free_bytes=total - used if total is not None and used is not None else None,
    )


def _within_ram(card: DeviceMemory, gpu: Gpu, host: HostReading | None) -> DeviceMemory:
    """A GPU in the processor can take no more of the RAM than is free: the rest is in use by programs."""
    if gpu.shared_total_bytes is None or host is None or card.free_bytes is None:
        return card
    own = card.free_bytes - (gpu.shared_total_bytes - (gpu.shared_used_bytes or 0))
    free = max(0, min(card.free_bytes, own + host.ram_available_bytes))
    others = (card.other_processes_bytes or 0) + card.free_bytes - free
    return replace(card, free_bytes=free, other_processes_bytes=others)


def _logged(key: str, kind: DeviceKind, breakdown: MemoryBreakdown) -> DeviceMemory:
    """What the log knows of a device."""
    return DeviceMemory(
        device=key,
        kind=kind,
        weights_bytes=breakdown.weights_of(key),
        kv_bytes=breakdown.bytes_of("kv", key),
        recurrent_bytes=breakdown.bytes_of("recurrent", key),
        compute_bytes=breakdown.bytes_of("compute", key),
        draft_bytes=breakdown.draft_of(key),
    )


def _unseen(key: str, breakdown: MemoryBreakdown) -> DeviceMemory:
    """A device that the driver here does not know (RPC, or no driver): all numbers come from the log."""
    device = breakdown.devices.get(key)
    remote = key.startswith("RPC")
    logged = _logged(key, "rpc" if remote else "gpu", breakdown)
    if device is None:
        return logged
    name = f"{device.device}[{device.name}]" if remote else key
    return replace(logged, device=name, name=device.name, total_bytes=device.total_bytes)


def _host(
    breakdown: MemoryBreakdown, host: HostReading | None, process: ProcessReading | None, on_gpu: int
) -> DeviceMemory:
    """The RAM, with parts that add up, without the ``on_gpu`` bytes that are shown as a GPU's memory.

    Kernel: man 5 proc (meminfo, pid/status), mm/page_alloc.c si_mem_available.

    MemAvailable counts the resident pages of a mapped GGUF as available, because they are page cache, unless they are
    locked. Here they are weights, and only the rest is free. Pinned memory (``CUDA_Host``) may be in no process's RSS.
    """
    known = breakdown.total_of(HOST)
    total = host.ram_total_bytes - on_gpu if host else None
    available = min(max(0, host.ram_available_bytes), total) if host and total is not None else None
    on_disk = free = others = unaccounted = None
    if process:
        mapped = min(breakdown.mapped_bytes, known)
        resident_file = min(mapped, process.file_bytes)
        resident = min(mapped, resident_file + process.shared_bytes)  # a GGUF in a tmpfs is shared memory
        on_disk = mapped - resident
        server_bytes = process.anon_bytes + process.shared_bytes + resident_file
        unaccounted = server_bytes - (known - on_disk)
        unseen = min(breakdown.pinned_bytes, max(0, -unaccounted))
        server_bytes, unaccounted = server_bytes + unseen, unaccounted + unseen
        if total is not None and available is not None:
            free = max(0, available - max(0, resident_file - process.locked_bytes))
            others = total - free - server_bytes
            if others < 0:  # the readings are from slightly different moments
                others, unaccounted = 0, unaccounted + others
    elif total is not None and available is not None:
        free, unaccounted = available, total - available - known
    return replace(
        _logged(HOST, "host", breakdown),
        name="RAM",
        total_bytes=total,
        on_disk_bytes=on_disk,
        other_processes_bytes=others,
        unaccounted_bytes=unaccounted,
        free_bytes=free,
        estimated=breakdown.weights_are_estimated(HOST) or bool(on_disk),
    )
