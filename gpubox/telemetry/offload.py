"""How the model is spread over GPU and CPU, and the one word for what limits it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.hardware.gpu import Gpu
from gpubox.hardware.host import ProcessReading
from gpubox.server.record import Launch
from gpubox.telemetry.memory import key_of
from gpubox.telemetry.model import Offload
from gpubox.telemetry.sources import LogSource
from gpubox.telemetry.split import HOST, SplitLog

FAULTS_PER_SECOND = 50.0
BUSY_THREADS, BUSY_GPU, BUSY_MEMORY, BUSY_LINK = 0.7, 90, 65, 0.5
"""Shares (of 1, of 100, of 100, of 1) from which a part counts as the one that is waited for."""


def expert_layers_on_cpu(argv: Sequence[str], layers: int | None) -> int | None:
    """Layers whose experts stay on the CPU by the launch's own flags; ``None`` where a pattern decides.

    ``--n-cpu-moe N`` takes the first N layers, ``--cpu-moe`` all (common/arg.cpp, build 11434).
    """
    words = [word.replace("_", "-") if word.startswith("--") else word for word in argv]
    if any(word in ("-cmoe", "--cpu-moe") for word in words):
        return layers
    for name in ("--n-cpu-moe", "-ncmoe"):
        if name in words[:-1]:
            value = words[len(words) - 1 - words[::-1].index(name) + 1]
            if value.isdecimal():
                return min(int(value), layers) if layers is not None else int(value)
    if any(word in ("-ot", "--override-tensor") for word in words):
        return None
    return 0


@dataclass(frozen=True, slots=True)
class Pace:
    """What moved between two readings of the server's process, per second."""

    threads_busy: float | None = None
    major_faults_per_second: float | None = None
    read_bytes_per_second: float | None = None


def pace(before: ProcessReading | None, after: ProcessReading | None, seconds: float) -> Pace:
    """The pace between two readings of the same process; all ``None`` where there are not two."""
    if before is None or after is None or before.pid != after.pid or seconds <= 0:
        return Pace()

    def rate(earlier: float | None, later: float | None) -> float | None:
        if earlier is None or later is None or later < earlier:
            return None
        return (later - earlier) / seconds

    return Pace(
        rate(before.cpu_seconds, after.cpu_seconds),
        rate(before.major_faults, after.major_faults),
        rate(before.read_bytes, after.read_bytes),
    )


def offload(
    log: LogSource | None,
    launch: Launch | None,
    moved: Pace,
    gpus: tuple[Gpu, ...],
    state: str,
    seconds_since_request: float | None,
) -> Offload:
    """The whole pane as one value."""
    on_gpu = total = None
    split = log.split if log else None
    accelerated = bool(split and any(key != HOST for key in split.keys))
    if split and split.layers:
        # a build that could offload says 31/31 even where it found no device
        on_gpu, total = (split.layers.on_gpu if accelerated else 0), split.layers.total
    experts = layers = None
    if launch and launch.has_experts:
        layers = launch.layers
        experts = expert_layers_on_cpu(launch.argv, layers) if accelerated else layers
    threads = split.threads if split else None
    at_work = _at_work(gpus, split) if accelerated else ()
    word, evidence = bottleneck(state, moved, threads, at_work, bool(experts), accelerated, seconds_since_request)
    return Offload(
        layers_on_gpu=on_gpu,
        layers_total=total,
        expert_layers_on_cpu=experts,
        expert_layers_total=layers,
        threads_busy=moved.threads_busy,
        threads_asked=threads,
        major_faults_per_second=moved.major_faults_per_second,
        read_bytes_per_second=moved.read_bytes_per_second,
        pinned_bytes=split.pinned_bytes or None if split else None,
        prompt_cache_bytes=log.cache_bytes if log else None,
        prompt_cache_limit_bytes=log.cache_limit_bytes if log else None,
        checkpoints_bytes=log.checkpoints_bytes if log else None,
        bottleneck=word,
        evidence=evidence,
    )


def _at_work(gpus: tuple[Gpu, ...], split: SplitLog | None) -> tuple[Gpu, ...]:
    """The cards that the server is on, as far as they answer: a game on another one holds nothing up."""
    answering = tuple(gpu for gpu in gpus if not gpu.lost)
    return tuple(gpu for gpu in answering if key_of(gpu, split)) or answering


def bottleneck(
    state: str,
    moved: Pace,
    threads: int | None,
    gpus: tuple[Gpu, ...],
    experts_on_cpu: bool,
    accelerated: bool,
    seconds_since_request: float | None,
) -> tuple[str | None, str]:
    """``(word, evidence)``: the part that the others wait for, judged from this instant's readings."""
    if state == "idle" and seconds_since_request is not None and -1 < seconds_since_request < 10:
        # a process starts a moment before its log's clock, and at a tick of the kernel's
        return "client", f"the server has waited {max(0.0, seconds_since_request):.0f} s for the next request"
    if state not in ("prefill", "answering", "thinking"):
        return None, ""
    faults, busy = moved.major_faults_per_second, moved.threads_busy
    if faults is not None and faults > FAULTS_PER_SECOND:
        return "paging", f"{faults:.0f} major faults/s: mmap is paging, load-mode none reads it all at once"
    share = busy / threads if busy is not None and threads else None
    cpu = f"threads {busy:.1f} of {threads}" if share is not None else ""
    gpu = max(gpus, key=lambda g: g.utilization_percent or 0, default=None)
    util = gpu.utilization_percent if gpu else None
    words = f"GPU {util}%" if util is not None else ""
    both = ", ".join(text for text in (words, cpu) if text)
    if gpu and gpu.pcie_link_bytes_per_second and gpu.pcie_rx_bytes_per_second is not None:
        link = gpu.pcie_rx_bytes_per_second / gpu.pcie_link_bytes_per_second
        if link >= BUSY_LINK:
            return "PCIe", ", ".join(text for text in (f"{link:.0%} of the link", words) if text)
    if util is not None and util >= BUSY_GPU:
        memory = gpu.memory_utilization_percent if gpu else None
        if memory is not None and memory >= BUSY_MEMORY:
            return "GPU bandwidth", f"{words}, memory controller {memory}%"
        return "GPU compute", words
    if share is not None and share >= BUSY_THREADS:
        return ("CPU experts" if experts_on_cpu and accelerated else "CPU"), both
    return None, both
