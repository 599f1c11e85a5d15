"""Is the tuner right? Simulated boxes with a known best, and a real grid on the lab. Run by hand.

python tests/perf/tune_truth.py simulate [--seeds 40]
python tests/perf/tune_truth.py lab ...
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.search import SearchAxis, SearchSpace, StartOutcome

STARTS_PER_CELL = 4
"""Of an exhaustive comparison."""


@dataclass(frozen=True)
class Box:
    """A simulated box: the truth that no code of gpubox knows."""

    name: str
    space: SearchSpace
    rate: Callable[[tuple[int, ...]], float]
    """tok/s without noise."""
    fits: Callable[[tuple[int, ...]], bool]
    sd: float
    drift: float
    """Of the log, from the first to the 60th start."""
    wander: float = 0.0
    """Amplitude of a slow wave on top."""


def grid(axes: list[SearchAxis], own: tuple[int, ...]) -> SearchSpace:
    cells = {" ".join(map(str, place)): place for place in itertools.product(*(range(axis.levels) for axis in axes))}
    return SearchSpace(tuple(axes), cells, " ".join(map(str, own)))


def moe_box(dice: random.Random, sd: float) -> Box:
    """n-cpu-moe x threads x ubatch x draft window: time per step of a card and a CPU that share the experts."""
    layers, threads, ubatch, window = [14, 16, 18, 20, 22, 26], [4, 6, 8, 16], [256, 512, 1024], [0, 1, 2, 3, 4, 6]
    axes = [
        SearchAxis(len(layers), more_vram=-1, more_ram=1), SearchAxis(len(threads)),
        SearchAxis(len(ubatch), more_vram=1), SearchAxis(len(window), more_vram=1),
    ]  # fmt: skip
    card_ms, layer_ms = dice.uniform(4, 10), dice.uniform(0.3, 1.2)
    cores, crowd = dice.choice([6, 8]), dice.uniform(0.0, 0.5)
    accept, batch_cost, cpu_batch = dice.uniform(0.4, 0.92), dice.uniform(0.02, 0.2), dice.uniform(0.05, 0.6)
    memory = dice.uniform(16, 23)
    ubatch_cost = dice.uniform(-0.01, 0.01)

    def rate(place: tuple[int, ...]) -> float:
        on_cpu, count, micro, drafted = layers[place[0]], threads[place[1]], ubatch[place[2]], window[place[3]]
        speed = min(count, cores) * (1 - crowd * max(0, count - cores) / cores) / cores
        step = card_ms * (1 + batch_cost * drafted) + on_cpu * layer_ms / speed * (1 + cpu_batch * drafted)
        tokens = sum(accept**i for i in range(drafted + 1))
        return 1000 * tokens / step * (1 + ubatch_cost * math.log2(micro / 256))

    def fits(place: tuple[int, ...]) -> bool:
        return layers[place[0]] >= memory - 4 + 1.2 * place[2] + 0.3 * place[3]

    own = (len(layers) - 1, dice.randrange(4), dice.randrange(3), dice.randrange(6))
    drift, wander = dice.uniform(-0.06, 0.06), dice.uniform(0, 0.01)
    return Box("moe", grid(axes, own), rate, fits, sd, drift, wander)


def odd_box(dice: random.Random, sd: float) -> Box:
    """Random effects and strong random interactions, no order at all."""
    counts = [dice.randint(2, 5) for _ in range(4)]
    while not 60 <= math.prod(counts) <= 300:
        counts = [dice.randint(2, 5) for _ in range(4)]
    main = [[dice.gauss(0, 0.15) for _ in range(count)] for count in counts]
    pairs = {
        pair: [[dice.gauss(0, 0.04) for _ in range(counts[pair[1]])] for _ in range(counts[pair[0]])]
        for pair in itertools.combinations(range(4), 2)
    }

    def rate(place: tuple[int, ...]) -> float:
        log = sum(effects[level] for effects, level in zip(main, place, strict=True))
        return 50 * math.exp(log + sum(table[place[a]][place[b]] for (a, b), table in pairs.items()))

    own = tuple(dice.randrange(count) for count in counts)
    axes = [SearchAxis(count, ordered=dice.random() < 0.7) for count in counts]
    return Box("odd", grid(axes, own), rate, lambda place: True, sd, dice.uniform(-0.06, 0.06))


def flat_box(dice: random.Random, sd: float) -> Box:
    """Every cell is as fast as every other."""
    axes = [SearchAxis(4), SearchAxis(4), SearchAxis(4)]
    return Box("flat", grid(axes, (0, 1, 2)), lambda place: 40.0, lambda place: True, sd, dice.uniform(-0.06, 0.06))


def best_already(dice: random.Random, sd: float) -> Box:
    """The profile's own flags are the best ones."""
    box = moe_box(dice, sd)
    best = max((cell for cell in box.space.cells.values() if box.fits(cell)), key=box.rate)
    space = SearchSpace(box.space.axes, box.space.cells, " ".join(map(str, best)))
    return Box("best already", space, box.rate, box.fits, box.sd, box.drift, box.wander)


