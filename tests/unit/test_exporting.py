"""Export: valid in its format, without secrets, and the same launch after an import."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpubox.errors import UsageError
from gpubox.interchange.exporting import KINDS, export_profile
from gpubox.interchange.importing import import_text
from gpubox.interchange.reference_options import model_arguments
from gpubox.paths import shipped_profiles
from gpubox.profiles.argv import server_argv
from gpubox.profiles.loader import load_profile
from gpubox.profiles.profile import ChatDefaults, Profile

ODD = Profile(
    name="odd",
    model="~/my models/a $b.gguf",
    title='It\'s 100% "odd"',
    description="two\nlines: # {}",
    port=8081,
    env={"CUDA_VISIBLE_DEVICES": "0,1", "GGML_NOTE": "a b %h 5$ 100% \\ \"q\" 'p'", "HF_TOKEN": "hush"},
    flags={
        "override-tensor": r"\.ffn_(up|down)_exps=CPU,blk\.1=CUDA0",
        "load-mode": "none",
        "lora": ("a b.gguf", "c,d.gguf"),
        "override-kv": ("a.b=str:x,y", 'a.c=str:"z"'),
        "dry-sequence-breaker": ("\n", ",", "none"),
        "logit-bias": ("15043+1", "12-2"),
        "control-vector-layer-range": (1, 2),
        "warmup": False,
        "tensor-split": (3, 1.5),
        "reverse-prompt": 'it\'s "$HOME" `x` %h %% \\n ; # ~/x',
        "reasoning-budget-message": "",
        "cache-ram": -1,
        "ctx-size": 4096,
    },
    sampling={"temperature": 0.6},
    chat=ChatDefaults(template_kwargs={"enable_thinking": False}),
)
SHIPPED = [load_profile(path) for path in sorted(shipped_profiles().glob("*.toml"))]
PROFILES = [ODD, *(profile for profile in SHIPPED if not profile.model.startswith("demo:"))]
everybody = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)


def argv_of(profile: Profile) -> list[str]:
    return ["llama-server", *server_argv(profile, model_arguments(profile.model))]


def exported(profile: Profile, kind: str) -> str:
    return export_profile(profile, kind, argv_of(profile))


def options(profile: Profile, *, port: bool = True) -> list[list[str]]:
    """The sorted options of the argv; ``no-warmup`` and ``warmup = false`` are equal."""
    groups: list[list[str]] = []
    for word in argv_of(profile)[1:]:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return sorted(group for group in groups if port or group[0] != "--port")


@everybody
@pytest.mark.parametrize("kind", ["systemd", "sh", "llama-swap"])
def test_what_starts_a_server_comes_back_as_the_same_argv(profile: Profile, kind: str) -> None:
    (imported,) = import_text(exported(profile, kind), name=profile.name)
    again = imported.profile
    fixed = kind != "llama-swap"  # llama-swap chooses the port
    assert options(again, port=fixed) == options(profile, port=fixed)
    assert again.env == {name: value for name, value in profile.env.items() if name != "HF_TOKEN"}
    assert not [note for note in imported.notes if "left out" in note or "resolved" in note]


@everybody
@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_exported(profile: Profile, kind: str) -> None:
    assert "hush" not in exported(profile, kind)


@everybody
def test_the_unit_is_one_and_takes_its_key_from_a_file(profile: Profile) -> None:
    text = exported(profile, "systemd")
    assert "[Install]\nWantedBy=default.target\n" in text
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser["Service"]["EnvironmentFile"].startswith("-%h/")
    assert parser["Service"]["NoNewPrivileges"] == "yes"
    assert parser["Service"]["ExecStart"].startswith("llama-server")


@everybody
def test_the_script_is_one_a_shell_reads_alike(profile: Profile) -> None:
    text = exported(profile, "sh")
    assert text.startswith("#!/bin/sh\n")
    command = text[text.index("exec ") :].replace("\\\n", " ")
    assert shlex.split(command) == ["exec", *argv_of(profile), "$@"]


@everybody
def test_llama_swap_gets_an_entry_with_its_own_port(profile: Profile) -> None:
    (entry,) = yaml.safe_load(exported(profile, "llama-swap"))["models"].values()
    words = shlex.split(entry["cmd"])
    assert words[words.index("--port") + 1] == "${PORT}"
    assert words[0] == "llama-server"


def test_a_line_break_in_a_flag_survives_llama_swap_and_a_unit() -> None:
    profile = Profile("p", "/a.gguf", flags={"chat-template": "{{ a }}\n  {{ b }}\n"})
    for kind in ("llama-swap", "systemd", "sh"):
        (imported,) = import_text(exported(profile, kind))
        assert imported.profile.flags == profile.flags


def test_an_unknown_kind_names_the_known() -> None:
    with pytest.raises(UsageError, match="no export 'ollama'") as error:
        exported(ODD, "ollama")
    assert "llama-swap" in error.value.hint


def test_texts_name_nothing_of_this_machine() -> None:
    for kind in KINDS:
        assert str(Path.home()) not in exported(ODD, kind)


LINES = ("\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\x1b[2K", "\\", "\\\n")


@pytest.mark.parametrize("end", LINES)
@pytest.mark.parametrize("kind", ["systemd", "sh"])
def test_no_text_of_a_profile_becomes_a_line_of_its_own(kind: str, end: str) -> None:
    planted = f"x{end}ExecStartPre=/bin/planted{end}/bin/planted{end}"
    profile = replace(
        ODD, title=planted, description=planted, env={"GGML_NOTE": planted}, flags={"alias": planted}, model=planted
    )
    text = exported(profile, kind)

    if kind == "sh":
        shlex.split(text, comments=True)
        script = text.replace("exec llama-server", "printf %s llama-server")
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert "not found" not in done.stderr and done.returncode == 0
    else:
        starts = re.split(r"[\n\r\0]", text)
        assert not [line for line in starts if line.startswith(("ExecStartPre", "/bin/planted"))]
        joined = [line for line in starts if (len(line) - len(line.rstrip("\\"))) % 2]
        assert all(line.startswith(("ExecStart=", "  ")) for line in joined)
