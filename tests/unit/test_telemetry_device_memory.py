"""The log's memory against the driver's: the parts of a device always add up to its total."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from gpubox.hardware.gpu import Gpu, GpuProcess
from gpubox.hardware.host import HostReading, ProcessReading
from gpubox.server.log_events import DeviceBuffer, KvCache, LogDevice, LogEvent, LogSection
from gpubox.telemetry.device_memory import HOST, MemoryBreakdown, reconcile_devices
from gpubox.telemetry.snapshot import DeviceMemory
from gpubox.units import MIB

GIB = 1024 * MIB
SERVER = 4242
HOST_NOW = HostReading(64 * GIB, 40 * GIB, 0, ())
PROCESS = ProcessReading(SERVER, 1.0, 8, 9 * GIB, 3 * GIB, 6 * GIB, 0, 0, None)


def card(index: int = 0, used: int | None = 10 * GIB, total: int | None = 16 * GIB, **more: object) -> Gpu:
    values = {"name": f"card {index}", "vram_used_bytes": used, "vram_total_bytes": total, **more}
    return Gpu(index, **values)  # type: ignore[arg-type]


def split_of(*events: LogEvent) -> MemoryBreakdown:
    split = MemoryBreakdown()
    for event in events:
        split.feed(event)
    return split


def on(device: str, size: int = 8 * GIB) -> list[LogEvent]:
    return [
        DeviceBuffer(device, "model", size),
        DeviceBuffer(device, "kv", GIB),
        DeviceBuffer(device, "compute", GIB // 2),
    ]


def device_of(
    split: MemoryBreakdown | None, gpu: Gpu, loaded: dict[int, int] | None = None, whole: tuple[int, ...] = ()
) -> DeviceMemory:
    return reconcile_devices(split, (gpu,), HOST_NOW, PROCESS, SERVER, loaded or {}, whole)[0]


def total_of(device: DeviceMemory) -> int:
    parts = (
        device.weights_bytes,
        device.kv_bytes,
        device.recurrent_bytes,
        device.compute_bytes,
        device.draft_bytes,
        device.growth_bytes,
        device.other_processes_bytes,
        device.unaccounted_bytes,
        device.free_bytes,
    )
    return sum(part or 0 for part in parts)


def test_a_card_of_one_server() -> None:
    gpu = card(
        processes=(GpuProcess(SERVER, "llama-server", 9 * GIB + GIB // 2 + 300 * MIB), GpuProcess(7, "Xorg", 50 * MIB))
    )
    memory = device_of(split_of(*on("CUDA0")), gpu, {0: 9 * GIB + GIB // 2 + 100 * MIB})

    assert (memory.device, memory.kind, memory.gpu_index) == ("CUDA0", "gpu", 0)
    assert (memory.weights_bytes, memory.kv_bytes, memory.compute_bytes) == (8 * GIB, GIB, GIB // 2)
    assert (memory.recurrent_bytes, memory.draft_bytes) == (None, None)
    assert memory.growth_bytes == 200 * MIB
    assert memory.other_processes == (("Xorg", 50 * MIB),)
    assert memory.unaccounted_bytes == 10 * GIB - 9 * GIB - GIB // 2 - 250 * MIB
    assert total_of(memory) == 16 * GIB


def any_card(rng: random.Random, index: int) -> Gpu:
    total = rng.randrange(1, 96 * GIB)
    used = rng.randrange(0, total + 1)
    if rng.random() < 0.1:
        used = total + rng.randrange(GIB)  # a driver that counts a reserve twice
    listed = tuple(
        GpuProcess(rng.choice([SERVER, 7, 8, 9]), rng.choice([None, "", "Xorg", "x" * 300]), size)
        for size in rng.choices([None, 0, 1, GIB, 40 * GIB, rng.randrange(total)], k=rng.randrange(5))
    )
    known = rng.random() > 0.2
    return card(
        index,
        used,
        total,
        processes=listed if known else (),
        processes_known=known,
        bus_id=rng.choice([None, f"00000000:{index + 1:02X}:00.0"]),
        lost=rng.random() < 0.1,
        vram_reserved_bytes=rng.choice([None, 300 * MIB]),
    )


def any_split(rng: random.Random, cards: int) -> MemoryBreakdown | None:
    if rng.random() < 0.1:
        return None
    split = MemoryBreakdown()
    for index in range(cards):
        if rng.random() < 0.5:
            split.feed(LogDevice(f"CUDA{index}", "card", rng.choice(["", "unknown id", f"0000:{index + 1:02x}:00.0"])))
    for section in (None, LogSection("draft")):
        if section and rng.random() < 0.5:
            break
        if section:
            split.feed(section)
        for _ in range(rng.randrange(8)):
            device = rng.choice(
                ["CPU_Mapped", "CUDA_Host", "RPC0[10.0.0.1:1]", *(f"CUDA{i}" for i in range(cards + 1))]
            )
            kind = rng.choice(["model", "kv", "recurrent", "compute", "output"])
            split.feed(DeviceBuffer(device, kind, rng.randrange(40 * GIB)))  # type: ignore[arg-type]
    return split


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_of_a_card_come_to_its_total_always(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        cards = tuple(any_card(rng, index) for index in range(rng.randrange(5)))
        split = any_split(rng, len(cards))
        loaded = {index: rng.randrange(96 * GIB) for index in range(5) if rng.random() < 0.5}
        whole = [index for index in range(5) if rng.random() < 0.5]
        pid, host = rng.choice([None, SERVER]), rng.choice([None, HOST_NOW])

        devices = reconcile_devices(split, cards, host, rng.choice([None, PROCESS]), pid, loaded, whole)

        for gpu, device in zip(cards, devices, strict=False):
            assert device.gpu_index == gpu.index
            assert total_of(device) == gpu.vram_total_bytes
            if not gpu.processes_known:
                assert device.other_processes_bytes is None
            assert (device.growth_bytes or 0) >= 0
        named = [device.device for device in devices]
        assert len(set(named)) == len(named)
        if split:
            assert sum(d.weights_bytes or 0 for d in devices) == sum(split.weights_of(key) or 0 for key in split.keys)
            assert sum(d.draft_bytes or 0 for d in devices) == sum(split.draft_of(key) or 0 for key in split.keys)


@pytest.mark.parametrize(
    "hidden",
    [{"processes_known": False}, {"processes": (GpuProcess(SERVER, None, None), GpuProcess(7, None, None))}],
    ids=["the driver lists no processes", "it lists them without sizes"],
)
def test_where_processes_are_hidden_others_are_unknown_and_in_the_rest(hidden: dict[str, Any]) -> None:
    memory = device_of(split_of(*on("CUDA0")), card(**hidden), {0: 9 * GIB + GIB // 2}, (0,))

    assert memory.other_processes_bytes is None
    assert memory.growth_bytes == GIB // 2  # of the whole card since the load
    assert memory.unaccounted_bytes == 0
    assert total_of(memory) == 16 * GIB


def test_an_empty_process_list_means_no_other_processes() -> None:
    assert device_of(None, card()).other_processes_bytes == 0


def test_two_cards_in_another_order_are_matched_by_address() -> None:
    split = split_of(
        LogDevice("CUDA0", "fast", "0000:41:00.0"), LogDevice("CUDA1", "slow", "0000:01:00.0"),
        *on("CUDA0", 8 * GIB), *on("CUDA1", 2 * GIB),
    )  # fmt: skip
    cards = (card(0, bus_id="00000000:01:00.0"), card(1, bus_id="00000000:41:00.0"))

    memory = reconcile_devices(split, cards, None, None, SERVER, {})

    assert [(m.gpu_index, m.device, m.weights_bytes) for m in memory] == [(0, "CUDA1", 2 * GIB), (1, "CUDA0", 8 * GIB)]


def test_the_same_slot_in_another_pci_domain_is_another_card() -> None:
    split = split_of(LogDevice("CUDA0", "card", "0001:01:00.0"), *on("CUDA0"))
    cards = (card(0, bus_id="00000000:01:00.0"), card(1, bus_id="00000001:01:00.0"))

    assert [m.device for m in reconcile_devices(split, cards, None, None, SERVER, {})] == ["GPU 0", "CUDA0"]


def test_without_addresses_the_index_decides() -> None:
    memory = reconcile_devices(split_of(*on("CUDA1")), (card(0), card(1)), None, None, SERVER, {})

    assert [m.device for m in memory] == ["GPU 0", "CUDA1"]


def test_a_server_that_uses_no_card() -> None:
    split = split_of(
        DeviceBuffer("CPU", "model", GIB), DeviceBuffer("CPU", "kv", MIB), DeviceBuffer("CPU", "compute", MIB)
    )
    gpu, host = reconcile_devices(split, (card(),), HOST_NOW, PROCESS, SERVER, {0: GIB})

    assert (gpu.device, gpu.weights_bytes, gpu.growth_bytes, gpu.unaccounted_bytes) == ("GPU 0", None, None, 10 * GIB)
    assert total_of(gpu) == 16 * GIB
    assert (host.device, host.kind, host.weights_bytes, host.total_bytes) == (HOST, "host", GIB, 64 * GIB)


def test_a_gpu_in_the_processor_and_the_ram_are_counted_once() -> None:
    apu = card(used=20 * GIB, total=62 * GIB, shared_total_bytes=60 * GIB, shared_used_bytes=19 * GIB)
    split = split_of(*on("Vulkan0"), DeviceBuffer("CPU", "model", GIB))
    gpu, host = reconcile_devices(split, (apu,), HOST_NOW, PROCESS, SERVER, {})
    assert (gpu.total_bytes, gpu.free_bytes) == (62 * GIB, 41 * GIB)  # 1 GiB of its own, and what is free of the RAM
    assert host.total_bytes == 64 * GIB - 19 * GIB
    assert (total_of(gpu), total_of(host)) == (gpu.total_bytes, host.total_bytes)


def test_a_card_on_its_own_without_any_server() -> None:
    (memory,) = reconcile_devices(None, (card(processes=(GpuProcess(7, None, GIB),)),), HOST_NOW, None, None, {})

    assert (memory.other_processes, memory.unaccounted_bytes) == ((("pid 7", GIB),), 9 * GIB)


def test_a_card_that_is_lost_keeps_its_last_readings() -> None:
    memory = device_of(split_of(*on("CUDA0")), card(lost=True))

    assert total_of(memory) == 16 * GIB


@pytest.mark.parametrize(("used", "total"), [(None, 16 * GIB), (GIB, None), (None, None)])
def test_a_card_without_memory_readings(used: int | None, total: int | None) -> None:
    memory = device_of(split_of(*on("CUDA0")), card(used=used, total=total), {0: GIB})

    assert memory.free_bytes is None
    assert memory.weights_bytes == 8 * GIB
    assert (memory.unaccounted_bytes is None) == (used is None)


def test_more_in_the_log_than_on_the_card_is_a_negative_rest() -> None:
    memory = device_of(split_of(*on("CUDA0", 12 * GIB)), card())

    assert memory.unaccounted_bytes == 10 * GIB - 13 * GIB - GIB // 2
    assert total_of(memory) == 16 * GIB


def test_the_growth_of_the_server_not_of_its_neighbours() -> None:
    shown = (GpuProcess(SERVER, None, 5 * GIB), GpuProcess(7, "game", 4 * GIB))
    memory = device_of(split_of(*on("CUDA0", GIB)), card(processes=shown), {0: 5 * GIB})

    assert (memory.growth_bytes, memory.other_processes_bytes) == (0, 4 * GIB)


def test_a_server_that_gave_memory_back_has_not_grown() -> None:
    memory = device_of(split_of(*on("CUDA0")), card(processes=(GpuProcess(SERVER, None, GIB),)), {0: 2 * GIB})

    assert memory.growth_bytes == 0


def test_a_process_list_that_is_lost_is_no_growth() -> None:
    """At the load the server's own use was known; later the driver names no process, and a game runs beside it."""
    for hidden in ({"processes_known": False}, {"processes": (GpuProcess(SERVER, None, None),)}):
        memory = device_of(split_of(*on("CUDA0")), card(**hidden), {0: GIB})
        assert memory.growth_bytes is None
        assert total_of(memory) == 16 * GIB

    seen = card(processes=(GpuProcess(SERVER, None, 2 * GIB),))
    assert device_of(split_of(*on("CUDA0")), seen, {0: GIB}).growth_bytes == GIB
    # and the other way round: hidden at the load, listed now
    assert device_of(split_of(*on("CUDA0")), seen, {0: 9 * GIB}, (0,)).growth_bytes is None


