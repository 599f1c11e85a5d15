"""A box of its own for each module: real engine, real model, folders under tmp, and nothing left running.

The engine is the embedded one; GPUBOX_TEST_ENGINE=/path/to/llama-server runs the same tests on that binary.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from gpubox.config import Config
from gpubox.hardware.process import find_by_marker
from gpubox.models.fetch import fetch_model
from gpubox.paths import Paths
from tests.guards import OWNER
from tests.ports import free_port

HERE = Path(__file__).parent


class Box:
    """One machine's worth of gpubox folders, used through the command line as an owner would."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.env = {f"XDG_{name.upper()}_HOME": str(root / name) for name in ("config", "state", "cache")}
        self.paths = Paths(root / "config/gpubox", root / "state/gpubox", root / "cache/gpubox")
        self.paths.profiles.mkdir(parents=True)
        self.port = free_port()
        self.used_port = 0
        self.switch_seconds = 0.0

    def write_config(self) -> None:
        engines = {"hang": self.fake("hang"), "die": self.fake("die"), "garbage": self.fake("garbage")}
        engines["gone"] = str(self.root / "no-such-llama-server")
        if real := os.environ.get("GPUBOX_TEST_ENGINE"):
            engines["real"] = real
        lines = ["stall-seconds = 6.0", "stop-seconds = 30.0", f'default-engine = "{"real" if real else "embedded"}"']
        lines += ["[engines]", *(f'{name} = "{path}"' for name, path in engines.items())]
        self.paths.config_file.write_text("\n".join(lines))

    def fake(self, mode: str) -> str:
        script = self.root / f"engine-{mode}"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_engine.py"} {mode} "$@"\n')
        script.chmod(0o755)
        return str(script)

    def profile(self, name: str, flags: dict[str, object] | None = None, **top: object) -> str:
        values = {"model": str(self.model), "port": self.port, **top}
        # one thread: several threads wait in a busy loop, which on busy cores takes ten times as long
        values["flags"] = {"ctx-size": 512, "parallel": 1, "threads": 1, **(flags or {})}
        (self.paths.profiles / f"{name}.toml").write_text(tomli_w.dumps(values))
        return name

    def servers(self) -> list[int]:
        return [identity.pid for identity, _ in find_by_marker(f"{self.paths.state}|")]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model, from the owner's cache or fetched into it as `gpubox demo` does."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in OWNER.items():
            patch.setenv(name, value)
        return fetch_model("demo:smollm2", Paths.default(), Config(), lambda done, total, waiting: None)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("box"), demo_model)
    box.write_config()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in box.env.items():
            patch.setenv(name, value)
        for name in ("GPUBOX_CONFIG", "GPUBOX_API_KEY", "LLAMA_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("GPUBOX_WATCHER", "0")
        yield box
    for pid in box.servers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(box.root, ignore_errors=True)
