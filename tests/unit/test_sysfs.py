"""AMD and Intel cards, from trees like a kernel's sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.hardware.gpu import Gpu, GpuProcess
from gpubox.hardware.sysfs import has_nvidia_card, read_drm_processes, read_sysfs_gpus

GIB, MIB = 1024**3, 1024**2

RADEON = {
    "device/uevent": "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n",
    "device/unique_id": "9f3a1c\n",
    "device/mem_info_vram_total": f"{24 * GIB}\n",
    "device/mem_info_vram_used": f"{5 * GIB}\n",
    "device/gpu_busy_percent": "97\n",
    "device/mem_busy_percent": "41\n",
    "device/power/runtime_status": "active\n",
    "device/hwmon/hwmon3/power1_average": "287000000\n",
    "device/hwmon/hwmon3/power1_cap": "355000000\n",
    "device/hwmon/hwmon3/temp1_input": "61600\n",
    "device/hwmon/hwmon3/temp1_crit": "100000\n",
    "device/hwmon/hwmon3/pwm1": "102\n",
    "device/hwmon/hwmon3/pwm1_max": "255\n",
    "device/hwmon/hwmon3/freq1_input": "2487000000\n",
    "device/hwmon/hwmon3/freq2_input": "1249000000\n",
}
ARC = {
    "device/uevent": "DRIVER=xe\nPCI_ID=8086:E20B\nPCI_SLOT_NAME=0000:07:00.0\n",
    "device/hwmon/hwmon5/temp2_input": "44000\n",
    "device/hwmon/hwmon5/power1_max": "190000000\n",
    "device/tile0/gt0/freq0/act_freq": "2850\n",
}
GEFORCE = {"device/uevent": "DRIVER=nvidia\nPCI_ID=10DE:2D04\nPCI_SLOT_NAME=0000:01:00.0\n"}
INTEGRATED = {"device/uevent": "DRIVER=i915\nPCI_ID=8086:A780\nPCI_SLOT_NAME=0000:00:02.0\n"}


def plug(root: Path, name: str, files: dict[str, str]) -> Path:
    """Puts one card into the tree."""
    card = root / "class/drm" / name
    for path, text in files.items():
        (card / path).parent.mkdir(parents=True, exist_ok=True)
        (card / path).write_text(text)
    return card


def test_a_radeon_that_shows_everything(tmp_path: Path) -> None:
    plug(tmp_path, "card1", RADEON)

    assert read_sysfs_gpus(tmp_path) == (
        Gpu(
            index=0,
            name="AMD GPU 1002:744c",
            vram_total_bytes=24 * GIB,
            vram_used_bytes=5 * GIB,
            utilization_percent=97,
            temperature_celsius=62,
            power_watts=287.0,
            power_limit_watts=355.0,
            pcie_rx_bytes_per_second=None,
            pcie_tx_bytes_per_second=None,
            uuid="9f3a1c",
            bus_id="00000000:03:00.0",
            memory_utilization_percent=41,
            clock_sm_mhz=2487,
            clock_memory_mhz=1249,
            fan_percent=40,
            temperature_limit_celsius=100,
            driver="amdgpu",
            processes_known=False,
        ),
    )


def test_a_card_is_called_what_its_maker_wrote_into_it(tmp_path: Path) -> None:
    plug(tmp_path, "card0", {**RADEON, "device/product_name": "Radeon PRO W7900\n"})

    assert read_sysfs_gpus(tmp_path)[0].name == "Radeon PRO W7900"


def test_newer_kernels_give_the_power_of_now(tmp_path: Path) -> None:
    card = plug(tmp_path, "card0", {**RADEON, "device/hwmon/hwmon3/power1_input": "31000000\n"})
    (card / "device/hwmon/hwmon3/power1_average").unlink()

    assert read_sysfs_gpus(tmp_path)[0].power_watts == 31.0


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("device/mem_info_vram_total", ("vram_total_bytes",)),
        ("device/mem_info_vram_used", ("vram_used_bytes",)),
        ("device/gpu_busy_percent", ("utilization_percent",)),
        ("device/mem_busy_percent", ("memory_utilization_percent",)),
        ("device/hwmon/hwmon3/power1_average", ("power_watts",)),
        ("device/hwmon/hwmon3/power1_cap", ("power_limit_watts",)),
        ("device/hwmon/hwmon3/temp1_input", ("temperature_celsius",)),
        ("device/hwmon/hwmon3/pwm1_max", ("fan_percent",)),
        ("device/hwmon/hwmon3/freq2_input", ("clock_memory_mhz",)),
    ],
)
@pytest.mark.parametrize("content", [None, "", "n/a\n", "\xff"])
def test_what_the_kernel_does_not_show_is_unknown_and_the_rest_is_there(
    tmp_path: Path, file: str, fields: tuple[str, ...], content: str | None
) -> None:
    card = plug(tmp_path, "card0", RADEON)
    (card / file).unlink()
    if content is not None:
        (card / file).write_text(content, encoding="latin-1")

    (gpu,) = read_sysfs_gpus(tmp_path)

    assert [getattr(gpu, field) for field in fields] == [None] * len(fields)
    assert gpu.bus_id == "00000000:03:00.0"


def test_a_sleeping_card_is_not_woken(tmp_path: Path) -> None:
    plug(tmp_path, "card0", {**RADEON, "device/power/runtime_status": "suspended\n"})

    (gpu,) = read_sysfs_gpus(tmp_path)

    assert (gpu.vram_total_bytes, gpu.vram_used_bytes) == (24 * GIB, 5 * GIB)
    assert (gpu.utilization_percent, gpu.temperature_celsius, gpu.power_watts) == (None, None, None)


def test_an_arc_shows_what_it_shows(tmp_path: Path) -> None:
    plug(tmp_path, "card0", ARC)

    (gpu,) = read_sysfs_gpus(tmp_path)

    assert (gpu.name, gpu.driver, gpu.bus_id) == ("Intel GPU 8086:e20b", "xe", "00000000:07:00.0")
    assert (gpu.temperature_celsius, gpu.power_limit_watts, gpu.clock_sm_mhz) == (44, 190.0, 2850)
    assert (gpu.vram_total_bytes, gpu.vram_used_bytes, gpu.utilization_percent) == (None, None, None)


def test_an_intel_kernel_that_tells_the_memory(tmp_path: Path) -> None:
    uevent = "DRIVER=i915\nPCI_SLOT_NAME=0000:07:00.0\n"
    files = {"device/uevent": uevent, "lmem_total_bytes": f"{16 * GIB}", "lmem_avail_bytes": f"{15 * GIB}"}
    plug(tmp_path, "card0", {**files, "gt_act_freq_mhz": "2100"})

    (gpu,) = read_sysfs_gpus(tmp_path)

    assert (gpu.name, gpu.vram_total_bytes, gpu.vram_used_bytes) == ("Intel GPU", 16 * GIB, GIB)
    assert gpu.clock_sm_mhz == 2100


def test_only_cards_that_run_models_are_listed_in_the_kernels_order(tmp_path: Path) -> None:
    plug(tmp_path, "card0", GEFORCE)
    plug(tmp_path, "card1", INTEGRATED)
    plug(tmp_path, "card2", {"device/uevent": "DRIVER=ast\nPCI_SLOT_NAME=0000:02:00.0\n"})
    plug(tmp_path, "card3", {"device/vendor": "0x1af4\n"})
    plug(tmp_path, "card10", ARC)
    plug(tmp_path, "card9", RADEON)
    plug(tmp_path, "card9-DP-1", RADEON)
    plug(tmp_path, "renderD128", RADEON)

    assert [(gpu.index, gpu.driver) for gpu in read_sysfs_gpus(tmp_path)] == [(0, "amdgpu"), (1, "xe")]


def test_a_host_without_cards_has_none(tmp_path: Path) -> None:
    assert read_sysfs_gpus(tmp_path) == ()
    assert not has_nvidia_card(tmp_path)


@pytest.mark.parametrize(
    ("vendor", "kind", "present"),
    [
        ("0x10de", "0x030000", True),
        ("0x10de", "0x030200", True),
        ("0x10de", "0x040300", False),  # the audio device of its HDMI port
        ("0x1002", "0x030000", False),
    ],
)
def test_an_nvidia_card_is_seen_without_its_driver(tmp_path: Path, vendor: str, kind: str, present: bool) -> None:
    device = tmp_path / "bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")

    assert has_nvidia_card(tmp_path) is present


STRIX_HALO = {
    "device/uevent": "DRIVER=amdgpu\nPCI_ID=1002:1586\nPCI_SLOT_NAME=0000:c5:00.0\n",
    "device/mem_info_vram_total": f"{GIB // 2}\n",
    "device/mem_info_vram_used": f"{GIB // 4}\n",
    "device/mem_info_gtt_total": f"{124 * GIB}\n",
    "device/mem_info_gtt_used": f"{40 * GIB}\n",
    "device/hwmon/hwmon3/in1_input": "900\n",
    "device/hwmon/hwmon3/power1_average": "55000000\n",
}


def test_a_gpu_in_the_processor_has_its_own_memory_and_the_rams(tmp_path: Path) -> None:
    plug(tmp_path, "card0", STRIX_HALO)
    plug(tmp_path, "card1", {**RADEON, "device/mem_info_gtt_total": f"{60 * GIB}\n", "device/mem_info_gtt_used": "9\n"})

    apu, radeon = read_sysfs_gpus(tmp_path)

    assert (apu.vram_total_bytes, apu.vram_used_bytes) == (124 * GIB + GIB // 2, 40 * GIB + GIB // 4)
    assert (apu.shared_total_bytes, apu.shared_used_bytes) == (124 * GIB, 40 * GIB)
    assert (radeon.vram_total_bytes, radeon.shared_total_bytes) == (24 * GIB, None)


def open_drm(proc: Path, pid: int, fd: int, *lines: str, target: str = "/dev/dri/renderD128") -> None:
    """Gives a process an open file of the driver, whose fdinfo has ``lines``."""
    for folder in ("fd", "fdinfo"):
        (proc / str(pid) / folder).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "comm").write_text("llama-server\n")
    (proc / str(pid) / "fd" / str(fd)).symlink_to(target)
    (proc / str(pid) / "fdinfo" / str(fd)).write_text("pos:\t0\n" + "\n".join(lines))


def test_the_processes_on_a_card_are_those_of_fdinfo(tmp_path: Path) -> None:
    proc, apu = tmp_path / "proc", ("drm-driver:\tamdgpu", "drm-pdev:\t0000:c5:00.0")
    vram, gtt = "drm-memory-vram:\t131072 KiB", "drm-memory-gtt: \t20 GiB"
    open_drm(proc, 70, 5, *apu, "drm-client-id:\t12", vram, gtt)
    open_drm(proc, 70, 6, *apu, "drm-client-id:\t12", vram, gtt)  # the same client again
    open_drm(proc, 70, 7, *apu, "drm-client-id:\t13", "drm-memory-vram:\t1024 KiB", "drm-resident-vram:\t512 KiB")
    open_drm(proc, 70, 8, *apu, vram, target="/home/owner/file")
    open_drm(
        proc, 71, 3, "drm-pdev:\t0000:07:00.0", "drm-client-id: 1", "drm-resident-vram0: 3 GiB", "drm-total-gtt: x"
    )
    open_drm(proc, 72, 3, "no such keys", "drm-pdev: odd")
    plug(tmp_path, "card0", STRIX_HALO)
    plug(tmp_path, "card1", ARC)

    apu_gpu, arc = read_sysfs_gpus(tmp_path, read_drm_processes(proc))

    assert apu_gpu.processes == (GpuProcess(70, "llama-server", 20 * GIB + 128 * MIB + 512 * 1024),)
    assert arc.processes == (GpuProcess(71, "llama-server", 3 * GIB),)
    assert apu_gpu.processes_known and arc.processes_known
    assert read_drm_processes(tmp_path / "none") == {}
