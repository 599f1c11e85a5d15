"""The gateway and the machine as Prometheus metrics: text format 0.0.4. Pure. What is unknown has no series."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.clock import unix_time
from gpubox.gateway.gateway_status import STAGES, FinishedRequest, GatewayEvent, GatewayStatus, GatewaySwitch
from gpubox.gateway.ledger import MAX_CLIENTS, OTHERS
from gpubox.server.responses import json_object

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: from a short prompt in the KV cache to a long one that is read on the CPU."""
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
        self.counts: dict[str, Counter[_Labels]] = {name: Counter() for name in _COUNTS}
        self.histograms: dict[str, dict[_Labels, _Histogram]] = {name: {} for name in _HISTOGRAMS}
        self._clients: set[str] = set()

    def add(self, event: GatewayEvent) -> None:
        """Counts the event. Clients that name themselves are counted one by one up to MAX_CLIENTS."""
        if isinstance(event, GatewaySwitch) and event.step in ("done", "failed"):
            operation = (("kind", event.kind), ("profile", event.profile), ("outcome", event.step))
            self._count("operations", operation, 1)
            self._count("operation_seconds", operation, event.seconds)
        if not isinstance(event, FinishedRequest):
            return
        if event.client not in self._clients and len(self._clients) < MAX_CLIENTS:
            self._clients.add(event.client)
        profile = ("profile", event.profile)
        labels = (("client", event.client if event.client in self._clients else OTHERS), profile)
        self._count("requests", (*labels, ("outcome", event.outcome)), 1)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
            self._count(name, labels, getattr(event, name))
        for stage in STAGES:
            seconds = getattr(event, f"{stage}_seconds")
            self._count("client_seconds", (*labels, ("stage", stage)), seconds)
            self._measure("stage", (("stage", stage), profile), seconds)
        self._measure("ttft", labels, event.ttft_seconds)

    def _count(self, name: str, labels: _Labels, value: Any) -> None:
        if value is not None:
            self.counts[name][labels] += value

    def _measure(self, name: str, labels: _Labels, seconds: float | None) -> None:
        if seconds is not None:
            self.histograms[name].setdefault(labels, _Histogram()).add(seconds)


_COUNTS = {
    "requests": "Finished requests; outcome is done, left, failed, refused or cancelled.",
    "prompt_tokens": "Prompt tokens, with those of the KV cache.",
    "cached_tokens": "Prompt tokens that were in the KV cache.",
    "generated_tokens": "Generated tokens.",
    "client_seconds": "Time of finished requests; stage is queue, swap, prefill or generation.",
    "operations": "Servers started and stopped by the gateway; outcome is done or failed.",
    "operation_seconds": "How long that took, all together.",
}
_HISTOGRAMS = {
    "stage": "Time of a request; stage is queue, swap, prefill or generation.",
    "ttft": "From the last byte of a streamed request to its first token.",
}


def metrics_text(status: GatewayStatus, counters: RequestCounters, snapshot: Mapping[str, Any] | None) -> str:
    """All series. ``snapshot``: the object of `gpubox status --json`; None: it could not be read."""
    text = _Text()
    _add_gateway(text, status)
    for name, counts in counters.counts.items():
        text.add(f"gpubox_gateway_{name}_total", _COUNTS[name], counts.items(), "counter")
    for name, histograms in counters.histograms.items():
        text.add_histogram(f"gpubox_gateway_{name}_seconds", _HISTOGRAMS[name], histograms)
    if snapshot is not None:
        _add_snapshot(text, snapshot)
    return "\n".join((*text.lines, ""))