def test_growth_is_unknown_without_a_reading_at_the_load() -> None:
    assert device_of(split_of(*on("CUDA0")), card()).growth_bytes is None


def test_rpc_devices_are_devices_with_their_endpoint() -> None:
    split = split_of(LogDevice("RPC0", "10.0.0.1:1", "", 8 * GIB, 8 * GIB), *on("RPC0[10.0.0.1:1]"))
    (memory,) = reconcile_devices(split, (), None, None, SERVER, {})

    assert (memory.device, memory.kind, memory.total_bytes) == ("RPC0[10.0.0.1:1]", "rpc", 8 * GIB)
    assert (memory.weights_bytes, memory.free_bytes) == (8 * GIB, None)


def test_a_card_that_only_the_server_sees() -> None:
    (memory,) = reconcile_devices(split_of(*on("CUDA0")), (), None, None, SERVER, {})

    assert (memory.device, memory.kind, memory.weights_bytes, memory.total_bytes) == ("CUDA0", "gpu", 8 * GIB, None)


def test_mapped_host_weights_without_a_fit_are_an_estimate() -> None:
    devices = reconcile_devices(
        split_of(DeviceBuffer("CPU_Mapped", "model", GIB), *on("CUDA0"), KvCache(GIB, 4096, 1)),
        (),
        HOST_NOW,
        PROCESS,
        SERVER,
        {},
    )

    assert [(d.device, d.estimated) for d in devices] == [("CUDA0", False), (HOST, True)]


