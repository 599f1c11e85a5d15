"""The devices that an engine can use, and what is free on each once the replaced server has stopped. Blocks.

Sources: the engine's own ``--list-devices`` (names and sizes; cached, because it opens a driver context), its log for
the PCI addresses, the driver for what is free on a card, /proc for the host. An RPC server serves one client at a time
and lets all others wait, so it is not asked while the replaced server uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal

from gpubox.engines.find import Engine
from gpubox.engines.query import list_devices
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import DriverReading, Gpu, pci_address
from gpubox.hardware.host import HostReader, read_process, zfs_cache_bytes
from gpubox.hardware.nvml import read_driver
from gpubox.paths import Paths
from gpubox.server.log_events import LogDevice
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RunningServer
from gpubox.storage import file_stamp, read_cache, write_cache
from gpubox.telemetry.device_memory import HOST
from gpubox.units import MIB

Asking = Literal["always", "once", "never"]
"""Whether the engine may be run. always: RPC servers each time, local devices if the cache does not know them. once:
only if it was never asked, and no RPC server."""
_LIST_SECONDS = 8.0
_CACHE_BYTES = 1024 * 1024
_LOG_HEAD_BYTES = 256 * 1024
_LINE = re.compile(r"^(\S+): (.*) \((\d+) MiB, (\d+) MiB free\)$")
_SELECTING = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_VK_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that change which cards an engine lists, or their order."""


@dataclass(frozen=True, slots=True)
class DeviceMemoryNow:
    """A device and its memory, as the launch will find it."""

    key: str
    kind: Literal["gpu", "rpc", "host"]
    name: str
    total_bytes: int | None
    free_bytes: int | None
    """Once the replaced server has stopped."""
    other_processes: tuple[tuple[str, int], ...] = ()
    free_now_bytes: int | None = None
    """While it still runs."""
    elastic_bytes: int = 0
    """What a launch may take beyond ``free_bytes``: swap; on Vulkan, memory that the driver moves to the RAM."""
    own_free_bytes: int | None = None
    """Of a GPU in the processor: the part of ``free_bytes`` that is not the host's RAM. None: all is its own."""
    unaccounted_bytes: int = 0
    """What the driver takes beyond llama.cpp's own table."""
    driver_assumed: bool = False
    """Whether that is assumed, because no run on this card showed it."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One line of ``--list-devices``."""

    label: str
    """``CUDA0``, ``RPC1``."""
    name: str
    """The card's name, or the endpoint of an RPC device."""
    total_bytes: int
    free_bytes: int
    bus_id: str = ""
    """The PCI address, once a log or a dry run has told it; ``--list-devices`` does not."""

    @property
    def key(self) -> str:
        return f"RPC {self.name}" if self.label.startswith("RPC") else self.label


@dataclass(frozen=True, slots=True)
class EngineDevices:
    """The devices of an engine with given flags."""

    listed: tuple[ListedDevice, ...]
    problem: str = ""
    """Why they are unknown."""
    fresh: bool = False
    """Whether the engine was asked just now: the free bytes are valid."""


def list_engine_devices(
    engine: Engine, rpc: Sequence[str], env: Mapping[str, str], paths: Paths, *, busy_rpc: bool, ask: Asking = "always"
) -> EngineDevices:
    """The devices of an engine with ``--rpc``. Never raises.

    ``busy_rpc``: one of the RPC servers has a client, so asking it would wait for ever.
    """
    cache = _DeviceCache(engine, rpc, env, paths)
    cached = cache.read()
    if isinstance(cached, tuple) and not (rpc and ask == "always" and not busy_rpc):
        return EngineDevices(cached)
    if busy_rpc or ask == "never" or (ask == "once" and (rpc or cached is not None)):
        return EngineDevices((), cached if isinstance(cached, str) else "the engine's devices are not known yet")
    listed = _ask_engine(engine, rpc, env)
    if isinstance(cached, tuple):
        known = {device.label: device.bus_id for device in cached}
        devices = tuple(replace(device, bus_id=known.get(device.label, "")) for device in listed.listed)
        listed = replace(listed, listed=devices)
    cache.write(listed.problem or listed.listed)
    return listed


def learn_addresses(
    engine: Engine, rpc: Sequence[str], env: Mapping[str, str], paths: Paths, seen: Iterable[LogDevice]
) -> None:
    """Keeps the PCI addresses of the devices that an engine named in its log, so that its cards are told apart."""
    cache = _DeviceCache(engine, rpc, env, paths)
    cached = cache.read()
    addresses = {device.device: device.bus_id for device in seen if pci_address(device.bus_id)}
    if isinstance(cached, tuple):
        devices = tuple(replace(device, bus_id=addresses.get(device.label, device.bus_id)) for device in cached)
        if devices != cached:
            cache.write(devices)


