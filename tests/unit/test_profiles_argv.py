"""Profile -> the arguments of llama-server."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from gpubox.profiles.argv import command_line, flag_argv, redacted_env, server_argv
from gpubox.profiles.profile import SAMPLING_FLAGS, ChatDefaults, Profile

MODEL = ["--model", "/m.gguf"]
HEAD = [*MODEL, "--host", "127.0.0.1", "--port", "8080"]


def argv(**fields: Any) -> list[str]:
    return server_argv(Profile("p", "m", **fields), MODEL)


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("ctx-size", 4096, ["--ctx-size", "4096"]),
        ("metrics", True, ["--metrics"]),
        ("jinja", False, ["--no-jinja"]),
        ("no-mmap", True, ["--no-mmap"]),
        ("no-mmap", False, ["--mmap"]),
        ("temp", 0.7, ["--temp", "0.7"]),
        ("temp", 1.0, ["--temp", "1"]),
        ("temp", 0.0, ["--temp", "0"]),
        ("n-predict", 0, ["--n-predict", "0"]),
        ("seed", -1, ["--seed", "-1"]),
        ("seed", 2**32, ["--seed", "4294967296"]),
        ("alias", "", ["--alias", ""]),
        ("tensor-split", (3, 1.5, 2.0), ["--tensor-split", "3,1.5,2"]),
        ("device", ("CUDA0",), ["--device", "CUDA0"]),
        ("alias", "two words", ["--alias", "two words"]),
    ],
)
def test_one_flag(name: str, value: Any, arguments: list[str]) -> None:
    assert flag_argv(name, value) == arguments


def test_one_and_zero_are_numbers_not_switches() -> None:
    assert flag_argv("flash-attn", 1) == ["--flash-attn", "1"]
    assert flag_argv("flash-attn", 0) == ["--flash-attn", "0"]


def test_model_and_address_come_first_and_flags_stay_in_the_profiles_order() -> None:
    assert argv(flags={"z": 1, "a": True}) == [*HEAD, "--z", "1", "--a"]


def test_metrics_that_are_not_wanted_are_not_asked_for() -> None:
    assert argv(flags={"metrics": False, "slots": False}) == [*HEAD, "--no-slots"]  # there is no --no-metrics


def test_the_port_really_used_replaces_the_profiles() -> None:
    assert server_argv(Profile("p", "m", port=0), MODEL, port=40123)[-1] == "40123"


def test_sampling_becomes_the_servers_defaults_under_its_own_names() -> None:
    sampling = {key: 0.5 for key in SAMPLING_FLAGS}

    arguments = argv(sampling=sampling)[len(HEAD) :]

    assert arguments == [w for flag in SAMPLING_FLAGS.values() for w in (f"--{flag}", "0.5")]


def test_whole_sampling_numbers_stay_whole() -> None:
    assert argv(sampling={"top_k": 20.0})[-2:] == ["--top-k", "20"]


def test_a_flag_beats_the_sampling_of_the_same_name() -> None:
    assert argv(flags={"temp": 0.2}, sampling={"temperature": 1.0}) == [*HEAD, "--temp", "0.2"]


def test_template_kwargs_are_json_and_a_flag_beats_them() -> None:
    chat = ChatDefaults(template_kwargs={"enable_thinking": False, "effort": "low"})

    arguments = argv(chat=chat)

    assert arguments[-2] == "--chat-template-kwargs"
    assert json.loads(arguments[-1]) == {"enable_thinking": False, "effort": "low"}
    assert argv(chat=chat, flags={"chat-template-kwargs": "{}"}) == [*HEAD, "--chat-template-kwargs", "{}"]


def test_defaults_come_last() -> None:
    arguments = server_argv(Profile("p", "m", flags={"a": True}), MODEL, defaults={"metrics": True, "log-verbosity": 4})

    assert arguments == [*HEAD, "--a", "--metrics", "--log-verbosity", "4"]


def test_the_command_line_pastes_back_into_the_same_words() -> None:
    arguments = [
        "/opt/my engine/llama-server",
        "--alias",
        "it's $HOME",
        "--chat-template-kwargs",
        '{"a": "b c"}',
        "--x",
        "",
    ]

    line = command_line(arguments, {"CUDA_VISIBLE_DEVICES": "0,1", "X": "a b"})

    assert line.startswith("CUDA_VISIBLE_DEVICES=0,1 X='a b' '/opt/my engine/llama-server'")
    assert shlex.split(line)[2:] == arguments


def test_secrets_are_redacted() -> None:
    env = {"HF_TOKEN": "x", "DB_PASSWD": "x", "My_Key": "x", "CUDA_VISIBLE_DEVICES": "0"}
    assert redacted_env(env) == {"HF_TOKEN": "***", "DB_PASSWD": "***", "My_Key": "***", "CUDA_VISIBLE_DEVICES": "0"}
