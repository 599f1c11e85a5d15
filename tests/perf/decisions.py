"""How often ab, sweep and tune decide wrongly, and how often they find a real difference, on simulated boxes.

    .venv/bin/python tests/perf/decisions.py equal 400      # equal cells: verdicts, offers, coverage
    .venv/bin/python tests/perf/decisions.py true 400       # a true difference: how often it is found
    .venv/bin/python tests/perf/decisions.py hidden 400     # one cell of twelve is 10 % faster
    .venv/bin/python tests/perf/decisions.py space 40       # hundreds of cells: how far the kept one is from the best

The simulated boxes share no formula with the code under test: prompts differ by 12 %, answers by 1 %, launches by the
amount in the row; one kind of disturbance lasts for the whole run. The course asks, the box answers.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.compare.cell_benchmark import CellBenchmark
from gpubox.bench.model import Item, Plan, Result, Target
from gpubox.bench.questions import question_of

ANSWER_SD, PROMPT_SD = 0.01, 0.12
NOISES = (
    "launch 0 %", "launch 1 %", "launch 2 %", "launch 5 %", "launch 10 %", "ramp -10 %", "step -8 %", "modes -15 %",
    "sticky modes -10 %", "AR(0.9) 3 %", "one bad start in ten",
)  # fmt: skip
Scored = list[tuple[Item, Result]]
Rates = Mapping[str, float]
"""The log of what each cell is really worth over the first."""


class Box:
    """Time goes by answer by answer; ``rate`` is asked once for each, in order."""

    def __init__(self, noise: str, dice: random.Random, answers: int) -> None:
        self.noise, self.dice, self.answers = noise, dice, answers
        self.launch_sd = float(noise.split()[1]) / 100 if noise.startswith("launch") else 0.005
        self.wander, self.at, self.launch = dice.gauss(0, 0.03), 0, 0.0
        self.slow, self.step_at = dice.random() < 0.5, dice.random()
        self.prompts: dict[str, float] = {}

    def start(self) -> None:
        """Another launch of the server."""
        dice = self.dice
        self.launch = dice.gauss(0, self.launch_sd)
        if self.noise.startswith("modes") and dice.random() < 0.5:
            self.launch += math.log(0.85)
        if self.noise.startswith("one bad") and dice.random() < 0.1:
            self.launch += math.log(dice.uniform(0.5, 0.8))
        if self.noise.startswith("sticky") and dice.random() < 0.2:
            self.slow = not self.slow

    def rate(self, prompt: str, true: float) -> float:
        """tok/s of one answer."""
        self.at += 1
        dice, share = self.dice, self.at / self.answers
        log = self.prompts.setdefault(prompt, math.log(50) + dice.gauss(0, PROMPT_SD))
        log += true + self.launch + dice.gauss(0, ANSWER_SD)
        if self.noise.startswith("AR"):
            self.wander = 0.9 * self.wander + dice.gauss(0, 0.03 * math.sqrt(1 - 0.81))
            log += self.wander
        elif self.noise.startswith("sticky"):
            log += math.log(0.90) if self.slow else 0.0
        elif self.noise.startswith("ramp"):
            log += math.log(1 - 0.10 * min(1.0, share))
        elif self.noise.startswith("step"):
            log += math.log(0.92) if share > self.step_at else 0.0
        return math.exp(log)


def play(plan: Plan, noise: str, dice: random.Random, rates: Rates, answers: int, start: float = 5.0) -> tuple[
    CellBenchmark, Scored
]:  # fmt: skip
    """A whole run of ``plan``. A start takes ``start`` seconds besides its answers."""
    kind = make_benchmark(plan)
    assert isinstance(kind, CellBenchmark)
    box, scored, last = Box(noise, dice, answers), [], 0
    course = kind.course()
    batch = next(course)
    while True:
        for item in batch.items:
            began = item.start != last
            if began:
                last = item.start
                box.start()
            if item.target not in rates:
                error = Result(item.id, error="out of VRAM on CUDA0", skipped=True)
                scored.append((item, error))
                continue
            question = question_of(item)
            rate = box.rate(question.name, rates[item.target])
            values: dict[str, Any] = {"tg": rate, "pp": 12 * rate, "effective": rate, "ttft_seconds": 1 / rate}
            values |= {"start_seconds": start} if began else {}
            seconds = question.max_tokens / rate + (question.context_tokens + 60) / (12 * rate)
            scored.append((item, Result(item.id, values, seconds)))
        try:
            batch = course.send(scored)
        except StopIteration:
            return kind, scored


def ab_plan(cells: int, seed: int) -> Plan:
    del cells
    sides = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
    return Plan("ab", (Target("a", "a"), Target("b", "b")), {"sides": sides, "prompts": 2}, seed=seed)


def sweep_plan(cells: int, seed: int) -> Plan:
    targets = tuple(Target(f"ubatch-size={n}", "p", {"ubatch-size": n}) for n in range(cells))
    return Plan("sweep", targets, {"axes": ["ubatch-size"], "prompts": 1}, seed=seed)


def tune_plan(cells: int, seed: int, minutes: float = 30.0) -> Plan:
    names = ["own flags", *(f"threads={n}" for n in range(1, cells))]
    targets = tuple(Target(name, "p", {"threads": n} if n else {}) for n, name in enumerate(names))
    axes = [{"flag": "threads", "labels": [str(n) for n in range(cells)]}]
    options = {"axes": axes, "cells": {name: [n] for n, name in enumerate(names)}, "minutes": minutes}
    return Plan("tune", targets, options, seed=seed)


PLANS: tuple[tuple[str, int, Callable[[int, int], Plan], int], ...] = (
    ("ab", 2, ab_plan, 80), ("sweep", 4, sweep_plan, 80), ("sweep", 8, sweep_plan, 140), ("sweep", 16, sweep_plan, 180),
    ("tune", 12, tune_plan, 260), ("tune 5 min", 4, lambda cells, seed: tune_plan(cells, seed, 5.0), 150),
)  # fmt: skip
"""Name, cells, plan, about so many answers."""


def equal(runs: int) -> Iterator[str]:
    """Equal cells: any verdict, any offer to save, intervals that miss the truth."""
    for (name, cells, plan, answers), noise in itertools.product(PLANS, NOISES):
        told = offered = hits = intervals = equals = starts = 0
        for seed in range(runs):
            made = plan(cells, seed)
            rates = {target.name: 0.0 for target in made.targets}
            kind, scored = play(made, noise, random.Random(f"{name}{noise}{seed}"), rates, answers)
            judged = kind.contest_after(scored).judged()
            told += any(row.answer in ("faster", "slower") for row in judged.values())
            offered += kind.best(scored) is not None
            equals += any(row.answer == "equal" for row in judged.values())
            starts += scored[-1][0].start
            for low, high in (row.interval for row in judged.values() if row.interval):
                intervals, hits = intervals + 1, hits + (low <= 1 <= high)
        share = [100 * count / runs for count in (told, offered, equals)]
        yield (
            f"{name:<10} {cells:2} cells {noise:<20} any verdict {share[0]:4.1f} %, offered {share[1]:4.1f} %, "
            f"equal {share[2]:4.0f} %, coverage {100 * hits / max(1, intervals):5.1f} %, starts {starts / runs:.0f}"
        )


def true(runs: int) -> Iterator[str]:
    """The last cell is really faster: how often it is found, how often its interval holds the truth, wrong words."""
    for (name, cells, plan, answers), gain, noise in itertools.product(PLANS[:1], (0.02, 0.05, 0.10), NOISES):
        found = hits = intervals = wrong = 0
        for seed in range(runs):
            made = plan(cells, seed)
            rates = {target.name: 0.0 for target in made.targets} | {made.targets[-1].name: math.log1p(gain)}
            kind, scored = play(made, noise, random.Random(f"{name}{noise}{seed}{gain}"), rates, answers)
            row = kind.contest_after(scored).judged()[made.targets[-1].name]
            found += row.answer == "faster"
            wrong += row.answer == "slower" or (row.within is not None and row.answer == "equal" and row.within < gain)
            if row.interval:
                intervals, hits = intervals + 1, hits + (row.interval[0] <= 1 + gain <= row.interval[1])
        yield (
            f"{name:<6} +{gain:.0%} {noise:<20} found {100 * found / runs:5.1f} %, wrong {100 * wrong / runs:4.1f} %, "
            f"coverage {100 * hits / max(1, intervals):5.1f} %"
        )


def hidden(runs: int) -> Iterator[str]:
    """One cell of several is 10 % faster, the others are equal or up to 10 % slower."""
    for (name, cells, plan, answers), noise in itertools.product(PLANS[2:], NOISES):
        kept = other = 0
        for seed in range(runs):
            made, dice = plan(cells, seed), random.Random(f"{name}{noise}{seed}")
            names = [target.name for target in made.targets]
            best = dice.choice(names[1:])
            rates = {cell: -dice.choice((0.0, 0.03, 0.1)) for cell in names} | {names[0]: 0.0, best: math.log1p(0.1)}
            kind, scored = play(made, noise, dice, rates, answers)
            chosen = kind.best(scored)
            kept += chosen is not None and chosen.name == best
            other += chosen is not None and chosen.name != best
        found, wrong = 100 * kept / runs, 100 * other / runs
        yield f"{name:<10} {cells:2} cells {noise:<20} found {found:5.1f} %, another {wrong:4.1f} %"


# -- large spaces -----------------------------------------------------------------------------------------------------


def moe_space(dice: random.Random) -> tuple[list[int], Callable[[tuple[int, ...]], float | None]]:
    """n-cpu-moe x threads x ubatch x draft window: time per step of a card and a CPU that share the experts."""
    layers, threads, ubatch, window = [14, 16, 18, 20, 22, 26], [4, 6, 8, 16], [256, 512, 1024], [0, 1, 2, 3, 4, 6]
    card_ms, layer_ms = dice.uniform(4, 10), dice.uniform(0.3, 1.2)
    cores, crowd = dice.choice([6, 8]), dice.uniform(0.0, 0.5)
    accept, batch_cost, cpu_batch = dice.uniform(0.4, 0.92), dice.uniform(0.02, 0.2), dice.uniform(0.05, 0.6)
    memory, ubatch_cost = dice.uniform(16, 23), dice.uniform(-0.01, 0.01)

    def rate(place: tuple[int, ...]) -> float | None:
        on_cpu, count, micro, drafted = layers[place[0]], threads[place[1]], ubatch[place[2]], window[place[3]]
        if on_cpu < memory - 4 + 1.2 * place[2] + 0.3 * place[3]:
            return None
        speed = min(count, cores) * (1 - crowd * max(0, count - cores) / cores) / cores
        step = card_ms * (1 + batch_cost * drafted) + on_cpu * layer_ms / speed * (1 + cpu_batch * drafted)
        tokens = sum(accept**i for i in range(drafted + 1))
        return math.log(1000 * tokens / step * (1 + ubatch_cost * math.log2(micro / 256)))

    return [6, 4, 3, 6], rate


def odd_space(dice: random.Random) -> tuple[list[int], Callable[[tuple[int, ...]], float | None]]:
    """Random effects and strong random interactions, no order at all."""
    counts = [dice.randint(2, 5) for _ in range(4)]
    while not 60 <= math.prod(counts) <= 300:
        counts = [dice.randint(2, 5) for _ in range(4)]
    main = [[dice.gauss(0, 0.15) for _ in range(count)] for count in counts]
    pairs = {
        pair: [[dice.gauss(0, 0.04) for _ in range(counts[pair[1]])] for _ in range(counts[pair[0]])]
        for pair in itertools.combinations(range(4), 2)
    }

    def rate(place: tuple[int, ...]) -> float | None:
        log = sum(effects[level] for effects, level in zip(main, place, strict=True))
        return log + sum(table[place[a]][place[b]] for (a, b), table in pairs.items())

    return counts, rate


def space(runs: int) -> Iterator[str]:
    """How far the kept flags are from the best of all, in 30 minutes with starts of 15 s."""
    for make, sd in itertools.product((moe_space, odd_space), (1, 2, 3)):
        regrets, gains, starts = [], [], []
        for seed in range(runs):
            dice = random.Random(f"{make.__name__}{seed}")
            counts, rate = make(dice)
            places = list(itertools.product(*(range(count) for count in counts)))
            own = (counts[0] - 1, *(dice.randrange(count) for count in counts[1:]))
            places = [own, *(place for place in places if place != own)]
            names = {place: "own flags" if place == own else " ".join(map(str, place)) for place in places}
            logs = {names[place]: log for place in places if (log := rate(place)) is not None}
            more = ((-1, 1), (0, 0), (1, 0), (1, 0)) if make is moe_space else ((0, 0),) * 4
            axes = [{"flag": f"f{n}", "labels": [str(i) for i in range(count)], "more_vram": more[n][0],
                     "more_ram": more[n][1]} for n, count in enumerate(counts)]  # fmt: skip
            targets = tuple(Target(names[place], "p", {} if place == own else {"t": str(place)}) for place in places)
            options = {"axes": axes, "cells": {names[place]: list(place) for place in places}, "minutes": 30.0}
            plan = Plan("tune", targets, options, seed=seed)
            if "own flags" not in logs:
                continue
            rates = {name: log - logs["own flags"] for name, log in logs.items()}
            kind, scored = play(plan, f"launch {sd} %", dice, rates, 700, start=10.0)
            chosen = kind.best(scored)
            regrets.append(max(rates.values()) - (rates[chosen.name] if chosen else 0.0))
            gains.append(max(rates.values()))
            starts.append(scored[-1][0].start)
        regrets.sort()
        good = sum(regret <= 0.03 for regret in regrets)
        yield (
            f"{make.__name__:<10} sd {sd} %: within 3 % of the best {good}/{len(regrets)}, p90 "
            f"{regrets[int(0.9 * len(regrets))]:.1%}, worst {regrets[-1]:.1%}; to win {sum(gains) / len(gains):.0%}; "
            f"starts {sum(starts) / len(starts):.0f}"
        )


PARTS: dict[str, Callable[[int], Iterator[str]]] = {"equal": equal, "true": true, "hidden": hidden, "space": space}


def main() -> None:
    names = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in PARTS else list(PARTS)
    runs = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 300
    for name in names:
        began = time.process_time()
        for line in PARTS[name](runs):
            print(line, flush=True)
        print(f"{name}: {runs} runs a row, {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
