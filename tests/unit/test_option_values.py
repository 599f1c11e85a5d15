"""The values that llama-server's options take, from the help of a real build."""

from __future__ import annotations

import pytest

from gpubox.engines.capabilities import EngineOption, parse_help
from gpubox.engines.option_values import help_sentence, next_value, option_default, option_kind
from gpubox.profiles.profile import FlagValue
from tests.conftest import HELP

ENGINE = parse_help(HELP.read_text())


def option(name: str) -> EngineOption:
    known = ENGINE.option(name)
    assert known
    return known


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("ctx-size", "number", "0"), ("kv-offload", "switch", "enabled"),
        ("cache-type-k", "choice", "f16"), ("flash-attn", "choice", "auto"), ("reasoning", "choice", "auto"),
        ("split-mode", "choice", "layer"), ("spec-type", "text", "none"), ("override-tensor", "text", ""),
        ("temp", "number", "0.80"), ("poll", "number", "50"), ("cors-methods", "text", "GET"),
    ],
)  # fmt: skip
def test_kind_and_default(name: str, kind: str, default: str) -> None:
    assert (option_kind(option(name)), option_default(option(name))) == (kind, default)


def test_every_option_has_a_kind_and_a_help_without_links() -> None:
    for known in ENGINE.options:
        assert option_kind(known) in ("switch", "choice", "number", "text")
        assert "(env:" not in help_sentence(known) and "](http" not in help_sentence(known)
        assert len(option_default(known)) < 80
        next_value(known, None, 1)
    assert help_sentence(option("ctx-size")) == "size of the prompt context (default: 0, 0 = loaded from model)"


def test_switches_and_choices_go_round() -> None:
    values: list[FlagValue | None] = [None]
    for _ in range(3):
        values.append(next_value(option("kv-offload"), values[-1], 1))
    assert values == [None, False, True, None], "what differs from the default comes first"
    assert next_value(option("metrics"), True, 1) is None, "it has no --no- form"
    assert next_value(option("flash-attn"), None, -1) == "auto"
    assert next_value(option("cache-type-k"), "turbo3", 1) == "f32", "an unknown value leads to the first known one"
    assert next_value(option("cpu-strict"), None, 1) == 0


@pytest.mark.parametrize("value", [1, 127, 128, 160, 4096, 131072, 262144])
def test_counting_up_and_down_again_ends_where_it_began(value: int) -> None:
    up = next_value(option("ctx-size"), value, 1)
    assert isinstance(up, int) and up > value
    assert next_value(option("ctx-size"), up, -1) == value


def test_numbers_start_from_the_default() -> None:
    assert next_value(option("ctx-size"), None, 1) == 8192
    assert next_value(option("batch-size"), None, -1) == 1792
    assert next_value(option("temp"), None, 1) == 0.85
    assert next_value(option("n-gpu-layers"), "all", -1) == "all", "a word has no neighbour"
    assert next_value(option("tensor-split"), "3,1", 1) == "3,1"
