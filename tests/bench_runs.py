"""Stored ``speed`` runs, made without a server: results with a known mean and spread."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Doubt, Machine, Plan, Provenance, Result, RunInfo, Target
from gpubox.bench.report.load import ReportBundle
from gpubox.bench.report.model import Report
from gpubox.bench.run_store import Run, create_run
from gpubox.paths import Paths
from gpubox.views.documents import document_rows, row_texts
from gpubox.views.runs import report_document

OPTIONS: dict[str, Any] = {"prompts": ["short", "code"], "depths": [0, 8192], "repeats": 5}
MACHINE = Machine(
    "0.2.0", cpu="AMD Ryzen 9 5950X", cores=32, ram_bytes=64 << 30, kernel="Linux 6.8", driver="550.54",
    gpus=({"name": "NVIDIA GeForce RTX 4080 SUPER", "vram_total_bytes": 16 << 30, "power_limit_watts": 320.0},),
)  # fmt: skip


def speed_run(
    paths: Paths,
    profile: str = "qwen36-mtp-16gb",
    *,
    tg: float = 60.0,
    spread: float = 0.02,
    seed: int = 0,
    options: Mapping[str, Any] = OPTIONS,
    share: float = 1.0,
    state: str = "finished",
    doubts: Sequence[Doubt] = (),
    url: str = "",
    at: str = "",
    draft: bool = False,
    argv: tuple[str, ...] = ("/opt/llama/llama-server", "--model", "/models/q.gguf", "--n-cpu-moe", "20"),
) -> Run:
    """A run whose first ``share`` of items has results. ``at``: when it began, in UTC; empty: one evening."""
    plan = Plan("speed", (Target(profile, profile="" if url else profile, url=url),), options)
    items = list(make_benchmark(plan).items())
    run = _numbered(create_run(paths, plan, items), re.sub(r"[-:Z]", "", at).replace("T", "-"))
    dice = random.Random(seed)
    with run.owned():
        for number, item in enumerate(items[: round(len(items) * share)]):
            values = _values(item.values, tg * dice.gauss(1, spread), random.Random(f"{seed} {number}"), draft=draft)
            run.add_result(Result(item.id, values, round(values["wall_seconds"] + 0.2, 1),
                                  tuple(replace(doubt, item=item.id) for doubt in doubts if number == 3)))  # fmt: skip
        provenance = Provenance(
            profile, profile="" if url else profile, url=url, argv=argv, engine="llama.cpp",
            engine_path="".join(argv[:1]),
            engine_version="b11434", engine_sha256="5c" * 32, model_path="/models/Qwen3.6-35B-A3B.Q4_K_M.gguf",
            model_bytes=21_700_000_000, model_sha256="a1" * 32, dialect="llama-server",
        )  # fmt: skip
        info = replace(run.info, state=state, seconds=212.0 * share, machine=MACHINE, provenance={profile: provenance})
        run.save(replace(info, created_at=at or "2026-11-21T18:00:00Z"))
    return run


def _numbered(run: Run, time: str) -> Run:
    """The run under an id that depends on ``time`` or its number instead of the clock."""
    time = time or f"20261121-18{len(list(run.folder.parent.iterdir())):04d}"
    folder = run.folder.rename(run.folder.with_name(f"{time}{run.id[15:]}"))
    renamed = Run(folder)
    renamed.save(replace(renamed.info, id=renamed.id))
    return renamed


def _values(values: Mapping[str, Any], tg: float, dice: random.Random, *, draft: bool) -> dict[str, Any]:
    depth, tokens = values["depth"], values["max_tokens"]
    rate, cached = tg / (1 + depth / 40_000), values.get("prefix") != "cold"
    pp = 40.0 * tg * dice.gauss(1, 0.01) * (1.0 if depth else 0.35)  # a short prompt does not fill the card
    ttft = (0.024 + depth / 2e6 if cached else 0.02 + (depth + 30) / pp) * dice.gauss(1, 0.01)
    drafted = tokens if draft else None  # optional, because its bootstrap interval is slow
    return {
        "ttft_seconds": ttft,
        "wall_seconds": tokens / rate + ttft,
        **({} if cached else {"pp": pp}),  # of a cached prompt there is nothing to read
        "tg": rate,
        "effective": rate * 0.97,
        "prompt_tokens": depth + 30,
        "cached_tokens": 0,
        "generated_tokens": tokens,
        "draft_tokens": drafted,
        "draft_tokens_accepted": round(drafted * 0.71) if drafted else None,
        "mean_accepted_length": 2.4 if draft else None,
        "joules_per_token": 142 * dice.gauss(1, 0.01) / rate,
        "timed_by": "server",
    }


def report_lines(info: RunInfo, report: Report, width: int | None = None) -> list[str]:
    """A report as a verb prints it, with its charts."""
    return list(row_texts(document_rows(report_document(ReportBundle(info, report)), width, plots=True)))
