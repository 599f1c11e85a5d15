"""The planner against real loads: ``fit_truth.py ENGINE [--only TEXT] MODEL...``; the engine needs RPC for devices.

For each set of flags the real server is started with ``-lv 4``, its buffer lines are read once it listens, and the
planner's table is compared with them, device by device. The server's lines are the truth; the planner never sees them.
Prints a line for each set, the worst errors, and the time of a hundred candidates. Needs no GPU: each device is a
``ggml-rpc-server`` from the engine's folder. Models: at best a dense, a hybrid (MTP) and a sliding-window one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from box import options

from gpubox.config import load_config
from gpubox.models.gguf import check_gguf
from gpubox.paths import Paths
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import Planner, Situation
from gpubox.planner.verdict import judge
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.device_memory import MemoryBreakdown
from tests.ports import free_port

MIB = 1024 * 1024
LOAD_SECONDS = 120.0
Flags = dict[str, FlagValue]
Q8: Flags = {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}
DRAFT_Q8: Flags = {"cache-type-k-draft": "q8_0", "spec-draft-type-v": "q8_0"}

COMMON: list[Flags] = [
    {"ctx-size": 4096},
    {"ctx-size": 4096, "parallel": 1},
    {"ctx-size": 8192, "parallel": 2},
    {"ctx-size": 8192, "parallel": 3, "kv-unified": True},
    {"ctx-size": 4096, "no-kv-unified": True, "parallel": 4},
    {"ctx-size": 16384, "parallel": 1, "cache-type-k": "q8_0", "cache-type-v": "q8_0"},
    {"ctx-size": 8192, "parallel": 2, "cache-type-k": "q4_0", "cache-type-v": "q5_1"},
    {"ctx-size": 4096, "parallel": 1, "ubatch-size": 128},
    {"ctx-size": 8192, "parallel": 1, "ubatch-size": 2048, "batch-size": 2048},
    {"ctx-size": 4096, "parallel": 1, "flash-attn": "off"},
    {"ctx-size": 4096, "parallel": 1, "cache-type-k": "f32", "cache-type-v": "f32"},
    {"ctx-size": 4096, "parallel": 1, "spec-type": "ngram-mod"},
    {"ctx-size": 32768, "parallel": 1},
    {"ctx-size": 12288, "parallel": 3},
    {"ctx-size": 4096, "parallel": 1, "batch-size": 256},
    {"ctx-size": 6000, "parallel": 1, "cache-type-k": "q5_0", "cache-type-v": "q4_1"},
]
"""On the host alone, and again on one device."""
ON_DEVICE: list[Flags] = [
    {"ctx-size": 4096, "parallel": 1, "n-gpu-layers": 5},
    {"ctx-size": 4096, "parallel": 1, "gpu-layers": 0},
    {"ctx-size": 4096, "parallel": 1, "no-kv-offload": True},
    {"ctx-size": 4096, "parallel": 1, "override-tensor": r"blk\.[0-3]\.=CPU"},
    {"ctx-size": 4096, "parallel": 1, "device": "none"},
    {"ctx-size": 4096, "parallel": 1, "n-cpu-ffn": 4},
    {"ctx-size": 4096, "parallel": 1, "embeddings": True},
]
TWO_DEVICES: list[Flags] = [
    {"ctx-size": 4096, "parallel": 1, "n-gpu-layers": 99},
    {"ctx-size": 4096, "parallel": 1, "tensor-split": "3,1"},
    {"ctx-size": 8192, "parallel": 2, "tensor-split": "1,1", "gpu-layers": 6},
    {"ctx-size": 4096, "parallel": 1, "split-mode": "none", "main-gpu": 1},
    {"ctx-size": 4096, "parallel": 1, "device": "RPC1"},
]
EXPERTS: list[Flags] = [
    {"ctx-size": 4096, "parallel": 1, "n-cpu-moe": 4},
    {"ctx-size": 8192, "parallel": 1, "cpu-moe": True},
    {"ctx-size": 4096, "parallel": 2, "n-cpu-moe": 2, "ubatch-size": 256},
]
DRAFT_HEAD: list[Flags] = [
    {"ctx-size": 4096, "parallel": 1, "spec-type": "draft-mtp"},
    {
        "ctx-size": 8192,
        "parallel": 4,
        "spec-type": "draft-mtp",
        "spec-draft-n-max": 2,
        "cache-type-k": "q8_0",
        "cache-type-v": "q8_0",
    },
    {
        "ctx-size": 4096,
        "parallel": 1,
        "spec-type": "draft-mtp",
        "cache-type-k-draft": "q8_0",
        "spec-draft-type-v": "q8_0",
        "n-cpu-moe": 3,
    },
]
WINDOW: list[Flags] = [
    {"ctx-size": 8192, "parallel": 1, "swa-full": True},
    {"ctx-size": 16384, "parallel": 4, "kv-unified": True},
    {"ctx-size": 2048, "parallel": 1, "ubatch-size": 1024},
]


@dataclass(frozen=True, slots=True)
class Case:
    """One set of flags."""

    model: Path
    devices: int
    flags: Flags

    @property
    def name(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.flags.items())
        return f"{self.model.stem[:8]:8} {self.devices} dev  {words}"


def cases(model: Path) -> Iterator[Case]:
    header = check_gguf(model)
    keys = header.metadata
    experts = bool(keys.get(f"{header.architecture}.expert_count"))
    special = (EXPERTS if experts else []) + (
        WINDOW if f"{header.architecture}.attention.sliding_window" in keys else []
    )
    special += DRAFT_HEAD if keys.get(f"{header.architecture}.nextn_predict_layers") else []
    for devices in (0, 1):
        for flags in COMMON + [f for f in special if devices or not ({"n-cpu-moe", "cpu-moe"} & set(f))]:
            yield Case(model, devices, flags)
    for flags in ON_DEVICE:
        yield Case(model, 1, flags)
    for flags in TWO_DEVICES:
        yield Case(model, 2, flags)
    drafted: Flags = {"ctx-size": 2048, "parallel": 2, "spec-draft-model": str(model), "spec-type": "draft-simple"}
    yield Case(model, 1, drafted)
    yield Case(model, 1, {**drafted, "n-gpu-layers-draft": 4, **DRAFT_Q8})


@contextmanager
def rpc_servers(folder: Path, count: int) -> Iterator[list[str]]:
    """``count`` devices on loopback."""
    processes, endpoints = [], []
    try:
        for _ in range(count):
            port = free_port()
            command = [str(folder / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port)]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            endpoints.append(f"127.0.0.1:{port}")
            wait_port(port)
        yield endpoints
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on {port}")


def measure(engine: Path, profile: Profile, log: Path) -> MemoryBreakdown | None:
    """Loads the profile for real. Returns what its log says about memory; None if it does not load."""
    argv = [str(engine), *server_argv(profile, ["--model", profile.model], port=free_port())]
    argv += ["-lv", "4", "--no-warmup", "--log-colors", "off", "--load-mode", "none"]  # mapped ranges over-count
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if b"listening on http" in log.read_bytes():
                breakdown = MemoryBreakdown()
                for line in log.read_text(errors="replace").splitlines():
                    _, event = parse_event(line)
                    if event:
                        breakdown.feed(event)
                return breakdown
            time.sleep(0.05)
        return None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class Row:
    """One device of one case, in bytes."""

    device: str
    planned: int
    real: int
    planned_total: int | None
    real_total: int
    engine_total: int
    """As ``real_total``, with the compute buffers that the engine's own table predicts, rounded down to MiB."""

    @property
    def error(self) -> int:
        return abs(self.planned - self.real)

    def within(self) -> bool:
        return self.error <= max(MIB, self.real // 1000)

    def total_within(self) -> bool:
        return self.planned_total is not None and abs(self.planned_total - self.real_total) <= self.real_total / 100

    def as_the_engine_says(self) -> bool:
        """Whether the plan agrees with llama.cpp's own table, and that differs from its own load."""
        return self.planned_total is not None and 0 <= self.planned_total - self.engine_total <= 2 * MIB


def compare(plan: MemoryPlan, real: MemoryBreakdown) -> list[Row]:
    rows = []
    for device in plan.devices:
        key = device.device
        weights = real.weights_of(key) or 0
        state = (real.bytes_of("kv", key) or 0) + (real.bytes_of("recurrent", key) or 0)
        kinds = ("model", "kv", "recurrent")
        draft_static = sum(real.bytes_of(kind, key, draft=True) or 0 for kind in kinds)
        computed = (real.bytes_of("compute", key) or 0) + (real.bytes_of("compute", key, draft=True) or 0)
        planned = device.weights_bytes + device.kv_bytes + device.recurrent_bytes
        planned += device.draft_bytes - (device.draft_compute_bytes or 0)
        total = None if device.compute_bytes is None else device.total_bytes - device.unaccounted_bytes
        static = weights + state + draft_static
        table = sum(real._rows[name][key].compute_bytes for name in real._rows if key in real._rows[name])
        rows.append(Row(key, planned, static, total, static + computed, static + table))
    keys = {device.device for device in plan.devices}
    rows += [Row(key, 0, real.total_of(key), 0, real.total_of(key), 0) for key in real.keys if key not in keys]
    return [row for row in rows if row.real_total or row.planned]


def main() -> None:
    given = options(__doc__, "engine", "models+", only="", formula=False)
    models = [Path(model) for model in given.models]
    os.environ.setdefault("LLAMA_ARG_NO_REPACK", "1")  # some virtual machines trap AMX
    with tempfile.TemporaryDirectory(prefix="fit-truth-") as name:
        root, engine = Path(name), Path(given.engine)
        planner = own_planner(root, engine)
        todo = [case for model in models for case in cases(model) if given.only in case.name]
        run(todo, planner, engine, root, formula=given.formula)
        for model in models:
            print(model.stem, candidates(planner, model))


def own_planner(root: Path, engine: Path) -> Planner:
    """A planner with folders of its own under ``root``."""
    paths = Paths(root / "config", root / "state", root / "cache")
    paths.config.mkdir(exist_ok=True)
    paths.config_file.write_text(f'default-engine = "it"\n[engines]\nit = "{engine}"\n')
    return Planner(paths, load_config(paths))


def run(todo: list[Case], planner: Planner, engine: Path, root: Path, *, formula: bool) -> None:
    bad: list[str] = []
    its_own: list[str] = []
    counted, worst, worst_total = 0, (0, ""), (0.0, "")
    methods = {"formula": 0, "dry-run": 0}
    for case in todo:
        with rpc_servers(engine.parent, case.devices) as endpoints:
            flags: Mapping[str, FlagValue] = {**({"rpc": ",".join(endpoints)} if endpoints else {}), **case.flags}
            profile = Profile("case", str(case.model), flags=flags)
            plan = planner.plan(profile, may_dry_run=not formula)
            real = measure(engine, profile, root / "log")
        if real is None:
            print(f"----  {case.name}: the server does not load; plan: {judge(plan).words}")
            continue
        rows = compare(plan, real)
        counted += 1
        methods[plan.method] += 1
        for row in rows:
            worst = max(worst, (row.error, f"{case.name} {row.device}"))
            if row.planned_total is not None and row.real_total > MIB:
                off = abs(row.planned_total - row.real_total) / row.real_total * 100
                worst_total = max(worst_total, (off, f"{case.name} {row.device}"))
        fine = all(row.within() for row in rows) and (formula or all(row.total_within() for row in rows)) and bool(rows)
        table = not fine and all(row.within() and (row.total_within() or row.as_the_engine_says()) for row in rows)
        if not fine:
            (its_own if table else bad).append(case.name)
        print("ok   " if fine else "TABLE" if table else "OFF  ", case.name, plan.method, judge(plan).fit)
        if not fine:
            print("       ", plan.problem or plan.doubts)
            for row in rows:
                total = "-" if row.planned_total is None else f"{row.planned_total / MIB:.2f}"
                print(
                    f"        {row.device}: without compute {row.planned / MIB:.2f} real {row.real / MIB:.2f};"
                    f" all {total} real {row.real_total / MIB:.2f} MiB"
                )
        sys.stdout.flush()
    fine_count = counted - len(bad) - len(its_own)
    print(f"{fine_count} of {counted} sets within the limits; methods {methods}")
    print(f"{len(its_own)} sets (TABLE) as llama.cpp's own table says, whose compute buffers its load does not match")
    print(f"worst without compute: {worst[0] / MIB:.3f} MiB  ({worst[1]})")
    print(f"worst of all: {worst_total[0]:.2f} %  ({worst_total[1]})")


def candidates(planner: Planner, model: Path) -> str:
    """The time of a hundred candidates, and of a warm header."""
    profile = Profile("case", str(model), flags={"ctx-size": 4096, "parallel": 1})
    situation = planner.situation(profile)
    planner.plan_in(situation, {})
    best = min(_hundred(planner, situation) for _ in range(5))
    fresh = min(_warm_header(planner, model) for _ in range(5))
    return f"100 candidates in {best * 1000:.1f} ms, a warm header in {fresh * 1000:.1f} ms of CPU time"


def _hundred(planner: Planner, situation: Situation) -> float:
    began = time.process_time()
    for number in range(100):
        planner.plan_in(situation, {"ctx-size": 1024 * (number + 1), "n-cpu-moe": number % 40, "n-gpu-layers": number})
    return time.process_time() - began


def _warm_header(planner: Planner, model: Path) -> float:
    planner._models.clear()
    began = time.process_time()
    planner.model(model)
    return time.process_time() - began


if __name__ == "__main__":
    main()
