"""llama-bench beside the served path: the engine's own benchmark, its rows in its own words.

It has no server, no template and no speculation: what it shows beyond the served figures is their overhead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox.bench.model import Item, RawRecord, Result, Target
from gpubox.bench.target_server import TargetServer
from gpubox.config import Config
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.models.resolve import profile_model
from gpubox.profiles.profile import FlagValue, Profile

MINUTES = 60
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


def find_llama_bench(profile: Profile, config: Config) -> Path | None:
    """The llama-bench that lies beside the profile's engine, or ``None``."""
    try:
        engine = choose_engine(config, profile.engine)
    except GpuboxError:
        return None
    found = engine.path.resolve().with_name("llama-bench")
    return found if engine.kind == "llama-server" and found.is_file() else None


def llama_bench_argv(
    binary: Path, model: Path, flags: Mapping[str, FlagValue], depths: Sequence[int], repeats: int = 5
) -> list[str]:
    """Its command line for the profile's flags: pp512 and tg128 at each depth that fits the profile's context."""
    argv = [str(binary), "-m", str(model), "-p", "512", "-n", "128", "-r", str(repeats), "-o", "jsonl", "-oe", "md"]
    size = flags.get("ctx-size")
    fitting = [d for d in depths if not (isinstance(size, int) and size and d + 640 > size)]
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
    """What its item needs: no server, so that the card is free."""
    return Target(f"{profile.name} llama-bench", profile.name, stopped=True)


async def execute(item: Item, target_server: TargetServer) -> dict[str, Any]:
    """Runs it to its end. Returns its command line, rows and Markdown. Raises GpuboxError with its last words."""
    profile = target_server.profile_of(target_server.active.target)
    binary, source = (
        find_llama_bench(profile, target_server.config),
        profile_model(profile, target_server.paths, target_server.config),
    )
    if binary is None or source.path is None:
        raise GpuboxError(f"{profile.name} has no llama-bench beside its engine.")
    argv = llama_bench_argv(binary, source.path, profile.flags, item.values["depths"])
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    target_server.report_progress(item.id, "llama-bench is at work")
    try:
        async with asyncio.timeout(MINUTES * 60):
            out, err = await process.communicate()
    except TimeoutError:
        raise GpuboxError(f"llama-bench did not end within {MINUTES} minutes.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = err.decode(errors="replace")
    if process.returncode:
        words = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        raise GpuboxError(f"llama-bench ended with {process.returncode}: {words[:200]}")
    return {"argv": argv, "jsonl": out.decode(errors="replace"), "markdown": said}


def score(item: Item, raw: RawRecord) -> Result:
    """Its rows: test, depth, mean and sd as it computed them, and every sample."""
    rows = []
    for line in str(raw.data.get("jsonl", "")).splitlines():
        try:
            row = json.loads(line)
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
        return Result(item.id, error="llama-bench gave no rows")
    return Result(item.id, {"rows": rows, "markdown": "\n".join(table)})
