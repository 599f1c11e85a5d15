"""What the rules need of two logs: how a launch was built and loaded, and how the last failed one ended. Blocks."""

from __future__ import annotations

import re
from dataclasses import replace

from gpubox.advisor.evidence import LogFacts
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.log import HEAD_BYTES, LISTENS, tail_text
from gpubox.server.state import load_state
from gpubox.storage import open_regular

_BUILD = re.compile(r"\(build (\d+)|^(?:version: )?b?(\d{4,6})\b")
_LOAD_MODE = re.compile(r"loading model tensors.*\(load_mode = ([\w+]+)\)")
_ALL_QUANTS = re.compile(r"FA_ALL_QUANTS = 1\b")
"""In the line system_info, which lists the features of each backend (``ggml_backend_cuda_get_features``)."""


class LogFactsReader:
    """Reads each log of the active server once: the beginning of a launch, and the end of a failure."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._loads: tuple[str, LogFacts] | None = None
        self._failures: tuple[object, str] = (None, "")

    def read(self, launch_id: str, profile: str, engine_version: str) -> LogFacts:
        """The facts of a launch; ``launch_id`` is empty if it does not run."""
        build = build_number(engine_version)
        return replace(self._load(launch_id), build=build, failure=self._failure(profile))

    def _load(self, launch_id: str) -> LogFacts:
        if not launch_id:
            return LogFacts()
        if self._loads and self._loads[0] == launch_id:
            return self._loads[1]
        try:
            with open_regular(self._paths.instance_log(MAIN_INSTANCE)) as file:
                text = file.read(HEAD_BYTES).decode(errors="replace")
        except OSError:
            return LogFacts()
        facts = facts_of_load(text)
        if LISTENS.search(text):  # until then more lines come
            self._loads = launch_id, facts
        return facts

    def _failure(self, profile: str) -> str:
        failed = load_state(self._paths.instance_state(MAIN_INSTANCE)).failed
        if failed is None or failed.profile != profile:
            return ""
        if self._failures[0] != (failed.launch_id, failed.at):
            self._failures = (failed.launch_id, failed.at), tail_text(self._paths.failed_log(MAIN_INSTANCE))
        return self._failures[1]


def facts_of_load(text: str) -> LogFacts:
    """The facts in the beginning of a log."""
    mode = _LOAD_MODE.search(text)
    return LogFacts(all_quants=bool(_ALL_QUANTS.search(text)), load_mode=mode[1] if mode else "")


def build_number(version: str) -> int | None:
    """The build in an engine's version: ``0.1.2-dev (build 10525, commit ..)``, ``b9413``. None if it knows none."""
    match = _BUILD.search(version)
    number = int(match[1] or match[2]) if match else 0
    return number or None
