"""Import: foreign files become profiles; nothing in them is run, and omitted lines are noted."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.conversion import ImportSource
from gpubox.interchange.importing import import_text
from gpubox.interchange.profile_draft import ImportedProfile
from gpubox.interchange.reference_options import long_name, long_names, reference_options
from gpubox.profiles.profile import FlagValue, RequestChanges


def import_one(text: str, *, name: str | None = None, file: str = "") -> ImportedProfile:
    (imported,) = import_text(text, name=name, file=file)
    return imported


def flags(text: str) -> dict[str, FlagValue]:
    return dict(import_one(text).profile.flags)


def noted(imported: ImportedProfile, *words: str) -> bool:
    return any(all(word in note for word in words) for note in imported.notes)


# --- the words of a command line


def test_shorts_take_their_long_name_and_long_ones_stay_as_typed() -> None:
    assert flags("llama-server -m a.gguf -c 4096 -ngl 99 --gpu-layers-draft 5 -nkvo -nr -np 2 --n_predict 5") == {
        "ctx-size": 4096, "n-gpu-layers": 99, "gpu-layers-draft": 5, "no-kv-offload": True, "no-repack": True,
        "parallel": 2, "n-predict": 5,
    }  # fmt: skip


def test_every_short_option_of_the_recorded_build_has_a_long_name() -> None:
    shorts = {name for name in reference_options().by_name if name not in long_names()}
    assert len(shorts) > 50
    assert all(long_name(short) in long_names() for short in shorts)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--reasoning-budget -1", {"reasoning-budget": -1}),
        ("--yarn-ext-factor -0.5", {"yarn-ext-factor": -0.5}),
        ("--new-fork-flag -1 --metrics", {"new-fork-flag": -1, "metrics": True}),
        ("--new-fork-switch --other value", {"new-fork-switch": True, "other": "value"}),
        ("--ctx-size=8192", {"ctx-size": 8192}),
        ("–ctx-size 8192", {"ctx-size": 8192}),
        ("--rope-scale 1.0 --prio 01", {"rope-scale": "1.0", "prio": "01"}),  # as typed: numbers would change them
        ("-ot '\\.ffn_.*=CPU,blk\\.1=CUDA0'", {"override-tensor": "\\.ffn_.*=CPU,blk\\.1=CUDA0"}),
        ("-r --foo -c 1", {"reverse-prompt": True, "ctx-size": 1, "foo": True}),
        (
            "-r -foo -c 1",
            {"reverse-prompt": "-foo", "ctx-size": 1},
        ),  # as in llama-server: a word that is no option is a value
        ("--chat-template-kwargs '{\"a\": {}}'", {"chat-template-kwargs": '{"a": {}}'}),
        ("-xyz 1", {"xyz": 1}),
    ],
)
def test_values(words: str, expected: dict[str, object]) -> None:
    assert flags(f"llama-server -m a.gguf {words}") == expected


def test_where_the_server_is_reached_and_its_model_go_to_the_top() -> None:
    profile = import_one("llama-server -hf user/repo:Q4_K_M --host ::1 --port 9000").profile
    assert (profile.model, profile.host, profile.port, profile.flags) == ("hf:user/repo:Q4_K_M", "::1", 9000, {})
    assert profile.name == "repo-q4_k_m"


def test_sampling_and_template_kwargs_have_tables_of_their_own() -> None:
    profile = import_one(
        "llama-server -m a.gguf --temp 0.60 --top-k 20 --seed -1 --chat-template-kwargs '{\"enable_thinking\":false}'"
    ).profile
    assert dict(profile.sampling) == {"temperature": 0.6, "top_k": 20, "seed": -1}
    assert dict(profile.chat.template_kwargs) == {"enable_thinking": False}
    assert not profile.flags


def test_the_last_of_a_repeated_option_counts_and_is_noted() -> None:
    imported = import_one(
        "llama-server -m a.gguf -m b.gguf -c 1 --ctx-size 2 --temp 1 --temperature 0 -ot a=CPU -ot b=CPU"
    )
    assert dict(imported.profile.flags) == {"ctx-size": 2, "override-tensor": ("a=CPU", "b=CPU")}
    assert (imported.profile.model, dict(imported.profile.sampling)) == ("b.gguf", {"temperature": 0})
    for words in [("--ctx-size", "more than once", "2", "1 was dropped"), ("a.gguf was dropped",), ("--temp", "1 was")]:
        assert noted(imported, *words)
    assert len(imported.notes) == 3


def test_secrets_stay_out_and_are_never_repeated() -> None:
    imported = import_one(
        "HF_TOKEN=hush LLAMA_API_KEY=hush llama-server -m a.gguf --api-key hush -hft hush --api-key-file k"
    )
    assert dict(imported.profile.flags) == {}
    assert imported.profile.env == {}
    assert noted(imported, "--api-key-file k", "left out", "api-key file")
    assert noted(imported, "--api-key", "LLAMA_API_KEY")
    assert noted(imported, "HF_TOKEN")
    assert "hush" not in str(imported)


def test_what_cannot_be_carried_is_said() -> None:
    imported = import_one("llama-server -m a.gguf stray --control-vector-layer-range 1 2 --draft-max 8 -hf u/r -fa")
    assert dict(imported.profile.flags) == {
        "control-vector-layer-range": (1, 2), "spec-draft-n-max": 8, "flash-attn": "on",
    }  # fmt: skip
    for words in [("stray", "no option"), ("draft-max", "spec-draft-n-max"), ("two models", "u/r"),
                  ("-fa without a value", "--flash-attn on")]:  # fmt: skip
        assert noted(imported, *words), words


def test_the_engine_is_a_hint_unless_it_is_a_known_one() -> None:
    text = "CUDA_VISIBLE_DEVICES=0 ~/llama.cpp/build/bin/llama-server -m /a.gguf"
    imported = import_one(text)
    assert imported.profile.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (imported.profile.engine, len(imported.notes)) == ("", 1)
    assert noted(imported, "~/llama.cpp/build/bin/llama-server", "[engines]")
    (known,) = import_text(text, known=ImportSource(engines={"mine": "~/llama.cpp/build/bin/llama-server"}))
    assert (known.profile.engine, known.notes) == ("mine", ())


def test_variables_of_llama_server_itself_are_its_options() -> None:
    imported = import_one(
        "LLAMA_ARG_CTX_SIZE=1 LLAMA_ARG_PORT=9 LLAMA_ARG_MODEL=a.gguf LLAMA_ARG_MLOCK=1 LLAMA_ARG_NO_KV_OFFLOAD=x"
        " LLAMA_ARG_DRAFT_MAX=7 LLAMA_ARG_FUTURE=x llama-server"
    )
    profile = imported.profile
    assert (profile.model, profile.port) == ("a.gguf", 9)
    assert dict(profile.flags) == {
        "ctx-size": 1, "load-mode": "mmap+mlock", "no-kv-offload": True, "spec-draft-n-max": 7,
    }  # fmt: skip
    assert profile.env == {"LLAMA_ARG_FUTURE": "x"}  # unknown in this build: left to the engine
    assert noted(imported, "LLAMA_ARG_FUTURE", "no such variable")


@pytest.mark.parametrize(
    "text",
    [
        "nohup taskset -c 0-7 ./llama-server -m a.gguf > out.log 2>&1 &",
        "sudo -E env A=1 llama-server -m a.gguf",
        "$ llama-server -m a.gguf",
        "```bash\nllama-server -m a.gguf\n```",
        "cd ~/llama.cpp && ./build/bin/llama-server -m a.gguf",
        "llama serve -m a.gguf",
        "./server -m a.gguf",
        "docker run --rm --gpus all -v ~/m:/m -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda -m a.gguf",
        "docker run --name llama-server ghcr.io/ggml-org/llama.cpp:full-cuda --server -m a.gguf",
        "ssh box bash -lc 'exec llama-server -m a.gguf'",
        "pkill llama-server; sleep 1; llama-server -m a.gguf; systemctl status llama-server",
        "python -m gpubox.engines.embedded_server -m a.gguf",
        "llama-server -m a.gguf\nllama-server -m a.gguf",
        "numactl --interleave=all llama-server -m a.gguf",
        "numactl --localalloc llama-server -m a.gguf",
        "systemd-run --user --scope llama-server -m a.gguf",
        'tmux new -d "llama-server -m a.gguf"',
        "tmux new-session -d -s llm 'cd ~/llama.cpp && ./build/bin/llama-server -m a.gguf'",
        'tmux send-keys -t llm "llama-server -m a.gguf" Enter',
        "ssh box 'llama-server -m a.gguf'",
        "sudo su - llm -c 'llama-server -m a.gguf'",
        "M=a.gguf bash -c 'llama-server -m $M'",
        'start "llama" /min cmd /k "cd /d C:\\llama && llama-server.exe -m a.gguf"',
        "I use:\n\n```bash\nllama-server -m a.gguf\n```\nand it works",
    ],
)
def test_the_server_is_found_behind_what_stands_before_it(text: str) -> None:
    assert import_one(text).profile.model == "a.gguf"


def test_a_container_keeps_its_own_environment() -> None:
    imported = import_one("A=1 docker run -e B=2 --env=LLAMA_ARG_CTX_SIZE=8 ghcr.io/x/llama.cpp:server -m /m/a.gguf")
    assert (imported.profile.env, dict(imported.profile.flags)) == ({"B": "2"}, {"ctx-size": 8})
    assert noted(imported, "container")


@pytest.mark.parametrize(
    "text",
    ["", "hello world", "ollama run qwen", "systemctl restart llama-server", "vllm serve x", "# llama-server -m a",
     "docker run --name llama-server -p 8080:8080 some/image", "notify-send 'llama-server is up'",
     "cmake --build build --target llama-server -j", "echo 'llama-server -m a.gguf'"],
)  # fmt: skip
def test_what_starts_no_server_is_an_error_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match="nothing here that starts llama-server") as error:
        import_text(text)
    assert "llama-swap" in error.value.hint


# --- scripts


def test_a_shell_script_with_variables_and_an_array() -> None:
    imported = import_one(
        r"""#!/usr/bin/env bash
        set -euo pipefail
        MODELS="$HOME/my models"        # where they are
        CTX=${1:-32768}
        export CUDA_VISIBLE_DEVICES=0,1 PATH=$PATH:/cuda
        ARGS=(
          -m "$MODELS/a b.gguf"
          --ctx-size "$CTX"   # tokens
          --chat-template-kwargs '{"enable_thinking": false}'
        )
        [ -n "$X" ] && ARGS+=(--metrics)
        EXTRA="-fa on -ngl 99"
        exec llama-server "${ARGS[@]}" $EXTRA --threads $(nproc) "$@"
        """
    )
    profile = imported.profile
    assert profile.model == "~/my models/a b.gguf"
    assert dict(profile.flags) == {
        "ctx-size": 32768, "metrics": True, "flash-attn": "on", "n-gpu-layers": 99, "threads": "$(nproc)",
    }  # fmt: skip
    assert dict(profile.chat.template_kwargs) == {"enable_thinking": False}
    assert profile.env == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert noted(imported, "Not resolved", "$(nproc)")


@pytest.mark.parametrize(
    "text",
    [
        'if [ "$1" = big ]; then\n  MODEL=b.gguf\nelse\n  MODEL=a.gguf\nfi\nllama-server -m $MODEL',
        'MODEL=b.gguf\nif true; then MODEL=a.gguf; fi\nARGS=(-m "$MODEL")\nARGS+=(-c 8)\nllama-server "${ARGS[@]}"',
        'case "$1" in\n big) MODEL=b.gguf ;;\n *) MODEL=a.gguf ;;\nesac\nllama-server -m "$MODEL"',
        "if true; then export MODEL=a.gguf; fi; bash -c 'llama-server -m '$MODEL",
    ],
)
def test_a_variable_set_in_branches_is_said_to_be(text: str) -> None:
    imported = import_one(text)
    assert imported.profile.model == "a.gguf"
    assert noted(imported, "sets MODEL in branches")


def test_a_branch_that_the_command_does_not_use_is_no_note_about_the_command() -> None:
    imported = import_one("if [ -z $X ]; then LOG=/dev/null; fi\nCTX=8\nllama-server -m a.gguf -c $CTX >> $LOG")
    assert imported.notes == ("Left out: >> $LOG (gpubox keeps the log)", "Left out: if [ -z $X ]")
    assert import_one("if [ -f a.gguf ]; then A=1 llama-server -m a.gguf; fi").notes == ("Left out: if [ -f a.gguf ]",)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("x.sh", "A=/etc/x\nB=1\nB=2\nC=8\nD=$C\n[ -f $A ] || exit\nllama-server -m a.gguf -c $D -t $B"),
        ("x.bat", "set A=/etc/x\nset B=1\nset B=2\nset C=8\nset D=%C%\necho %A%\nllama-server -m a.gguf -c %D% -t %B%"),
    ],
)
def test_what_no_server_is_made_of_is_named_and_what_it_is_made_of_is_not(file: str, text: str) -> None:
    imported = import_one(text, file=file)
    assert dict(imported.profile.flags) == {"ctx-size": 8, "threads": 2}
    assert noted(imported, "/etc/x", "no command of a server uses it")
    assert noted(imported, "1", "no command of a server uses it")
    named = [note for note in imported.notes if "no command of a server" in note]
    assert len(named) == 2


def test_both_branches_that_start_a_server_are_profiles() -> None:
    profiles = import_text("if true; then llama-server -m a.gguf; else llama-server -m b.gguf; fi")
    assert [imported.profile.model for imported in profiles] == ["a.gguf", "b.gguf"]


def test_a_batch_file_with_variables_and_quotes() -> None:
    imported = import_one(
        "@echo off\r\nrem llama-server -m old.gguf\r\nset MODEL=D:\\my models\\a.gguf\r\n"
        'set "CUDA_VISIBLE_DEVICES=1"\r\n'
        'cd /d %~dp0\r\nstart "llama" /b C:\\llama\\llama-server.exe ^\r\n  -m "%MODEL%" -c 8192 ^\r\n'
        '  --chat-template-kwargs "{\\"enable_thinking\\":false}" --port %PORT% > log.txt 2>&1\r\npause\r\n',
        file="run.bat",
    )
    profile = imported.profile
    assert (profile.name, profile.model, profile.port) == ("run", r"D:\my models\a.gguf", 8080)
    assert dict(profile.flags) == {"ctx-size": 8192}
    assert dict(profile.chat.template_kwargs) == {"enable_thinking": False}
    assert profile.env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert noted(imported, "port", "%PORT%")
    assert noted(imported, "Windows")


def test_a_systemd_unit() -> None:
    imported = import_one(
        r"""[Unit]