@dataclass
class Tuned:
    verdict: str
    chosen: str
    regret: float
    starts: int
    share: float
    reason: str
    within: float | None
    seconds: float


def tune(box: Box, seed: int) -> Tuned:
    """One tune of ``box``."""
    dice = random.Random(f"noise {seed}")
    search: list[StartOutcome] = []
    final: list[StartOutcome] = []
    slowest = 0.0
    while True:
        course = Course(box.space, math.inf, search, final, seed)
        began = time.perf_counter()
        phase = course.phase
        slowest = max(slowest, time.perf_counter() - began)
        if phase == "finished":
            break
        cell = (course.search_step if phase in ("screening", "narrowing") else course.final_step).cell
        number = len(search) + len(final) + 1
        place = box.space.cells[cell]
        if box.fits(place):
            log = math.log(box.rate(place)) + box.drift * number / 60 + box.wander * math.sin(number / 7)
            prompts = {f"p{i}": log + dice.gauss(0, box.sd) * 0 + dice.gauss(0, box.sd / 3) for i in range(3)}
            start = dice.gauss(0, box.sd)
            outcome = StartOutcome(number, cell, {name: value + start for name, value in prompts.items()}, 10.0)
        else:
            outcome = StartOutcome(number, cell, {}, 5.0, "out of VRAM on CUDA0", "VRAM", loaded=False)
        (search if phase in ("screening", "narrowing") else final).append(outcome)
    outlook = course.outlook
    faster = outlook.best in outlook.significant or not outlook.own
    chosen = outlook.best if faster else box.space.own
    best = max(box.rate(place) for place in box.space.cells.values() if box.fits(place))
    regret = 1 - box.rate(box.space.cells[chosen]) / best if chosen else 1.0
    starts = len(search) + len(final)
    within = outlook.gain_at_most
    share = starts / (STARTS_PER_CELL * len(box.space.cells))
    return Tuned(
        "faster" if faster else "as good", chosen, regret, starts, share, course.final_step.reason, within, slowest
    )


def simulate(seeds: int) -> None:
    makers = [moe_box, odd_box, flat_box, best_already]
    for make, sd in itertools.product(makers, (0.01, 0.02, 0.03)):
        runs = [tune(make(random.Random(f"box {make.__name__} {seed}"), sd), seed) for seed in range(seeds)]
        regrets = sorted(run.regret for run in runs)
        good = sum(run.regret <= 0.03 for run in runs)
        verdicts = sum(run.verdict == "faster" for run in runs)
        print(
            f"{make.__name__:<13} sd {sd:.0%}: regret <= 3 % {good}/{seeds}, median {statistics.median(regrets):.2%}, "
            f"p90 {regrets[int(0.9 * seeds)]:.1%}, worst {regrets[-1]:.1%}; faster {verdicts}; starts {statistics.fmean(r.starts for r in runs):.0f} "
            f"(max {max(r.starts for r in runs)}, share max {max(r.share for r in runs):.0%}); "
            f"slowest decision {max(r.seconds for r in runs):.2f} s", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["simulate", "lab"])
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.part == "simulate":
        simulate(arguments.seeds)
    sys.exit(0)
