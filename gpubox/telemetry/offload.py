"""How the model is spread over GPU and CPU, and what limits it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.server.state import Launch
from gpubox.telemetry.bottleneck import BottleneckInputs, ProcessRates, bottleneck
from gpubox.telemetry.device_memory import device_key_of
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.memory_breakdown import HOST, MemoryBreakdown
from gpubox.telemetry.snapshot import Offload


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
