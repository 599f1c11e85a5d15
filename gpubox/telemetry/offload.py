"""How the model is spread over GPU and CPU, and which part of the machine limits it now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.host import ProcessReading
from gpubox.server.state import Launch
from gpubox.telemetry.device_memory import HOST, MemoryBreakdown, device_key_of
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.snapshot import Offload

FAULTS_PER_SECOND = 50.0
BUSY_THREADS, BUSY_GPU, BUSY_MEMORY, BUSY_LINK, BUSY_CORES = 0.7, 90, 65, 0.5, 90.0
"""From this load on (of 1, of 100, of 100, of 1, of 100) a part is the bottleneck."""
IDLE_THREADS = 0.3
"""Up to this share of 1 the threads wait for something else."""
CLIENT_SECONDS = 3.0, 10.0
"""After this wait the client is what the server waits for; after the second nobody is."""
BOTTLENECKS = (
    "GPU compute", "GPU bandwidth", "CPU experts", "CPU", "other programs", "RPC device", "PCIe", "paging", "client",
)  # fmt: skip
"""What can limit the server. ``other programs`` take the cores that its threads wait for."""
_NOT_WORKING = {
    "down": "nothing runs, or it does not answer",
    "loading": "the model is being loaded",
    "stopping": "the server is stopping",
    "sleeping": "the server sleeps and has freed its memory",
    "stuck": "the server makes no progress",
    "lost": "the server's card is lost",
    "ready": "no reading shows whether the server processes a request",
}


@dataclass(frozen=True, slots=True)
class ProcessRates:
    """What the server's process used between two readings, per second."""

    threads_busy: float | None = None
    major_faults_per_second: float | None = None
    read_bytes_per_second: float | None = None


def process_rates(before: ProcessReading, after: ProcessReading, seconds: float) -> ProcessRates:
    """The rates between two readings of the same process. A counter that went back has none."""

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
    """The current readings of everything that can limit the server."""

    state: str
    rates: ProcessRates = ProcessRates()
    threads: int | None = None
    """Threads that the server computes with."""
    gpus: tuple[Gpu, ...] = ()
    """The answering cards that the server uses."""
    devices: tuple[str, ...] = ()
    """Keys of MemoryBreakdown: the devices with a part of the model, without the host."""
    experts_on_cpu: bool = False
    seconds_since_request: float | None = None
    cores_percent: tuple[float, ...] = ()
    driver_problem: str = ""
    own: bool = True
    """The server's process runs on this machine and is known."""


def bottleneck(inputs: BottleneckInputs) -> tuple[str | None, str]:
    """``(name, reason)`` of the limiting part, or None and why none can be named.

    The name is one of BOTTLENECKS.
    """
    if inputs.state not in ("prefill", "answering"):
        return _not_working(inputs)
    faults = inputs.rates.major_faults_per_second
    if faults is not None and faults > FAULTS_PER_SECOND:
        return (
            "paging",
            f"{faults:.0f} major faults/s: the model is read from disk again and again; load-mode = none loads it once",
        )
    busy, threads = inputs.rates.threads_busy, inputs.threads
    share = busy / threads if busy is not None and threads else None
    cpu_load = f"threads {busy:.1f} of {threads}" if share is not None else ""
    gpu = max(inputs.gpus, key=lambda g: g.utilization_percent or 0, default=None)
    utilization = gpu.utilization_percent if gpu else None
    gpu_load = f"GPU {utilization}%" if utilization is not None else ""
    both_loads = _joined(gpu_load, cpu_load)
    if gpu and gpu.pcie_link_bytes_per_second and gpu.pcie_rx_bytes_per_second is not None:
        link = gpu.pcie_rx_bytes_per_second / gpu.pcie_link_bytes_per_second
        if link >= BUSY_LINK:
            return "PCIe", _joined(f"{link:.0%} of the link", gpu_load)
    if utilization is not None and utilization >= BUSY_GPU:
        slowed = ", ".join(gpu.throttle_reasons or ()) if gpu else ""
        gpu_load = _joined(gpu_load, f"clocks reduced: {slowed}" if slowed else "")
        memory = gpu.memory_utilization_percent if gpu else None
        if memory is not None and memory >= BUSY_MEMORY:
            return "GPU bandwidth", f"{gpu_load}, memory controller {memory}%"
        return "GPU compute", gpu_load
    if share is not None and share >= BUSY_THREADS:
        return ("CPU experts" if inputs.experts_on_cpu and inputs.devices else "CPU"), both_loads
    cores = sum(inputs.cores_percent) / len(inputs.cores_percent) if inputs.cores_percent else 0.0
    if share is not None and not inputs.devices and cores >= BUSY_CORES:
        return "other programs", f"they take the cores ({cores:.0f}% busy): the server gets {busy:.1f} of {threads}"
    remote = [key for key in inputs.devices if key.startswith("RPC ")]
    if share is not None and share <= IDLE_THREADS and inputs.devices and len(remote) == len(inputs.devices):
        return "RPC device", f"the server waits for {' and '.join(remote)}, or for the network: {cpu_load}"
    return None, _why_unnamed(inputs, utilization, both_loads)


