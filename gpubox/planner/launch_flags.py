"""The flags of a launch that decide how much memory it takes, with llama-server's own defaults. Pure.

Names, defaults and meanings: llama.cpp common/arg.cpp, common/common.h, tools/server/server.cpp (build 11434). A flag
of the profile wins over an environment variable, as in ``common_params_parse``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpubox.profiles.argv import argument_text
from gpubox.profiles.profile import FlagValue

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The tensors that ``--cpu-moe`` keeps on the host (common.h ``LLM_FFN_EXPS_REGEX``)."""
_DENSE = r"\.ffn_(up|down|gate)\."
HOST_BUFFER = "CPU"
ALL_LAYERS = 1 << 20
AUTO_SLOTS = 4
"""The slots of ``--parallel -1`` (the default), which also makes the KV cache unified."""

_SPELLINGS = (
    "ctx-size c, n-gpu-layers ngl gpu-layers, n-cpu-moe ncmoe, cpu-moe cmoe, n-cpu-ffn ncffn, override-tensor ot, "
    "cache-type-k ctk, cache-type-v ctv, parallel np, kv-unified kvu, no-kv-unified no-kvu, kv-unified-per-slot, "
    "batch-size b, ubatch-size ub, flash-attn fa, kv-offload kvo, no-kv-offload nkvo, swa-full, split-mode sm, "
    "tensor-split ts, main-gpu mg, device dev, rpc, fit, spec-type, spec-draft-n-max, spec-draft-model md "
    "model-draft, spec-draft-hf hfd hfrd hf-repo-draft, spec-draft-ngl ngld gpu-layers-draft n-gpu-layers-draft, "
    "spec-draft-type-k ctkd cache-type-k-draft, spec-draft-type-v ctvd cache-type-v-draft, spec-draft-device devd "
    "device-draft, spec-draft-override-tensor otd override-tensor-draft, spec-draft-cpu-moe cmoed cpu-moe-draft, "
    "spec-draft-n-cpu-moe ncmoed n-cpu-moe-draft, spec-default, mmproj mm, mmproj-url mmu, mmproj-offload, "
    "no-mmproj-offload, no-mmproj no-mmproj-auto, mmproj-device mmdev, lora, lora-scaled, control-vector, "
    "control-vector-scaled, override-kv, embeddings embedding, reranking rerank, load-mode lm, lazy-mode lzm, mmap, "
    "no-mmap, mlock, op-offload, no-op-offload, repack, no-repack nr, no-host "
)
"""The flags that decide memory, each with its other names."""
_CANONICAL = {name: names.split()[0] for names in _SPELLINGS.split(",") for name in names.split()}
_UNPLANNED = {
    "lora": "adapters", "lora-scaled": "adapters", "control-vector": "control vectors",
    "control-vector-scaled": "control vectors", "mmproj-url": "the memory of mmproj-url",
    "mmproj-device": "the device of mmproj", "spec-draft-hf": "the draft model of spec-draft-hf",
}  # fmt: skip
"""Flags whose memory has no formula here, and is not in the engine's own table either."""
_NGRAM_MOD_MAX = 64  # --spec-ngram-mod-n-max; the other ngram types draft up to 48 (m)
_NGRAM_MAX = 48


@dataclass(frozen=True, slots=True)
class DraftFlags:
    """The draft context of speculative decoding."""

    model: str | None
    """The path of its own model; None: the MTP head of the main model."""
    gpu_layers: int = ALL_LAYERS
    type_k: str = "f16"
    type_v: str = "f16"
    devices: tuple[str, ...] | None = None
    overrides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """What of a launch's flags decides its memory."""

    context: int
    """Tokens of all slots together; 0: what the model was trained with."""
    context_given: bool
    slots: int
    unified: bool
    """Whether all slots share one KV cache."""
    batch: int
    ubatch: int
    gpu_layers: int
    gpu_layers_given: bool
    overrides: tuple[tuple[str, str], ...]
    """``(regular expression, buffer type)`` in order: the first that matches a tensor's name decides its place."""
    type_k: str
    type_v: str
    flash_attention: str
    """on | off | auto"""
    kv_on_device: bool
    swa_full: bool
    split_mode: str
    tensor_split: tuple[float, ...]
    main_gpu: int
    devices: tuple[str, ...] | None
    """``--device``; None: all. Empty: none."""
    rpc: tuple[str, ...]
    fit: bool
    """Whether the engine itself shrinks what was not set (context, layers) to the free memory."""
    draft: DraftFlags | None
    draft_tokens: int
    """The most tokens that are drafted at once, by a model or from the text."""
    rollback_tokens: int
    """For how many draft tokens the recurrent state is kept as well (``need_n_rs_seq`` in common.h)."""
    mtp: bool
    """Whether the draft head (nextn) of the main model is loaded."""
    encoder: str | None
    """The path of the picture encoder (``--mmproj``)."""
    encoder_on_device: bool
    mapped: bool
    """Whether the weights on the host stay in the page cache (mmap), and not in memory of the process."""
    doubts: tuple[str, ...]
    """What these flags do that has no formula here; empty: all is covered. A dry run shows it."""
    unmeasured: tuple[str, ...] = ()
    """What takes memory that no dry run shows either."""
    cpu_expert_layers: int = 0
    """Of how many layers, from the first, ``--n-cpu-moe`` or ``--cpu-moe`` keep the experts on the host."""


