"""A state folder that cannot be written: a full tmpfs and a read-only mount."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.cli.verbs import may_mount

MOUNTED = "mount -t tmpfs -o size=128m none {state} && cp {marker} {state}/marker"
FULL = "dd if=/dev/zero of={state}/ballast bs=64k 2>/dev/null || true; cat /dev/zero > {state}/rest 2>/dev/null || true"
READ_ONLY = "mount --bind {state} {state} && mount -o remount,bind,ro {state} && ! touch {state}/x 2>/dev/null"


pytestmark = pytest.mark.skipif(not may_mount(), reason="this machine lets nobody mount a folder of his own")


class Box:
    """Runs shell lines and verbs in a mount namespace with its own state folder."""

    def __init__(self, paths: Paths, answers: Path) -> None:
        self.paths, self.answers = paths, answers

    def run(self, *steps: str | list[str]) -> list[dict[str, Any]]:
        """The JSON answers of the verbs among ``steps``; the others are shell lines that must succeed."""
        names = {"state": str(self.paths.state), "marker": str(self.paths.config_file)}
        lines = ["set -e"]
        for number, step in enumerate(steps):
            if isinstance(step, str):
                lines.append(step.format(**names))
            else:
                words = " ".join([sys.executable, "-m", "gpubox", *step, "--json"])
                lines.append(f"{words} > {self.answers}/{number:02} 2> {self.answers}/err || true")
        self.paths.state.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(path.read_text()) for path in sorted(self.answers.glob("[0-9]*"))]


@pytest.fixture
def mounted(box: int, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.delenv("GPUBOX_WATCHER")  # a watcher would restart a server that was stopped without a record
    (tmp_path / "answers").mkdir()
    return Box(paths, tmp_path / "answers")


@pytest.mark.parametrize("trouble", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_stop_status_and_ps_work_and_a_change_is_refused_before_it_stops_anything(mounted: Box, trouble: str) -> None:
    started, status, ps, switched, restarted, still, stopped, gone = mounted.run(
        MOUNTED, ["start", "a"], trouble, ["status"], ["status", "--all"],
        ["switch", "b"], ["restart", "a"], ["status"], ["stop"],
        ["status"],
    )  # fmt: skip

    assert started["ok"], started
    assert status["server"]["state"] == "ready"
    assert [server["profile"] for server in ps["servers"]] == ["a"]
    for refused in (switched, restarted):
        assert (refused["ok"], refused["answering"]) == (False, "a")
        assert "free in the log folder" in refused["error"] or "Read-only file system" in refused["error"]
        assert refused["hint"]
    assert still["server"]["pid"] == status["server"]["pid"]
    assert (stopped["ok"], stopped["answering"]) == (True, None), stopped
    assert gone["server"]["state"] == "stopped"
    assert gone["server"]["pid"] is None
    assert find_by_marker(f"{mounted.paths.state}|") == []
    if trouble is READ_ONLY:
        assert "The state file does not show this" in stopped["message"]
        assert "Whether it was stopped or died is unknown" in gone["server"]["message"]
    else:
        assert stopped["message"] == "a is stopped."
        assert gone["server"]["message"] == "a was stopped."


@pytest.mark.parametrize("trouble", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_stop_all_stops_all_of_them(mounted: Box, trouble: str) -> None:
    *started, stopped = mounted.run(MOUNTED, ["start", "a"], ["start", "beside"], trouble, ["stop", "--all"])

    assert all(answer["ok"] for answer in started)
    assert stopped["ok"], stopped
    assert find_by_marker(f"{mounted.paths.state}|") == []


def test_a_disk_that_has_room_again_takes_the_next_start(mounted: Box) -> None:
    *_, stopped, again, status = mounted.run(
        MOUNTED, ["start", "a"], FULL, ["stop"], "rm {state}/ballast {state}/rest", ["start", "b"], ["status"]
    )

    assert stopped["ok"]
    assert again["ok"], again
    assert status["server"]["profile"] == "b"
