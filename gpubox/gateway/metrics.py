"""The gateway and the machine as Prometheus metrics: text format 0.0.4. Pure. What is unknown has no series."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Literal

from gpubox.clock import unix_time
from gpubox.gateway.gateway_status import (
    STAGES,
    FinishedRequest,
    GatewayEvent,
    GatewayStatus,
    GatewaySwitch,
    ProfileStatus,
)
from gpubox.gateway.ledger import MAX_CLIENTS, OTHERS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: from a short prompt in the KV cache to a long one that is read on the CPU."""
_Kind = Literal["counter", "gauge", "histogram"]
_Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        self.sum += seconds
        self.counts[bisect_left(_BUCKETS, seconds)] += 1


class RequestCounters:
    """Counts finished requests and operations since the gateway started: Prometheus keeps the past."""

    def __init__(self) -> None:
        self.requests: Counter[_Labels] = Counter()
        self.tokens: dict[str, Counter[_Labels]] = {kind: Counter() for kind in ("prompt", "cached", "generated")}
        self.seconds: Counter[_Labels] = Counter()
        """By client, profile and stage."""
        self.operations: Counter[_Labels] = Counter()
        self.operation_seconds: Counter[_Labels] = Counter()
        self.stages: dict[_Labels, _Histogram] = {}
        self.ttft: dict[_Labels, _Histogram] = {}
        self._clients: set[str] = set()

    def add(self, event: GatewayEvent) -> None:
        """Counts the event. Clients that name themselves are counted one by one up to MAX_CLIENTS."""
        if isinstance(event, GatewaySwitch) and event.step in ("done", "failed"):
            operation = (("kind", event.kind), ("profile", event.profile), ("outcome", event.step))
            self.operations[operation] += 1
            self.operation_seconds[operation] += event.seconds  # type: ignore[assignment]
        if not isinstance(event, FinishedRequest):
            return
        if event.client not in self._clients and len(self._clients) < MAX_CLIENTS:
            self._clients.add(event.client)
        profile = ("profile", event.profile)
        labels = (("client", event.client if event.client in self._clients else OTHERS), profile)
        self.requests[(*labels, ("outcome", event.outcome))] += 1
        for kind, counter in self.tokens.items():
            if (count := getattr(event, f"{kind}_tokens")) is not None:
                counter[labels] += count
        for stage in STAGES:
            if (seconds := getattr(event, f"{stage}_seconds")) is not None:
                self.seconds[(*labels, ("stage", stage))] += seconds
                self.stages.setdefault((("stage", stage), profile), _Histogram()).add(seconds)
        if event.ttft_seconds is not None:
            self.ttft.setdefault(labels, _Histogram()).add(event.ttft_seconds)


def metrics_text(status: GatewayStatus, counters: RequestCounters, snapshot: Mapping[str, Any] | None) -> str:
    """All series. ``snapshot``: the object of `gpubox status --json`; None: it could not be read."""
    text = _Text()
    _add_gateway(text, status)
    _add_counters(text, counters)
    if snapshot is not None:
        _add_snapshot(text, snapshot)
    return "\n".join((*text.lines, ""))


