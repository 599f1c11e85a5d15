"""What each device holds: the buffers that a launch's log names, reconciled with the driver's numbers. Pure.

Sources: llama.cpp's buffer lines (exact to 0.01 MiB) and, for host weights, the breakdown table of ``--fit`` (MiB,
rounded down), because the buffer of a mapped file (``CPU_Mapped``) also spans the GPU tensors that lie between CPU
tensors. Lines after ``creating MTP draft context`` or ``loading draft model`` belong to the draft.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from gpubox.hardware.gpu import Gpu, pci_address
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.server.log_events import (
    BreakdownRow,
    DeviceBuffer,
    KvCache,
    LogDevice,
    LogEvent,
    LogSection,
    OffloadedLayers,
    ThreadCount,
)
from gpubox.telemetry.snapshot import DeviceKind, DeviceMemory

HOST = "Host"
MAPPED = "CPU_Mapped"
KINDS = ("model", "kv", "recurrent", "compute")
"""The kinds of buffers that the breakdown lists. An output buffer counts only as pinned memory."""
_HOST_BUFFERS = re.compile(r"^(CPU\w*|\w+_Host|Host)$")
_RPC = re.compile(r"^RPC\d* ?[\[(]([^\])]+)[\])]$")


def device_key(name: str) -> str:
    """One key for all spellings of a device: ``CUDA0 (RTX 4090)`` -> ``CUDA0``; an RPC device by its endpoint.

    llama.cpp numbers RPC buffers for each endpoint and RPC devices over all, so only the endpoint identifies one.
    """
    name = name.strip()
    if match := _RPC.match(name):
        return f"RPC {match[1]}"
    bare = name.partition(" (")[0]
    return HOST if _HOST_BUFFERS.match(bare) else bare


class Buffer(NamedTuple):
    """One buffer of a device. ``draft``: of the draft model or MTP context."""

    draft: bool
    kind: str
    """model | kv | recurrent | compute | output"""
    device: str
    """The key of the device."""
    name: str
    """As the log writes the device: several names can belong to one."""


class MemoryBreakdown:
    """Folds the events of one launch. The attributes are what the log has reported so far."""

    def __init__(self) -> None:
        self.devices: dict[str, LogDevice] = {}
        self._ended = False
        self.unload()

    def unload(self) -> None:
        """Forgets all but the devices: the server freed its memory (asleep), or begins to load (awake)."""
        self.layers: OffloadedLayers | None = None
        self.threads: int | None = None
        self.kv_cells = 0
        self.kv_size_bytes = 0
        self._buffers: dict[Buffer, int] = {}
        """Their bytes."""
        self._rows: dict[str, dict[str, BreakdownRow]] = {"measure-main": {}, "measure-extra": {}}
        self._table: str | None = None
        self._fitting = self._extra_next = False
        self._in_draft = False

    def feed(self, event: LogEvent) -> None:
        """Processes one event of the launch's log, in order."""
        if self._ended:
            return  # the table at exit counts current memory without the draft: the one before the load is right
        match event:
            case LogSection():
                self._begin_section(event.name)
            case BreakdownRow() if self._table:
                rows, key = self._rows[self._table], device_key(event.device)
                known = rows.get(key)  # Host, and beside it CPU_REPACK
                sums = (a + b for a, b in zip(known[1:], event[1:], strict=True)) if known else event[1:]
                rows[key] = BreakdownRow(key, *sums)
            case DeviceBuffer():
                buffer = Buffer(self._in_draft, event.kind, device_key(event.device), event.device)
                # A compute buffer that is reserved again replaces the earlier one. Of other kinds there can be several.
                before = 0 if event.kind == "compute" else self._buffers.get(buffer, 0)
                self._buffers[buffer] = before + event.size_bytes
            case LogDevice():
                self._add_device(event)
            case OffloadedLayers():
                self.layers = self.layers or event
            case KvCache() if not self._in_draft:
                self.kv_cells = max(self.kv_cells, event.cells * event.streams)
                self.kv_size_bytes += event.size_bytes
            case ThreadCount():
                self.threads = event.threads
            case _:
                pass

    def _begin_section(self, name: str) -> None:
        if name == "model":
            self.unload()
        elif name == "measure-main":
            self._fitting = True
        elif name in ("measure-extra", "no-extra"):
            self._extra_next = name == "measure-extra"
        elif name == "table" and self._fitting:
            # --fit measures again after each adjustment, the extra model only if the context changed. The last table
            # counts.
            self._table = "measure-extra" if self._extra_next else "measure-main"
            self._extra_next = False
            self._rows[self._table] = {}
        elif name == "load":
            self._table, self._fitting = None, False
            self._forget("model")
        elif name == "draft" or (name == "tensors" and any(b.kind == "model" for b in self._buffers)):
            self._in_draft = True  # ik_llama.cpp: a second model
        elif name == "context":
            self._forget("kv")
            self._forget("recurrent")
            if not self._in_draft:
                self.kv_cells = self.kv_size_bytes = 0
        elif name == "exit":
            self._ended = True

    def _add_device(self, event: LogDevice) -> None:
        key = event.device if not event.device.startswith("RPC") else f"RPC {event.name}"
        known = self.devices.get(key)
        if key != "CPU" and (known is None or not known.total_bytes):
            self.devices[key] = event
        elif known and event.bus_id:
            self.devices[key] = known._replace(bus_id=event.bus_id)

    def _forget(self, kind: str) -> None:
        self._buffers = {b: size for b, size in self._buffers.items() if (b.draft, b.kind) != (self._in_draft, kind)}

    @property
    def pinned_bytes(self) -> int:
        """Host memory that the driver pinned."""
        return sum(size for buffer, size in self._buffers.items() if buffer.name.endswith("_Host"))

    @property
    def mapped_bytes(self) -> int:
        """Host weights, those of a draft model included, that are mapped from their files."""
        total = 0
        for draft, weights in ((False, self.weights_of(HOST)), (True, self.bytes_of("model", HOST, draft=True))):
            sizes = {b.name: n for b, n in self._buffers.items() if b[:3] == (draft, "model", HOST)}
            if sizes.pop(MAPPED, None) is not None:  # it is too large: take the weights less those that were read
                total += max(0, (weights or 0) - sum(sizes.values()))
        return total

    @property
    def keys(self) -> list[str]:
        """The devices that hold anything, the host last."""
        keys = {buffer.device for buffer in self._buffers if buffer.kind != "output"}
        return sorted(keys, key=lambda key: (key == HOST, key))

    def bytes_of(self, kind: str, key: str, *, draft: bool = False) -> int | None:
        """Bytes of one kind of buffer on a device; None if it has none."""
        sizes = [size for buffer, size in self._buffers.items() if buffer[:3] == (draft, kind, key)]
        return sum(sizes) if sizes else None

    def weights_of(self, key: str) -> int | None:
        """Bytes of weights on a device."""
        row = self._rows["measure-main"].get(key)
        return row.model_bytes if row and self._over_counts(key) else self.bytes_of("model", key)

    def weights_are_estimated(self, key: str) -> bool:
        """Whether the host weights are only an upper bound: mapped, partly offloaded, and no table of ``--fit``."""
        return self._over_counts(key) and key not in self._rows["measure-main"]

    def _over_counts(self, key: str) -> bool:
        # The mapped range includes tensors that were copied to a device or into a repacked buffer.
        models = [buffer for buffer in self._buffers if buffer.kind == "model"]
        copied = any(b.device != HOST or b.name == "CPU_REPACK" for b in models if not b.draft)
        return key == HOST and copied and any(b.name == MAPPED for b in models)

    def draft_of(self, key: str) -> int | None:
        """Bytes of the draft model or MTP context on a device; None if there is no draft."""
        if not self._in_draft:
            return None
        return sum(self.bytes_of(kind, key, draft=True) or 0 for kind in KINDS)

    def total_of(self, key: str) -> int:
        """All bytes on a device that the log accounts for."""
        parts = (self.bytes_of(kind, key) for kind in KINDS[1:])
        return sum(size or 0 for size in (self.weights_of(key), *parts, self.draft_of(key)))

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Bytes of KV cache for one token of context, over all devices."""
        return self.kv_size_bytes / self.kv_cells if self.kv_cells else None


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
