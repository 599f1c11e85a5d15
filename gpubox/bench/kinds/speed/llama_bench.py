"""llama-bench, the engine's own benchmark: its rows beside the served figures.

It runs without server, chat template and speculative decoding, so the difference to the served figures is their cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox.bench.model import Item, RawRecord, Result, Target
from gpubox.bench.target_server import TargetServer
from gpubox.children import engine_environment
from gpubox.engines.find import find_beside_engine
from gpubox.errors import GpuboxError
from gpubox.models.resolve import profile_model
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.storage import read_json

PROGRAM = "llama-bench"
TIMEOUT_MINUTES, REPEATS = 60, 5
# llama-server's flag -> llama-bench's, as of build 11434 (tools/llama-bench/llama-bench.cpp).
_FLAGS = {
    "n-gpu-layers": "-ngl",
    "gpu-layers": "-ngl",
    "n-cpu-moe": "-ncmoe",
    "threads": "-t",
    "batch-size": "-b",
    "ubatch-size": "-ub",
    "cache-type-k": "-ctk",
    "cache-type-v": "-ctv",
    "split-mode": "-sm",
    "main-gpu": "-mg",
    "tensor-split": "-ts",
    "device": "-dev",
    "rpc": "--rpc",
    "override-tensor": "-ot",
    "numa": "--numa",
}


def llama_bench_argv(binary: Path, model: Path, flags: Mapping[str, FlagValue], depths: Sequence[int]) -> list[str]:
    """The command line for a profile's flags: pp512 and tg128 at each depth that fits the profile's context."""
    argv = [str(binary), "-m", str(model), "-p", "512", "-n", "128", "-r", str(REPEATS), "-o", "jsonl", "-oe", "md"]
    size = flags.get("ctx-size")
    fitting = [depth for depth in depths if not (isinstance(size, int) and size and depth + 640 > size)]
    argv += ["-d", ",".join(map(str, fitting or [0]))]
    for name, value in flags.items():
        if name in _FLAGS and not isinstance(value, bool):
            argv += [_FLAGS[name], "/".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    if (attention := flags.get("flash-attn")) is not None:
        argv += ["-fa", "1" if attention in (True, "on", "auto", 1) else "0"]
    if flags.get("mmap") is False or flags.get("no-mmap") is True:
        argv += ["-mmp", "0"]
    return argv


def llama_bench_target(profile: Profile) -> Target:
    """The target of a llama-bench item: no server may run, so that its memory is free."""
    return Target(f"{profile.name} llama-bench", profile.name, stopped=True)


async def execute(item: Item, target_server: TargetServer) -> dict[str, Any]:
    """Runs llama-bench. Returns its command line and output. Raises GpuboxError with its last line."""
    profile = target_server.profile_of(target_server.active.target)
    binary = find_beside_engine(target_server.config, profile.engine, PROGRAM)
    source = profile_model(profile, target_server.paths, target_server.config)
    if binary is None or source.path is None:
        raise GpuboxError(f"{profile.name} has no llama-bench beside its engine.")
    argv = llama_bench_argv(binary, source.path, profile.flags, item.values["depths"])
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=engine_environment(profile.env),
    )
    target_server.report_progress(item.id, "llama-bench is running")
    try:
        async with asyncio.timeout(TIMEOUT_MINUTES * 60):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise GpuboxError(f"llama-bench did not end within {TIMEOUT_MINUTES} minutes.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    markdown = stderr.decode(errors="replace")
    if process.returncode:
        last_line = next((line for line in reversed(markdown.splitlines()) if line.strip()), "")
        raise GpuboxError(f"llama-bench ended with exit code {process.returncode}: {last_line[:200]}")
    return {"argv": argv, "jsonl": stdout.decode(errors="replace"), "markdown": markdown}


def score(item: Item, raw: RawRecord) -> Result:
    """The rows of a stored llama-bench: test, depth, mean and sd as it computed them, and every sample."""
    rows = []
    for line in str(raw.data.get("jsonl", "")).splitlines():
        try:
            row = read_json(line)
            rows.append(
                {
                    "test": f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}",
                    "depth": int(row.get("n_depth", 0)),
                    "mean": float(row["avg_ts"]),
                    "sd": float(row["stddev_ts"]),
                    "samples": [float(value) for value in row["samples_ts"]],
                }
            )
        except (ValueError, KeyError, TypeError):
            continue
    table = [line for line in str(raw.data.get("markdown", "")).splitlines() if line.startswith("|")]
    if not rows:
        return Result(item.id, error="llama-bench printed no rows")
    return Result(item.id, {"rows": rows, "markdown": "\n".join(table)})
