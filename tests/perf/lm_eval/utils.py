"""What lm-eval 0.4.12's humaneval/utils.py does, with the ``code_eval`` of its hub replaced by the same few lines here.

``code_eval`` runs prediction, newline, test in a process of its own for 3 s; passed is what ends without an exception.
That is no confinement: run it where the model's code may do what it likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

TIMEOUT = 3.0
RUN = "import sys; exec(compile(sys.stdin.read(), '<program>', 'exec'), {})\nprint('passed: end')"


def pass_at_k(references: list[str], predictions: list[list[str]], k: list[int] | None = None) -> float:
    """The share of predictions (one for each reference) that pass, as the metric's mean wants it."""
    assert k is not None and list(k) == [1]
    passed = [_passes(f"{replies[0]}\n{test}") for test, replies in zip(references, predictions, strict=True)]
    return sum(passed) / len(passed)


def build_predictions(resps: list[list[str]], docs: list[dict[str, str]]) -> list[list[str]]:
    """As the original."""
    return [[doc["prompt"] + r for r in resp] for resp, doc in zip(resps, docs, strict=True)]


def _passes(program: str) -> bool:
    drop: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101
        try:
            done = subprocess.run(
                [sys.executable if not drop else "/usr/bin/python3", "-I", "-c", RUN],
                input=program.encode("utf-8", "replace"), capture_output=True, timeout=TIMEOUT, cwd=folder, check=False,
                **drop,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and done.stdout.endswith(b"passed: end\n")
