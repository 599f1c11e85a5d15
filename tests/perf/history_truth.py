"""Holds the history to its promises, with a simulated box.

python -m tests.perf.history_truth size [--days 90] [--requests 200000]
python -m tests.perf.history_truth kills [--kills 50]
python -m tests.perf.history_truth planted [--seeds 10]     # -15 % with each cause: flagged, with its cause
python -m tests.perf.history_truth noise [--seeds 40]       # nothing planted: nothing flagged
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.history_box import CAUSES, check_kills, check_noise, check_planted, check_size


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("size", "kills", "planted", "noise"))
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder, seeds = Path(name), range(given.first, given.first + given.seeds)
        if given.what == "size":
            problems = check_size(given.days, given.requests or 200_000, folder)
        elif given.what == "kills":
            problems = check_kills(given.kills, folder)
        else:
            causes = CAUSES if given.what == "planted" else ("",)
            for seed in seeds:
                for cause in causes:
                    count = given.requests or 20_000
                    problem = (
                        check_planted(seed, cause, folder, given.days, count)
                        if cause
                        else check_noise(seed, folder, given.days, count)
                    )
                    print(f"seed {seed} {cause}: {problem or 'ok'}", flush=True)
                    problems += [problem] if problem else []
    print("\n".join(problems) or "all is as promised")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