def canonical_memory_flag(name: str) -> str | None:
    """The main spelling of a flag that decides memory; None for any other flag."""
    return _CANONICAL.get(name.lstrip("-").replace("_", "-"))


def read_launch_flags(flags: Mapping[str, FlagValue], env: Mapping[str, str]) -> LaunchFlags:
    """The memory flags in ``flags`` (of a profile) and ``env`` (of the server). Raises ValueError for a wrong value."""
    values = {name: value for given, value in flags.items() if (name := canonical_memory_flag(given))}
    for variable in (name for name in env if name.startswith("LLAMA_ARG_")):
        from gpubox.interchange.reference_options import option_for_variable  # most servers have no such variable

        option = option_for_variable(variable)
        name = canonical_memory_flag(option.long) if option else None
        if name and name not in values and f"no-{name}" not in values:
            values[name] = _from_environment(env[variable])
    switches = _Switches(values)
    slots = switches.whole("parallel", -1)
    types = tuple(part for part in switches.text("spec-type", "none").split(",") if part not in ("", "none"))
    if switches.on("spec-default", False):
        types = (*types, "ngram-mod")
    draft_model = switches.text("spec-draft-model", "") or None
    mtp = "draft-mtp" in types
    unmeasured = [_UNPLANNED[name] for name in _UNPLANNED if values.get(name) not in (None, False, "")]
    doubts = ["changed metadata"] if values.get("override-kv") else []
    doubts += [f"spec-type {kind}" for kind in types if kind not in _DRAFT_TYPES]
    if mtp and draft_model:
        doubts.append("an MTP head in a separate file")
    split_mode = switches.text("split-mode", "layer")
    if split_mode not in ("layer", "none"):
        doubts.append(f"split-mode {split_mode}")
    if switches.on("embeddings", False) or switches.on("reranking", False):
        doubts.append("embeddings")
    load_mode = switches.text("load-mode", "auto")
    maximum = switches.whole("spec-draft-n-max", 3)
    drafts_by_model = mtp or draft_model is not None or any(kind.startswith("draft-") for kind in types)
    return LaunchFlags(
        context=_context(switches, slots),
        context_given="ctx-size" in values or "kv-unified-per-slot" in values,
        slots=AUTO_SLOTS if slots < 0 else max(1, slots),
        unified=switches.on("kv-unified", slots < 0) or slots < 0,
        batch=switches.whole("batch-size", 2048),
        ubatch=switches.whole("ubatch-size", 512),
        gpu_layers=_layers(switches.text("n-gpu-layers", "auto")),
        gpu_layers_given=switches.text("n-gpu-layers", "auto") not in ("auto", "-1"),
        overrides=tuple(_overrides(values, "")),
        type_k=switches.text("cache-type-k", "f16"),
        type_v=switches.text("cache-type-v", "f16"),
        flash_attention=_three_way(switches.text("flash-attn", "auto")),
        kv_on_device=switches.on("kv-offload", True),
        swa_full=switches.on("swa-full", False),
        split_mode=split_mode,
        tensor_split=_split(switches.text("tensor-split", "")),
        main_gpu=switches.whole("main-gpu", 0),
        devices=_devices(switches.text("device", "")),
        rpc=tuple(part for part in switches.text("rpc", "").split(",") if part),
        fit=switches.on("fit", True),
        draft=DraftFlags(
            model=draft_model,
            gpu_layers=_layers(switches.text("spec-draft-ngl", "auto")),
            type_k=switches.text("spec-draft-type-k", "f16"),
            type_v=switches.text("spec-draft-type-v", "f16"),
            devices=_devices(switches.text("spec-draft-device", "")),
            overrides=tuple(_overrides(values, "spec-draft-")),
        ) if mtp or draft_model else None,
        draft_tokens=max(
            maximum if drafts_by_model else 0,
            _NGRAM_MOD_MAX if "ngram-mod" in types else _NGRAM_MAX if any(k.startswith("ngram") for k in types) else 0,
        ),
        rollback_tokens=max(0, maximum) if any(kind in _ROLLBACK_TYPES for kind in types) else 0,
        mtp=mtp,
        encoder=None if switches.on("no-mmproj", False) else switches.text("mmproj", "") or None,
        encoder_on_device=switches.on("mmproj-offload", True),
        mapped=load_mode in ("auto", "mmap") and not switches.on("mlock", False) and switches.on("mmap", True),
        doubts=tuple(doubts),
        unmeasured=tuple(dict.fromkeys(unmeasured)),
        cpu_expert_layers=ALL_LAYERS if switches.on("cpu-moe", False) else _largest(values.get("n-cpu-moe", 0)),
    )  # fmt: skip


