"""lm-eval's samples beside a gpubox run: completions that differ, verdicts that differ.

usage: compare.py SAMPLES.jsonl RUN_FOLDER
"""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(samples: Path, run: Path) -> None:
    theirs = {sample["doc"]["task_id"]: sample for sample in lines(samples)}
    raws = {raw["item"]: raw for raw in lines(run / "raw.jsonl")}
    results = {result["item"]: result for result in lines(run / "results.jsonl")}
    completions = verdicts = 0
    for task, sample in theirs.items():
        item = f"vanilla/{task.rpartition('/')[2]}"
        said, answered = sample["resps"][0][0], raws[item]["data"]["reply"]["text"]
        passed, found = bool(sample["pass_at_k"]), results[item]["values"]["passed"]
        completions += said == answered
        verdicts += passed == found
        if said != answered:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, answered, strict=False)))
            print(f"{task}: the same for {same} characters, then {said[same:][:60]!r} and {answered[same:][:60]!r}")
        if passed != found:
            print(f"{task}: lm-eval {passed}, gpubox {found}: {results[item]['values']['why']}")
    print(f"{len(theirs)} problems: {completions} identical completions, {verdicts} identical verdicts")


main(Path(sys.argv[1]), Path(sys.argv[2]))