def test_the_host_where_nothing_is_known_of_it() -> None:
    (memory,) = reconcile_devices(split_of(DeviceBuffer("CPU", "model", GIB)), (), None, None, None, {})

    assert (memory.weights_bytes, memory.total_bytes, memory.free_bytes, memory.unaccounted_bytes) == (
        GIB,
        None,
        None,
        None,
    )


# -- the host -------------------------------------------------------------------------------------------


def host_total(device: DeviceMemory) -> int:
    """What the parts in RAM, the others, the rest and the free memory come to."""
    rest = (device.other_processes_bytes, device.unaccounted_bytes, device.free_bytes)
    return sum(size for _, size in device.parts) + sum(part or 0 for part in rest)


def of_host(split: MemoryBreakdown, host: HostReading | None, process: ProcessReading | None) -> DeviceMemory:
    return reconcile_devices(split, (), host, process, SERVER, {})[-1]


@dataclass(frozen=True)
class Kernel:
    """A made-up kernel: who holds which pages. Its readings follow from that, as /proc would give them."""

    mapped: int = 0
    """Of the GGUF, in the page cache and in the server's page table."""
    on_disk: int = 0
    locked: int = 0
    """Of ``mapped``, unevictable."""
    in_shm: int = 0
    """Of the GGUF, on a tmpfs: shared memory."""
    anon: int = 0
    pinned: int = 0
    """By the driver, in no resident set."""
    libraries: int = 0
    elsewhere: int = 0
    """Other programs, the kernel, a ZFS cache, a pool of huge pages, shared memory."""
    cache: int = 0
    """Pages of other files."""
    unused: int = GIB

    @property
    def host(self) -> HostReading:
        # MemAvailable: what is unused and the page cache, but for what is locked
        available = self.unused + self.cache + self.libraries + self.mapped - self.locked
        total = available + self.locked + self.in_shm + self.anon + self.pinned + self.elsewhere
        return HostReading(total, available, 0, ())

    @property
    def process(self) -> ProcessReading:
        file, shared = self.mapped + self.libraries, self.in_shm
        rss = self.anon + file + shared
        return ProcessReading(SERVER, 1.0, 8, rss, self.anon, file, shared, 0, None, False, self.locked)


