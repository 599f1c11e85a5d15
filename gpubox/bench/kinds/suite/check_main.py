"""The last part of every check script (see ``functional``): reads the input, runs the checks, writes the verdict.

The verdict is a line of JSON that begins with a secret mark from the input. The tested program cannot learn the mark:
this process is undumpable, so its memory cannot be read.
"""

import ctypes
import json
import os
import sys

MYPY = False
if MYPY:
    from collections.abc import Callable
    from typing import Any


def main(checks: "Callable[[dict[str, Any]], dict[str, bool] | None]") -> None:
    """Runs ``checks`` on the input from stdin. It returns ``None`` if the sandbox lacks what it needs."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109 - the program writes there
    values = json.loads(sys.stdin.read())
    os.write(1, (values["mark"] + json.dumps(checks(values)) + "\n").encode())
