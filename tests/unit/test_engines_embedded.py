"""The embedded engine's flags, without loading a model."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpubox.engines.capabilities import parse_help
from gpubox.engines.embedded_flags import FLAGS
from gpubox.engines.embedded_server import ArgumentReader, RefusedError, main, read_flags

FIXTURE = Path(__file__).parents[1] / "fixtures" / "llama-server-b11434.help.txt"
OWN = Path(sys.modules[main.__module__].__file__ or "").with_name("embedded_help.txt")


def parsed(*argv: str):  # type: ignore[no-untyped-def]
    parser = ArgumentReader(pytest.importorskip("xllamacpp"))
    parser.read_arguments(argv)
    return parser.params


def test_its_help_is_llama_servers_own_and_lists_exactly_what_it_honours() -> None:
    theirs = {o.long: o for o in parse_help(FIXTURE.read_text()).options}
    mine = parse_help(OWN.read_text()).options
    assert all(theirs[option.long] == option for option in mine)
    flags = read_flags()
    assert {o.long for o in mine if flags[f"--{o.long}"].setter is None} == {
        "help",
        "usage",
        "version",
        "list-devices",
    } & {o.long for o in mine}
    assert len({id(f) for f in flags.values() if f.setter}) == len(FLAGS)


def test_switches_are_negated_by_the_names_the_help_gives() -> None:
    flags = read_flags()
    for option in parse_help(OWN.read_text()).options:
        negatives = {name.lstrip("-") for name in flags[f"--{option.long}"].negatives}
        assert negatives == set(option.negatives)


def test_flags_reach_the_parameters() -> None:
    params = parsed(
        "-m", "/m.gguf", "-c", "4096", "--n_gpu_layers", "all", "-ctk", "q8_0", "-fa", "on", "--no-slots", "--metrics",
        "-np", "2", "--port", "1", "--alias", "a,b", "--temp", "0.25", "--seed", "-1", "-ncmoe", "2", "-ot", "x=CPU",
        "--spec-type", "draft-mtp,ngram-mod", "--spec-draft-n-max", "5", "--chat-template-kwargs", '{"a": true}',
        "--reasoning", "off", "-fitt", "512", "--kv-unified", "-nkvo",
    )  # fmt: skip
    assert (params.model.path, params.n_ctx, params.n_gpu_layers, params.n_parallel, params.port) == (
        "/m.gguf", 4096, -2, 2, 1,
    )  # fmt: skip
    assert params.cache_type_k.name == "GGML_TYPE_Q8_0"
    assert params.flash_attn_type.name == "LLAMA_FLASH_ATTN_TYPE_ENABLED"
    assert (params.endpoint_slots, params.endpoint_metrics, params.kv_unified, params.no_kv_offload) == (
        False, True, True, True,
    )  # fmt: skip
    assert params.model_alias == {"a", "b"}
    assert params.sampling.temp == 0.25
    assert params.sampling.user_sampling_config == 64  # a model's own default must not win over --temp
    assert params.sampling.seed == 0xFFFFFFFF
    assert params.tensor_buft_overrides.split(",") == [
        r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
        r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
        "x=CPU",
    ]
    assert [t.name for t in params.speculative.types] == [
        "COMMON_SPECULATIVE_TYPE_DRAFT_MTP",
        "COMMON_SPECULATIVE_TYPE_NGRAM_MOD",
    ]
    assert params.speculative.draft.n_max == 5
    assert params.default_template_kwargs == {"a": "true", "enable_thinking": "false"}
    assert set(params.fit_params_target) == {512 * 1024 * 1024}


def test_unset_means_what_it_means_to_llama_server() -> None:
    params = parsed()
    assert (params.n_parallel, params.port, params.n_gpu_layers) == (-1, 8080, -1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--spec-type", "mtp"], 'error while handling argument "--spec-type": unknown speculative type: mtp'),
        (["--no-mmap"], "error: invalid argument: --no-mmap"),
        (["--ctx-size=4096"], "error: invalid argument: --ctx-size=4096"),
        (["-c", "abc"], 'error while handling argument "-c": stoi'),
        (["--lora", "x"], "error: invalid argument: --lora"),
        (["-np", "0"], 'error while handling argument "-np": error: invalid value for n_parallel'),
        (["-ot", "a=NOPE"], 'error while handling argument "-ot": unknown buffer type'),
        (["--slot-save-path", "/nope"], 'error while handling argument "--slot-save-path": not a directory: /nope'),
    ],
)
def test_refusals_are_llama_servers_words(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert main([*argv, "--version"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == message


def test_a_value_that_is_missing() -> None:
    with pytest.raises(RefusedError, match="expected value for argument"):
        parsed("-c")


def test_version_ends_the_reading(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    assert main(["-c", "1", "--version", "--nonsense"]) == 0
    assert re.match(r"version: xllamacpp [\d.]+ \(build \d+, commit \w+\)", capsys.readouterr().err)


def test_the_environment_comes_before_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ArgumentReader(pytest.importorskip("xllamacpp"))
    parser.read_environment({"LLAMA_API_KEY": "k1,k2", "LLAMA_ARG_CTX_SIZE": "99", "LLAMA_ARG_ENDPOINT_METRICS": "1"})
    parser.read_arguments(["-c", "11"])
    assert parser.params.api_keys == ["k1", "k2"]
    assert parser.params.n_ctx == 11
    assert parser.params.endpoint_metrics
    with pytest.raises(RefusedError, match='environment variable "LLAMA_ARG_BATCH": stoi'):
        parser.read_environment({"LLAMA_ARG_BATCH": "x"})


def test_without_xllamacpp_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert main(["--port", "1"]) == 1
    assert capsys.readouterr().err == ("error: xllamacpp is not installed; run: pip install 'gpubox[embedded]'\n")
    assert main(["--help"]) == 0
