"""How long ``gpubox fit`` takes, against the engine's own table: ``fit_time.py ENGINE MODEL...``; three rounds each.

For each set of flags (one that fits, and ones that are short) a dry run of the engine alone is timed, then `gpubox fit`
with empty caches: until the verdict is printed, and to the end. Prints the ratios; at most 3 is wanted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from box import options
from fit_truth import Flags, rpc_servers

from gpubox.engines.find import Engine
from gpubox.paths import Paths
from gpubox.planner.dry_run import run_dry
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import Profile
from gpubox.profiles.writer import save_profile
from tests.ports import free_port

CASES: tuple[tuple[str, int, Flags], ...] = (
    ("fits", 0, {"ctx-size": 4096, "parallel": 1}),
    ("short of RAM", 0, {"ctx-size": 4_000_000, "parallel": 1}),
    ("short on a device", 1, {"ctx-size": 4_000_000, "parallel": 1, "n-gpu-layers": 99}),
)
ROUNDS = 3


def main() -> None:
    given = options(__doc__, "engine", "models+")
    os.environ.setdefault("LLAMA_ARG_NO_REPACK", "1")
    engine = Path(given.engine)
    for model in map(Path, given.models):
        for name, devices, flags in CASES:
            with rpc_servers(engine.parent, devices) as endpoints:
                remote: Flags = {"rpc": ",".join(endpoints)} if endpoints else {}
                profile = Profile("case", str(model), flags={**flags, **remote})
                table = median(engine_seconds(engine, profile) for _ in range(ROUNDS))
                times = [gpubox_seconds(engine, profile) for _ in range(ROUNDS)]
            verdict, whole = (median(each[i] for each in times) for i in (0, 1))
            print(
                f"{model.stem}, {name}: table {table:.2f} s; verdict {verdict:.2f} s ({verdict / table:.1f}x),"
                f" all {whole:.2f} s ({whole / table:.1f}x)",
                flush=True,
            )


def engine_seconds(binary: Path, profile: Profile) -> float:
    """Until the engine has printed its table."""
    engine = Engine("it", "llama-server", (str(binary),), binary)
    asked = Profile("case", profile.model, flags={**profile.flags, "fit": "on", "log-jsonl": True, "log-verbosity": 5})
    began = time.monotonic()
    run_dry(engine, server_argv(asked, ("--model", profile.model), port=free_port()), {}, draft=False)
    return time.monotonic() - began


def gpubox_seconds(binary: Path, profile: Profile) -> tuple[float, float]:
    """Until ``gpubox fit`` has printed its verdict, and until it ends; only the engine's help is in its caches."""
    with tempfile.TemporaryDirectory(prefix="fit-time-") as name:
        root = Path(name)
        paths = Paths(root / "config" / "gpubox", root / "state" / "gpubox", root / "cache" / "gpubox")
        save_profile(profile, paths)
        paths.config_file.write_text(f'default-engine = "it"\n[engines]\nit = "{binary}"\n')
        folders = {f"XDG_{kind.upper()}_HOME": str(root / kind) for kind in ("config", "state", "cache")}
        env = {**os.environ, **folders, "PYTHONUNBUFFERED": "1"}
        command = [str(Path(sys.executable).with_name("gpubox"))]
        subprocess.run([*command, "ls"], env=env, check=True, capture_output=True)
        began = time.monotonic()
        with subprocess.Popen([*command, "fit", "case"], env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = next((time.monotonic() - began for line in process.stdout if line.startswith("case: ")), 0.0)
            process.stdout.read()
        return seen, time.monotonic() - began


if __name__ == "__main__":
    main()