def _not_working(inputs: BottleneckInputs) -> tuple[str | None, str]:
    since = inputs.seconds_since_request
    if inputs.state != "idle":
        return None, _NOT_WORKING.get(inputs.state, f"the server is {inputs.state}")
    if since is not None and CLIENT_SECONDS[0] <= since < CLIENT_SECONDS[1]:
        return "client", f"the server has waited {since:.0f} s for the next request"
    return None, "the server waits for a request"


def _why_unnamed(inputs: BottleneckInputs, utilization: int | None, both_loads: str) -> str:
    """Why no part is named while the server works."""
    if not inputs.own:
        return "gpubox does not know its process and devices"
    if inputs.rates.threads_busy is None:
        return "a load needs two readings of the process"
    if not inputs.threads:
        return f"{inputs.rates.threads_busy:.1f} threads busy; the log does not show how many there are"
    cards = [key for key in inputs.devices if not key.startswith("RPC ")]
    if cards and utilization is None:
        why = inputs.driver_problem or "the driver does not report its load"
        return f"no reading of {' and '.join(cards)} ({why}), {both_loads}"
    return f"nothing is fully used: {both_loads}"


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def expert_layers_on_cpu(argv: Sequence[str], layers: int | None) -> int | None:
    """Layers whose experts stay on the CPU, by the launch's flags; None if a pattern decides.

    ``--n-cpu-moe N`` keeps the first N layers, ``--cpu-moe`` all of them (common/arg.cpp, build 11434).
    """
    arguments = [argument.replace("_", "-") if argument.startswith("--") else argument for argument in argv]
    if any(argument in ("-cmoe", "--cpu-moe") for argument in arguments):
        return layers
    for name in ("--n-cpu-moe", "-ncmoe"):
        if name in arguments[:-1]:
            value = arguments[len(arguments) - arguments[::-1].index(name)]
            if value.isdecimal():
                return min(int(value), layers) if layers is not None else int(value)
    if any(argument in ("-ot", "--override-tensor") for argument in arguments):
        return None
    return 0


def offload(
    log: LogSource | None,
    launch: Launch | None,
    rates: ProcessRates,
    driver: DriverReading,
    state: str,
    seconds_since_request: float | None,
    cores_percent: tuple[float, ...] = (),
) -> Offload:
    """The offload of the model and its bottleneck."""
    on_gpu = total = None
    breakdown = log.breakdown if log else None
    devices = tuple(key for key in breakdown.keys if key != HOST) if breakdown else ()
    if breakdown and breakdown.layers:
        # A build with GPU support logs 31/31 even if it found no device.
        on_gpu, total = (breakdown.layers.on_gpu if devices else 0), breakdown.layers.total
    experts = layers = None
    if state == "sleeping":  # nothing is loaded
        rates, launch = ProcessRates(), None
    if launch and launch.has_experts:
        layers = launch.layers
        experts = expert_layers_on_cpu(launch.argv, layers) if devices else layers
    threads = breakdown.threads if breakdown else None
    stale = driver.stale_seconds is not None
    inputs = BottleneckInputs(
        state=state,
        rates=rates,
        threads=threads,
        gpus=_used_gpus(driver.gpus, breakdown) if devices and not stale else (),
        devices=devices,
        experts_on_cpu=bool(experts),
        seconds_since_request=seconds_since_request,
        cores_percent=cores_percent,
        driver_problem="the driver does not answer" if stale else driver.problem,
        own=launch is not None,
    )
    name, reason = bottleneck(inputs)
    return Offload(
        layers_on_gpu=on_gpu,
        layers_total=total,
        expert_layers_on_cpu=experts,
        expert_layers_total=layers,
        threads_busy=rates.threads_busy,
        threads_asked=threads,
        major_faults_per_second=rates.major_faults_per_second,
        read_bytes_per_second=rates.read_bytes_per_second,
        pinned_bytes=breakdown.pinned_bytes or None if breakdown else None,
        prompt_cache_bytes=log.cache_bytes if log else None,
        prompt_cache_limit_bytes=log.cache_limit_bytes if log else None,
        checkpoints_bytes=log.checkpoints.size_bytes if log else None,
        bottleneck=name,
        bottleneck_reason=reason,
    )


def _used_gpus(gpus: tuple[Gpu, ...], breakdown: MemoryBreakdown | None) -> tuple[Gpu, ...]:
    """The answering cards that the server uses: the load of another one does not matter."""
    answering = tuple(gpu for gpu in gpus if not gpu.lost)
    return tuple(gpu for gpu in answering if device_key_of(gpu, breakdown)) or answering
