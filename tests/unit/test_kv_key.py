"""Which launch can take a kept slot state: every row of what was measured with llama-server build 11434."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.engines.capabilities import kept_kv_flag, parse_help
from gpubox.profiles.profile import FlagValue
from gpubox.server.kv_key import KvKey, has_prompt_cache, incompatible, launch_key, model_identity, refusal
from gpubox.server.state import Launch

FOLDER = Path("/cache/kv")
NO_VARIABLES: dict[str, str] = {}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(range(256)) * 4096)
    return path


def key_of(model: Path, *flags: str, env: dict[str, str] | None = None) -> KvKey:
    return launch_key(launch_of(model, *flags), (env or {}).get)


def launch_of(model: Path, *flags: str) -> Launch:
    argv = ("llama-server", "--model", str(model), *flags, "--slot-save-path", str(FOLDER))
    return Launch("p", argv, "127.0.0.1", 1, engine="lab", engine_version="b11434", model_path=str(model))


@pytest.mark.parametrize(
    "flags",
    [
        "-c 4096", "-ub 128", "-np 4 -kvu", "--n-cpu-moe 3", "-ngl 0", "--no-kv-offload", "--spec-type draft-mtp",
        "-fa on", "--flash-attn auto", "-ctk f16 -ctv f16", "--parallel -1", "-b 64 --no-cache-idle-slots",
        "-np 1", "--rope-scaling-other 3", "--temp 0", "--no-context-shift", "--kv-unified", "--no-mmap",
    ],
)  # fmt: skip
def test_what_only_moves_or_resizes_the_cache_is_compatible(model: Path, flags: str) -> None:
    assert incompatible(key_of(model), key_of(model, *flags.split()), 600, 8192) == ""
    assert incompatible(key_of(model, *flags.split()), key_of(model), 600, 8192) == ""


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-ctk q8_0", "K cache f16, now q8_0"),
        ("--cache-type-v bf16", "V cache f16, now bf16"),
        ("-fa off", "flash attention on, now off"),
        ("--flash-attn 0", "flash attention on, now off"),
        ("-np 2", "1 KV streams, now 2"),
        ("-np 4 -kvu --no-kv-unified", "1 KV streams, now 4"),
        ("--rope-freq-base 10000", "rope-freq-base changed"),
        ("--rope-scaling yarn --yarn-orig-ctx 4096", "rope-scaling changed"),
        ("--swa-full", "swa-full changed"),
        ("--override-kv a.b=int:3", "override-kv changed"),
        ("--control-vector v.gguf", "control-vector changed"),
    ],
)
def test_what_changes_the_cache_is_refused_with_its_name(model: Path, flags: str, why: str) -> None:
    assert incompatible(key_of(model), key_of(model, *flags.split())) == why


def test_a_context_that_is_too_small(model: Path) -> None:
    key = key_of(model)

    assert incompatible(key, key, 600, 512) == "600 tokens, and the context holds 512"
    assert incompatible(key, key, 512, 512) == ""
    assert incompatible(key, key, 600, 0) == ""


def test_streams_of_separate_caches_must_be_as_many(model: Path) -> None:
    two, four = key_of(model, "-np", "2"), key_of(model, "-np", "4")

    assert incompatible(two, two) == ""
    assert incompatible(two, four) == "2 KV streams, now 4"


def test_a_model_whose_positions_depend_on_the_context(model: Path) -> None:
    small, large = (launch_key(launch_of(model), NO_VARIABLES.get, context) for context in ("4096", "131072"))

    assert incompatible(small, large) == "ctx-size changed"


def test_another_model_or_engine(model: Path) -> None:
    key = key_of(model)

    assert incompatible(replace(key, model="x"), key) == "another model file"
    assert incompatible(replace(key, engine="lab b11435 "), key) == "another engine build"


def test_the_last_flag_wins_and_an_argument_wins_over_the_environment(model: Path) -> None:
    env = {
        "LLAMA_ARG_CACHE_TYPE_K": "q8_0", "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_FLASH_ATTN": "off",
        "LLAMA_ARG_SWA_FULL": "true", "LLAMA_ARG_KV_UNIFIED": "false",
    }  # fmt: skip

    assert key_of(model, env=env) == replace(
        key_of(model), type_k="q8_0", streams=3, flash_attention=False, contents=("swa-full",)
    )
    assert key_of(model, "-ctk", "f16", "-np", "4", "-np", "1", "-fa", "1", env=env).streams == 1
    assert key_of(model, "-ctk", "q4_0", "-ctk", "f16", env=env).type_k == "f16"


def test_a_model_is_its_bytes_and_not_its_name(model: Path, tmp_path: Path) -> None:
    before = model_identity(model)
    moved = model.rename(tmp_path / "renamed.gguf")
    assert model_identity(moved) == before
    status = moved.stat()
    data = bytearray(moved.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    moved.write_bytes(data)
    os.utime(moved, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copy that keeps the times
    assert model_identity(moved) != before
    with pytest.raises(OSError, match="No such file"):
        model_identity(model)


def test_every_shard_counts(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(b"a")
    second.write_bytes(b"b")
    before = model_identity(first)

    second.write_bytes(b"c")

    assert model_identity(first) != before


@pytest.mark.parametrize(
    ("flags", "env", "why"),
    [
        ("", {}, ""),
        ("--mmproj m.gguf", {}, "mmproj"),
        ("--mmproj m.gguf --no-mmproj", {}, ""),
        ("--context-shift", {}, "context-shift"),
        ("--context-shift --no-context-shift", {}, ""),
        ("", {"LLAMA_ARG_CONTEXT_SHIFT": "1"}, "context-shift"),
        ("--embedding", {}, "embeddings"),
        ("--lora a.gguf", {}, "lora"),
        ("-md d.gguf --spec-type draft-simple", {}, "a draft model"),
        ("--spec-type draft-mtp", {}, ""),
        ("--no-slots", {}, "--no-slots"),
        ("--no-cache-prompt", {}, "--no-cache-prompt"),
        ("--no-slots --slots", {}, ""),
    ],
)
def test_where_it_cannot_help_it_is_off_and_says_why(model: Path, flags: str, env: dict[str, str], why: str) -> None:
    given = refusal(launch_of(model, *flags.split()), FOLDER, env.get)

    assert given.startswith(why) if why else given == ""


def test_a_folder_of_the_profile_itself_is_left_alone(model: Path) -> None:
    assert "of its own" in refusal(launch_of(model), Path("/other"), NO_VARIABLES.get)
    bare = replace(launch_of(model), argv=("llama-server", "--model", str(model)))
    assert "without --slot-save-path" in refusal(bare, FOLDER, NO_VARIABLES.get)
    assert "unknown" in refusal(replace(launch_of(model), model_path=None), FOLDER, NO_VARIABLES.get)


@pytest.mark.parametrize(
    ("flags", "env", "copies"),
    [
        ("", {}, True),
        ("--cache-ram 0", {}, False),
        ("-cram 4096", {}, True),
        ("", {"LLAMA_ARG_CACHE_RAM": "0"}, False),
        ("-cram -1", {"LLAMA_ARG_CACHE_RAM": "0"}, True),
        ("--no-cache-idle-slots", {}, False),
        ("--no-cache-idle-slots --cache-idle-slots", {}, True),
        ("", {"LLAMA_ARG_CACHE_IDLE_SLOTS": "off"}, False),
        ("", {"LLAMA_ARG_CACHE_IDLE_SLOTS": "1"}, True),
        ("--cache-idle-slots", {"LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}, True),
        ("-np 4", {}, True),
    ],
)
def test_whether_idle_slots_are_in_the_prompt_cache_too(flags: str, env: dict[str, str], copies: bool) -> None:
    assert has_prompt_cache(("llama-server", *flags.split()), env.get) is copies


def test_an_engine_with_a_prompt_cache_on_disk_keeps_its_own(model: Path) -> None:
    def flag(help_text: str) -> dict[str, FlagValue]:
        return kept_kv_flag(parse_help(help_text), FOLDER)

    assert flag("--slot-save-path PATH  save slots") == {"slot-save-path": "/cache/kv"}
    assert flag("--cache-disk PATH  prompt cache on disk") == {"cache-disk": "/cache/kv"}
    assert flag("--kv-cache-dir DIR  blocks") == {"kv-cache-dir": "/cache/kv"}
    assert flag("--cache-disk N  MiB") == {"slot-save-path": "/cache/kv"}  # a size, and no folder
    launch = launch_of(model)
    own = replace(launch, argv=(*launch.argv, "--cache-disk", "/cache/kv"))
    assert refusal(own, FOLDER, NO_VARIABLES.get) == "the engine keeps its prompts on disk by itself"