class _Text:
    """Lines of the text format. Series of one name stand together, below their HELP and TYPE."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, kind: _Kind, help_text: str, samples: Iterable[tuple[_Labels, object]]) -> None:
        known = [(labels, shown) for labels, value in samples if (shown := _number(value)) is not None]
        if known:
            self._begin(name, kind, help_text)
            self.lines += [f"{name}{_braces(labels)} {shown}" for labels, shown in known]

    def add_histogram(self, name: str, help_text: str, histograms: Mapping[_Labels, _Histogram]) -> None:
        if histograms:
            self._begin(name, "histogram", help_text)
        for labels, histogram in histograms.items():
            total = 0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), histogram.counts, strict=True):
                total += count
                self.lines.append(f"{name}_bucket{_braces((*labels, ('le', bound)))} {total}")
            braces = _braces(labels)
            self.lines += [f"{name}_sum{braces} {_number(histogram.sum)}", f"{name}_count{braces} {total}"]

    def _begin(self, name: str, kind: _Kind, help_text: str) -> None:
        self.lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _add_gateway(text: _Text, status: GatewayStatus) -> None:
    text.add("gpubox_gateway_info", "gauge", "The gateway's version.", [((("version", status.version),), 1)])
    text.add(
        "gpubox_gateway_start_time_seconds", "gauge", "When the gateway started, in Unix time.",
        [((), unix_time(status.started_at))],
    )  # fmt: skip
    text.add("gpubox_gateway_paused", "gauge", "1 while all new requests are held.", [((), int(status.paused))])
    text.add(
        "gpubox_gateway_operation", "gauge", "1 while the gateway starts or stops the server of a profile.",
        [((("kind", each.kind), ("profile", each.profile)), 1) for each in status.operations],
    )  # fmt: skip
    for name, help_text, value in _PROFILES:
        text.add(name, "gauge", help_text, [((("profile", each.name),), value(each)) for each in status.profiles])


def _here(profile: ProfileStatus, state: str) -> int | None:
    return None if profile.state == "upstream" else int(profile.state == state)


_PROFILES: tuple[tuple[str, str, Callable[[ProfileStatus], int | None]], ...] = (
    (
        "gpubox_profile_up",
        "1 if its server is loaded; none for one on another machine.",
        partial(_here, state="up"),
    ),
    ("gpubox_profile_broken", "1 if the profile cannot be loaded.", partial(_here, state="broken")),
    ("gpubox_gateway_running_requests", "Requests that are read or answered now.", attrgetter("running")),
    ("gpubox_gateway_waiting_requests", "Requests that wait for a slot or for their profile.", attrgetter("waiting")),
    ("gpubox_gateway_slots", "Requests that the profile's server works on at once.", attrgetter("slots")),
)


def _add_counters(text: _Text, counters: RequestCounters) -> None:
    tokens = counters.tokens
    for name, help_text, counted in (
        ("requests", "Finished requests; outcome is done, left, failed, refused or cancelled.", counters.requests),
        ("prompt_tokens", "Prompt tokens, with those of the KV cache.", tokens["prompt"]),
        ("cached_tokens", "Prompt tokens that were in the KV cache.", tokens["cached"]),
        ("generated_tokens", "Generated tokens.", tokens["generated"]),
        ("client_seconds", "Time of finished requests; stage is queue, swap, prefill or generation.", counters.seconds),
        ("operations", "Servers started and stopped by the gateway; outcome is done or failed.", counters.operations),
        ("operation_seconds", "How long that took, all together.", counters.operation_seconds),
    ):
        text.add(f"gpubox_gateway_{name}_total", "counter", help_text, counted.items())
    for name, help_text, histograms in (
        ("stage", "Time of a request; stage is queue, swap, prefill or generation.", counters.stages),
        ("ttft", "From the last byte of a streamed request to its first token.", counters.ttft),
    ):
        text.add_histogram(f"gpubox_gateway_{name}_seconds", help_text, histograms)


_RENAMED = {
    "vram_total_bytes": "memory_total_bytes", "vram_used_bytes": "memory_used_bytes",
    "pcie_rx_bytes_per_second": "pcie_receive_bytes_per_second",
    "pcie_tx_bytes_per_second": "pcie_transmit_bytes_per_second", "utilization_percent": "utilization_ratio",
    "layers_total": "layers", "prefill_progress": "prefill_ratio", "draft_acceptance": "draft_acceptance_ratio",
    "ttft_seconds": "last_ttft_seconds",
}  # fmt: skip
"""Keys of `status --json` whose series have the names that Prometheus advises. All others are named like the key."""


def _add_snapshot(text: _Text, snapshot: Mapping[str, Any]) -> None:
    server = _section(snapshot, "server")
    labels = tuple((name, str(server[name])) for name in ("profile", "state") if server.get(name))
    text.add("gpubox_server_info", "gauge", "The active server.", [(labels, 1)] if server.get("profile") else [])
    load_seconds = [((), server.get("load_seconds"))]
    text.add("gpubox_server_load_seconds", "gauge", "How long the model took to load.", load_seconds)
    gpus = [gpu for gpu in snapshot.get("gpus") or () if isinstance(gpu, Mapping)]
    cards = [((("gpu", str(gpu.get("index"))), ("name", str(gpu.get("name") or ""))), gpu) for gpu in gpus]
    _add_section(text, "gpus", cards, "gpubox_gpu_")
    devices = [device for device in snapshot.get("memory") or () if isinstance(device, Mapping)]
    parts, totals = [], []
    for device in devices:
        place = (("device", str(device.get("device"))), ("kind", str(device.get("kind"))))
        sizes = {key.removesuffix("_bytes"): size for key, size in device.items() if key.endswith("_bytes")}
        totals.append((place, sizes.pop("total", None)))
        parts += [((*place, ("part", part)), size) for part, size in sizes.items()]
    text.add("gpubox_memory_bytes", "gauge", "What takes the memory of a device.", parts)
    text.add("gpubox_memory_total_bytes", "gauge", "Memory of a device.", totals)
    for name in ("offload", "throughput", "totals"):
        _add_section(text, name, [((), _section(snapshot, name))], "gpubox_server_", counts=name == "totals")


def _add_section(
    text: _Text,
    section: str,
    objects: Sequence[tuple[_Labels, Mapping[str, Any]]],
    prefix: str,
    *,
    counts: bool = False,
) -> None:
    """Every number of these objects; ``counts``: since the active server started."""
    for key in dict.fromkeys(key for _, values in objects for key in values if key != "index"):
        name = f"{prefix}{_RENAMED.get(key, key)}{'_total' if counts else ''}"
        factor = 0.01 if name.endswith("_ratio") and key.endswith("_percent") else 1
        samples = [(labels, _scaled(values.get(key), factor)) for labels, values in objects]
        text.add(name, "counter" if counts else "gauge", f"{section}.{key} of `gpubox status --json`.", samples)


def _section(snapshot: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = snapshot.get(name)
    return section if isinstance(section, Mapping) else {}


def _scaled(value: object, factor: float) -> object:
    return value * factor if isinstance(value, int | float) and factor != 1 else value


def _number(value: object) -> str | None:
    """The value as text; None for what is no known number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _braces(labels: _Labels) -> str:
    if not labels:
        return ""
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{shown}}}"


def _escaped(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a lone surrogate
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
