"""A llama-perplexity that prints what build 11434 printed for SmolLM2-135M quants, and writes logits of the right size.

The recordings in ``fixtures/quality`` are its stdout; the file of logits has the real layout, with zeros for logits.
"""

from __future__ import annotations

import sys
from pathlib import Path

RECORDED = Path(__file__).parent / "fixtures" / "quality"
CHUNKS, CONTEXT = 19, 512
TOKENS = ["<s>", "a", "b", "c"]


def write_program(folder: Path) -> Path:
    """Beside the engine in ``folder``. The name of the model file chooses the recording."""
    script = folder / "llama-perplexity"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} '{Path(__file__).resolve()}' \"$@\"\n")
    script.chmod(0o755)
    return script


def write_model(folder: Path, name: str, tokens: list[str] | None = None) -> Path:
    """A model file with a vocabulary."""
    from tests.gguf_bytes import model

    path = folder / f"{name}.gguf"
    path.write_bytes(model({"tokenizer.ggml.tokens": tokens or TOKENS, "general.quant": name}))
    return path


def main(argv: list[str]) -> None:
    import os
    import struct
    import time

    def after(flag: str) -> str:
        return argv[argv.index(flag) + 1] if flag in argv else ""

    if "--help" in argv:
        flags = "--kl-divergence-base --kl-divergence --model --file --ctx-size --chunks --threads --cache-type-k"
        print("\n".join(f"{flag} VALUE                    text" for flag in flags.split()))
        return
    name = Path(after("--model")).stem
    log = Path(after("--model")).with_name("calls.txt")
    with log.open("a") as calls:
        print(name, "compared" if "--kl-divergence" in argv else "base", file=calls)
    if name == "broken":
        print("0.01 E llama_model_load: error loading model: missing tensor 'w'", file=sys.stderr)
        sys.exit(1)
    print(
        f"0.01 I perplexity: calculating perplexity over {CHUNKS} chunks, n_ctx={CONTEXT}", file=sys.stderr, flush=True
    )
    base = Path(after("--kl-divergence-base"))
    if "--kl-divergence" in argv:
        if not base.is_file():
            sys.exit(f"failed to open {base}")
        while name == "slow" and not log.with_name("go").exists():
            time.sleep(0.02)
        recording = {"f16": "f16-itself"}.get(name, "q4_0" if name == "slow" else name)
        print((RECORDED / f"{recording}.txt").read_text(), flush=True)
        return
    rows = CONTEXT - 1 - CONTEXT // 2
    size = 20 + 4 * CONTEXT * CHUNKS + CHUNKS * rows * 2 * (len(TOKENS) + 4)
    with base.open("wb") as file:
        file.write(struct.pack("<8sIii", b"_logits_", CONTEXT, len(TOKENS), CHUNKS))
        file.truncate(size // 2 if os.environ.get("FAKE_DISK_FULL") else size)
    print((RECORDED / "f16.txt").read_text(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
