"""Stored tunes, made without a server: rates follow from the flags, so the best candidate is known."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gpubox.bench.kinds.tune.protocol import OWN
from gpubox.bench.kinds.tune.tune import Tune
from gpubox.bench.model import Item, Plan, Result, Target
from gpubox.bench.run_store import Run
from gpubox.paths import Paths
from tests.bench_course import store_run

MOE, THREADS, BATCHES = (16, 18, 20, 22, 24, 28), (4, 6, 8, 12), (256, 512, 1024)
OWN_PLACE = (3, 1, 1)
PRUNED = {"they would leave less than 1.0 GiB free": 12}


def tune_plan(profile: str = "qwen36-mtp-16gb", minutes: float = 30.0) -> Plan:
    """A tune over three flags; 16 does not load."""
    cells, targets = {}, []
    for moe_at, moe in enumerate(MOE):
        for threads_at, threads in enumerate(THREADS):
            for batch_at, batch in enumerate(BATCHES):
                place = (moe_at, threads_at, batch_at)
                values = {"n-cpu-moe": moe, "threads": threads, "ubatch-size": batch}
                own = dict(zip(values, (MOE[3], THREADS[1], BATCHES[1]), strict=True))
                changed = {flag: value for flag, value in values.items() if own[flag] != value}
                name = " ".join(f"{flag}={value}" for flag, value in changed.items()) or OWN
                cells[name] = place
                targets.append(Target(name, profile, changed))
    axes = [
        {"flag": flag, "labels": tuple(map(str, values)), "more_vram": more}
        for flag, values, more in (("n-cpu-moe", MOE, -1), ("threads", THREADS, 0), ("ubatch-size", BATCHES, 1))
    ]
    targets.sort(key=lambda target: target.name != OWN)
    options = {"axes": axes, "cells": cells, "minutes": minutes, "pruned": PRUNED}
    return Plan("tune", tuple(targets), options, seed=7)


def true_rate(place: tuple[int, ...], gain: float) -> float:
    """tok/s of a cell: the best is n-cpu-moe=18 threads=8 ubatch-size=512, by ``gain`` over the profile's own."""
    moe, threads, batch = place
    distance = abs(moe - 1) / 2 + abs(threads - 2) / 2 + abs(batch - 1) / 4
    return float(66.0 * (1 + gain) ** (1.5 - distance))


def tune_run(paths: Paths, starts: int = 999, *, gain: float = 0.12, state: str = "finished") -> Run:
    """A tune after so many server starts. Its files are made once in a process."""
    key = (starts, gain, state)
    if key not in _MADE:
        with TemporaryDirectory() as place:
            made = _tune_run(Paths(Path(place), Path(place), Path(place)), starts, gain, state).folder
            _MADE[key] = made.name, {path.name: path.read_bytes() for path in made.iterdir()}
    name, files = _MADE[key]
    target = paths.state / "runs" / name
    target.mkdir(parents=True)
    for file, content in files.items():
        (target / file).write_bytes(content)
    return Run(target)


_MADE: dict[tuple[int, float, str], tuple[str, dict[str, bytes]]] = {}


def _tune_run(paths: Paths, starts: int, gain: float, state: str) -> Run:
    plan = tune_plan()
    tune, dice = Tune(plan), random.Random(3)
    rates: dict[int, float] = {}

    def answer(item: Item) -> Result:
        place = tune.options.cells[item.target]
        rate = rates.setdefault(item.start, true_rate(place, gain) * dice.gauss(1, 0.004))
        if place[0] == 0:
            return Result(item.id, error="out of VRAM: KV cache on CUDA0", skipped=True)
        values = {"tg": rate * dice.gauss(1, 0.002)}
        if item.warmup:
            values |= {"start_seconds": 9.0, "load_seconds": 7.0, "vram_bytes": 12 << 30, "pp": 900.0}
        return Result(item.id, values, 2.0)

    run = store_run(paths, plan, answer, starts=starts, state=state)
    run.save(replace(run.info, seconds=500.0, created_at="2026-11-22T12:57:30Z"))
    renamed = Run(run.folder.rename(run.folder.with_name("20261122-125730-tune")))
    renamed.save(replace(renamed.info, id=renamed.id))
    return renamed
