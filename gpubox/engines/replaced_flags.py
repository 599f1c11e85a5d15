"""Flags that llama.cpp removed or renamed, or that only forks have, and what to use instead.

Checked against llama.cpp build 11434. What an old flag meant, and how many values it had, is in the history of
llama.cpp's common/arg.cpp; a fork's flags are in its ``--help``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplacedFlag:
    """What replaces an old flag."""

    takes: int
    """How many values the old flag had."""
    flag: str = ""
    """The flag to use instead; empty if there is none."""
    value: str | None = None
    """The new value; ``None`` if the value stays the same."""
    why: str = ""

    @property
    def advice(self) -> str:
        """What to write instead, as a hint; empty if the flag can only be left out."""
        if not self.flag:
            return self.why
        return f'now: {self.flag} = "{self.value}"' if self.value else f"now: {self.flag}"


# Names with the same replacement are one entry.
_GROUPS = (
    ("no-mmap", ReplacedFlag(0, "load-mode", "none")),
    ("mmap", ReplacedFlag(0, "load-mode", "mmap")),
    ("mlock", ReplacedFlag(0, "load-mode", "mmap+mlock")),
    ("direct-io dio", ReplacedFlag(0, "load-mode", "dio")),
    ("no-direct-io ndio memory-f16", ReplacedFlag(0, why="it is the default")),
    ("draft-max draft draft-n", ReplacedFlag(1, "spec-draft-n-max")),
    ("draft-min draft-n-min", ReplacedFlag(1, "spec-draft-n-min")),
    ("ctx-size-draft cd", ReplacedFlag(1, why="the draft model has the context size of the model")),
    ("spec-ngram-size-n", ReplacedFlag(1, why="now: spec-ngram-simple-size-n and the like, one per spec-type")),
    ("spec-ngram-size-m", ReplacedFlag(1, why="now: spec-ngram-simple-size-m and the like, one per spec-type")),
    ("spec-ngram-min-hits", ReplacedFlag(1, why="now: spec-ngram-simple-min-hits and the like, one per spec-type")),
    ("spec-replace", ReplacedFlag(2, why="it was removed from llama.cpp")),
    ("checkpoint-every-nb", ReplacedFlag(1, why="did you mean checkpoint-min-step (tokens, not batches)?")),
    ("checkpoint-every-n-tokens cpent", ReplacedFlag(1, "checkpoint-min-step")),
    ("mtp", ReplacedFlag(0, "spec-type", "draft-mtp")),
    ("log-json", ReplacedFlag(0, "log-jsonl")),
    ("log-format", ReplacedFlag(1, why="removed; log-jsonl selects the other format")),
    (
        "log-enable log-new log-append log-test verbose-prompt penalize-nl no-penalize-nl logits-all",
        ReplacedFlag(0, why="it was removed from llama.cpp"),
    ),
    ("memory-f32 no-memory-f16", ReplacedFlag(0, why='now: cache-type-k = "f32" and cache-type-v = "f32"')),
    ("mul-mat-q mmq no-mul-mat-q nommq", ReplacedFlag(0, why="it is set when llama.cpp is built")),
    ("low-vram", ReplacedFlag(0, why="did you mean no-kv-offload?")),
    ("grp-attn-n gan grp-attn-w gaw", ReplacedFlag(1, why="self-extend was removed from llama-server")),
    (
        "system-prompt-file spf",
        ReplacedFlag(1, why="clients send the system prompt; for gpubox's chat set [chat] system"),
    ),
    ("tfs tfs-z", ReplacedFlag(1, why="tail-free sampling was removed")),
    (
        "prompt p file f in-prefix in-suffix prompt-cache",
        ReplacedFlag(1, why="only llama-cli has it: a server is not interactive"),
    ),
    (
        "interactive i interactive-first if instruct ins color multiline-input mli conversation cnv "
        "no-conversation no-cnv no-display-prompt simple-io prompt-cache-all",
        ReplacedFlag(0, why="only llama-cli has it: a server is not interactive"),
    ),
    ("model-vocoder mv", ReplacedFlag(1, why="only llama-tts has it")),
    ("tts-use-guide-tokens", ReplacedFlag(0, why="only llama-tts has it")),
)
REPLACED_FLAGS = {name: replaced for names, replaced in _GROUPS for name in names.split()}
"""The flags that llama.cpp itself had."""

FORMER_SWITCHES = frozenset({"flash-attn", "log-colors"})
"""Flags that were switches in older builds and have a value (``on``) now."""

_IK_FLAGS = {
    0: "fmoe fused-moe, no-fmoe no-fused-moe, rtr run-time-repack, mqkv merge-qkv, gr graph-reuse, "
       "no-gr no-graph-reuse, ger grouped-expert-routing, khad k-cache-hadamard, vhad v-cache-hadamard, "
       "muge merge-up-gate-experts, sas scheduler-async, smgs split-mode-graph-scheduling, "
       "ooae offload-only-active-experts, no-ooae no-offload-only-active-experts, thp transparent-huge-pages",
    1: "mla mla-use, amb attention-max-batch, ser smart-expert-reduction, op offload-policy, cuda cuda-params, "
       "mea max-extra-alloc, wgt worst-graph-tokens, grt graph-reduce-type, gap graph-attn-precision",
}  # fmt: skip
"""The number of values -> short and long names (ik_llama.cpp 8337e4cd3, common/common.cpp)."""
FORK_NAMES = dict(pair.split() for names in _IK_FLAGS.values() for pair in names.split(", "))
"""The short name of a fork's flag -> its long one: the fork does not take the short one with two dashes."""
# llama.cpp added its own MoE cache after build 11434; xllamacpp 2026.10.11549 contains it.
FORK_FLAGS: dict[str, tuple[int, str]] = {
    "moe-cache-size": (1, "only in a fork of llama.cpp; newer upstream builds have moe-cache-mib"),
    **{
        name: (takes, "only in ik_llama.cpp")
        for takes, names in _IK_FLAGS.items()
        for name in re.findall(r"[\w-]+", names)
    },
}
"""Flags of forks: the number of values, and which fork has it."""

_VALUES = {
    ("spec-type", "mtp"): "draft-mtp",
    ("spec-type", "eagle3"): "draft-eagle3",
    ("spec-type", "draft"): "draft-simple",
    ("cache-type-k", "fp16"): "f16",
    ("cache-type-v", "fp16"): "f16",
    ("cache-type-k", "fp32"): "f32",
    ("cache-type-v", "fp32"): "f32",
}

_FORK_VALUES = {"turbo2": "TurboQuant", "turbo3": "TurboQuant", "turbo4": "TurboQuant"}


def current_value(flag: str, value: str) -> str | None:
    """The current spelling of an old value of a flag, or ``None``."""
    return _VALUES.get((flag, value))


def advice_for(flag: str, value: str | None) -> tuple[str, bool]:
    """What to write instead of a refused flag or value (``""`` if unknown), and whether only a fork accepts it."""
    if value is None:
        if flag in FORK_FLAGS:
            return FORK_FLAGS[flag][1], True
        return REPLACED_FLAGS[flag].advice if flag in REPLACED_FLAGS else "", False
    if value in _FORK_VALUES:
        return f"only in a {_FORK_VALUES[value]} fork", True
    now = current_value(flag, value)
    return f"now: {now}" if now else "", False
