"""kill -9 and SIGTERM at random moments of the gateway's child while it displaces two real servers for a third.

usage: placement_kills.py MODEL.gguf [--engine LLAMA-SERVER] [--rounds 20] [--seed 1]
After a kill the state files say what runs, and the next child goes on. After SIGTERM what was stopped is back. At the
end: seconds and CPU of the child for one switch, beside the same switch in a process that has imported everything.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import tomli_w
from box import gpubox, options, own_folders, until

from gpubox.config import load_config
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.instance import instance_names, observe
from gpubox.server.supervisor import Supervisor

ROOT = str(Path(__file__).parents[2])
UNCERTAIN = {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1"}
"""With this variable whether a profile fits is not certain: it runs alone."""


def main() -> None:
    arguments = options(__doc__, "model", "--engine", rounds=20, seed=1)
    chance, faults = random.Random(arguments.seed), 0
    os.environ["GPUBOX_WATCHER"] = "0"
    with own_folders(arguments.engine) as folder:
        for name, env in (("a", {}), ("b", {}), ("c", UNCERTAIN)):
            values = {"model": arguments.model, "port": 0, "env": env, "flags": {"ctx-size": 1024, "threads": 1}}
            (folder / "profiles" / f"{name}.toml").write_text(tomli_w.dumps(values))
        paths = Paths.default()
        for number in range(1, arguments.rounds + 1):
            for name in ("a", "b"):
                child(paths, name).wait()
            how = signal.SIGKILL if number % 2 else signal.SIGTERM
            process, delay = child(paths, "c"), chance.uniform(0.0, 2.5)
            until(lambda: observe(paths, "main").operation is not None, "an operation")  # its start varies most
            time.sleep(delay)
            process.send_signal(how)
            process.wait()
            problem = check(paths, restored=how == signal.SIGTERM)
            faults += bool(problem)
            print(f"{number:3}  {how.name} at {delay:.2f} s  {running(paths)}  {problem}", flush=True)
            if child(paths, "c").wait() or running(paths) != {"main": "c"}:
                faults += 1
                print(f"     the next child did not bring c up: {running(paths)}")
            gpubox("stop", "--all", check=False)
        measure(paths)
    print(f"{faults} faults in {arguments.rounds} rounds")
    sys.exit(bool(faults))


def child(paths: Paths, profile: str) -> subprocess.Popen[bytes]:
    """Starts ``profile`` as the gateway does, and tells it to go at once. A dead reader and writer must not matter."""
    folders = [str(folder) for folder in (paths.config, paths.state, paths.cache, "")]
    (source, said) = os.pipe()
    os.write(said, f'{{"kind": "start", "profile": "{profile}"}}\ngo\n'.encode())
    os.close(said)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpubox.gateway.operation", *folders], stdin=source, stdout=subprocess.DEVNULL, cwd="/",
        env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    os.close(source)
    return process


def running(paths: Paths) -> dict[str, str]:
    """Instance -> profile, as the state files say."""
    views = (observe(paths, name) for name in instance_names(paths))
    return {view.instance: view.running.launch.profile for view in views if view.running}


def check(paths: Paths, *, restored: bool) -> str:
    """What is wrong; empty: nothing."""
    alive = dict(marker.rsplit("|", 3)[1:3] for _, marker in find_by_marker(f"{paths.state}|"))
    views = [observe(paths, name) for name in instance_names(paths)]
    if running(paths) != alive:
        return f"the record says {running(paths)}, but {alive} run"
    if any(view.operation or view.crashed or not (view.running or view.message) for view in views):
        return f"a record is not true: {[(view.instance, view.operation, view.message) for view in views]}"
    if restored and alive not in ({"main": "a", "b": "b"}, {"main": "c"}):
        return "what was stopped did not come back"
    return ""


def measure(paths: Paths) -> None:
    """Prints what the program of its own costs."""
    seconds: dict[str, list[float]] = {"child": [], "child CPU": [], "in process": []}
    for _ in range(5):
        for name in ("c", "a"):
            began = time.monotonic()
            process = child(paths, name)
            _, _, usage = os.wait4(process.pid, 0)
            seconds["child"].append(time.monotonic() - began)
            seconds["child CPU"].append(usage.ru_utime + usage.ru_stime)
            gpubox("stop", "--all", check=False)
            profile = replace(load_catalog(paths).get(name), port=0)
            began = time.monotonic()
            asyncio.run(Supervisor(paths, load_config(paths)).place(profile))
            seconds["in process"].append(time.monotonic() - began)
            gpubox("stop", "--all", check=False)
    print("one start, median:", ", ".join(f"{what} {statistics.median(each):.2f} s" for what, each in seconds.items()))


if __name__ == "__main__":
    main()
