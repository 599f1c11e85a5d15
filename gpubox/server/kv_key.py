"""What a kept slot state depends on, read from the command line of a launch, and whether a launch can take a state.

llama-server's file of a slot names neither model nor flags (build 11434), so the key is kept beside it. What changes
the contents of the KV cache, or its layout in the file, is in the key; what only moves it (layers on GPU, ubatch,
slots of a unified cache) is not. Flags and variables are those of the reference build.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpubox.engines.capabilities import DISK_CACHES
from gpubox.server.state import Launch

_CONTENTS = (
    "swa-full", "control-vector", "control-vector-scaled", "control-vector-layer-range", "override-kv",
    "rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx", "yarn-ext-factor",
    "yarn-attn-factor", "yarn-beta-slow", "yarn-beta-fast",
)  # fmt: skip
"""Flags that change the numbers in the cache, or which of them are kept."""
_OFF = ("off", "0", "false", "disabled")
_SAMPLES, _SAMPLE_BYTES = 16, 16 * 1024


@dataclass(frozen=True, slots=True)
class KvKey:
    """What two launches must have in common, so that one can take the slot states of the other."""

    model: str
    """The GGUF: a digest of its size, its times and samples of its bytes."""
    engine: str
    """The engine's version: name, build and commit."""
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool = True
    """Without it (``-fa off``) V is stored transposed. ``auto`` counts as on."""
    streams: int = 1
    """1 if all slots share one KV cache, else their number."""
    contents: tuple[str, ...] = ()
    """The flags that change the numbers in the cache, ``NAME VALUE``."""


def incompatible(saved: KvKey, launch: KvKey, tokens: int = 0, context: int = 0) -> str:
    """Why a launch cannot take a state of ``tokens`` tokens, in a few words; empty: it can.

    ``context``: the tokens that one slot of the launch holds; 0: unknown.
    """
    if saved.model != launch.model:
        return "another model file"
    if saved.engine != launch.engine:
        return "another engine build"
    for name, before, now in (
        ("K cache", saved.type_k, launch.type_k), ("V cache", saved.type_v, launch.type_v),
        ("flash attention", *("on" if key.flash_attention else "off" for key in (saved, launch))),
    ):  # fmt: skip
        if before != now:
            return f"{name} {before}, now {now}"
    if saved.streams != launch.streams:
        return f"{saved.streams} KV streams, now {launch.streams}"
    if saved.contents != launch.contents:
        changed = sorted({*saved.contents} ^ {*launch.contents})
        return f"{changed[0].partition(' ')[0]} changed"
    if context and tokens > context:
        return f"{tokens:,} tokens, and the context holds {context:,}"
    return ""


def launch_key(launch: Launch, variable: Callable[[str], str | None], context: str = "") -> KvKey:
    """The key of a launch. ``variable`` reads the environment of its server.

    ``context``: for a model whose positions depend on the size of the context, that size. Raises OSError if the model
    cannot be read. Reads 256 KiB of each shard.
    """
    flags = _flags(launch.argv, variable)
    # all slots share one cache: told so, or -np is left to llama-server (server.cpp, build 11434)
    unified = "kv-unified" in flags or _whole(flags.get("parallel", "-1")) < 0
    return KvKey(
        model=model_identity(Path(launch.model_path or "")),
        engine=f"{launch.engine} {launch.engine_version} {_file_stamp(launch.engine_path)}",
        type_k=flags.get("cache-type-k", "f16").lower(),
        type_v=flags.get("cache-type-v", "f16").lower(),
        flash_attention=flags.get("flash-attn", "auto").lower() not in _OFF,
        streams=1 if unified else max(1, _whole(flags.get("parallel", "1"))),
        contents=(
            *(_described(name, flags[name]) for name in _CONTENTS if name in flags),
            *([f"ctx-size {context}"] if context else []),
        ),
    )


def refusal(launch: Launch, folder: Path, variable: Callable[[str], str | None]) -> str:
    """Why nothing of this launch is kept or restored, in a few words; empty: it is.

    ``folder``: where gpubox keeps states.
    """
    flags = _flags(launch.argv, variable)
    path = flags.get("slot-save-path", "")
    if any(word.lstrip("-") in DISK_CACHES for word in launch.argv):
        return "the engine keeps its prompts on disk by itself"
    if not path:
        return "the engine was started without --slot-save-path"
    if Path(path) != folder:
        return "the profile has a slot-save-path of its own"
    if not launch.model_path:
        return "its model file is unknown"
    for switch in ("no-slots", "no-cache-prompt"):
        if switch in flags:
            return f"--{switch}"
    if ("mmproj" in flags or "mmproj-url" in flags) and "no-mmproj-auto" not in flags:
        return "mmproj: a state holds no pictures"
    if launch.embeddings or "embeddings" in flags or "reranking" in flags:
        return "embeddings keep no KV cache"
    if "context-shift" in flags and "no-context-shift" not in flags:
        return "context-shift: a shifted cache no longer begins like the next prompt"
    if "spec-draft-model" in flags or "hf-repo-draft" in flags:
        # build 11434 answers the next request with HTTP 500: the draft context is empty, and the slot is not
        return "a draft model: a state holds nothing of its context"
    if "lora" in flags or "lora-scaled" in flags:
        return "lora: a request may change the scales of adapters"
    return ""


def has_prompt_cache(argv: Iterable[str], variable: Callable[[str], str | None]) -> bool:
    """Whether the server has a copy in RAM of what its idle slots hold, as soon as one of them gets a task.

    Build 11434 also has it of slots with caches of their own (its log: "idle slots will be saved to prompt cache").
    """
    flags = _flags(argv, variable)
    return flags.get("cache-ram") != "0" and "no-cache-idle-slots" not in flags


def model_identity(path: Path) -> str:
    """A digest of a model's shards: sizes, times of change, samples of their bytes. Raises OSError."""
    from gpubox.models.gguf import shard_names  # who only reads the store needs no GGUF code

    digest = hashlib.sha256()
    for name in shard_names(path.name):
        with path.with_name(name).open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
            for sample in range(_SAMPLES):
                last = max(0, status.st_size - _SAMPLE_BYTES)
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, last * sample // (_SAMPLES - 1)))
    return digest.hexdigest()[:32]


def _flags(argv: Iterable[str], variable: Callable[[str], str | None]) -> dict[str, str]:
    """The flags that are given; the last value wins, and an argument wins over the environment."""
    from gpubox.interchange.given_options import read_options  # who only reads the store needs no table of flags
    from gpubox.interchange.reference_options import reference_options

    reference, flags = reference_options(), dict[str, str]()
    for option in reference.options:
        value = variable(option.env) if option.env else None
        if value is None:
            continue
        if option.value is not None:
            flags[option.long] = value
        elif value.lower() not in _OFF:
            flags[option.long] = ""
        elif option.negatives:
            flags[f"no-{option.long}"] = ""
    for given in read_options(list(argv)[1:], reference, []):
        flag = reference.canonical(given.name)
        # of a switch given twice the last one wins
        flags.pop(flag.removeprefix("no-") if flag.startswith("no-") else f"no-{flag}", None)
        flags[flag] = given.value or ""
    return flags


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 1


def _described(name: str, value: str) -> str:
    """A flag and its value; of a file also its size and time, because another file may have its name."""
    stamps = [stamp for word in value.replace(":", ",").split(",") if word and (stamp := _file_stamp(word))]
    return " ".join([name, value, *stamps]).rstrip()


def _file_stamp(path: str) -> str:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return ""
    return f"({status.st_size} {status.st_mtime_ns})"