def _ask_engine(engine: Engine, rpc: Sequence[str], env: Mapping[str, str]) -> EngineDevices:
    try:
        lines = list_devices(engine, rpc, env, _LIST_SECONDS)
    except GpuboxError as error:
        return EngineDevices((), error.message)
    if lines is None:
        return EngineDevices((), f"the engine {engine.name!r} does not list its devices")
    listed = tuple(device for line in lines if (device := _parse_line(line)))
    listed = tuple(device for device in listed if not device.label.startswith(("BLAS", "CPU")))
    return EngineDevices(listed, fresh=True)


def devices_now(
    listed: EngineDevices, replaces: Sequence[RunningServer], logs: Sequence[Path], reading: DriverReading | None = None
) -> list[DeviceMemoryNow]:
    """The memory of each listed device once ``replaces`` have stopped; ``logs`` are their logs. The host is last."""
    reading = read_driver() if reading is None else reading
    gpus = match_gpus(listed.listed, reading.gpus)
    started: dict[str, int] = {}
    for log in logs:
        started = {**_devices_at_start(log), **started}
    host = _host(replaces)
    devices = []
    for device, gpu in zip(listed.listed, gpus, strict=True):
        if device.label.startswith("RPC"):
            free = device.free_bytes if listed.fresh else started.get(device.key)
            devices.append(DeviceMemoryNow(device.key, "rpc", device.name, device.total_bytes, free))
        elif gpu is None:
            free = device.free_bytes if listed.fresh and not replaces else None
            devices.append(DeviceMemoryNow(device.key, "gpu", device.name, device.total_bytes, free))
        else:
            card = _card(device, gpu, replaces, reading)
            if gpu.shared_total_bytes is not None:
                card, host = _within_ram(card, gpu, host)
            devices.append(card)
    return [*devices, host]


def _parse_line(line: str) -> ListedDevice | None:
    match = _LINE.match(line)
    if not match:
        return None
    return ListedDevice(match[1], match[2].strip(), int(match[3]) * MIB, int(match[4]) * MIB)


def match_gpus(listed: Sequence[ListedDevice], gpus: Sequence[Gpu]) -> list[Gpu | None]:
    """The driver's card of each listed device, by PCI address; None if that is not clear.

    Until the engine has named the addresses (in a log, or a dry run) cards are told apart by size and name. Of equal
    cards the order is the same in both (both order by PCI address), unless CUDA_VISIBLE_DEVICES changes it; then there
    are more cards than devices, and none is matched.
    """
    by_address = {address: gpu for gpu in gpus if (address := pci_address(gpu.bus_id))}
    matches: dict[str, Gpu] = {}
    for device in listed:
        if gpu := by_address.get(pci_address(device.bus_id) or ()):
            matches[device.label] = gpu
    rest = [d for d in listed if not d.label.startswith("RPC") and not pci_address(d.bus_id)]
    left = [gpu for gpu in gpus if gpu not in matches.values()]
    for kind in {(device.name, device.total_bytes) for device in rest}:
        same = [device for device in rest if (device.name, device.total_bytes) == kind]
        cards = [gpu for gpu in left if _may_be(same[0], gpu)]
        cards = [gpu for gpu in cards if gpu.name == same[0].name] or cards
        if len(same) == len(cards):
            matches |= {device.label: card for device, card in zip(same, cards, strict=True)}
    return [matches.get(device.label) for device in listed]


def _may_be(device: ListedDevice, gpu: Gpu) -> bool:
    """Whether engine and driver may mean the same card: of the same size, and of no other name."""
    total = gpu.vram_total_bytes
    if total is None or device.total_bytes > total * 1.1:
        return False
    if gpu.shared_total_bytes is None and device.total_bytes < total * 0.9:
        return False
    generic = gpu.driver != "nvidia"  # sysfs mostly has no name
    return generic or not gpu.name or gpu.name in device.name or device.name in gpu.name


