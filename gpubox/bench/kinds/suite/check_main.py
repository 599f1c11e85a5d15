"""The last part of every check script (see ``functional``): writes the files, runs the checks, writes the verdict.

The verdict is a line of JSON that begins with a secret mark from the input. The tested program cannot learn the mark:
this process is undumpable, so its memory cannot be read.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path


def main(checks: Callable[..., dict[str, bool] | None]) -> None:
    """Runs ``checks`` on the input from stdin. It returns ``None`` if the sandbox lacks what it needs."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    sys.path[:] = [path for path in sys.path if path and path != str(Path.cwd())]  # the program writes there
    values = json.loads(sys.stdin.read())
    for name, text in values["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    verdict = checks(**values["arguments"])
    os.write(1, (values["mark"] + json.dumps(verdict) + "\n").encode())
