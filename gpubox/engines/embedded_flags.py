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
    config_bit: str = ""
    """The bit that gives the flag precedence over the model's own sampling default."""
    collect: bool = False
    """Whether several values add up (tensor overrides) instead of replacing each other."""
    then: Callable[[Any, Any, Any], None] | None = None
    """What else to do; called with xllamacpp, the CommonParams and the value."""


def _to(target: str, convert: Convert | None = None, *others: str, on: Any = True) -> Setter:
    return Setter((target, *others), convert, on)


def _sampling(name: str, convert: Convert = v.number, bit: str = "") -> Setter:
    return Setter((f"sampling.{name}",), convert, config_bit=f"COMMON_PARAMS_SAMPLING_CONFIG_{bit}" if bit else "")


def _draft(name: str, convert: Convert | None = None) -> Setter:
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


FLAGS: dict[str, Setter] = {
    # the machine
    "threads": _to("cpuparams.n_threads", v.integer),
    "threads-batch": _to("cpuparams_batch.n_threads", v.integer),
    "poll": _to("cpuparams.poll", v.integer),
    "numa": _to("numa", v.one_of(
        "ggml_numa_strategy", _named("GGML_NUMA_STRATEGY", "distribute", "isolate", "numactl"))),
    "load-mode": _to("load_mode", v.one_of("llama_load_mode", _LOAD_MODES)),
    "lazy-mode": _to("lazy_mode", v.one_of("llama_lazy_mode", _named("LLAMA_LAZY_MODE", "on", "off", "auto"))),
    "repack": _to("no_extra_bufts", on=False),
    "no-host": _to("no_host"),
    "op-offload": _to("no_op_offload", on=False),
    "kv-offload": _to("no_kv_offload", on=False),
    "n-gpu-layers": _to("n_gpu_layers", v.gpu_layers),
    "cpu-moe": _experts("", v.all_experts, switch=True),
    "n-cpu-moe": _experts("", v.first_experts),
    "override-tensor": _experts("", v.overrides),
    "split-mode": _to("split_mode", v.one_of(
        "llama_split_mode", _named("LLAMA_SPLIT_MODE", "none", "layer", "row", "tensor"))),
    "tensor-split": _to("tensor_split", v.tensor_split),
    "main-gpu": _to("main_gpu", v.integer),
    "fit": _to("fit_params", v.tri_state("fit", True, False, None)),
    "fit-target": _to("fit_params_target", v.fit_target),
    "fit-ctx": _to("fit_params_min_ctx", v.integer),
    "check-tensors": _to("check_tensors"),
    # the model and its context
    "model": _to("model.path", v.text),
    "ctx-size": _to("n_ctx", v.integer),
    "batch-size": _to("n_batch", v.integer),
    "ubatch-size": _to("n_ubatch", v.integer),
    "n-predict": _to("n_predict", v.integer),
    "keep": _to("n_keep", v.integer),
    "swa-full": _to("swa_full"),
    "flash-attn": _to("flash_attn_type", v.tri_state(
        "flash-attn", v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_DISABLED"),
        v.enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_AUTO"))),
    "cache-type-k": _to("cache_type_k", v.cache_type),
    "cache-type-v": _to("cache_type_v", v.cache_type),
    "rope-scaling": _to("rope_scaling_type", v.one_of(
        "llama_rope_scaling_type", _named("LLAMA_ROPE_SCALING_TYPE", "none", "linear", "yarn"))),
    "rope-freq-base": _to("rope_freq_base", v.number),
    "rope-freq-scale": _to("rope_freq_scale", v.number),
    "yarn-orig-ctx": _to("yarn_orig_ctx", v.integer),
    "yarn-ext-factor": _to("yarn_ext_factor", v.number),
    "yarn-attn-factor": _to("yarn_attn_factor", v.number),
    "yarn-beta-slow": _to("yarn_beta_slow", v.number),
    "yarn-beta-fast": _to("yarn_beta_fast", v.number),
    "parallel": _to("n_parallel", v.except_zero(-(2**31), "error: invalid value for n_parallel\n")),
    "kv-unified": _to("kv_unified"),
    "kv-unified-per-slot": _to("kv_unified_per_slot", v.integer),
    "ctx-checkpoints": _to("n_ctx_checkpoints", v.integer),
    "checkpoint-min-step": _to("checkpoint_min_step", v.bounded(0, error="checkpoint-min-step must be non-negative")),
    "cache-ram": _to("cache_ram_mib", v.integer),
    "cache-reuse": _to("n_cache_reuse", v.integer),
    "cache-prompt": _to("cache_prompt"),
    "cache-idle-slots": _to("cache_idle_slots"),
    "context-shift": _to("ctx_shift"),
    "cont-batching": _to("cont_batching"),
    "warmup": _to("warmup"),
    "slot-prompt-similarity": _to("slot_prompt_similarity", v.number),
    "sleep-idle-seconds": _to("sleep_idle_seconds", v.except_zero(-1, "invalid value: cannot be 0 or less than -1")),
    # sampling defaults
    "samplers": _sampling("samplers", v.text, "SAMPLERS"),
    "seed": _sampling("seed", v.seed),
    "ignore-eos": _to("sampling.ignore_eos"),
    "temp": _sampling("temp", bit="TEMP"),
    "top-k": _sampling("top_k", v.integer, "TOP_K"),
    "top-p": _sampling("top_p", bit="TOP_P"),
    "min-p": _sampling("min_p", bit="MIN_P"),
    "typical-p": _sampling("typ_p"),
    "xtc-probability": _sampling("xtc_probability", bit="XTC_PROBABILITY"),
    "xtc-threshold": _sampling("xtc_threshold", bit="XTC_THRESHOLD"),
    "repeat-last-n": _sampling("penalty_last_n", _last_n("repeat-last-n"), "PENALTY_LAST_N"),
    "repeat-penalty": _sampling("penalty_repeat", v.repeat_penalty, "PENALTY_REPEAT"),
    "presence-penalty": _sampling("penalty_present"),
    "frequency-penalty": _sampling("penalty_freq"),
    "dry-multiplier": _sampling("dry_multiplier"),
    "dry-base": _sampling("dry_base"),
    "dry-allowed-length": _sampling("dry_allowed_length", v.integer),
    "dry-penalty-last-n": _sampling("dry_penalty_last_n", _last_n("dry-penalty-last-n")),
    "adaptive-target": _sampling("adaptive_target"),
    "adaptive-decay": _sampling("adaptive_decay"),
    "dynatemp-range": _sampling("dynatemp_range"),
    "dynatemp-exp": _sampling("dynatemp_exponent"),
    "mirostat": _sampling("mirostat", v.integer, "MIROSTAT"),
    "mirostat-lr": _sampling("mirostat_eta", bit="MIROSTAT_ETA"),
    "mirostat-ent": _sampling("mirostat_tau", bit="MIROSTAT_TAU"),
    "backend-sampling": _to("sampling.backend_sampling"),
    # speculative decoding
    "spec-type": _to("speculative.types", v.spec_types),
    "spec-draft-model": _draft("mparams.path", v.text),
    "spec-draft-n-max": _draft("n_max", v.bounded(0)),
    "spec-draft-n-min": _draft("n_min", v.integer),
    "spec-draft-p-min": _draft("p_min", v.number),
    "spec-draft-p-split": _draft("p_split", v.number),
    "spec-draft-sampling": _draft("probabilistic", v.draft_sampling),
    "spec-draft-backend-sampling": _draft("backend_sampling"),
    "spec-draft-ngl": _draft("n_gpu_layers", v.gpu_layers),
    "spec-draft-type-k": _draft("cache_type_k", v.cache_type),
    "spec-draft-type-v": _draft("cache_type_v", v.cache_type),
    "spec-draft-threads": _draft("cpuparams.n_threads", v.integer),
    "spec-draft-threads-batch": _draft("cpuparams_batch.n_threads", v.integer),
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
    "lookup-cache-static": _to("speculative.ngram_cache.lookup_cache_static", v.text),
    "lookup-cache-dynamic": _to("speculative.ngram_cache.lookup_cache_dynamic", v.text),
    # pictures and embeddings
    "mmproj": _to("mmproj.path", v.text),
    "mmproj-auto": _to("no_mmproj", on=False),
    "mmproj-offload": _to("mmproj_use_gpu"),
    "image-min-tokens": _to("image_min_tokens", v.integer),
    "image-max-tokens": _to("image_max_tokens", v.integer),
    "embeddings": _to("embedding"),
    "pooling": _to("pooling_type", v.one_of(
        "llama_pooling_type", _named("LLAMA_POOLING_TYPE", "none", "mean", "cls", "last", "rank"))),
    "rerank": Setter(("embedding",), then=_set_rank_pooling),
    "embd-normalize": _to("embd_normalize", v.integer),
    # the HTTP server
    "host": _to("hostnames", v.hosts),
    "port": _to("port", v.integer),
    "reuse-port": _to("reuse_port"),
    "alias": _to("model_alias", v.word_set),
    "tags": _to("model_tags", v.word_set),
    "api-key": _to("api_keys", v.word_list),
    "api-key-file": _to("api_keys", v.keys_in_file),
    "api-prefix": _to("api_prefix", v.text),
    "cors-origins": Setter(("cors_origins",), v.text, then=_set_explicit_origins),
    "cors-methods": _to("cors_methods", v.text),
    "cors-headers": _to("cors_headers", v.text),
    "cors-credentials": _to("cors_credentials"),
    "ssl-key-file": _to("ssl_file_key", v.text),
    "ssl-cert-file": _to("ssl_file_cert", v.text),
    "path": _to("public_path", v.text),
    "ui": _to("ui"),
    "timeout": _to("timeout_read", v.integer, "timeout_write"),
    "sse-ping-interval": _to("sse_ping_interval", v.integer),
    "threads-http": _to("n_threads_http", v.integer),
    "metrics": _to("endpoint_metrics"),
    "props": _to("endpoint_props"),
    "slots": _to("endpoint_slots"),
    "slot-save-path": _to("slot_save_path", v.directory),
    "media-path": _to("media_path", v.directory),
    # chat
    "jinja": _to("use_jinja"),
    "chat-template": _to("chat_template", v.text),
    "chat-template-file": _to("chat_template", v.file_content),
    "chat-template-kwargs": _to("default_template_kwargs", v.template_kwargs),
    "skip-chat-parsing": _to("force_pure_content_parser"),
    "prefill-assistant": _to("prefill_assistant"),
    "reasoning-format": _to("reasoning_format", v.one_of(
        "common_reasoning_format", _REASONING, "Unknown reasoning format: {}")),
    "reasoning": Setter(("enable_reasoning",), v.tri_state("reasoning", 1, 0, -1), then=_set_thinking),
    "reasoning-budget": _to("sampling.reasoning_budget_tokens", v.bounded(-1)),
    "reasoning-budget-message": _to("sampling.reasoning_budget_message", v.text),
    # the log
    "log-verbosity": _to("verbosity", v.integer),
    "verbose": _to("verbosity", on=MAX_VERBOSITY),
    "log-colors": Setter((), v.log_colors),
}  # fmt: skip
"""Flag (any long spelling) -> what it sets."""
