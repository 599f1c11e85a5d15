"""The gateway's metrics in Prometheus' text format."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.gateway.gateway_status import (
    SCHEMA,
    STAGES,
    FinishedRequest,
    GatewayEvent,
    GatewayStatus,
    GatewaySwitch,
    ProfileStatus,
)
from gpubox.gateway.ledger import MAX_CLIENTS, OTHERS
from gpubox.gateway.metrics import RequestCounters, metrics_text

AT = "2026-11-22T12:00:00.000Z"
STATUS = GatewayStatus(
    schema_version=SCHEMA, base_url="http://127.0.0.1:8080", started_at=AT, version="0.1.0", paused=False,
    has_keys=False, exposed="",
    operations=(GatewaySwitch("start", "coder", "laptop", "load"), GatewaySwitch("stop", "chat")),
    profiles=(
        ProfileStatus("coder", "up", running=2, waiting=1, slots=2), ProfileStatus("far", "upstream"),
        ProfileStatus("chat", "broken", message="It broke."),
    ),
    requests=(), clients={}, finished=(),
)  # fmt: skip
DONE = FinishedRequest(
    AT, "laptop", "coder", "/v1/chat/completions", 200, "done", stream=True, queue_seconds=0.02, swap_seconds=4.0,
    prefill_seconds=0.28, ttft_seconds=0.3, prompt_tokens=100, cached_tokens=90, generated_tokens=7,
)  # fmt: skip
SNAPSHOT: dict[str, Any] = {
    "server": {"profile": "coder", "state": "ready", "load_seconds": None},
    "gpus": [{"index": 0, "name": 'RTX "A\\B"\n', "vram_total_bytes": 2**34, "vram_used_bytes": None,
              "utilization_percent": 37}],
    "memory": [{"device": "GPU0", "kind": "gpu", "total_bytes": 2**34, "weights_bytes": 12345678901, "kv_bytes": None}],
    "offload": {"layers_on_gpu": 42, "bottleneck": "GPU"},
    "throughput": {"tg_tokens_per_second": 41.25, "prefill_progress": None, "draft_acceptance": 0.5, "busy_slots": 0},
    "totals": {"requests": 3, "prompt_tokens": None},
}  # fmt: skip


def counted(*events: GatewayEvent) -> RequestCounters:
    counters = RequestCounters()
    for event in events:
        counters.add(event)
    return counters


def series(text: str) -> dict[str, float]:
    """Each sample; checks the rules of the text format on the way."""
    samples: dict[str, float] = {}
    typed: dict[str, str] = {}
    name = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if meta := re.fullmatch(r"# (HELP|TYPE) ([a-z_:]+) (.+)", line):
            if meta[1] == "HELP":
                assert meta[2] not in typed, "the series of one name stand together"
                name = meta[2]
            typed[name] = meta[3]
            continue
        match = re.fullmatch(r'([a-z_]+)((?:\{(?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+\})?) (\S+)', line)
        assert match, line
        family = re.sub(r"_(bucket|sum|count)$", "", match[1]) if typed[name] == "histogram" else match[1]
        assert family == name
        assert typed[name] != "counter" or name.endswith("_total")
        assert match[1] + match[2] not in samples
        samples[match[1] + match[2]] = float(match[3])
        assert math.isfinite(float(match[3]))
    return samples


def test_what_clients_asked() -> None:
    waited = replace(DONE, queue_seconds=7.0, ttft_seconds=None, outcome="failed", prompt_tokens=None)

    swap = GatewaySwitch("start", "coder", "laptop", "done", seconds=3.5)
    samples = series(metrics_text(STATUS, counted(DONE, DONE, waited, replace(swap, step="load"), swap), None))

    assert samples['gpubox_gateway_requests_total{client="laptop",profile="coder",outcome="done"}'] == 2
    assert samples['gpubox_gateway_requests_total{client="laptop",profile="coder",outcome="failed"}'] == 1
    assert samples['gpubox_gateway_prompt_tokens_total{client="laptop",profile="coder"}'] == 200
    assert samples['gpubox_gateway_cached_tokens_total{client="laptop",profile="coder"}'] == 270
    assert samples['gpubox_gateway_ttft_seconds_bucket{client="laptop",profile="coder",le="0.25"}'] == 0
    assert samples['gpubox_gateway_ttft_seconds_bucket{client="laptop",profile="coder",le="0.5"}'] == 2
    assert samples['gpubox_gateway_ttft_seconds_bucket{client="laptop",profile="coder",le="+Inf"}'] == 2
    assert samples['gpubox_gateway_stage_seconds_count{stage="queue",profile="coder"}'] == 3
    assert samples['gpubox_gateway_stage_seconds_sum{stage="queue",profile="coder"}'] == 7.04
    assert samples['gpubox_gateway_stage_seconds_bucket{stage="swap",profile="coder",le="5.0"}'] == 3
    spent = [
        f'gpubox_gateway_client_seconds_total{{client="laptop",profile="coder",stage="{stage}"}}' for stage in STAGES
    ]
    assert [samples.get(name) for name in spent] == [7.04, 12.0, 0.84, None]
    labels = '{kind="start",profile="coder",outcome="done"}'
    assert samples[f"gpubox_gateway_operations_total{labels}"] == 1
    assert samples[f"gpubox_gateway_operation_seconds_total{labels}"] == 3.5
    assert samples['gpubox_gateway_slots{profile="coder"}'] == 2
    assert samples['gpubox_gateway_waiting_requests{profile="coder"}'] == 1
    assert samples['gpubox_gateway_operation{kind="start",profile="coder"}'] == 1
    assert samples['gpubox_gateway_operation{kind="stop",profile="chat"}'] == 1
    assert [samples.get(f'gpubox_profile_up{{profile="{name}"}}') for name in ("coder", "chat", "far")] == [1, 0, None]
    assert samples["gpubox_gateway_start_time_seconds"] == 1795348800


def test_what_the_machine_does_and_nothing_that_is_unknown() -> None:
    samples = series(metrics_text(STATUS, counted(), SNAPSHOT))

    card = 'gpu="0",name="RTX \\"A\\\\B\\"\\n"'
    assert samples[f"gpubox_gpu_memory_total_bytes{{{card}}}"] == 2**34
    assert samples[f"gpubox_gpu_utilization_ratio{{{card}}}"] == 0.37
    assert samples['gpubox_memory_bytes{device="GPU0",kind="gpu",part="weights"}'] == 12345678901
    assert samples["gpubox_server_tg_tokens_per_second"] == 41.25
    assert samples["gpubox_server_busy_slots"] == 0  # known to be none
    assert samples["gpubox_server_requests_total"] == 3
    assert samples['gpubox_server_info{profile="coder",state="ready"}'] == 1
    unknown = ("memory_used", "load_seconds", "prefill", '"kv"', "server_prompt_tokens", "ttft", "stage_seconds")
    assert [name for name in samples for word in unknown if word in name] == []


def test_odd_values_and_names_break_nothing() -> None:
    odd = {"server": None, "gpus": [None, 3], "memory": None, "throughput": {"slots": "many", "busy_slots": True}}
    odd |= {"totals": {"requests": float("nan"), "prompt_tokens": float("inf")}}
    name = 'x"}\n# TYPE \udc80 é\\'

    samples = series(metrics_text(STATUS, counted(replace(DONE, client=name)), odd))

    assert not [name for name in samples if name.startswith("gpubox_server")]
    assert 'gpubox_gateway_requests_total{client="x\\"}\\n# TYPE ? é\\\\",profile="coder",outcome="done"}' in samples
    series(metrics_text(replace(STATUS, started_at="?", profiles=()), counted(), json.loads("{}")))


def test_clients_that_name_themselves_make_bounded_series() -> None:
    counters = counted(*(replace(DONE, client=f"c{number}") for number in range(MAX_CLIENTS + 40)))

    samples = series(metrics_text(STATUS, counters, None))

    assert len([name for name in samples if "requests_total" in name]) == MAX_CLIENTS + 1
    assert samples[f'gpubox_gateway_requests_total{{client="{OTHERS}",profile="coder",outcome="done"}}'] == 40


def test_the_dashboard_names_only_series_and_labels_that_there_are() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "assets/grafana.json").read_text(encoding="utf-8"))
    memory = {"vram_total_bytes": 2, "vram_used_bytes": 1}
    card = {"index": 0, "name": "RTX", **memory, "power_watts": 9, "power_limit_watts": 9}
    swap = GatewaySwitch("start", "coder", "laptop", "done", seconds=3.5)
    whole = replace(DONE, generation_seconds=1.0)
    samples = series(metrics_text(STATUS, counted(whole, swap), {**SNAPSHOT, "gpus": [card]}))
    labels: dict[str, set[str]] = {}
    for name in samples:
        labels.setdefault(name.partition("{")[0], {"instance"}).update(re.findall(r"([a-z]+)=", name))

    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(targets) >= 20
    for target in targets:
        used = re.findall(r"(gpubox_\w+)\{([^}]*)\}", target["expr"])
        assert used, target
        for name, chosen in used:
            wanted = {*re.findall(r"([a-z]+)[=!]", chosen), *re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
            assert name in labels and wanted <= labels[name], (name, wanted)
        for grouped in re.findall(r"by \(([\w, ]+)\)", target["expr"]):
            assert all(set(grouped.split(", ")) <= labels[name] for name, _ in used), target
    assert dashboard["schemaVersion"] >= 38 and {v["type"] for v in dashboard["templating"]["list"]} == {
        "datasource",
        "query",
    }
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel} == {"${datasource}"}
