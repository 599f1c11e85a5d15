"""The options in a real --help, and the flags of a profile that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.engines.capabilities import Capabilities, added_flags, find_refusals, parse_help
from gpubox.engines.replaced_flags import advice_for
from gpubox.profiles.profile import FlagValue

HELP = Path(__file__).parents[1] / "fixtures" / "llama-server-b11434.help.txt"


@pytest.fixture(scope="module")
def b11434() -> Capabilities:
    return parse_help(HELP.read_text(encoding="utf-8"), "0.6.0-dev (build 0, commit unknown)")


def test_golden_facts_of_build_11434(b11434: Capabilities) -> None:
    layers = b11434.option("-ngl")
    assert layers is b11434.option("n_gpu_layers") is b11434.option("--gpu-layers")
    assert layers and (layers.long, layers.value, layers.env) == ("n-gpu-layers", "N", "LLAMA_ARG_N_GPU_LAYERS")
    cache = b11434.option("cache-type-k")
    assert cache and cache.allowed == ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
    unified = b11434.option("kv-unified")
    assert unified and unified.value is None and unified.negatives == ("no-kvu", "no-kv-unified")
    load = b11434.option("load-mode")
    assert load and load.allowed == ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
    spec = b11434.option("spec-type")
    assert spec and {"draft-mtp", "ngram-mod"} < set(spec.allowed)
    gone = b11434.option("draft-max")
    assert gone and gone.removed == "use --spec-draft-n-max or --spec-ngram-mod-n-max"
    assert b11434.option("mmap") is None
    assert len(b11434.options) == 256


def test_every_option_line_of_the_help_became_an_option(b11434: Capabilities) -> None:
    heads = [line for line in HELP.read_text().splitlines() if line.startswith("-") and not line.startswith("-----")]
    assert len(heads) == len(b11434.options)
    assert all(option.help for option in b11434.options)


def test_canonical_is_one_spelling_for_all_aliases(b11434: Capabilities) -> None:
    assert {b11434.canonical(n) for n in ("c", "--ctx-size", "ctx_size")} == {"ctx-size"}
    assert b11434.canonical("nkvo") == "no-kv-offload"
    assert b11434.canonical("of-no-engine") == "of-no-engine"


def test_good_flags_are_not_refused(b11434: Capabilities) -> None:
    good: dict[str, FlagValue] = {
        "ctx-size": 4096, "flash-attn": "on", "fa": "1", "jinja": False, "no-slots": True, "metrics": True,
        "spec-type": ("draft-mtp", "ngram-mod"), "tensor-split": (3, 1), "numa": "isolate", "load-mode": "mmap+mlock",
        "override-tensor": ".*=CPU", "n_cpu_moe": 20, "reasoning": "off",
    }  # fmt: skip
    assert find_refusals(b11434, good) == []
    assert find_refusals(b11434, {"metrics": False}) == []


@pytest.mark.parametrize(
    ("flag", "value", "why", "hint"),
    [
        ("no-mmap", True, "has no such flag", 'load-mode = "none"'),
        ("mmap", False, "has no such flag", "load-mode"),
        ("ctx-siz", 1, "has no such flag", "did you mean ctx-size?"),
        ("cache-type-k", "turbo3", "does not accept 'turbo3'", "TurboQuant"),
        ("spec-type", "mtp", "does not accept 'mtp'", "draft-mtp"),
        ("spec-type", ("ngram-mod", "x"), "does not accept 'x'", "allowed: none"),
        ("draft-max", 3, "was removed", "--spec-draft-n-max"),
        ("swa-full", False, "cannot be switched off", "leave it out"),
        ("metrics", "on", "takes no value", "write true"),
        ("ctx-size", True, "needs a value", "N"),
        ("moe-cache-size", 1, "has no such flag", "fork"),
    ],
)
def test_a_bad_flag_is_refused_with_what_to_write(
    b11434: Capabilities, flag: str, value: bool | int | str | tuple[str, ...], why: str, hint: str
) -> None:
    (refusal,) = find_refusals(b11434, {flag: value})
    assert why in refusal.why
    assert hint in refusal.hint
    assert refusal.flag == flag


def test_forks_are_named_as_forks() -> None:
    assert advice_for("cache-type-v", "turbo2")[1]
    assert advice_for("moe-cache-size", None)[1]
    assert not advice_for("no-mmap", None)[1]
    assert advice_for("no-such", None) == ("", False)


def test_defaults_are_added_only_where_the_engine_has_them_and_the_profile_is_silent(b11434: Capabilities) -> None:
    assert added_flags(b11434, {}) == {
        "log-verbosity": 4, "log-colors": "off", "metrics": True, "slots": True, "jinja": True,
    }  # fmt: skip
    assert added_flags(b11434, {"no-slots": True, "lv": 3, "no-jinja": True}) == {
        "log-colors": "off",
        "metrics": True,
    }
    assert "metrics" not in added_flags(b11434, {"metrics": False})
    assert added_flags(b11434, {}, name="coder")["alias"] == "coder"
    assert "alias" not in added_flags(b11434, {"a": "mine"}, name="coder")
    assert "log-verbosity" not in added_flags(b11434, {"verbose": True})
    assert added_flags(parse_help("--metrics    x\n"), {}) == {"metrics": True}


@pytest.mark.parametrize("text", ["", "no options here\n", "-\n--\n---- x\n-----\n", "\x00\xff", "-a" * 5000])
def test_help_of_something_else_is_no_error(text: str) -> None:
    parse_help(text)
