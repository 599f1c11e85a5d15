"""The split of the log against the driver's own numbers: what each card holds, reconciled. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from gpubox.hardware.gpu import Gpu
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.telemetry.memory_breakdown import HOST, MemoryBreakdown
from gpubox.telemetry.snapshot import DeviceMemory


def reconcile_devices(
    split: MemoryBreakdown | None,
    gpus: tuple[Gpu, ...],
    host: HostReading | None,
    process: ProcessReading | None,
    server_pid: int | None,
    loaded_used: dict[int, int],
    whole_card_gpus: Collection[int] = (),
) -> tuple[DeviceMemory, ...]:
    """Every device: cards first, then RPC devices, then the host.

    ``loaded_used`` is what the server used when the load was proven, by the driver's index: growth is counted from
    there. For the cards of ``whole_card_gpus`` it is the whole card's use; like is only set against like.
    """
    keys = split.keys if split else []
    devices: list[DeviceMemory] = []
    taken: set[str] = set()
    for gpu in gpus:
        key = device_key_of(gpu, split)
        if key:
            taken.add(key)
        devices.append(_card(gpu, key, split, server_pid, loaded_used.get(gpu.index), gpu.index in whole_card_gpus))
    for key in keys:
        if key != HOST and key not in taken and split:
            devices.append(_unseen(key, split))
    if split and HOST in keys:
        devices.append(_host(split, host, process))
    return tuple(devices)


def server_vram(gpu: Gpu, server_pid: int | None) -> int | None:
    """Bytes the driver says the server holds on a card; ``None`` where it does not say."""
    return next((p.vram_bytes for p in gpu.processes if p.pid == server_pid and p.vram_bytes is not None), None)


def device_key_of(gpu: Gpu, split: MemoryBreakdown | None) -> str | None:
    """llama.cpp's name of a card: by PCI address, which both print; else by position."""
    if split is None:
        return None
    bus = _address(gpu.bus_id)
    for key, device in split.devices.items():
        if bus and _address(device.bus_id) == bus:
            return key
    named = [k for k in split.keys if k.startswith(("CUDA", "ROCm", "Vulkan", "SYCL")) and k[-1:].isdecimal()]
    known_by_bus = any(_address(split.devices[k].bus_id) for k in named if k in split.devices)
    guess = [k for k in named if re.sub(r"\D", "", k) == str(gpu.index)]
    return guess[0] if guess and not known_by_bus else None


def _address(text: str | None) -> tuple[int, ...] | None:
    """``00000000:01:00.0`` of NVML and ``0000:01:00.0`` of llama.cpp as the same numbers."""
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]))?", (text or "").lower())
    return tuple(int(part or "0", 16) for part in match.groups()) if match else None


def _card(
    gpu: Gpu,
    key: str | None,
    split: MemoryBreakdown | None,
    server_pid: int | None,
    loaded_used: int | None,
    whole: bool,
) -> DeviceMemory:
    total, used = gpu.vram_total_bytes, gpu.vram_used_bytes
    others = tuple(
        sorted(
            (
                (p.name or f"pid {p.pid}", p.vram_bytes)
                for p in gpu.processes
                if p.pid != server_pid and p.vram_bytes is not None
            ),
            key=lambda pair: -pair[1],
        )
    )
    others_sum = sum(size for _, size in others)
    hidden = not gpu.processes_known or any(p.vram_bytes is None for p in gpu.processes)
    mine = server_vram(gpu, server_pid)
    parts = split.known_of(key) if split and key else 0
    # Hidden at the load and listed now, or the other way round (a lost process list): that is no growth.
    holding = used if whole and mine is None else mine if not whole else None
    growth = max(0, holding - loaded_used) if key and holding is not None and loaded_used is not None else None
    unaccounted = used - parts - others_sum - (growth or 0) if used is not None else None
    held = split if key else None
    return DeviceMemory(
        device=key or f"GPU {gpu.index}",
        kind="gpu",
        name=gpu.name,
        gpu_index=gpu.index,
        total_bytes=total,
        weights_bytes=held.weights_of(key) if held and key else None,
        kv_bytes=held.kv.get(key) if held and key else None,
        recurrent_bytes=held.recurrent.get(key) if held and key else None,
        compute_bytes=held.compute.get(key) if held and key else None,
        draft_bytes=held.draft_of(key) if held and key else None,
        growth_bytes=growth,
        other_processes=others,
        other_processes_bytes=None if hidden and not others else others_sum,
        unaccounted_bytes=unaccounted,
        free_bytes=total - used if total is not None and used is not None else None,
    )


def _unseen(key: str, split: MemoryBreakdown) -> DeviceMemory:
    """A device the driver here does not know (RPC, or no driver): the log's numbers, its total as at the start."""
    device = split.devices.get(key)
    return DeviceMemory(
        device=f"{device.device}[{device.name}]" if device and key.startswith("RPC") else key,
        kind="rpc" if key.startswith("RPC") else "gpu",
        name=device.name if device else None,
        total_bytes=device.total_bytes if device else None,
        weights_bytes=split.weights_of(key),
        kv_bytes=split.kv.get(key),
        recurrent_bytes=split.recurrent.get(key),
        compute_bytes=split.compute.get(key),
        draft_bytes=split.draft_of(key),
    )


def _host(split: MemoryBreakdown, host: HostReading | None, process: ProcessReading | None) -> DeviceMemory:
    """The RAM, split so that it sums up. Kernel: man 5 proc (meminfo, pid/status), mm/page_alloc.c si_mem_available.

    Resident pages of a mapped GGUF are page cache: MemAvailable counts them as available, unless they are locked. Here
    they are weights, and what is free is the rest. Pinned (``CUDA_Host``) memory may be in no process's resident set.
    """
    known = split.known_of(HOST)
    total = host.ram_total_bytes if host else None
    available = min(max(0, host.ram_available_bytes), host.ram_total_bytes) if host else None
    on_disk = free = others = unaccounted = None
    if process:
        mapped = min(split.mapped_bytes, known)
        of_file = min(mapped, process.file_bytes)
        resident = min(mapped, of_file + process.shared_bytes)  # a GGUF in a tmpfs is shared memory
        on_disk = mapped - resident
        held = process.anon_bytes + process.shared_bytes + of_file
        unaccounted = held - (known - on_disk)
        unseen = min(split.pinned_bytes, max(0, -unaccounted))
        held, unaccounted = held + unseen, unaccounted + unseen
        if total is not None and available is not None:
            free = max(0, available - max(0, of_file - process.locked_bytes))
            others = total - free - held
            if others < 0:  # the readings are not of one instant
                others, unaccounted = 0, unaccounted + others
    elif total is not None and available is not None:
        free, unaccounted = available, total - available - known
    return DeviceMemory(
        device=HOST,
        kind="host",
        name="RAM",
        total_bytes=total,
        weights_bytes=split.weights_of(HOST),
        kv_bytes=split.kv.get(HOST),
        recurrent_bytes=split.recurrent.get(HOST),
        compute_bytes=split.compute.get(HOST),
        draft_bytes=split.draft_of(HOST),
        on_disk_bytes=on_disk,
        other_processes_bytes=others,
        unaccounted_bytes=unaccounted,
        free_bytes=free,
        estimated=split.weights_are_estimated(HOST) or bool(on_disk),
    )
