"""Reading the engine's own table, and killing the engine before it loads anything. The lines are from build 11434."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubox.engines.find import Engine
from gpubox.errors import GpuboxError
from gpubox.hardware.process import identity_of
from gpubox.planner.compute import Measurement
from gpubox.planner.dry_run import DryRun, run_dry

MIB = 1 << 20


def log(text: str) -> str:
    return json.dumps({"type": "log", "time": 1, "level": "info", "msg": f"{text}\n"})


def table(*rows: dict[str, object]) -> str:
    return json.dumps({"type": "fit_memory_breakdown", "data": {"unit": "MiB", "rows": rows}})


CARD = {"kind": "device", "name": "RPC0", "description": "127.0.0.1:21761", "model": 32, "context": 4, "compute": 14}
HOST = {"kind": "host", "name": "Host", "model": 25, "context": 0, "compute": 11}
MAIN = [
    log("load_tensors: loading model tensors, this can take a while... (load_mode = none)"),
    log("llama_kv_cache: size =    4.00 MiB (  4096 cells,   2 layers,  1/1 seqs), K (f16):    2.00 MiB, V (f16): 2"),
    log("sched_reserve: RPC0[127.0.0.1:21761] compute buffer size =    14.25 MiB"),
    log("sched_reserve:        CPU compute buffer size =    11.05 MiB"),
    table(CARD, HOST, {"kind": "buffer_type", "name": "CPU_REPACK", "model": 7, "context": 0, "compute": 0}),
]
DRAFT = [
    log("sched_reserve: RPC0[127.0.0.1:21761] compute buffer size =     9.02 MiB"),
    table({**CARD, "context": 2, "compute": 9}),
]
END = log("common_fit_params: fitting params to free memory took 0.63 seconds")


def engine(folder: Path, *lines: str) -> Engine:
    """An engine that prints ``lines`` and goes on to load, which takes for ever."""
    (folder / "lines").write_text("".join(f"{line}\n" for line in lines))
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\necho $$ >{folder}/pid\ncat {folder}/lines\nexec sleep 600\n")
    path.chmod(0o755)
    return Engine("lab", "llama-server", (str(path),), path)


def measure(folder: Path, *lines: str, draft: bool = False) -> DryRun:
    run = run_dry(engine(folder, *lines), [], {}, draft=draft, timeout=3)
    wait_gone(int((folder / "pid").read_text()))  # nothing stays behind
    return run


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while identity_of(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_table_and_the_exact_buffers(tmp_path: Path) -> None:
    run = measure(tmp_path, *MAIN)
    assert run.draft == Measurement()
    assert run.main.weights == {"RPC 127.0.0.1:21761": 32 * MIB, "Host": 32 * MIB}
    assert run.main.compute == {"RPC 127.0.0.1:21761": round(14.25 * MIB), "Host": round(11.05 * MIB)}
    assert run.main.context == {"RPC 127.0.0.1:21761": 4 * MIB, "Host": 0}


def test_a_draft_is_measured_after_the_model(tmp_path: Path) -> None:
    run = measure(tmp_path, *MAIN, *DRAFT, END, draft=True)
    assert run.draft and run.draft.compute == {"RPC 127.0.0.1:21761": round(9.02 * MIB)}
    assert run.draft.context == {"RPC 127.0.0.1:21761": 2 * MIB}
    alone = measure(tmp_path, *MAIN, END, draft=True)  # it could not be measured
    assert alone.draft == Measurement()


def test_an_engine_that_prints_only_the_table(tmp_path: Path) -> None:
    run = measure(tmp_path, table(CARD, HOST))
    assert run.main.compute == {"RPC 127.0.0.1:21761": 14 * MIB, "Host": 11 * MIB}


@pytest.mark.parametrize(
    "lines",
    [
        ["error: invalid argument: --fit"],
        ["{", '{"type": "fit_memory_breakdown"}', '{"type": "fit_memory_breakdown", "data": {"rows": 5}}'],
        [table({**HOST, "model": -5}), table({**HOST, "model": 1 << 60}), table({"kind": "host"}), table(None)],  # type: ignore[arg-type]
        ["[" * 100_000],
    ],
)
def test_an_engine_that_does_not_tell(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(GpuboxError, match="did not report the memory of these flags"):
        run_dry(engine(tmp_path, *lines), [], {}, draft=False, timeout=0.3)


def test_a_killed_gpubox_leaves_no_engine_that_loads(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from gpubox.engines.find import Engine; from gpubox.planner.dry_run import run_dry;"
        f"run_dry(Engine('lab', 'llama-server', ({str(engine(tmp_path).path)!r},), Path('/')), [], {{}}, draft=False)"
    )
    gpubox = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(gpubox.pid, signal.SIGKILL)
    gpubox.wait()
    wait_gone(int((tmp_path / "pid").read_text()))
