"""The machine around the model: threads, PCIe, and other programs in VRAM."""

from __future__ import annotations

from gpubox import units
from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.evidence import LEAST_READINGS, LEAST_SHARE, Evidence
from gpubox.profiles.profile import FlagValue

FEW_THREADS = 0.5
"""Up to this share of the physical cores the launch leaves half of the CPU idle."""
LARGE_UBATCH = 2048
LINK = frozenset({"PCIe"})
OTHERS_BYTES = 512 * units.MIB
"""A desktop's compositor alone takes about so much."""


def _read_threads(evidence: Evidence) -> Judgement | None:
    """More threads than cores take turns; fewer leave cores idle while the CPU is the bottleneck.

    Evidence: n_threads of the log against the physical cores of the machine, while the CPU computes a part of the
    model. Source: llama.cpp's own default is the number of physical cores (common/common.cpp ``cpu_get_num_math``).
    """
    cores, snapshot = evidence.physical_cores, evidence.snapshot
    threads = snapshot.offload.threads_asked if snapshot else None
    if cores is None or threads is None or not evidence.computes_on_cpu:
        return None
    shown = f"n_threads {threads}; {cores} physical cores"
    change: tuple[tuple[str, FlagValue | None], ...] = (("threads", cores),)
    if threads > cores:
        return Judgement(
            f"{threads} threads share {cores} physical cores; llama-server's default is one for each core.",
            (shown,), change,
        )  # fmt: skip
    limited = evidence.busy.share("CPU", "CPU experts")
    if threads <= FEW_THREADS * cores and evidence.busy.count >= LEAST_READINGS and limited >= LEAST_SHARE:
        return Judgement(
            f"The CPU is the bottleneck, and only {threads} of {cores} physical cores compute.",
            (shown, f"the CPU was the bottleneck in {limited:.0%} of {evidence.busy.count} readings"), change,
            frozenset({"CPU", "CPU experts"}),
        )  # fmt: skip
    return None


def _read_pcie(evidence: Evidence) -> Judgement | None:
    """The link to the card carries as much as it can.

    Evidence: the bottleneck "PCIe" in at least half of ten or more readings while the server worked. Remedies: a slot
    with more lanes if the card's link is narrower than it could be; else, with experts on the CPU, larger
    micro-batches: the weights cross the link once for each (oobabooga/textgen#7309: pp 175 -> 535 tok/s from 512 to
    2,048).
    """
    share, count = evidence.busy.share("PCIe"), evidence.busy.count
    if evidence.busy.bottleneck != "PCIe":
        return None
    shown = [f"PCIe was the bottleneck in {share:.0%} of {count} readings"]
    slow = next((gpu for gpu in evidence.cards if (gpu.pcie_width or 0) < (gpu.pcie_max_width or 0)), None)
    if slow:
        shown.append(f"GPU {slow.index}: ×{slow.pcie_width} of ×{slow.pcie_max_width}, while it works")
        return Judgement(
            f"The link to the card is full, and it has only ×{slow.pcie_width} of ×{slow.pcie_max_width} lanes: "
            "another slot may have more.",
            tuple(shown), slowed_by=LINK,
        )  # fmt: skip
    flags = evidence.memory_flags
    if flags and evidence.computes_on_cpu and flags.ubatch < LARGE_UBATCH:
        shown.append(f"ubatch-size {flags.ubatch}: the weights on the host cross the link once for each micro-batch")
        changes: list[tuple[str, FlagValue | None]] = [("ubatch-size", LARGE_UBATCH)]
        if flags.batch < LARGE_UBATCH:
            changes.append(("batch-size", LARGE_UBATCH))
        return Judgement(
            "The link to the card is full of weights; larger micro-batches send them less often and take more VRAM.",
            tuple(shown), tuple(changes), LINK,
        )  # fmt: skip
    return Judgement(
        "The link to the card carries as much as it can; fewer weights on the host would help.",
        tuple(shown), slowed_by=LINK,
    )  # fmt: skip


def _read_other_programs(evidence: Evidence) -> Judgement | None:
    """Other programs hold VRAM that a part of the model could use.

    Evidence: the driver's list of processes, at least 512 MiB on a card of the server, while layers or experts are on
    the CPU. Source: NVML.
    """
    snapshot = evidence.snapshot
    if snapshot is None or not evidence.computes_on_cpu:
        return None
    crowded = [device for device in evidence.accelerators if (device.other_processes_bytes or 0) >= OTHERS_BYTES]
    if not crowded:
        return None
    device = max(crowded, key=lambda each: each.other_processes_bytes or 0)
    names = ", ".join(f"{name} {units.memory(size)}" for name, size in device.other_processes[:3])
    on_cpu, host = snapshot.offload.expert_layers_on_cpu, evidence.host_memory
    shown = [f"{device.device}: {names or 'other programs'}"]
    layers = 0
    if on_cpu and host and host.weights_bytes:
        layers = min(on_cpu, int((device.other_processes_bytes or 0) * on_cpu / host.weights_bytes))
        shown.append(f"~{units.memory(host.weights_bytes / on_cpu)} for the experts of one layer")
    room = f", room for the experts of ~{layers} layers" if layers else ""
    return Judgement(
        f"Other programs hold {units.memory(device.other_processes_bytes)} of VRAM on {device.device}{room}, while a "
        "part of the model is on the CPU.",
        tuple(shown),
    )


THREADS = Rule("threads", "threads", _read_threads)
PCIE = Rule("pcie", "PCIe", _read_pcie)
OTHER_PROGRAMS = Rule("other-programs", "VRAM", _read_other_programs)
