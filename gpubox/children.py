"""Processes that gpubox starts: how its own programs are called, and which environment an engine gets.

gpubox never puts a variable of its own into the environment of a process: an engine, an editor or a tool would inherit
it, and an engine that is a Python program of another version dies of a foreign PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

BROWSER_DRIVER = "textual.drivers.web_driver:WebDriver"
"""The value of TEXTUAL_DRIVER in a screen that a browser shows: its streams are pipes that stand for a terminal."""
_OWN = "GPUBOX_"
"""Variables that are addressed to gpubox: its settings and keys."""


def own_program(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``main`` of a module of this gpubox, wherever it is installed and in any folder."""
    root = str(Path(__file__).parent.parent)
    find = f"import sys; {root!r} in sys.path or sys.path.insert(0, {root!r})"
    # -P: a module in the folder where the owner is, or in the home folder, is not what is meant
    return [sys.executable, "-P", "-c", f"{find}; from {module} import main; sys.exit(main())", *arguments]


def in_browser() -> bool:
    """Whether this process draws for a browser: `gpubox web`, or another server of Textual's."""
    return os.environ.get("TEXTUAL_DRIVER") == BROWSER_DRIVER


def engine_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of an engine: the owner's, without what is addressed to gpubox, and then ``added``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)} | dict(added)


def guarded(command: Sequence[str], lifeline: int = 0) -> list[str]:
    """``command``, whose process group then ends with gpubox, also by kill -9: a pipe that gpubox holds is then closed.

    ``lifeline``: the reading end of that pipe; 0: stdin, and the command itself reads nothing. It must lead a group.
    """
    source, stdin = (f"/proc/self/fd/{lifeline}", "") if lifeline else ("&0", "</dev/null ")
    script = f'exec 3<{source}; {{ read ended <&3; kill -9 0; }} >/dev/null 2>&1 & exec "$@" {stdin}3<&-'
    return ["/bin/sh", "-c", script, "sh", *command]
