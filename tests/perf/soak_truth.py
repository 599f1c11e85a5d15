"""How often a soak calls a steady server slower, and how often it finds one that became slower, in simulated soaks.

    .venv/bin/python -m tests.perf.soak_truth 300

The noise shares no formula with the code under test. A row: false verdicts of a server that does not change (slower or
faster), and the verdicts of one that loses 8, 9 and 10 % evenly over the soak. 15 minutes are 360 answers.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter

from gpubox.bench.kinds.soak.trends import judge_drift
from tests.soak_noises import ANSWERS, NOISES


def main(runs: int) -> None:
    print("noise".ljust(24), "false ", *(f"-{loss} % found".rjust(12) for loss in (8, 9, 10)))
    for name, noise in NOISES.items():
        cells = []
        for loss in (0, 8, 9, 10):
            verdicts: Counter[str] = Counter()
            for seed in range(runs if not loss else max(1, runs // 3)):
                dice = random.Random(f"{name}/{loss}/{seed}")
                logs = [value + math.log(1 - loss / 100 * n / ANSWERS) for n, value in enumerate(noise(dice, ANSWERS))]
                drift = judge_drift([50 * math.exp(log) for log in logs])
                verdicts[drift.verdict if drift else "none"] += 1
            false = verdicts["slower"] + verdicts["faster"]
            cells.append((false if not loss else verdicts["slower"]) / verdicts.total())
        print(name.ljust(24), f"{cells[0]:5.1%}", *(f"{cell:12.0%}" for cell in cells[1:]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
