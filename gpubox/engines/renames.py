"""Flags that moved between builds and forks: offered, never guessed.

Verified by running llama.cpp build 11434: what it refuses, and what it has instead.
"""

from __future__ import annotations

_OPTIONS = {
    "no-mmap": "now: load-mode = \"none\"",
    "mmap": "now: load-mode = \"mmap\"",
    "mlock": "now: load-mode = \"mlock\"",
    "direct-io": "now: load-mode = \"dio\"",
    "draft-max": "now: spec-draft-n-max",
    "draft": "now: spec-draft-n-max",
    "draft-n": "now: spec-draft-n-max",
    "draft-min": "now: spec-draft-n-min",
    "draft-n-min": "now: spec-draft-n-min",
    "checkpoint-every-nb": "nearest: checkpoint-min-step (tokens, not batches)",
    "mtp": "now: spec-type = \"draft-mtp\"",
    "log-json": "now: log-jsonl",
}  # fmt: skip

# llama.cpp's own MoE cache came after build 11434; the llama.cpp inside xllamacpp 2026.10.11549 knows the name.
_FORK_OPTIONS = {"moe-cache-size": "only in a fork of llama.cpp; newer upstream builds have moe-cache-mib"}

_VALUES = {
    ("spec-type", "mtp"): "now: draft-mtp",
    ("cache-type-k", "fp16"): "write f16",
    ("cache-type-v", "fp16"): "write f16",
}

_FORK_VALUES = {"turbo2": "TurboQuant", "turbo3": "TurboQuant", "turbo4": "TurboQuant"}


def advice_for(flag: str, value: str | None) -> tuple[str, bool]:
    """What to write instead of a refused flag or value (``""``: nothing known), and whether it needs a fork."""
    if value is None:
        if flag in _FORK_OPTIONS:
            return _FORK_OPTIONS[flag], True
        return _OPTIONS.get(flag, ""), False
    if value in _FORK_VALUES:
        return f"only in a {_FORK_VALUES[value]} fork", True
    return _VALUES.get((flag, value), ""), False
