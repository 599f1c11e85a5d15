"""How often gpubox's verdicts are wrong, and how often they find what is there: identical and different arms, simulated.

    .venv/bin/python tests/perf/verdicts.py ab 1000
    .venv/bin/python tests/perf/verdicts.py compare 1000
    .venv/bin/python tests/perf/verdicts.py sweep 300
    .venv/bin/python tests/perf/verdicts.py leaderboard 1000

The box is a model of its own, which shares no formula with the code under test: prompts that differ by 12 %, answers
by 1 %, launches by what the row says, and one kind of disturbance that runs through the whole time of the run. What
is asked of gpubox are the functions that its verbs call: the plan's items, what is spared, the table, the report.
A row: false verdicts (with a true difference: found ones), coverage of the 95 % interval, starts used.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.bench.ab.kind import Ab
from gpubox.bench.ab.verdict import table
from gpubox.bench.asking import question_of
from gpubox.bench.model import Item, Plan, Provenance, Result, RunInfo, Target

ANSWER_SD, PROMPT_SD = 0.01, 0.12
NOISES = ("launch 0 %", "launch 0.5 %", "launch 1 %", "launch 2 %", "AR(0.9) 3 %", "two states -5 %", "drift -10 %")
Scored = list[tuple[Item, Result]]


class Box:
    """Time goes by answer by answer; ``rate`` is asked once for each, in order."""

    def __init__(self, noise: str, dice: random.Random, answers: int) -> None:
        self.noise, self.dice, self.answers = noise, dice, answers
        self.launch_sd = float(noise.split()[1]) / 100 if noise.startswith("launch") else 0.005
        self.wander = dice.gauss(0, 0.03)
        self.slow = dice.random() < 0.5
        self.dwell = dice.choice((5, 15, 40, 120))
        self.at = 0
        self.launch = 0.0
        self.prompts: dict[str, float] = {}

    def start(self) -> None:
        """Another launch of the server."""
        self.launch = self.dice.gauss(0, self.launch_sd)

    def rate(self, prompt: str, true: float = 0.0) -> float:
        """tok/s of one answer; ``true`` is the log of what its arm is really worth."""
        self.at += 1
        dice = self.dice
        log = self.prompts.setdefault(prompt, math.log(50) + dice.gauss(0, PROMPT_SD))
        log += true + self.launch + dice.gauss(0, ANSWER_SD)
        if self.noise.startswith("AR"):
            self.wander = 0.9 * self.wander + dice.gauss(0, 0.03 * math.sqrt(1 - 0.81))
            log += self.wander
        elif self.noise.startswith("two"):
            if dice.random() < 1 / self.dwell:
                self.slow = not self.slow
            log += math.log(0.95) if self.slow else 0.0
        elif self.noise.startswith("drift"):
            log += math.log(1 - 0.10 * self.at / self.answers)
        return math.exp(log)


def values(rate: float) -> dict[str, Any]:
    """A Result's values of one answer at so many tok/s."""
    return {"tg": rate, "pp": 12 * rate, "effective": 0.95 * rate, "ttft_seconds": 2 / rate, "generated_tokens": 64,
            "generation_seconds": 64 / rate}  # fmt: skip


# -- ab -------------------------------------------------------------------------------------------------------------


def ab(noise: str, true: float, seed: int, **options: Any) -> tuple[bool, bool, int, bool]:
    """One run at the default plan: whether tg got a verdict, the interval holds the truth, starts, any row a verdict."""
    arms = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
    kind = Ab(Plan("ab", (Target("a", "a"), Target("b", "b")), {"arms": arms, **options}, seed=seed))
    items = list(kind.items())
    box, scored, last = Box(noise, random.Random(f"{noise}{true}{seed}"), len(items)), [], 0
    for item in items:
        if item.start != last:
            if kind.spare(item, scored):
                break
            last = item.start
            box.start()
        rate = box.rate(question_of(item).name, math.log1p(true) if item.target == "b" else 0.0)
        scored.append((item, Result(item.id, values(rate))))
    rows = table(kind.options, scored)
    main = rows[0]
    low, high = main.contrast.interval
    said = ("faster",) if true > 0 else ("faster", "slower")
    return main.verdict in said, low <= 1 + true <= high, last, any(row.verdict in said for row in rows)


def ab_rows(runs: int) -> Iterator[str]:
    for true in (0.0, 0.05):
        for noise in NOISES if not true else NOISES[:4]:
            found = [ab(noise, true, seed) for seed in range(runs)]
            share = [100 * sum(bool(one[i]) for one in found) / runs for i in (0, 3, 1)]
            starts = sum(one[2] for one in found) / runs
            yield (
                f"ab {noise:<16} true {true:.0%}: verdict {share[0]:5.1f} %, in any row {share[1]:5.1f} %, "
                f"coverage {share[2]:5.1f} %, starts {starts:.1f}"
            )


KINDS: dict[str, Callable[[int], Iterator[str]]] = {"ab": ab_rows}


def main() -> None:
    names = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in KINDS else list(KINDS)
    runs = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 300
    for name in names:
        began = time.process_time()
        for line in KINDS[name](runs):
            print(line, flush=True)
        print(f"{name}: {runs} runs a row, {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
