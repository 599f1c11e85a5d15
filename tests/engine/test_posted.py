"""What is exported from imported launch files starts: the posted ones, on a real engine, with the demo model.

The model is the demo model and everything is small; flags that name what this machine has not (other cards, other
machines, adapters) are taken out. A tenth of the files runs with the suite, all of them at night.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.engines.capabilities import find_refusals
from gpubox.engines.find import EMBEDDED, Engine, find_engines
from gpubox.engines.query import read_capabilities
from gpubox.interchange.exporting import export_profile
from gpubox.interchange.importing import import_source
from gpubox.interchange.reference_options import reference_options
from gpubox.paths import Paths
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import FlagValue, Profile
from tests.ports import free_port
from tests.sampling import sampled

POSTED = sorted((Path(__file__).parents[1] / "fixtures" / "launches" / "posted").iterdir())
NOT_READ = {"90-launchd.plist", "91-Dockerfile"}
NEED_A_FORK = {"01-ik-ot-three-cards.sh", "03-ot-comma-and-space.sh"}
NOT_RESOLVED = {"17-bench-loop.sh"}  # the cache type is the variable of a loop; a note reports it
STARTABLE = [path for path in POSTED if path.name not in NOT_READ | NEED_A_FORK | NOT_RESOLVED]
ELSEWHERE = {"lora", "lora-scaled", "rpc", "device", "chat-template-file", "override-kv", "mmproj"}
SMALL = {"ctx-size": 512, "batch-size": 128, "ubatch-size": 128, "parallel": 2, "threads": 1, "cache-ram": 64}


@pytest.fixture(scope="module")
def engine() -> Engine:
    if real := os.environ.get("GPUBOX_TEST_ENGINE"):
        return Engine("real", "llama-server", (real,), Path(real))
    return next(engine for engine in find_engines(Config()) if engine.name == EMBEDDED)


def small(profile: Profile, model: Path, folder: Path) -> Profile:
    flags: dict[str, FlagValue] = {"threads": 1, "ctx-size": 512}
    for name, value in profile.flags.items():
        canonical = reference_options().canonical(name)
        if canonical in ELSEWHERE:
            continue
        if canonical in SMALL and isinstance(value, int):
            flags.pop(canonical, None)
            value = min(value, SMALL[canonical])
        elif canonical == reference_options().canonical("model-draft"):
            value = str(model)
        elif canonical == "log-file":
            value = str(folder / "engine.log")
        flags[name] = value
    return replace(profile, model=str(model), flags=flags, host="127.0.0.1", port=free_port())


@pytest.mark.parametrize("path", sampled(STARTABLE), ids=lambda path: path.name)
def test_an_export_of_an_imported_launch_starts(
    path: Path, engine: Engine, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    capabilities = read_capabilities(engine, Paths(tmp_path, tmp_path, tmp_path))
    for number, imported in enumerate(import_source(str(path))):
        profile = small(imported.profile, demo_model, tmp_path)
        if engine.name == EMBEDDED and find_refusals(capabilities, profile.flags):
            pytest.skip("the embedded engine has not all of these flags")
        argv = [*engine.command, *server_argv(profile, ["--model", profile.model])]
        script = tmp_path / f"start{number}.sh"
        script.write_text(export_profile(profile, "sh", argv))
        log = tmp_path / f"log{number}"
        with log.open("wb") as out:
            server = subprocess.Popen(["/bin/sh", script], stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            answers(profile.port, server, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait(10)


def answers(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        assert server.poll() is None, log.read_text(errors="replace")[-1500:]
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            assert reply.status == 200
            return
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-1500:]
        time.sleep(0.1)