def test_mapped_weights_count_once() -> None:
    kernel = Kernel(mapped=20 * GIB, anon=2 * GIB, libraries=50 * MIB, elsewhere=3 * GIB, cache=4 * GIB)
    split = split_of(
        DeviceBuffer("CPU_Mapped", "model", 20 * GIB),
        DeviceBuffer("CPU", "kv", GIB),
        DeviceBuffer("CPU", "compute", GIB),
    )

    memory = of_host(split, kernel.host, kernel.process)

    assert memory.total_bytes == host_total(memory) == kernel.host.ram_total_bytes
    assert dict(memory.parts) == {"weights": 20 * GIB, "kv": GIB, "compute": GIB}
    assert memory.free_bytes == kernel.unused + kernel.cache + kernel.libraries
    assert (memory.other_processes_bytes, memory.unaccounted_bytes, memory.on_disk_bytes) == (3 * GIB, 0, 0)
    assert not memory.estimated


def test_of_weights_that_are_partly_on_disk_only_the_rest_is_in_ram() -> None:
    kernel = Kernel(mapped=5 * GIB, on_disk=15 * GIB, anon=GIB, elsewhere=GIB)
    memory = of_host(split_of(DeviceBuffer("CPU_Mapped", "model", 20 * GIB)), kernel.host, kernel.process)

    assert (memory.weights_bytes, memory.on_disk_bytes) == (20 * GIB, 15 * GIB)
    assert dict(memory.parts) == {"weights": 5 * GIB}
    assert memory.estimated  # the libraries' pages are counted with the weights'
    assert host_total(memory) == memory.total_bytes