Description=llama
[Service]
Environment="CUDA_VISIBLE_DEVICES=0" MODEL=%h/models/a.gguf
Environment='ARGS=-c 4096 --metrics'
EnvironmentFile=-/etc/llama-generate.conf
WorkingDirectory=%h/llama.cpp
ExecStart=/bin/false
ExecStart=
ExecStart=-/usr/local/bin/llama-server -m ${MODEL} \
    # a comment between
    --port 8080 $ARGS --override-tensor \.ffn_.*=CPU \
    --chat-template-kwargs "{\"a\": \"100%%\"}" --alias $NAME
Restart=always
""",
        file="llama-generate.service",
    )
    profile = imported.profile
    assert (profile.name, profile.model) == ("llama-generate", "~/models/a.gguf")
    assert dict(profile.flags) == {
        "ctx-size": 4096, "metrics": True, "override-tensor": r"\.ffn_.*=CPU", "alias": "$NAME",
    }  # fmt: skip
    assert dict(profile.chat.template_kwargs) == {"a": "100%"}
    assert profile.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert noted(imported, "/etc/llama-generate.conf")
    assert noted(imported, "Not resolved", "$NAME")


def test_a_port_variable_is_llama_swaps_only_in_its_own_file() -> None:
    unit = import_one("[Service]\nExecStart=/usr/bin/llama-server -m /a.gguf --port ${PORT}\n", file="a.service")
    assert not noted(unit, "llama-swap")
    assert noted(unit, "Not resolved", "${PORT}")
    assert noted(unit, "${PORT} is not a port number; the profile has 8080.")
    swap = import_one("models:\n  a: {cmd: 'llama-server -m a.gguf --port ${PORT}'}")
    assert swap.notes == ("llama-swap chooses the port at each start; the profile has 8080.",)


# --- files with several models

LLAMA_SWAP = r"""
macros:
  server: /opt/llama-server --port ${PORT}
  models: ~/models
