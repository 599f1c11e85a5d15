"""How often tables of stored runs say something false, and how often they find a true difference.

    .venv/bin/python tests/perf/past_runs.py 400

The simulated box shares no formula with the code under test. A table has 2 to 16 profiles with 0, 4 or 8 past runs each
and one more; they are measured in turn, in random turns, or one profile after the other. Under test are the
leaderboard, and the comparison of two of its runs, each with three rows. A line: the noise, then for each of the
layouts "false / found", in %: any false verdict of tables of equal profiles, and how many of the true differences of
10 % (one profile is faster than all others) are told. "equal" is false where the true difference is greater.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator

from gpubox.bench.compare.past_runs import PastFigures
from gpubox.bench.model import Plan, Provenance, RunInfo, Target
from gpubox.bench.report.leaderboard import make_leaderboards
from gpubox.bench.report.model import Metric, Report, RunSummary
from gpubox.bench.report.run_comparison import compare_runs
from gpubox.bench.stats import Estimate

NOISES = (
    "launch 0 %", "launch 1 %", "launch 2 %", "launch 5 %", "launch 10 %", "two modes -8 %", "modes that stay",
    "bad start -30 %", "AR(0.9) 3 %", "ramp -10 %", "step -8 %",
)  # fmt: skip
LAYOUTS = ("in turn", "random turns", "one by one")
ROWS = ("tg", "pp", "TTFT")
TRUE = 0.10


class Box:
    """The speed of one start after the other. ``starts``: how many there will be."""

    def __init__(self, noise: str, dice: random.Random, starts: int) -> None:
        self.noise, self.dice, self.starts, self.at = noise, dice, starts, 0
        self.wander, self.slow, self.change = dice.gauss(0, 0.03), dice.random() < 0.5, dice.random()

    def start(self) -> float:
        """The log of how much faster this start is than the usual one."""
        dice, self.at = self.dice, self.at + 1
        if self.noise.startswith("launch"):
            return dice.gauss(0, float(self.noise.split()[1]) / 100)
        log = dice.gauss(0, 0.003)
        if self.noise.startswith("two modes"):
            log -= 0.08 * (dice.random() < 0.5)
        elif self.noise.startswith("modes"):
            self.slow ^= dice.random() < 0.3
            log -= 0.08 * self.slow
        elif self.noise.startswith("bad"):
            log -= 0.36 * (dice.random() < 0.1)
        elif self.noise.startswith("AR"):
            self.wander = 0.9 * self.wander + dice.gauss(0, 0.03 * math.sqrt(1 - 0.81))
            log += self.wander
        elif self.noise.startswith("ramp"):
            log -= 0.1 * self.at / self.starts
        else:
            log -= 0.08 * (self.at > self.change * self.starts)
        return log


def order_of(layout: str, profiles: int, runs: int, dice: random.Random) -> Iterator[int]:
    """Which profile is measured, run by run."""
    if layout == "one by one":
        yield from (profile for profile in range(profiles) for _ in range(runs))
        return
    for _ in range(runs):
        yield from dice.sample(range(profiles), profiles) if layout == "random turns" else range(profiles)


def stored(number: int, profile: int, speed: float) -> RunSummary:
    """A finished run of ``bench speed`` with one start."""
    name = f"p{profile}"
    rates = {"tg": 50 * speed, "pp": 900 * speed, "TTFT": 0.2 / speed}
    metrics = tuple(
        Metric(row, "short", name, "s" if row == "TTFT" else "tok/s", "lower" if row == "TTFT" else "higher",
               Estimate(rates[row], 5))
        for row in ROWS
    )  # fmt: skip
    provenance = {name: Provenance(name, name, argv=("llama-server", name), model_path="m", engine_sha256="e")}
    plan = Plan("speed", (Target(name, name),))
    info = RunInfo(f"{number:05d}", plan, f"{number:05d}", 1, state="finished", provenance=provenance)
    return RunSummary(info.id, info, 1, title="speed", metrics=metrics)


def table(noise: str, profiles: int, past: int, layout: str, seed: int, true: float) -> tuple[bool, float]:
    """Whether the table, or the comparison of two of its runs, says anything false; the share of differences told."""
    dice = random.Random(repr((noise, profiles, past, layout, seed, true)))
    order = list(order_of(layout, profiles, past + 1, dice))
    box = Box(noise, dice, len(order))
    faster = dice.randrange(profiles) if true else -1
    runs = [
        stored(number, profile, math.exp(box.start() + (math.log1p(true) if profile == faster else 0)))
        for number, profile in enumerate(order)
    ]
    (board,) = make_leaderboards(runs)
    first, *others = board.entries
    best = f"p{faster}"
    wrong = any(entry.against_first == "worse" and first.name != best for entry in others)
    wrong |= any(entry.against_first == "equal" and first.name == best for entry in others)
    told = sum(entry.against_first == "worse" for entry in others) / len(others) if first.name == best else 0.0
    last = {run.targets[0]: run for run in runs}
    one, two = last["p0"], last["p1"]
    assert one.info and two.info
    a, b = ((own.info, Report("speed", "", own.metrics)) for own in (one, two) if own.info)
    for row in compare_runs(a, b, PastFigures(runs)).rows:
        really = 0 if faster > 1 or not true else 1 if faster == 1 else -1
        wrong |= row.outcome == ("worse" if really >= 0 else "better") or (really == 0 and row.outcome == "better")
        wrong |= row.outcome == "equal" and really != 0
    return wrong, told


def main() -> None:
    tables = int(sys.argv[1]) if sys.argv[1:] else 200
    worst = 0.0
    for past in (0, 4, 8):
        for profiles in (2, 4, 8, 16):
            print(f"{profiles} profiles, {past} past runs of each", flush=True)
            count = tables if profiles < 16 else tables // 4
            for noise in NOISES:
                cells = []
                for layout in LAYOUTS:
                    equal = [table(noise, profiles, past, layout, seed, 0.0)[0] for seed in range(count)]
                    differ = [table(noise, profiles, past, layout, seed, TRUE) for seed in range(count // 4)]
                    false = 100 * sum(equal) / count
                    odd = 100 * sum(wrong for wrong, _ in differ) / len(differ)
                    found = 100 * sum(told for _, told in differ) / len(differ)
                    worst = max(worst, false)
                    cells.append(f"{layout} {false:4.1f} / {found:3.0f}" + (f" (odd {odd:.0f})" if odd else ""))
                print(f"  {noise:<16} {'   '.join(cells)}", flush=True)
    print(f"the worst: {worst:.1f} % of tables of equal profiles say something false ({tables} tables a cell)")


if __name__ == "__main__":
    main()