@pytest.mark.parametrize(
    ("kernel", "buffer"),
    [
        (Kernel(mapped=8 * GIB, locked=8 * GIB, anon=GIB), "CPU_Mapped"),
        (Kernel(anon=9 * GIB), "CPU"),
        (Kernel(in_shm=8 * GIB, anon=GIB), "CPU_Mapped"),
        (Kernel(anon=9 * GIB, elsewhere=40 * GIB, cache=2 * GIB), "CPU_REPACK"),
    ],
    ids=["mlock", "no mmap", "a GGUF in a tmpfs", "huge pages and a ZFS cache beside it"],
)
def test_all_parts_add_up_however_the_weights_are_loaded(kernel: Kernel, buffer: str) -> None:
    memory = of_host(split_of(DeviceBuffer(buffer, "model", 8 * GIB)), kernel.host, kernel.process)

    assert dict(memory.parts) == {"weights": 8 * GIB}
    assert (memory.other_processes_bytes, memory.unaccounted_bytes) == (kernel.elsewhere, GIB)
    assert memory.free_bytes == kernel.unused + kernel.cache
    assert host_total(memory) == memory.total_bytes


@pytest.mark.parametrize("seen", [True, False], ids=["in the resident set", "in none"])
def test_pinned_memory_belongs_to_the_server(seen: bool) -> None:
    kernel = Kernel(anon=8 * GIB, elsewhere=GIB) if seen else Kernel(pinned=8 * GIB, elsewhere=GIB)
    memory = of_host(split_of(DeviceBuffer("CUDA_Host", "model", 8 * GIB)), kernel.host, kernel.process)

    assert (memory.other_processes_bytes, memory.unaccounted_bytes) == (GIB, 0)


def test_the_server_beside_it_that_maps_the_same_file_is_charged_with_none_of_it() -> None:
    kernel = Kernel(mapped=8 * GIB, anon=GIB, elsewhere=GIB)  # the other's own memory is elsewhere
    memory = of_host(split_of(DeviceBuffer("CPU_Mapped", "model", 8 * GIB)), kernel.host, kernel.process)

    assert (memory.other_processes_bytes, memory.free_bytes) == (GIB, kernel.unused)


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_of_the_host_come_to_its_total_always(seed: int) -> None:
    """Over made-up kernels, over readings of different instants, and over plain nonsense."""
    rng = random.Random(seed)
    for _ in range(25):
        split = any_split(rng, 2) or MemoryBreakdown()

        def size(rng: random.Random = rng) -> int:
            return rng.choice([0, 0, rng.randrange(GIB), rng.randrange(60 * GIB)])

        mapped = size()
        locked = rng.choice([0, mapped, rng.randrange(mapped + 1)])
        kernel = Kernel(
            mapped, size(), locked, size(), size(), size(), rng.randrange(GIB), size(), size(), rng.randrange(1, GIB)
        )
        host: HostReading | None = rng.choice([kernel.host, kernel.host, None, HOST_NOW])
        if rng.random() < 0.1:
            host = HostReading(rng.randrange(64 * GIB), rng.randrange(-GIB, 99 * GIB), 0, ())
        process = rng.choice([kernel.process, kernel.process, None, PROCESS])

        for device in reconcile_devices(split, (), host, process, SERVER, {}):
            if device.kind != "host":
                continue
            assert all(size > 0 for _, size in device.parts)
            assert (device.on_disk_bytes or 0) <= (device.weights_bytes or 0) + (device.draft_bytes or 0)
            assert (device.other_processes_bytes or 0) >= 0
            if host is None:
                assert device.total_bytes is device.free_bytes is None
            else:
                assert host_total(device) == device.total_bytes == host.ram_total_bytes
                assert 0 <= (device.free_bytes or 0) <= host.ram_total_bytes