models:
  "Qwen 3.5":
    name: Qwen
    description: the big one
    macros: {ctx: 8192}
    env: ["CUDA_VISIBLE_DEVICES=0"]
    aliases: [gpt-4o]
    ttl: 300
    cmd: |
      ${server}
      # a comment
      -m ${models}/qwen.gguf \
      -c ${ctx} --alias "${MODEL_ID}"
  nested:
    cmd: bash -c 'exec llama-server -m ${models}/n.gguf --port ${PORT}'
  other:
    cmd: vllm serve x
  windows:
    cmd: C:\llama\llama-server.exe -m C:\m\w.gguf
"""


def test_a_llama_swap_config_gives_a_profile_for_each_llama_server() -> None:
    profiles = {imported.profile.name: imported for imported in import_text(LLAMA_SWAP)}
    assert list(profiles) == ["qwen-3.5", "nested", "windows"]
    qwen = profiles["qwen-3.5"]
    assert (qwen.profile.title, qwen.profile.description) == ("Qwen", "the big one")
    assert (qwen.profile.model, qwen.profile.port) == ("~/models/qwen.gguf", 8080)
    assert dict(qwen.profile.flags) == {"ctx-size": 8192, "alias": "Qwen 3.5"}
    assert qwen.profile.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (qwen.profile.aliases, qwen.profile.idle_seconds) == (("gpt-4o",), 300)
    assert noted(qwen, "llama-swap chooses the port")
    assert profiles["nested"].profile.model == "~/models/n.gguf"
    assert profiles["windows"].profile.model == r"C:\m\w.gguf"


def test_llama_swaps_filters_change_the_gateways_requests_and_its_ids_are_personas() -> None:
    imported = import_one(
        """
