"""kill -9 of gpubox at random moments of try, keep, edit, rename and delete, with a real engine.

usage: trial_kills.py MODEL.gguf [--engine LLAMA-SERVER] [--kills 30] [--seed 1]
After each kill, within a minute: the server that ran before, or the changed one if it was kept, answers; every
profile file is whole and loads; no trial is left behind.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from box import gpubox, own_folders, profile

from gpubox.config import load_config
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.instance import observe
from gpubox.server.state import pending_trial
from tests.gateway_process import free_port

ACTIONS = {
    "try, keep": (["try", "tried", "--set", "ctx-size={n}", "--keep", "--no-measure", "--now"], 6.0),
    "try, revert": (["try", "tried", "--set", "ctx-size={n}", "--revert", "--no-measure", "--now"], 9.0),
    "edit": (["edit", "tried", "--set", "threads={n}"], 0.4),
    "rename": (["edit", "spare", "--rename", "spare2"], 0.3),
    "delete": (["rm", "spare"], 0.3),
}
"""What is done and the seconds in which the kill comes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    faults = 0
    with own_folders(arguments.engine) as folder:
        port = free_port()
        for name in ("before", "tried", "spare"):
            profile(folder, name, arguments.model, port, {"ctx-size": 2048, "parallel": 1, "threads": 1})
        paths = Paths.default()
        for number in range(1, arguments.kills + 1):
            gpubox("switch", "before", "--now")
            action, (words, seconds) = chance.choice(list(ACTIONS.items()))
            delay = chance.uniform(0, seconds)
            killed = kill_after([word.format(n=256 * (number % 4 + 1)) for word in words], delay)
            problem = wait_whole(paths, port)
            running = observe(paths, MAIN_INSTANCE).running
            answers = running.launch.profile if running else "nothing"
            state = f"at {delay:.2f} s" if killed else "after its end"
            print(f"{number:3}  {action:12} killed {state:14} {answers} answers  {problem}", flush=True)
            faults += bool(problem)
            if not (paths.profiles / "spare.toml").exists():
                profile(folder, "spare", arguments.model, port, {"ctx-size": 2048})
                (paths.profiles / "spare2.toml").unlink(missing_ok=True)
    print(f"{faults} faults in {arguments.kills} kills")
    sys.exit(bool(faults))


def kill_after(words: list[str], seconds: float) -> bool:
    """Runs one verb and kills it after so long. Returns whether it still ran."""
    command = [sys.executable, "-m", "gpubox", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def wait_whole(paths: Paths, port: int, patience: float = 60.0) -> str:
    """Waits until a server answers and no trial is left. Returns what is wrong; empty: nothing."""
    problem, end = "", time.monotonic() + patience
    while time.monotonic() < end:
        if pending_trial(paths):
            problem = "a trial is left behind"
        elif not answers(port):
            problem = "no server answers"
        else:
            problem = ""
            break
        time.sleep(0.2)
    catalog = load_catalog(paths)
    broken = ", ".join(catalog.broken)
    load_config(paths)
    trash = [path for path in Path(paths.state / "deleted-profiles").glob("*@*.toml") if not path.read_text().strip()]
    whole = "spare" in catalog.profiles or "spare2" in catalog.profiles or (paths.state / "deleted-profiles").is_dir()
    return problem or (f"{broken} do not load" if broken else "") or ("" if whole and not trash else "spare is lost")


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
