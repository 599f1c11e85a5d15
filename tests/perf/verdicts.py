"""How often verdicts of gpubox are wrong, and how often they detect a real difference, in simulated runs.

    .venv/bin/python tests/perf/verdicts.py ab 1000
    .venv/bin/python tests/perf/verdicts.py sweep 300

The simulated box shares no formula with the code under test: prompts differ by 12 %, answers by 1 %, launches by the
amount in the row, and one kind of disturbance lasts for the whole run. The functions under test are those that the
verbs call: the plan's items, the unneeded ones, the table, the report.
A row: false verdicts (with a true difference: correct ones), coverage of the 95 % interval, starts used.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpubox.bench.kinds.ab.ab import Ab
from gpubox.bench.kinds.ab.verdict import contrast_rows
from gpubox.bench.kinds.sweep.grid import grid_targets, parse_axis
from gpubox.bench.kinds.sweep.ranking import rank_cells
from gpubox.bench.kinds.sweep.sweep import Sweep
from gpubox.bench.model import Item, Plan, Result, Target
from gpubox.bench.questions import question_of

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
        """tok/s of one answer; ``true`` is the log of what its side is really worth."""
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
    """One run at the default plan: has tg a verdict, holds its interval the truth, how many starts, has any row one."""
    sides = [{"name": "a", "target": "a"}, {"name": "b", "target": "b"}]
    kind = Ab(Plan("ab", (Target("a", "a"), Target("b", "b")), {"sides": sides, **options}, seed=seed))
    items = list(kind.items())
    box, last = Box(noise, random.Random(f"{noise}{true}{seed}"), len(items)), 0
    scored: Scored = []
    for item in items:
        if item.start != last:
            if kind.unneeded_reason(item, scored):
                break
            last = item.start
            box.start()
        rate = box.rate(question_of(item).name, math.log1p(true) if item.target == "b" else 0.0)
        scored.append((item, Result(item.id, values(rate))))
    rows = contrast_rows(kind.options, scored)
    main = rows[0]
    low, high = main.contrast.interval
    verdicts = ("faster",) if true > 0 else ("faster", "slower")
    return main.verdict in verdicts, low <= 1 + true <= high, last, any(row.verdict in verdicts for row in rows)


def ab_rows(runs: int) -> Iterator[str]:
    for true in (0.0, 0.05):
        for noise in NOISES if not true else NOISES[:4]:
            outcomes = [ab(noise, true, seed) for seed in range(runs)]
            share = [100 * sum(bool(outcome[i]) for outcome in outcomes) / runs for i in (0, 3, 1)]
            starts = sum(outcome[2] for outcome in outcomes) / runs
            yield (
                f"ab {noise:<16} true {true:.0%}: verdict {share[0]:5.1f} %, in any row {share[1]:5.1f} %, "
                f"coverage {share[2]:5.1f} %, starts {starts:.1f}"
            )


# -- sweep ----------------------------------------------------------------------------------------------------------


def sweep(noise: str, true: float, seed: int) -> tuple[bool, bool, float, int]:
    """16 cells, all equal or one better: any other cell called slower, is the best the better one, its rate, starts.

    The rate is how far the one shown for the best is from what it really is, in the log.
    """
    targets = grid_targets("p", [parse_axis("ubatch-size=1..16")])
    kind = Sweep(Plan("sweep", tuple(targets), {"axes": ["ubatch-size"]}, seed=seed))
    items = list(kind.items())
    box, last = Box(noise, random.Random(f"{noise}{true}{seed}"), len(items)), 0
    scored: Scored = []
    better = targets[seed % 16].name if true else ""
    worth = 0.0
    for item in items:
        if item.start != last:
            last = item.start
            box.start()
        name = kind.target_of(item, scored)
        rate = box.rate(question_of(item).name, math.log1p(true) if name == better else 0.0)
        scored.append((item, Result(item.id, values(rate))))
    ranking = rank_cells(kind.grid, scored)
    best = ranking.best
    assert best is not None
    if noise.startswith("launch"):  # what it would be without noise: the mean of its prompts
        fair = statistics.fmean(math.exp(box.prompts[question_of(item).name]) for item, _ in best.rows)
        worth = math.log(ranking.best_rate / fair) - (math.log1p(true) if best.target.name == better else 0.0)
    wrong = any(ranked.verdict == "slower" for ranked in ranking.cells)
    return wrong, best.target.name == better, worth, last


def sweep_rows(runs: int) -> Iterator[str]:
    for true in (0.0, 0.05):
        for noise in NOISES if not true else NOISES[2:3]:
            outcomes = [sweep(noise, true, seed) for seed in range(runs)]
            wrong, right, worth = (100 * sum(outcome[i] for outcome in outcomes) / runs for i in range(3))
            starts = sum(outcome[3] for outcome in outcomes) / runs
            yield (
                f"sweep {noise:<16} true {true:.0%}: any cell called slower {wrong:5.1f} %, the better one is best "
                f"{right:5.1f} %, shown rate off by {worth:+.2f} % in the mean, starts {starts:.0f}"
            )


KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "ab": ab_rows,
    "sweep": sweep_rows,
}


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