models:
  gpt-oss:
    cmd: llama-server --port ${PORT} -m /m.gguf
    aliases: ["gpt-oss:low", other]
    filters:
      stripParams: "top_k, model"
      setParams: {temperature: 0.7, "max_tokens?": 4096, model: x}
      setParamsByID:
        "${MODEL_ID}:high": {chat_template_kwargs: {reasoning_effort: high, deep: [1, "01", true]}, "seed?": 1}
        "${MODEL_ID}:low": {temperature: 1.0}
        "a b": {top_p: 1}
      other: x
"""
    )
    profile = imported.profile
    assert profile.requests == RequestChanges(("top_k",), {"max_tokens": 4096}, {"temperature": 0.7})
    kwargs = {"reasoning_effort": "high", "deep": [1, "01", True]}
    assert profile.personas == {"gpt-oss:high": {"chat_template_kwargs": kwargs}, "gpt-oss:low": {"temperature": 1.0}}
    assert profile.aliases == ("other",)
    for words in ("setParams.model", "setParamsByID.gpt-oss:high.seed?", "setParamsByID.a b", "filters.other"):
        assert noted(imported, words)


def test_a_name_picks_one_of_several() -> None:
    assert import_one(LLAMA_SWAP, name="nested").profile.name == "nested"
    with pytest.raises(UsageError, match="no model 'nope'") as error:
        import_text(LLAMA_SWAP, name="nope")
    assert "qwen-3.5, nested, windows" in error.value.hint


def test_models_ini() -> None:
    presets = {
        imported.profile.name: imported
        for imported in import_text(
            """version = 1
