"""The gateway's child program, started as the gateway starts it; the test is the gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpubox
from gpubox.paths import Paths
from tests.conftest import WAIT_SECONDS

ROOT = str(Path(gpubox.__file__).parent.parent)


class Child:
    """One operation."""

    def __init__(self, paths: Paths, request: dict[str, object]) -> None:
        folders = [str(folder) for folder in (paths.config, paths.state, paths.cache, "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpubox.gateway.operation", *folders],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd="/", bufsize=0,
            env={**os.environ, "PYTHONPATH": ROOT},
        )  # fmt: skip
        self.seen: list[dict[str, Any]] = []
        self.say(json.dumps(request))

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def until(self, event: str, **values: object) -> dict[str, Any]:
        """Reads its lines up to this one."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.seen.append(json.loads(line))
            if self.seen[-1]["event"] == event and values.items() <= self.seen[-1].items():
                return self.seen[-1]
        raise AssertionError(f"no {event}: {self.seen}")

    def leave(self) -> None:
        """What the kernel does when the gateway is killed."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()

    def wait(self) -> int:
        """Its exit code, which is that of this operation: there is no next one."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(WAIT_SECONDS)

    def end(self) -> int:
        """Lets it go on to its end."""
        self.say("go")
        self.until("finished")
        return self.wait()
