"""The table of llama-server's flags -> attributes of xllamacpp.CommonParams. Other flags are refused.

The key is any long spelling of a flag. All spellings, placeholders, environment variables and help texts are in
``embedded_help.txt``, a part of the ``--help`` of llama.cpp build 11434; what each flag does is in common/arg.cpp.
CommonParams has no attribute for ``--device``, ``--rpc``, ``--lora``, ``--override-kv``, ``--log-file``,
``--top-n-sigma``, ``--grammar`` and downloads, and that of ``--log-jsonl`` has no effect, so they are missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpubox.engines import embedded_values as v
from gpubox.engines.embedded_values import Convert

MAX_VERBOSITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Setter:
    """What one flag sets in CommonParams."""

    targets: tuple[str, ...]
    """Attributes of CommonParams, dotted."""
    convert: Convert | None = None
    """Converts the flag's text to its value; ``None`` for a switch."""
    on: Any = True
    """The value that a switch sets; its negative form sets ``not on``."""
    collect: bool = False
    """Whether several values add up (tensor overrides) instead of replacing each other."""
    then: Callable[[Any, Any, Any], None] | None = None
    """What else to do; called with xllamacpp, the CommonParams and the value."""


def _to(target: str, convert: Convert | None = None, *others: str, on: Any = True) -> Setter:
    return Setter((target, *others), convert, on)


def _plain(flag: str, target: str) -> Setter:
    attribute = target.removeprefix("!") or flag.replace("-", "_")
    return Setter((attribute,), v.by_type, on=not target.startswith("!"))


def _draft(name: str, convert: Convert) -> Setter:
    return _to(f"speculative.draft.{name}", convert)


def _experts(prefix: str, convert: Convert, switch: bool = False) -> Setter:
    # a switch gets an empty text
    return Setter((f"{prefix}tensor_buft_overrides",), convert, on=None if switch else True, collect=True)


def _up_to_1024(name: str, lowest: int = 1) -> Convert:
    return v.bounded(lowest, 1024, f"ngram {name} must be between {lowest} and 1024 inclusive")


def _ngram(kind: str) -> dict[str, Setter]:
    prefix = f"speculative.{kind.replace('-', '_')}"
    return {
        f"spec-{kind}-size-n": _to(f"{prefix}.size_n", _up_to_1024("size N")),
        f"spec-{kind}-size-m": _to(f"{prefix}.size_m", _up_to_1024("size M")),
        f"spec-{kind}-min-hits": _to(f"{prefix}.min_hits", v.bounded(1, error="ngram min hits must be at least 1")),
    }


def _last_n(flag: str) -> Convert:
    return v.bounded(0, error=f"error: invalid {flag} = {{}}\n")


def _set_thinking(xllamacpp: Any, params: Any, value: Any) -> None:
    if value != -1:
        kwargs = {**params.default_template_kwargs, "enable_thinking": "true" if value else "false"}
        params.default_template_kwargs = kwargs


def _set_rank_pooling(xllamacpp: Any, params: Any, value: Any) -> None:
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def _set_explicit_origins(xllamacpp: Any, params: Any, value: Any) -> None:
    params.cors_origins_explicit = True


_LOAD_MODES = {
    "auto": "LLAMA_LOAD_MODE_AUTO", "none": "LLAMA_LOAD_MODE_NONE", "mmap": "LLAMA_LOAD_MODE_MMAP",
    "mlock": "LLAMA_LOAD_MODE_MLOCK", "mmap+mlock": "LLAMA_LOAD_MODE_MMAP_MLOCK", "dio": "LLAMA_LOAD_MODE_DIRECT_IO",
}  # fmt: skip
_REASONING = {
    "none": "COMMON_REASONING_FORMAT_NONE", "auto": "COMMON_REASONING_FORMAT_AUTO",
    "deepseek": "COMMON_REASONING_FORMAT_DEEPSEEK", "deepseek-legacy": "COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY",
}  # fmt: skip


def _named(prefix: str, *names: str) -> Mapping[str, str]:
    return {name: f"{prefix}_{name.upper()}" for name in names}