_DRAFT_TYPES = (
    "draft-mtp", "draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
)  # fmt: skip
_ROLLBACK_TYPES = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")


class _Switches:
    def __init__(self, values: Mapping[str, FlagValue]) -> None:
        self._values = values

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name, default)
        if isinstance(value, tuple):
            return ",".join(map(argument_text, value))
        if isinstance(value, bool):
            return default if value is False else "on"
        return argument_text(value)

    def whole(self, name: str, default: int) -> int:
        value = self._values.get(name, default)
        if isinstance(value, tuple):
            value = value[-1] if value else default
        if isinstance(value, bool):
            raise ValueError(f"{name} needs a number")
        try:
            number = int(float(value))
        except (ValueError, OverflowError):
            raise ValueError(f"{name} is {value!r}, which is no number") from None
        if abs(number) > 1 << 40:
            raise ValueError(f"{name} is {number}")
        return number

    def on(self, name: str, default: bool) -> bool:
        """The state of a switch that may be given as ``name`` or ``no-name``."""
        result = default
        for key, value in self._values.items():  # the last one wins
            if key == name:
                result = _truth(value)
            elif key == f"no-{name}":
                result = not _truth(value)
        return result


def _from_environment(text: str) -> FlagValue:
    return {"true": True, "enabled": True, "false": False, "disabled": False}.get(text.lower(), text)


def _truth(value: FlagValue) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in ("1", "on", "true", "enabled", "auto")


def _three_way(text: str) -> str:
    text = text.lower()
    if text in ("on", "1", "true", "enabled"):
        return "on"
    return "off" if text in ("off", "0", "false", "disabled") else "auto"


def _layers(text: str) -> int:
    if text in ("auto", "all", "-1", "-2"):
        return ALL_LAYERS
    try:
        return int(text) if int(text) >= 0 else ALL_LAYERS
    except ValueError:
        raise ValueError(f"n-gpu-layers is {text!r}, which is no number") from None


def _context(switches: _Switches, slots: int) -> int:
    context, per_slot = switches.whole("ctx-size", -1), switches.whole("kv-unified-per-slot", 0)
    if context < 0:
        context = per_slot * (AUTO_SLOTS if slots < 0 else slots) if per_slot > 0 else 0
    return context


def _split(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split(r"[,/]+", text) if part)
    except ValueError:
        raise ValueError(f"tensor-split is {text!r}") from None


def _devices(text: str) -> tuple[str, ...] | None:
    if not text:
        return None
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _overrides(values: Mapping[str, FlagValue], prefix: str) -> Iterator[tuple[str, str]]:
    """In the order of the flags: all of them fill one list."""
    for name, value in values.items():
        if not name.startswith(prefix) or value is False:
            continue
        bare = name.removeprefix(prefix)
        if bare == "override-tensor":
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for rule in filter(None, text.split(",")):
                pattern, equals, buffer = rule.partition("=")
                if not equals:
                    raise ValueError(f"override-tensor has {rule!r} without a buffer type")
                yield pattern, buffer
        elif bare == "cpu-moe":
            yield EXPERTS, HOST_BUFFER
        elif bare in ("n-cpu-moe", "n-cpu-ffn"):
            pattern = EXPERTS if bare == "n-cpu-moe" else _DENSE
            for layer in range(min(_largest(value), 1024)):  # a pattern for each layer, as llama.cpp does
                yield rf"blk\.{layer}{pattern}", HOST_BUFFER


def _largest(value: FlagValue) -> int:
    numbers = value if isinstance(value, tuple) else (value,)
    return max(0, *(_Switches({"n": number}).whole("n", 0) for number in numbers))
