"""What the acting part of the watcher hands over to the waiting one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server import watcher_recovery


def test_a_server_that_dies_as_it_is_handed_over_is_still_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ProcessIdentity(4711, 12, "boot")
    alive = SimpleNamespace(
        operation=None, interrupted=None, crashed=False, watched=process, state=SimpleNamespace(running=None)
    )
    dead = SimpleNamespace(
        operation=None, interrupted=None, crashed=True, watched=None, state=SimpleNamespace(running=None)
    )
    views = iter([alive])
    monkeypatch.setattr(watcher_recovery, "observe", lambda *_: next(views, dead))
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    monkeypatch.setattr(sys, "argv", ["watcher", "main", *paths.arguments, f"fd:{lock}", "died"])

    watcher_recovery.main()

    os.close(lock)
    assert [words[words.index("--") - 1] for words in started] == ["4711:12"]
