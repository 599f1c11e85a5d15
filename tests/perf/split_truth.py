"""Is the memory split llama.cpp's own? Each segment against its breakdown table and buffer lines.

usage: split_truth.py MODEL.gguf MOE-MTP-MODEL.gguf --engine LLAMA-SERVER [--rpc HOST:PORT]
For both models, with and without the RPC device (a running ggml-rpc-server plays the GPU), n-cpu-moe 0/4/8,
KV f16/q8_0, parallel 1/4 and draft-mtp on/off: prints the segments where gpubox and the table differ by more than
1 MiB of rounding. The table is printed by the server before its load; the extra table is the MTP context.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path

from box import gpubox, own_folders, profile

from tests.gateway_process import free_port

PORT = free_port()
MIB = 1024 * 1024
ROW = re.compile(r"\|   - (\S+)(?: \(([^)]*)\))? +\|.*?\d+ = +(\d+) \+ +(\d+) \+ +(\d+)(?:\)| +\|)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("moe")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--rpc")
    arguments = parser.parse_args()
    checked = wrong = 0
    with own_folders(arguments.engine) as folder:
        for name, model, flags in cases(arguments):
            profile(folder, "case", model, PORT, flags)
            gpubox("switch", "case", "--now")
            problems, count = compare(json.loads(gpubox("status", "--json")), Path(gpubox("logs", "--path").strip()))
            checked += count
            wrong += len(problems)
            print(f"{'same' if not problems else 'DIFFERS':8} {name}")
            for problem in problems:
                print(f"         {problem}")
    print(f"{checked} segments checked, {wrong} differ")
    sys.exit(1 if wrong else 0)


def cases(arguments: argparse.Namespace) -> list[tuple[str, str, dict[str, object]]]:
    found = []
    devices = [None, arguments.rpc] if arguments.rpc else [None]
    for rpc, kv, slots in itertools.product(devices, ("f16", "q8_0"), (1, 4)):
        base: dict[str, object] = {"ctx-size": 8192, "parallel": slots, "cache-type-k": kv, "cache-type-v": kv}
        base |= {"rpc": rpc, "n-gpu-layers": 99} if rpc else {}
        where = "rpc" if rpc else "cpu"
        found.append((f"SmolLM2 {where} kv {kv} np {slots}", arguments.model, base))
        for n_cpu_moe, mtp in itertools.product((0, 4, 8), (False, True)):
            flags = base | {"n-cpu-moe": n_cpu_moe}
            flags |= {"spec-type": "draft-mtp"} if mtp else {}
            name = f"MoE {where} kv {kv} np {slots} n-cpu-moe {n_cpu_moe}{' draft-mtp' if mtp else ''}"
            found.append((name, arguments.moe, flags))
    return found


def compare(status: dict, log: Path) -> tuple[list[str], int]:  # type: ignore[type-arg]
    """The differences in words, and how many segments were looked at."""
    text = log.read_text(errors="replace").partition("loading model tensors")[0]
    main_text, _, extra_text = text.partition("for the extra model")
    main_rows, extra_rows = table(main_text), table(extra_text)
    shown = {key_of(device["device"]): device for device in status["memory"] if device["kind"] != "gpu"}
    problems: list[str] = []
    count = 0
    for key, (model, context, compute) in main_rows.items():
        device = shown.get(key, {})
        held = {
            "weights": (device.get("weights_bytes"), model),
            "kv + recurrent": ((device.get("kv_bytes") or 0) + (device.get("recurrent_bytes") or 0), context),
            "compute": (device.get("compute_bytes"), compute),
        }
        if extra_rows:
            _, extra_context, extra_compute = extra_rows.get(key, (0, 0, 0))
            held["draft"] = (device.get("draft_bytes"), extra_context + extra_compute)
        for segment, (ours, theirs) in held.items():
            count += 1
            # llama.cpp floors each of its numbers; the draft is the sum of two of them
            room = 2 if segment == "draft" else 1
            if not 0 <= (ours or 0) / MIB - theirs < room + 0.01:
                problems.append(f"{key} {segment}: gpubox {(ours or 0) / MIB:.2f} MiB, table {theirs} MiB")
    return problems, count


def table(text: str) -> dict[str, tuple[int, int, int]]:
    last = text.rpartition("memory breakdown [MiB]")[2]
    rows = {}
    for match in ROW.finditer(last):
        name = f"RPC {match[2]}" if match[1].startswith("RPC") else match[1]
        rows[name] = (int(match[3]), int(match[4]), int(match[5]))
    return rows


def key_of(device: str) -> str:
    match = re.match(r"RPC\d+\[(.*)\]", device)
    return f"RPC {match[1]}" if match else device


if __name__ == "__main__":
    main()
