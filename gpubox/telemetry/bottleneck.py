"""The one word for what the others wait for, and the reason for it - or why there is no word. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpubox.hardware.gpu import Gpu
from gpubox.hardware.host import ProcessReading

FAULTS_PER_SECOND = 50.0
BUSY_THREADS, BUSY_GPU, BUSY_MEMORY, BUSY_LINK, BUSY_CORES = 0.7, 90, 65, 0.5, 90.0
"""Shares (of 1, of 100, of 100, of 1, of 100) from which a part counts as the one that is waited for."""
IDLE_THREADS = 0.3
"""The share up to which the threads wait for something else."""
CLIENT_SECONDS = 10.0
_AT_REST = {
    "down": "nothing runs, or it does not answer",
    "loading": "the model is being loaded",
    "stopping": "the server was told to stop",
    "sleeping": "the server sleeps: its memory is given back",
    "stuck": "nothing moves: there is nothing to judge",
    "ready": "nothing tells whether the server works on a request",
}


@dataclass(frozen=True, slots=True)
class ProcessRates:
    """What moved between two readings of the server's process, per second."""

    threads_busy: float | None = None
    major_faults_per_second: float | None = None
    read_bytes_per_second: float | None = None


def process_rates(before: ProcessReading | None, after: ProcessReading | None, seconds: float) -> ProcessRates:
    """The pace between two readings of the same process; all ``None`` where there are not two."""
    if before is None or after is None or before.pid != after.pid or seconds <= 0:
        return ProcessRates()

    def rate(earlier: float | None, later: float | None) -> float | None:
        if earlier is None or later is None or later < earlier:
            return None
        return (later - earlier) / seconds

    return ProcessRates(
        rate(before.cpu_seconds, after.cpu_seconds),
        rate(before.major_faults, after.major_faults),
        rate(before.read_bytes, after.read_bytes),
    )


@dataclass(frozen=True, slots=True)
class BottleneckInputs:
    """This instant's readings of everything that can hold the server up."""

    state: str
    moved: ProcessRates = ProcessRates()
    threads: int | None = None
    """That the server computes with."""
    gpus: tuple[Gpu, ...] = ()
    """The cards that the server is on, as far as they answer."""
    devices: tuple[str, ...] = ()
    """The devices that hold a part of the model, the host not among them; keys of SplitLog."""
    experts_on_cpu: bool = False
    seconds_since_request: float | None = None
    cores_percent: tuple[float, ...] = ()
    driver_problem: str = ""
    own: bool = True
    """Whether the server's process is of this machine, and known."""


def bottleneck(seen: BottleneckInputs) -> tuple[str | None, str]:
    """``(word, reason)``: the part that the others wait for and what says so, or ``None`` and why none can be named.

    The word is one of: GPU compute, GPU bandwidth, CPU experts, CPU, RPC device, PCIe, paging, client.
    """
    if seen.state not in ("prefill", "answering", "thinking"):
        return _at_rest(seen)
    faults = seen.moved.major_faults_per_second
    if faults is not None and faults > FAULTS_PER_SECOND:
        return "paging", f"{faults:.0f} major faults/s: mmap is paging, load-mode none reads it all at once"
    busy, threads = seen.moved.threads_busy, seen.threads
    share = busy / threads if busy is not None and threads else None
    cpu = f"threads {busy:.1f} of {threads}" if share is not None else ""
    gpu = max(seen.gpus, key=lambda g: g.utilization_percent or 0, default=None)
    util = gpu.utilization_percent if gpu else None
    words = f"GPU {util}%" if util is not None else ""
    both = _joined(words, cpu)
    if gpu and gpu.pcie_link_bytes_per_second and gpu.pcie_rx_bytes_per_second is not None:
        link = gpu.pcie_rx_bytes_per_second / gpu.pcie_link_bytes_per_second
        if link >= BUSY_LINK:
            return "PCIe", _joined(f"{link:.0%} of the link", words)
    if util is not None and util >= BUSY_GPU:
        memory = gpu.memory_utilization_percent if gpu else None
        if memory is not None and memory >= BUSY_MEMORY:
            return "GPU bandwidth", f"{words}, memory controller {memory}%"
        return "GPU compute", words
    if share is not None and share >= BUSY_THREADS:
        return ("CPU experts" if seen.experts_on_cpu and seen.devices else "CPU"), both
    if share is not None and not seen.devices and (full := _full(seen.cores_percent)):
        return "CPU", f"{full}, {cpu}: other programs take the rest"
    remote = [key for key in seen.devices if key.startswith("RPC ")]
    if share is not None and share <= IDLE_THREADS and seen.devices and len(remote) == len(seen.devices):
        return "RPC device", f"{cpu}: the server waits for {' and '.join(remote)}, or for the network between"
    return None, _unnamed(seen, util, both)


def _at_rest(seen: BottleneckInputs) -> tuple[str | None, str]:
    since = seen.seconds_since_request
    if seen.state != "idle":
        return None, _AT_REST.get(seen.state, f"{seen.state}: there is nothing to judge")
    # a process starts a moment before its log's clock, and at a tick of the kernel's
    if since is not None and -1 < since < CLIENT_SECONDS:
        return "client", f"the server has waited {max(0.0, since):.0f} s for the next request"
    return None, "idle: the server waits for a request"


def _unnamed(seen: BottleneckInputs, util: int | None, both: str) -> str:
    """Why no part is named while the server works."""
    if not seen.own:
        return "its process and its devices are not known here"
    if seen.moved.threads_busy is None:
        return "too short: its process was not yet read twice"
    if seen.threads is None:
        return _joined(f"{seen.moved.threads_busy:.1f} threads busy", "its log does not tell how many it computes with")
    cards = [key for key in seen.devices if not key.startswith("RPC ")]
    if cards and util is None:
        why = seen.driver_problem or "the driver does not tell its load"
        return f"no reading of {' and '.join(cards)} ({why}), {both}"
    return f"no part is busy enough to be named: {both}"


def _full(cores: tuple[float, ...]) -> str:
    """``cores 97% busy`` where the machine has nothing left; else empty."""
    mean = sum(cores) / len(cores) if cores else 0.0
    return f"cores {mean:.0f}% busy" if mean >= BUSY_CORES else ""


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)