class _Text:
    """Lines of the text format. Series of one name stand together, below their HELP and TYPE."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(
        self, name: str, help_text: str, samples: Iterable[tuple[_Labels, object]], kind: str = "gauge",
        factor: float = 1,
    ) -> None:  # fmt: skip
        known = [(labels, shown) for labels, value in samples if (shown := _number(value, factor)) is not None]
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

    def _begin(self, name: str, kind: str, help_text: str) -> None:
        self.lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _add_gateway(text: _Text, status: GatewayStatus) -> None:
    text.add("gpubox_gateway_info", "The gateway's version.", [((("version", status.version),), 1)])
    started = [((), unix_time(status.started_at))]
    text.add("gpubox_gateway_start_time_seconds", "When the gateway started, in Unix time.", started)
    text.add("gpubox_gateway_paused", "1 while all new requests are held.", [((), int(status.paused))])
    operations = [((("kind", each.kind), ("profile", each.profile)), 1) for each in status.operations]
    text.add("gpubox_gateway_operation", "1 while the gateway starts or stops the server of a profile.", operations)
    profiles = [((("profile", each.name),), each) for each in status.profiles]
    for state, help_text in (
        ("up", "1 if its server is loaded; none for one on another machine."),
        ("broken", "1 if the profile cannot be loaded."),
    ):
        here = [(labels, int(each.state == state)) for labels, each in profiles if each.state != "upstream"]
        text.add(f"gpubox_profile_{state}", help_text, here)
    for name, attribute, help_text in (
        ("running_requests", "running", "Requests that are read or answered now."),
        ("waiting_requests", "waiting", "Requests that wait for a slot or for their profile."),
        ("slots", "slots", "Requests that the profile's server works on at once."),
    ):
        values = [(labels, getattr(each, attribute)) for labels, each in profiles]
        text.add(f"gpubox_gateway_{name}", help_text, values)


_RENAMED = {
    "vram_total_bytes": "memory_total_bytes", "vram_used_bytes": "memory_used_bytes",
    "pcie_rx_bytes_per_second": "pcie_receive_bytes_per_second",
    "pcie_tx_bytes_per_second": "pcie_transmit_bytes_per_second", "utilization_percent": "utilization_ratio",
    "layers_total": "layers", "prefill_progress": "prefill_ratio", "draft_acceptance": "draft_acceptance_ratio",
    "ttft_seconds": "last_ttft_seconds",
}  # fmt: skip
"""Keys of `status --json` whose series have the names that Prometheus advises. All others are named like the key."""


def _add_snapshot(text: _Text, snapshot: Mapping[str, Any]) -> None:
    server = json_object(snapshot.get("server"))
    labels = tuple((name, str(server[name])) for name in ("profile", "state") if server.get(name))
    text.add("gpubox_server_info", "The active server.", [(labels, 1)] if server.get("profile") else [])
    load_seconds = [((), server.get("load_seconds"))]
    text.add("gpubox_server_load_seconds", "How long the model took to load.", load_seconds)
    gpus = map(json_object, snapshot.get("gpus") or ())
    cards = [((("gpu", str(gpu.get("index"))), ("name", str(gpu.get("name") or ""))), gpu) for gpu in gpus]
    _add_section(text, "gpus", cards, "gpubox_gpu_")
    parts, totals = [], []
    for device in map(json_object, snapshot.get("memory") or ()):
        place = (("device", str(device.get("device"))), ("kind", str(device.get("kind"))))
        sizes = {key.removesuffix("_bytes"): size for key, size in device.items() if key.endswith("_bytes")}
        totals.append((place, sizes.pop("total", None)))
        parts += [((*place, ("part", part)), size) for part, size in sizes.items()]
    text.add("gpubox_memory_bytes", "What takes the memory of a device.", parts)
    text.add("gpubox_memory_total_bytes", "Memory of a device.", totals)
    for name in ("offload", "throughput", "totals"):
        _add_section(text, name, [((), json_object(snapshot.get(name)))], "gpubox_server_")


def _add_section(text: _Text, section: str, objects: Sequence[tuple[_Labels, dict[str, Any]]], prefix: str) -> None:
    """Every number of these objects; those of ``totals`` count since the active server started."""
    for key in dict.fromkeys(key for _, values in objects for key in values if key != "index"):
        name = f"{prefix}{_RENAMED.get(key, key)}"
        factor = 0.01 if name.endswith("_ratio") and key.endswith("_percent") else 1
        samples = [(labels, values.get(key)) for labels, values in objects]
        name, kind = (f"{name}_total", "counter") if section == "totals" else (name, "gauge")
        text.add(name, f"{section}.{key} of `gpubox status --json`.", samples, kind, factor)


def _number(value: object, factor: float = 1) -> str | None:
    """The value as text; None for what is no known number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    value *= factor
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _braces(labels: _Labels) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{shown}}}" if shown else ""


def _escaped(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a lone surrogate
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