def _within_ram(card: DeviceMemoryNow, gpu: Gpu, host: DeviceMemoryNow) -> tuple[DeviceMemoryNow, DeviceMemoryNow]:
    """A GPU in the processor and the host: what the GPU takes beyond its own memory is the host's."""
    if card.free_bytes is None or card.free_now_bytes is None or host.free_bytes is None:
        return card, host
    held = card.free_bytes - card.free_now_bytes  # by the replaced servers
    released = min(held, gpu.shared_used_bytes or 0)
    available = host.free_bytes + released
    own = card.free_now_bytes - (gpu.shared_total_bytes or 0) + (gpu.shared_used_bytes or 0) + held - released
    free = min(card.free_bytes, own + available)
    return replace(card, free_bytes=free, own_free_bytes=own), replace(host, free_bytes=available)


def _card(device: ListedDevice, gpu: Gpu, replaces: Sequence[RunningServer], reading: DriverReading) -> DeviceMemoryNow:
    total, used = gpu.vram_total_bytes, gpu.vram_used_bytes
    parts = [_held(gpu, server, reading) for server in replaces]
    held = None if None in parts else sum(part for part in parts if part is not None)
    free = None if total is None or used is None or held is None or gpu.lost else max(0, total - used + held)
    pids = {server.process.pid for server in replaces if server.process}
    others = sorted(
        ((process.name or f"pid {process.pid}", process.vram_bytes)
         for process in gpu.processes if process.pid not in pids and process.vram_bytes is not None),
        key=lambda pair: -pair[1],
    )  # fmt: skip
    now = None if total is None or used is None else total - used
    elastic = max(0, (total or 0) - (free or 0)) if device.label.startswith("Vulkan") else 0
    return DeviceMemoryNow(device.key, "gpu", gpu.name or device.name, total, free, tuple(others), now, elastic)


def _held(gpu: Gpu, server: RunningServer, reading: DriverReading) -> int | None:
    """What ``server`` holds on a card; None if that is unknown."""
    pid = server.process.pid if server.process else None
    own = (process.vram_bytes for process in gpu.processes if process.pid == pid)
    if (held := next((size for size in own if size is not None), None)) is not None:
        return held
    # The driver hides the processes, or the server holds nothing here.
    visible = any(process.pid == pid for card in reading.gpus for process in card.processes)
    # Of a server in a container the driver knows another pid than gpubox; the record then has the whole card.
    hidden = not gpu.processes_known or any(process.vram_bytes is None for process in gpu.processes)
    hidden = hidden or (not visible and gpu.index in server.whole_card_gpus)
    if not hidden:
        return 0
    return None if gpu.index in server.whole_card_gpus else dict(server.loaded_vram).get(gpu.index)


def _host(replaces: Sequence[RunningServer]) -> DeviceMemoryNow:
    host = HostReader().read()
    if host is None:
        return DeviceMemoryNow(HOST, "host", "RAM", None, None)
    free = host.ram_available_bytes
    for server in replaces:
        if server.process and (process := read_process(server.process)):
            free += process.anon_bytes + process.locked_bytes  # its mapped files count as available already
    free = min(free + zfs_cache_bytes(), host.ram_total_bytes)
    return DeviceMemoryNow(HOST, "host", "RAM", host.ram_total_bytes, free, elastic_bytes=host.swap_free_bytes)


def _devices_at_start(log: Path) -> dict[str, int]:
    """What was free on each RPC device when the server of this log started."""
    free: dict[str, int] = {}
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            text = file.read(_LOG_HEAD_BYTES).decode(errors="replace")
        for line in text.splitlines():
            _, event = parse_event(line)
            if isinstance(event, LogDevice) and event.device.startswith("RPC") and event.free_bytes is not None:
                free.setdefault(f"RPC {event.name}", event.free_bytes)
    return free


class _DeviceCache:
    """What an engine with given flags and variables listed, on disk."""

    def __init__(self, engine: Engine, rpc: Sequence[str], env: Mapping[str, str], paths: Paths) -> None:
        file = [str(engine.path), *file_stamp(engine.path)]
        self._key = [file, list(rpc), [env.get(name, os.environ.get(name, "")) for name in _SELECTING]]
        self._file = paths.plans / f"devices-{hashlib.sha256(json.dumps(self._key).encode()).hexdigest()[:24]}.json"

    def read(self) -> tuple[ListedDevice, ...] | str | None:
        """The devices, or why the engine did not list them; None if it was not asked."""
        kept = read_cache(self._file, self._key, _CACHE_BYTES)
        try:
            return kept if kept is None or isinstance(kept, str) else tuple(ListedDevice(*each) for each in kept)
        except TypeError:
            return None

    def write(self, devices: tuple[ListedDevice, ...] | str) -> None:
        """Keeps them; without the file the engine is asked again."""
        stored = devices if isinstance(devices, str) else [astuple(device) for device in devices]
        write_cache(self._file, self._key, stored)