; for all
[*]
c = 4096
jinja = true
LLAMA_ARG_FLASH_ATTN = on

[small]
model = /m/small.gguf
ctx-size = 8192
ngl = 99
kv-offload = false
no-mmap = true
load-on-startup = true
temp = 0.7

[user/repo-GGUF:Q8_0]
""",
            file="models.ini",
        )
    }
    small = presets["small"]
    assert small.profile.model == "/m/small.gguf"
    assert dict(small.profile.flags) == {
        "ctx-size": 8192, "jinja": True, "flash-attn": "on", "n-gpu-layers": 99, "no-kv-offload": True,
        "load-mode": "none",
    }  # fmt: skip
    assert dict(small.profile.sampling) == {"temperature": 0.7}
    assert noted(small, "load-on-startup")
    assert not noted(small, "more than once")
    other = presets["repo-q8_0"]
    assert other.profile.model == "hf:user/repo-GGUF:Q8_0"
    assert other.profile.flags["ctx-size"] == 4096


def test_a_key_twice_in_a_section_is_noted() -> None:
    imported = import_one(
        "threads = 1\n[a]\nmodel = /a.gguf\nc = 1\nctx-size = 2\njinja = true\njinja = true\n", file="m.ini"
    )
    assert imported.profile.flags["ctx-size"] == 2
    assert noted(imported, "threads = 1", "before the first section")
    assert noted(imported, "ctx-size = 1", "the last one")
    assert len(imported.notes) == 2


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.yaml", "models:\n  a: [\n", ["YAML", "line"]),
        ("config.yaml", "services:\n  a: b\n", ["models", "llama-swap"]),
        ("config.yaml", "- 1\n", ["models"]),
        ("config.yaml", "a: " + "1" * 5000, ["YAML"]),
        ("config.yaml", "a: " + "[" * 5000, ["nested"]),
        ("models.ini", "[a]\nnonsense\n", ["Line 2", "nonsense"]),
        ("models.ini", "[*]\nc = 1\n", ["no section"]),
        ("x.sh", "a\0b", ["binary"]),
        ("x.sh", "x" * 300_000, ["far too long"]),
    ],
    ids=lambda value: str(value)[:12].encode("unicode_escape").decode(),
)
def test_broken_files_are_errors_of_one_sentence(file: str, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        import_text(text, file=file)
    assert "\n" not in error.value.message
    for word in words:
        assert word in str(error.value)


LAUGHS = "a: &a [x]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, key in zip("abcdefgh", "bcdefghi", strict=True)
)  # fmt: skip
"""A YAML list whose aliases expand to 9 ** 8 items."""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("x.sh", "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "llama-server $A"),
        ("x.sh", "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + 'llama-server "${A[@]}"'),
        ("x.sh", "llama-server " + "${a:-" * 40_000),
        ("x.sh", "llama-server " + "$(" * 100_000),
        ("x.sh", "bash -c " * 20_000),
        ("x.sh", "".join(f"A{i}=$A{i - 1}\n" for i in range(1, 15_000)) + "A0=1\nllama-server $A14999"),
        ("x.bat", "set A=xxxxxxxxxx\n" + "set A=%A%%A%\n" * 60 + "llama-server %A%"),
        ("x.bat", '"' * 100_000 + "\\" * 100_000),
        ("x.service", "[Service]\nEnvironment=A=" + "x" * 60_000 + "\nExecStart=llama-server " + "$A " * 50_000),
        ("x.yaml", "macros: {a: " + "x" * 1000 + "${a}${a}}\nmodels: {m: {cmd: 'llama-server ${a}'}}"),
        ("x.yaml", LAUGHS + "models: {m: {cmd: 'llama-server -m a', aliases: *i, env: *i}}"),
        ("x.ini", "\n" * 100_000 + "x"),
        ("", "\n " * 100_000 + "[x"),
    ],
    ids=lambda value: value[:12].encode("unicode_escape").decode(),
)  # fmt: skip
def test_hostile_texts_end_quickly(file: str, text: str) -> None:
    begin = time.process_time()  # CPU time: the machine may be busy
    with contextlib.suppress(GpuboxError):
        import_text(text, file=file)
    assert time.process_time() - begin < 10


def test_nothing_is_run_and_nothing_of_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_OWNER", "hush")
    text = f"llama-server -m a.gguf --alias $(touch {tmp_path}/x)`touch {tmp_path}/y` --x $SECRET_OF_THE_OWNER ${{PWD}}"
    assert "hush" not in str(import_one(text))
    assert not list(tmp_path.iterdir())
