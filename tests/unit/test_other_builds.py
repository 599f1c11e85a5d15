"""Builds of llama.cpp from b4000 on, and ik_llama.cpp: their options, and what their logs say of memory and speed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.engines.capabilities import find_refusals, parse_help
from gpubox.engines.find import Engine
from gpubox.engines.query import probe_capabilities
from gpubox.errors import UsageError
from gpubox.interchange.given_options import TargetEngine
from gpubox.interchange.profile_draft import draft_from_arguments
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.server.launch import prepare_launch
from gpubox.server.log import count_ended_requests, load_stage
from gpubox.server.log_events import CachedTokens, DeviceBuffer, LogDevice, SlotReleased, TaskLaunched, TimingLine
from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.log_source import LogSource
from gpubox.units import MIB

FIXTURES = Path(__file__).parents[1] / "fixtures"
HELPS = {
    "engines/llama-server-74d73dc": 127, "engines/llama-server-794fe23": 140, "engines/llama-server-8733e0c": 152,
    "engines/llama-server-4227c9b": 176, "engines/llama-server-f49e917": 213, "llama-server-b11434": 256,
    "engines/ik_llama-8337e4c": 286,
}  # fmt: skip
IK_HELP = FIXTURES / "engines" / "ik_llama-8337e4c.help.txt"


def mib(size: float) -> int:
    return round(size * MIB)


def read_log(name: str) -> LogSource:
    return LogSource(FIXTURES / "engines" / name, datetime(2026, 1, 1, tzinfo=UTC), clock=lambda: 1000.0)


# -- options -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HELPS)
def test_every_option_of_the_help_is_read(name: str) -> None:
    text = (FIXTURES / f"{name}.help.txt").read_text(encoding="utf-8")
    options = parse_help(text).options

    assert len(options) == HELPS[name] == len(re.findall(r"^ {0,12}--?[A-Za-z]", text, re.M))
    assert all(option.help for option in options)


@pytest.mark.parametrize("name", HELPS)
@pytest.mark.parametrize("indentation", ["", " ", "  ", "\t", " " * 7, " " * 24])
def test_the_indentation_of_a_help_does_not_matter(name: str, indentation: str) -> None:
    text = (FIXTURES / f"{name}.help.txt").read_text(encoding="utf-8")
    moved = parse_help("".join(indentation + line for line in text.splitlines(keepends=True))).options

    assert [(o.names, o.negatives, o.value, o.env) for o in moved] == [
        (o.names, o.negatives, o.value, o.env) for o in parse_help(text).options
    ]


@pytest.mark.parametrize("name", HELPS)
def test_the_options_that_gpubox_uses_are_known_in_every_build(name: str) -> None:
    capabilities = parse_help((FIXTURES / f"{name}.help.txt").read_text(encoding="utf-8"))

    for option, value in (
        ("--model", "FNAME"), ("-m", "FNAME"), ("--port", "PORT"), ("--host", "HOST"), ("-c", "N"),
        ("--ctx-size", "N"), ("--parallel", "N"), ("--slot-save-path", "PATH"), ("--metrics", None),
        ("--lora", "FNAME"), ("--temp", "N"),
    ):  # fmt: skip
        known = capabilities.option(option)
        assert known, option
        assert (known.value or "").split(",")[0] == (value or "")


def test_ik_llama_cpp_is_a_llama_server(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "version: 4100 (8337e4cd3)" >&2 && exit\ncat "{IK_HELP}"\n'
    )
    program.chmod(0o755)

    capabilities = probe_capabilities(Engine("ik", "llama-server", (str(program),), program))

    assert capabilities.version == "4100 (8337e4cd3)"
    assert len(capabilities.options) > 250
    checkpoints, attention = capabilities.option("ctx-ckpt"), capabilities.option("fa")
    assert checkpoints and (checkpoints.names, checkpoints.value) == (("ctx-ckpt", "ctx-checkpoints"), "N")
    assert attention and attention.allowed == ("auto", "on", "off", "0", "1")
    embeddings = capabilities.option("embeddings")
    assert embeddings is capabilities.option("embedding")


def test_an_engine_that_does_not_read_the_keys_variable_gets_its_file(
    fake_engine: Path, tiny_gguf: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine.write_text(re.sub(r"cat '[^']*'", f"cat '{IK_HELP}'", fake_engine.read_text()))
    config = Config(engines={"ik": str(fake_engine)}, default_engine="ik")
    profile = Profile("open", str(tiny_gguf), host="0.0.0.0", port=0)
    with monkeypatch.context() as patch:
        patch.setenv("LLAMA_API_KEY", "sesame")
        with pytest.raises(UsageError, match="without an API key"):
            prepare_launch(profile, paths, config)
    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o600)

    argv = prepare_launch(profile, paths, config).argv

    assert argv[argv.index("--api-key-file") + 1] == str(paths.api_key_file)
    assert "sesame" not in argv


def test_a_help_written_by_hand_refuses_nothing_that_it_does_not_speak_of() -> None:
    ik = parse_help(IK_HELP.read_text(encoding="utf-8"))

    assert find_refusals(ik, {"mla-use": 3, "run-time-repack": True, "n-gpu-layers": 99, "flash-attn": "on"}) == []
    (refusal,) = find_refusals(ik, {"flash-attn": "maybe"})
    assert "maybe" in refusal.why


def test_an_ik_command_keeps_the_values_that_its_help_has_no_placeholder_for() -> None:
    ik = TargetEngine("ik", parse_help(IK_HELP.read_text(encoding="utf-8")))
    words = "-m /a.gguf -mla 3 -fmoe -amb 512 -rtr -ctk q8_0"
    draft = draft_from_arguments(words.split(), {}, target=ik)

    assert draft.flags == {
        "mla-use": 3, "fused-moe": True, "attention-max-batch": 512, "run-time-repack": True, "cache-type-k": "q8_0",
    }  # fmt: skip


# -- logs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "compute", "kv_per_token", "speeds"),
    [
        ("b4798.log", 98.25, None, [(120.32, 23.73), (44.78, 29.85)]),
        ("b5036.log", 98.25, None, [(11.61, 1.16), (23.20, 5.85)]),
        ("b5671.log", 98.25, mib(45) / 2048, [(11.41, 3.44), (24.47, 9.05)]),
        ("b6301.log", 97.12, mib(45) / 2048, [(126.31, 20.70), (40.36, 23.79)]),
        ("b6900.log", 101.39, mib(45) / 2048, [(50.21, 7.51), (7.42, 1.52)]),
    ],
)
def test_the_log_of_an_older_build(
    name: str, compute: float, kv_per_token: float | None, speeds: list[tuple[float, float]]
) -> None:
    source = read_log(name)

    assert source.breakdown.keys == ["Host"]
    assert source.breakdown.bytes_of("model", "Host") == mib(92.10)
    assert source.breakdown.bytes_of("kv", "Host") == mib(45)
    assert source.breakdown.bytes_of("compute", "Host") == mib(compute)
    assert source.breakdown.kv_bytes_per_token == kv_per_token
    requests = list(reversed(source.requests.finished))
    assert [(r.pp_tokens_per_second, r.tg_tokens_per_second) for r in requests] == speeds
    assert [(r.prompt_tokens, r.cached_tokens, r.generated_tokens) for r in requests] == [(326, 0, 40), (326, 325, 40)]


def test_the_log_of_ik_llama_cpp() -> None:
    source = read_log("ik_llama-8337e4c.log")

    assert source.breakdown.bytes_of("model", "Host") == mib(92.10)
    assert source.breakdown.bytes_of("kv", "Host") == mib(45)
    assert source.breakdown.bytes_of("compute", "Host") == mib(97.13)
    breakdown = source.breakdown
    assert (breakdown.draft_of("Host"), breakdown.kv_bytes_per_token, breakdown.layers) == (None, None, None)
    (request,) = source.requests.finished
    assert (request.prompt_tokens, request.cached_tokens, request.generated_tokens) == (10, 0, 16)
    assert (request.pp_tokens_per_second, request.tg_tokens_per_second) == (274.42, 119.85)
    assert (request.draft_tokens, request.queue_seconds) == (None, None)
    lines = source.path.read_text().splitlines()
    assert "listening" in map(load_stage, lines)
    assert count_ended_requests(source.path, 0, source.path.stat().st_size) == 1


IK = 'tid="140" timestamp=1795410607 id_slot=2 id_task=17'


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("llm_load_tensors:      CUDA0 buffer size = 17904.12 MiB", DeviceBuffer("CUDA0", "model", mib(17904.12))),
        ("llm_load_tensors:  CUDA_Host buffer size =   315.30 MiB", DeviceBuffer("CUDA_Host", "model", mib(315.3))),
        ("llm_load_tensors:  CUDA_Split buffer size =  1.00 MiB", DeviceBuffer("CUDA_Split", "model", mib(1))),
        ("llm_load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
         DeviceBuffer("CPU_Mapped", "model", mib(92.1))),
        ("llama_kv_cache_init:      CUDA0 KV buffer size =   384.00 MiB", DeviceBuffer("CUDA0", "kv", mib(384))),
        ("llama_new_context_with_model:      CUDA0 compute buffer size =   898.02 MiB",
         DeviceBuffer("CUDA0", "compute", mib(898.02))),
        ("llama_load_model_from_file: using device CUDA0 (NVIDIA GeForce RTX 4090) - 23132 MiB free",
         LogDevice("CUDA0", "NVIDIA GeForce RTX 4090", "", None, 23132 * MIB)),
        ("CUDA0: using device CUDA0 - 23132 MiB free", LogDevice("CUDA0", "", "", None, 23132 * MIB)),
        ("\rprompt eval time =    3000.00 ms /  3000 tokens (    1.00 ms per token,  1000.00 tokens per second)",
         TimingLine(-1, -1, "prompt", 3.0, 3000, 1000.0)),
        # ik_llama.cpp of 2025
        ("INFO [           print_timings] prompt eval time     =      36.44 ms /    10 tokens (    3.64 ms per "
         f"token,   274.42 tokens per second) | {IK} t_token=3.64", TimingLine(2, 17, "prompt", 0.03644, 10, 274.42)),
        ("INFO [           print_timings] generation eval time =     133.50 ms /    16 runs   (    8.34 ms per "
         f"token,   119.85 tokens per second) | {IK}", TimingLine(2, 17, "generation", 0.1335, 16, 119.85)),
        (f"INFO [           print_timings]           total time =     169.94 ms | {IK} t_total=169.94",
         TimingLine(2, 17, "total", 0.16994, -1, None)),
        (f"INFO [   launch_slot_with_task] slot is processing task | {IK}", TaskLaunched(2, 17)),
        (f"INFO [            update_slots] kv cache rm [p0, end) | {IK} p0=512", CachedTokens(2, 17, 512)),
        (f"INFO [            update_slots] slot released | {IK} n_ctx=8192 n_past=530 n_system_tokens=0 "
         "n_cache_tokens=530 truncated=true", SlotReleased(2, 17, 530, True)),
    ],
)  # fmt: skip
def test_other_words_for_the_same(line: str, event: object) -> None:
    assert parse_event(line)[1] == event


@pytest.mark.parametrize(
    "quoted",
    ["llm_load_tensors: CUDA0 buffer size = 9.00 MiB", "id 0 | task 0 | stop processing: n_tokens = 1, truncated = 0",
     "all slots are idle", "I srv  llama_server: listening on http://x | tid=\\\"1\\\" id_slot=0 id_task=0"],
)  # fmt: skip
def test_what_a_client_asks_about_is_no_event(quoted: str) -> None:
    line = (
        'INFO [      log_server_request] request | tid="1" timestamp=2 remote_addr="127.0.0.1" status=200 '
        f'method="POST" path="/v1/chat/completions" params={{"{{\\"content\\":\\" {quoted} "}}'
    )

    assert parse_event(line)[1] is None


def test_a_second_model_of_ik_llama_cpp_is_the_draft(tmp_path: Path) -> None:
    log = tmp_path / "ik.log"
    one = "llm_load_tensors: ggml ctx size =    0.14 MiB\nllm_load_tensors:      CUDA0 buffer size = {} MiB\n"
    kv = "llama_kv_cache_init:      CUDA0 KV buffer size = {} MiB\n"
    log.write_text(one.format(1000) + kv.format(64) + one.format(100) + kv.format(8))

    breakdown = LogSource(log, datetime(2026, 1, 1, tzinfo=UTC)).breakdown

    assert breakdown.weights_of("CUDA0") == mib(1000)
    assert breakdown.bytes_of("kv", "CUDA0") == mib(64)
    assert breakdown.draft_of("CUDA0") == mib(108)