_PLAIN = """
    threads=cpuparams.n_threads threads-batch=cpuparams_batch.n_threads poll=cpuparams.poll repack=!no_extra_bufts
    no-host op-offload=!no_op_offload kv-offload=!no_kv_offload main-gpu fit-ctx=fit_params_min_ctx check-tensors
    model=model.path ctx-size=n_ctx batch-size=n_batch ubatch-size=n_ubatch n-predict keep=n_keep swa-full
    rope-freq-base rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow yarn-beta-fast
    kv-unified kv-unified-per-slot ctx-checkpoints=n_ctx_checkpoints cache-ram=cache_ram_mib
    cache-reuse=n_cache_reuse cache-prompt cache-idle-slots context-shift=ctx_shift cont-batching warmup
    slot-prompt-similarity mmproj=mmproj.path mmproj-auto=!no_mmproj mmproj-offload=mmproj_use_gpu image-min-tokens
    image-max-tokens embeddings=embedding embd-normalize port reuse-port api-prefix cors-methods cors-headers
    cors-credentials ssl-key-file=ssl_file_key ssl-cert-file=ssl_file_cert path=public_path ui sse-ping-interval
    threads-http=n_threads_http metrics=endpoint_metrics props=endpoint_props slots=endpoint_slots jinja=use_jinja
    chat-template skip-chat-parsing=force_pure_content_parser prefill-assistant log-verbosity=verbosity

    samplers=sampling.samplers ignore-eos=sampling.ignore_eos temp=sampling.temp top-k=sampling.top_k
    top-p=sampling.top_p min-p=sampling.min_p typical-p=sampling.typ_p xtc-probability=sampling.xtc_probability
    xtc-threshold=sampling.xtc_threshold presence-penalty=sampling.penalty_present
    frequency-penalty=sampling.penalty_freq dry-multiplier=sampling.dry_multiplier dry-base=sampling.dry_base
    dry-allowed-length=sampling.dry_allowed_length adaptive-target=sampling.adaptive_target
    adaptive-decay=sampling.adaptive_decay dynatemp-range=sampling.dynatemp_range
    dynatemp-exp=sampling.dynatemp_exponent mirostat=sampling.mirostat mirostat-lr=sampling.mirostat_eta
    mirostat-ent=sampling.mirostat_tau backend-sampling=sampling.backend_sampling
    reasoning-budget-message=sampling.reasoning_budget_message

    spec-draft-model=speculative.draft.mparams.path spec-draft-n-min=speculative.draft.n_min
    spec-draft-p-min=speculative.draft.p_min spec-draft-p-split=speculative.draft.p_split
    spec-draft-backend-sampling=speculative.draft.backend_sampling
    spec-draft-threads=speculative.draft.cpuparams.n_threads
    spec-draft-threads-batch=speculative.draft.cpuparams_batch.n_threads
    lookup-cache-static=speculative.ngram_cache.lookup_cache_static
    lookup-cache-dynamic=speculative.ngram_cache.lookup_cache_dynamic
"""
"""``flag`` or ``flag=attribute``: those that set one attribute to a value of its own type. ``!``: to the opposite."""
FLAGS: dict[str, Setter] = {
    **{flag: _plain(flag, target) for flag, _, target in (word.partition("=") for word in _PLAIN.split())},
    # the machine
    "numa": _to("numa", v.one_of(
        "ggml_numa_strategy", _named("GGML_NUMA_STRATEGY", "distribute", "isolate", "numactl"))),
    "load-mode": _to("load_mode", v.one_of("llama_load_mode", _LOAD_MODES)),
    "lazy-mode": _to("lazy_mode", v.one_of("llama_lazy_mode", _named("LLAMA_LAZY_MODE", "on", "off", "auto"))),
    "n-gpu-layers": _to("n_gpu_layers", v.gpu_layers),
    "cpu-moe": _experts("", v.all_experts, switch=True),
    "n-cpu-moe": _experts("", v.first_experts),
    "override-tensor": _experts("", v.overrides),
    "split-mode": _to("split_mode", v.one_of(
        "llama_split_mode", _named("LLAMA_SPLIT_MODE", "none", "layer", "row", "tensor"))),
    "tensor-split": _to("tensor_split", v.tensor_split),
    "fit": _to("fit_params", v.tri_state("fit", True, False, None)),
    "fit-target": _to("fit_params_target", v.fit_target),
    # the model and its context
    "flash-attn": _to("flash_attn_type", v.tri_state(
        "flash-attn", v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_DISABLED"),
        v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_AUTO"))),
    "cache-type-k": _to("cache_type_k", v.cache_type),
    "cache-type-v": _to("cache_type_v", v.cache_type),
    "rope-scaling": _to("rope_scaling_type", v.one_of(
        "llama_rope_scaling_type", _named("LLAMA_ROPE_SCALING_TYPE", "none", "linear", "yarn"))),
    "parallel": _to("n_parallel", v.except_zero(-(2**31), "error: invalid value for n_parallel\n")),
    "checkpoint-min-step": _to("checkpoint_min_step", v.bounded(0, error="checkpoint-min-step must be non-negative")),
    "sleep-idle-seconds": _to("sleep_idle_seconds", v.except_zero(-1, "invalid value: cannot be 0 or less than -1")),
    # sampling defaults
    "seed": _to("sampling.seed", v.seed),
    "repeat-last-n": _to("sampling.penalty_last_n", _last_n("repeat-last-n")),
    "repeat-penalty": _to("sampling.penalty_repeat", v.repeat_penalty),
    "dry-penalty-last-n": _to("sampling.dry_penalty_last_n", _last_n("dry-penalty-last-n")),
    # speculative decoding
    "spec-type": _to("speculative.types", v.spec_types),
    "spec-draft-n-max": _draft("n_max", v.bounded(0)),
    "spec-draft-sampling": _draft("probabilistic", v.draft_sampling),
    "spec-draft-ngl": _draft("n_gpu_layers", v.gpu_layers),
    "spec-draft-type-k": _draft("cache_type_k", v.cache_type),
    "spec-draft-type-v": _draft("cache_type_v", v.cache_type),
    "spec-draft-override-tensor": _experts("speculative.draft.", v.overrides),
    "spec-draft-cpu-moe": _experts("speculative.draft.", v.all_experts, switch=True),
    "spec-draft-n-cpu-moe": _experts("speculative.draft.", v.first_experts),
    "spec-synth-len": _to("speculative.synth_len", v.synth_length),
    "spec-synth-rates": _to("speculative.synth_rates", v.rates),
    "spec-ngram-mod-n-min": _to("speculative.ngram_mod.n_min", _up_to_1024("n-min", 0)),
    "spec-ngram-mod-n-max": _to("speculative.ngram_mod.n_max", _up_to_1024("n-max", 0)),
    "spec-ngram-mod-n-match": _to("speculative.ngram_mod.n_match", _up_to_1024("size N")),
    **_ngram("ngram-simple"),
    **_ngram("ngram-map-k"),
    **_ngram("ngram-map-k4v"),
    # pictures and embeddings
    "pooling": _to("pooling_type", v.one_of(
        "llama_pooling_type", _named("LLAMA_POOLING_TYPE", "none", "mean", "cls", "last", "rank"))),
    "rerank": Setter(("embedding",), then=_set_rank_pooling),
    # the HTTP server
    "host": _to("hostnames", v.hosts),
    "alias": _to("model_alias", v.word_set),
    "tags": _to("model_tags", v.word_set),
    "api-key": _to("api_keys", v.word_list),
    "api-key-file": _to("api_keys", v.keys_in_file),
    "cors-origins": Setter(("cors_origins",), v.text, then=_set_explicit_origins),
    "timeout": _to("timeout_read", v.integer, "timeout_write"),
    "slot-save-path": _to("slot_save_path", v.directory),
    "media-path": _to("media_path", v.directory),
    # chat
    "chat-template-file": _to("chat_template", v.file_content),
    "chat-template-kwargs": _to("default_template_kwargs", v.template_kwargs),
    "reasoning-format": _to("reasoning_format", v.one_of(
        "common_reasoning_format", _REASONING, "Unknown reasoning format: {}")),
    "reasoning": Setter(("enable_reasoning",), v.tri_state("reasoning", 1, 0, -1), then=_set_thinking),
    "reasoning-budget": _to("sampling.reasoning_budget_tokens", v.bounded(-1)),
    # the log
    "verbose": _to("verbosity", on=MAX_VERBOSITY),
    "log-colors": Setter((), v.log_colors),
}  # fmt: skip
"""Flag (any long spelling) -> what it sets."""
