"""The planner against the engine's own table on models of real shapes: ``fit_shapes.py ENGINE``; it needs RPC.

Makes files that have the shape of published models: their header, and a hole as long as the tensors, so that nothing is
downloaded. Prints for each set of flags whether the formula agrees with the engine's table.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from box import options
from fit_truth import Flags, own_planner, rpc_servers

from gpubox.models.gguf_header import GGML_BLOCKS
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import Profile
from tests.gguf_bytes import header, pair, tensor

F32, Q8_0 = 0, 8
Shape = dict[str, Any]
SHAPES: dict[str, Shape] = {
    "llama-3.1-8b": {"arch": "llama", "layers": 32, "width": 4096, "heads": 32, "kv": 8, "ff": 14336, "words": 128256},
    "mistral-small-24b": {
        "arch": "llama", "layers": 40, "width": 5120, "heads": 32, "kv": 8, "head": 128, "ff": 32768, "words": 131072,
    },
    "mixtral-8x7b": {
        "arch": "llama", "layers": 32, "width": 4096, "heads": 32, "kv": 8, "ff": 14336, "experts": 8, "used": 2,
        "words": 32000,
    },
    "qwen2.5-7b": {
        "arch": "qwen2", "layers": 28, "width": 3584, "heads": 28, "kv": 4, "ff": 18944, "words": 152064, "bias": True,
    },
    "qwen3-8b": {
        "arch": "qwen3", "layers": 36, "width": 4096, "heads": 32, "kv": 8, "head": 128, "ff": 12288, "words": 151936,
        "norms": True,
    },
    "qwen3-30b-a3b": {
        "arch": "qwen3moe", "layers": 48, "width": 2048, "heads": 32, "kv": 4, "head": 128, "ff": 6144, "eff": 768,
        "experts": 128, "used": 8, "words": 151936, "norms": True,
    },
    "olmoe-7b": {
        "arch": "olmoe", "layers": 16, "width": 2048, "heads": 16, "kv": 16, "ff": 1024, "eff": 1024, "experts": 64,
        "used": 8, "words": 50304, "norms": "wide",
    },
    "gemma-2-9b": {
        "arch": "gemma2", "layers": 42, "width": 3584, "heads": 16, "kv": 8, "head": 256, "ff": 14336, "words": 256000,
        "window": 4096, "tied": True, "post": True,
    },
    "gemma-3-12b": {
        "arch": "gemma3", "layers": 48, "width": 3840, "heads": 16, "kv": 8, "head": 256, "ff": 15360, "words": 262144,
        "window": 1024, "tied": True, "post": True, "norms": True,
    },
    "phi-3-mini": {
        "arch": "phi3", "layers": 32, "width": 3072, "heads": 32, "kv": 32, "ff": 8192, "words": 32064, "fused": True,
    },
    "starcoder2-7b": {
        "arch": "starcoder2", "layers": 32, "width": 4608, "heads": 36, "kv": 4, "ff": 18432, "words": 49152,
        "bias": True, "plain": True,
    },
}  # fmt: skip
FLAGS: tuple[Flags, ...] = (
    {"ctx-size": 8192, "parallel": 1, "n-gpu-layers": 99},
    {"ctx-size": 32768, "parallel": 2, "n-gpu-layers": 12, "cache-type-k": "q8_0", "cache-type-v": "q8_0"},
    {"ctx-size": 16384, "parallel": 4, "kv-unified": True, "n-gpu-layers": 99, "n-cpu-moe": 10},
)


def rows(shape: Shape) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Name, type and dimensions of each tensor."""
    width, head = shape["width"], shape.get("head", shape["width"] // shape["heads"])
    q, kv, ff = head * shape["heads"], head * shape["kv"], shape["ff"]
    yield "token_embd.weight", Q8_0, (width, shape["words"])
    yield "output_norm.weight", F32, (width,)
    if not shape.get("tied"):
        yield "output.weight", Q8_0, (width, shape["words"])
    if shape.get("plain"):
        yield "output_norm.bias", F32, (width,)
    for layer in range(shape["layers"]):
        at = f"blk.{layer}."
        norms = ["attn_norm", "ffn_norm", *(["post_attention_norm", "post_ffw_norm"] if shape.get("post") else [])]
        for name in norms:
            yield f"{at}{name}.weight", F32, (width,)
        if shape.get("fused"):
            yield f"{at}attn_qkv.weight", Q8_0, (width, q + 2 * kv)
        else:
            for name, size in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                yield f"{at}{name}.weight", Q8_0, (width, size)
                if shape.get("bias"):
                    yield f"{at}{name}.bias", F32, (size,)
        yield f"{at}attn_output.weight", Q8_0, (q, width)
        if kind := shape.get("norms"):
            yield f"{at}attn_q_norm.weight", F32, (q if kind == "wide" else head,)
            yield f"{at}attn_k_norm.weight", F32, (kv if kind == "wide" else head,)
        if experts := int(shape.get("experts", 0)):
            size = int(shape.get("eff") or ff)
            yield f"{at}ffn_gate_inp.weight", F32, (width, experts)
            yield f"{at}ffn_gate_exps.weight", Q8_0, (width, size, experts)
            yield f"{at}ffn_up_exps.weight", Q8_0, (width, size, experts)
            yield f"{at}ffn_down_exps.weight", Q8_0, (size, width, experts)
            continue
        if not shape.get("plain") and not shape.get("fused"):
            yield f"{at}ffn_gate.weight", Q8_0, (width, ff)
        yield f"{at}ffn_up.weight", Q8_0, (width, 2 * ff if shape.get("fused") else ff)
        yield f"{at}ffn_down.weight", Q8_0, (ff, width)
        if shape.get("plain"):
            for name, size in (("attn_norm", width), ("ffn_norm", width), ("attn_output", width), ("ffn_up", ff)):
                yield f"{at}{name}.bias", F32, (size,)
            yield f"{at}ffn_down.bias", F32, (width,)


def write(path: Path, shape: Shape) -> None:
    """The header, and a hole."""
    head = shape.get("head", shape["width"] // shape["heads"])
    keys: dict[str, Any] = {
        "block_count": shape["layers"], "context_length": 131072, "embedding_length": shape["width"],
        "feed_forward_length": shape["ff"], "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv"], "attention.key_length": head, "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": head,
        "vocab_size": shape["words"], "expert_count": shape.get("experts"), "expert_used_count": shape.get("used"),
        "expert_feed_forward_length": shape.get("eff"), "attention.sliding_window": shape.get("window"),
    }  # fmt: skip
    arch = shape["arch"]
    pairs = [pair("general.architecture", arch), pair("tokenizer.ggml.model", "no_vocab")]
    pairs += [pair(f"{arch}.{key}", value) for key, value in keys.items() if value is not None]
    tensors, offset = [], 0
    for name, kind, dimensions in rows(shape):
        block, block_bytes = GGML_BLOCKS[kind]
        tensors.append(tensor(name, dimensions, kind, offset))
        offset += -(-math.prod(dimensions) // block * block_bytes // 32) * 32
    data = header(pairs, tensors)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(-(-len(data) // 32) * 32 + offset)


def main() -> None:
    given = options(__doc__, "engine", only="")
    os.environ.setdefault("LLAMA_ARG_NO_REPACK", "1")
    agreed = total = 0
    with tempfile.TemporaryDirectory(prefix="fit-shapes-") as name:
        root, engine = Path(name), Path(given.engine)
        planner = own_planner(root, engine)
        for model, shape in SHAPES.items():
            if given.only not in model:
                continue
            path = root / f"{model}.gguf"
            write(path, shape)
            for flags in FLAGS:
                if "n-cpu-moe" in flags and "experts" not in shape:
                    continue
                with rpc_servers(engine.parent, 1) as endpoints:
                    profile = Profile(model, str(path), flags={**flags, "rpc": endpoints[0]})
                    plan = planner.plan(profile, may_dry_run=True)
                fine = plan.method == "formula" and bool(plan.devices) and not plan.is_estimated and not plan.doubts
                total, agreed = total + 1, agreed + fine
                why = "" if fine else f"  {plan.problem} {plan.doubts} {plan.notes}"
                print("ok " if fine else "OFF", model, dict(flags), judge(plan).words, why, flush=True)
    print(f"{agreed} of {total} agree with the engine's table")


if __name__ == "__main__":
    main()
