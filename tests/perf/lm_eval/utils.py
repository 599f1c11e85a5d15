"""What lm-eval 0.4.12's humaneval/utils.py does, with the ``code_eval`` of its hub replaced by the same few lines here.

``code_eval`` runs prediction, newline, test in a process of its own for 3 s; passed is what ends without an exception.
That is no confinement: run it where the model's code may do what it likes.
"""

import os
import subprocess
import sys
import tempfile

TIMEOUT = 3.0
RUN = "import sys; exec(compile(sys.stdin.read(), '<program>', 'exec'), {})\nprint('passed: end')"


def pass_at_k(references, predictions, k=None):
    """The share of predictions (one for each reference) that pass, as the metric's mean wants it."""
    assert list(k) == [1]
    passed = [_passes(f"{found[0]}\n{test}") for test, found in zip(references, predictions, strict=True)]
    return {"pass@1": sum(passed) / len(passed)}["pass@1"]


def build_predictions(resps, docs):
    """As the original."""
    return [[doc["prompt"] + r for r in resp] for resp, doc in zip(resps, docs, strict=True)]


def _passes(program):
    drop = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
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
