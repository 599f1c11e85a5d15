"""How the model is spread over GPU and CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.server.state import Launch
from gpubox.telemetry.bottleneck import BottleneckInputs, ProcessRates, bottleneck
from gpubox.telemetry.device_memory import device_key_of
from gpubox.telemetry.memory_breakdown import HOST, MemoryBreakdown
from gpubox.telemetry.snapshot import Offload
from gpubox.telemetry.sources import LogSource


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


def offload(
    log: LogSource | None,
    launch: Launch | None,
    moved: ProcessRates,
    driver: DriverReading,
    state: str,
    seconds_since_request: float | None,
    cores_percent: tuple[float, ...] = (),
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
    stale = driver.stale_seconds is not None
    gpus = _at_work(() if stale else driver.gpus, split) if accelerated else ()
    seen = BottleneckInputs(
        state=state,
        moved=moved,
        threads=threads,
        gpus=gpus,
        devices=tuple(key for key in split.keys if key != HOST) if split else (),
        experts_on_cpu=bool(experts),
        seconds_since_request=seconds_since_request,
        cores_percent=cores_percent,
        driver_problem="the driver does not answer" if stale else driver.problem,
        own=launch is not None,
    )
    word, reason = bottleneck(seen)
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
        bottleneck_reason=reason,
    )


def _at_work(gpus: tuple[Gpu, ...], split: MemoryBreakdown | None) -> tuple[Gpu, ...]:
    """The cards that the server is on, as far as they answer: a game on another one holds nothing up."""
    answering = tuple(gpu for gpu in gpus if not gpu.lost)
    return tuple(gpu for gpu in answering if device_key_of(gpu, split)) or answering
