"""The verbs ``gpubox import`` and ``gpubox export``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpubox.cli.main import run
from gpubox.paths import Paths
from tests import gguf_bytes

BAT = str(Path(__file__).parents[1] / "fixtures" / "launches" / "article1-start-server.bat")
QWEN = str(Path(__file__).parents[1] / "fixtures" / "launches" / "article5-qwen.sh")


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("PATH", str(tmp_path))
    return Paths.default()


def test_import_writes_where_it_says_and_export_gives_the_command_back(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", QWEN, "--name", "mine"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["mine", str(paths.profiles / "mine.toml")]
    assert "[engines]" in err
    assert run(["export", "mine", "--as", "sh"]) == 0
    assert "--n-predict 81920" in capsys.readouterr().out


def test_import_refuses_a_name_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "llama-server -m a.gguf"]) == 0
    assert run(["import", "llama-server -m a.gguf -c 1"]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["import", "llama-server -m a.gguf -c 1", "--force"]) == 0


def test_import_says_when_it_hides_a_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "llama-server -m a.gguf", "--name", "demo"]) == 0
    assert "replaces the shipped profile" in capsys.readouterr().err


def test_print_writes_nothing(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "--print", BAT]) == 0
    out = capsys.readouterr().out
    assert 'spec-type = "mtp"' in out
    assert "# ! --no-mmap" in out
    assert not paths.profiles.exists()


def test_a_key_that_was_pasted_is_nowhere(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "llama-server -m a.gguf --api-key hush"]) == 0
    out, err = capsys.readouterr()
    assert "hush" not in out + err + (paths.profiles / "a.toml").read_text()


def test_files_of_the_current_folder_are_written_with_their_whole_path(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    for name in ("x.gguf", "sub/mm.gguf", "t.jinja", "l.gguf"):
        (here / name).touch()
    monkeypatch.chdir(here / "sub")
    line = (
        "llama-server -m ../x.gguf --mmproj mm.gguf --chat-template-file ../t.jinja -md gone.gguf"
        " --lora-scaled ../l.gguf:0.5,no.gguf:1 --alias x.gguf"
    )

    assert run(["import", line, "--name", "mine", "--json"]) == 0

    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["model"] == str(here / "x.gguf")
    assert profile["flags"] == {
        "mmproj": str(here / "sub/mm.gguf"), "chat-template-file": str(here / "t.jinja"),
        "spec-draft-model": "gone.gguf", "lora-scaled": f"{here}/l.gguf:0.5,no.gguf:1", "alias": "x.gguf",
        "spec-type": "draft-simple",
    }  # fmt: skip
    assert profile["notes"] == [
        "--spec-type draft-simple was added: without it, current builds do not use the draft model."
    ]
    assert run(["import", "llama-server", "--name", "other", "--model", "../x.gguf"]) == 0
    assert f'model = "{here}/x.gguf"' in (paths.profiles / "other.toml").read_text()


def test_a_script_names_files_beside_it_too(paths: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/x.gguf").touch()
    (tmp_path / "s/start.sh").write_text("llama-server -m ./x.gguf")

    assert run(["import", str(tmp_path / "s/start.sh")]) == 0

    assert f'model = "{tmp_path}/s/x.gguf"' in (paths.profiles / "start.toml").read_text()
    assert "relative" not in capsys.readouterr().err


def test_export_writes_whole_paths(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "x.gguf").touch()
    (paths.profiles / "mine.toml").write_text('model = "x.gguf"\n[flags]\nmmproj = "mm.gguf"\n')

    assert run(["export", "mine", "--as", "sh"]) == 0

    out = capsys.readouterr().out
    assert f"--model {paths.profiles}/x.gguf" in out
    assert f"--mmproj {paths.profiles}/mm.gguf" in out


def test_import_reads_stdin_and_answers_in_json(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("llama-server -m a.gguf -c 4096 --draft-max 8"))
    assert run(["import", "-", "--json"]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["path"] == str(paths.profiles / "a.toml")
    assert profile["flags"] == {"ctx-size": 4096, "spec-draft-n-max": 8}
    assert "spec-draft-n-max" in profile["notes"][0]


def test_without_a_model_nothing_is_written_until_one_is_given(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "--name", "f", "--cache-type-k bf16 --cache-type-v bf16"]) == 2
    assert "--model" in capsys.readouterr().err
    assert not paths.profiles.exists()
    assert run(["import", "--name", "f", "--model", "~/a.gguf", "--", "--cache-type-k bf16"]) == 0
    assert 'model = "~/a.gguf"' in (paths.profiles / "f.toml").read_text()


def test_a_model_given_for_another_model_file_gets_its_whole_path(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("small.gguf", "large.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes.model())
    monkeypatch.chdir(tmp_path)
    assert run(["import", "small.gguf", "--name", "f", "--model", "large.gguf"]) == 0
    assert f'model = "{tmp_path}/large.gguf"' in (paths.profiles / "f.toml").read_text()


@pytest.mark.parametrize(
    "source",
    [
        "llama-server",
        r"llama-server -m C:\x.gguf",
        "llama-server -m models/x.gguf",
        "docker run --network host ghcr.io/ggml-org/llama.cpp:server -m /models/x.gguf",
    ],
)
def test_a_given_model_leaves_no_note_about_the_model_of_the_source(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", source, "--name", "f", "--model", "/m/a.gguf", "--json"]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["model"] == "/m/a.gguf"
    assert not [note for note in profile["notes"] if "model" in note]


def test_several_profiles_are_written_all_or_none(paths: Paths, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models:\n  a: {cmd: llama-server -m a.gguf}\n  b: {cmd: llama-server -m b.gguf}\n")
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "b.toml").write_text('model = "mine.gguf"\n')
    assert run(["import", str(config)]) == 2
    assert [path.name for path in paths.profiles.iterdir()] == ["b.toml"]
    assert run(["import", str(config), "--name", "a"]) == 0


def test_print_of_several_profiles_says_which_is_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models:\n  a: {cmd: llama-server -m a.gguf}\n  b: {cmd: llama-server -m b.gguf}\n")
    assert run(["import", "--print", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("# a.toml") < lines.index('model = "a.gguf"') < lines.index("# b.toml")


@pytest.mark.parametrize("source", ["ollama run x", "nothere.bat"])
def test_nothing_to_import_is_exit_code_2(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", source]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_export_of_an_unknown_profile_or_kind_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "nope", "--as", "sh"]) == 2
    assert run(["export", "demo", "--as", "nope"]) == 2


@pytest.mark.parametrize("chosen", ["by default", "by its path"])
def test_old_spellings_stay_for_an_engine_that_takes_them(
    paths: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: str
) -> None:
    engine = tmp_path / "old" / "llama-server"
    engine.parent.mkdir()
    options = ["-m, --model FNAME", "-c, --ctx-size N", "--port PORT", "-fa, --flash-attn", "--no-mmap"]
    lines = [f"echo '{option:<40}help'" for option in [*options, "--draft-max N"]]  # echo is a built-in
    engine.write_text("\n".join(["#!/bin/sh", *lines]))
    engine.chmod(0o755)
    paths.config.mkdir(parents=True)
    default = 'default-engine = "old"\n' if chosen == "by default" else ""
    paths.config_file.write_text(f'{default}[engines]\nold = "{engine}"\n')
    binary = "llama-server" if chosen == "by default" else str(engine)

    assert run(["import", f"{binary} -m /a.gguf -fa --no-mmap --draft-max 4", "--json"]) == 0

    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["flags"] == {"flash-attn": True, "no-mmap": True, "draft-max": 4}
    assert profile["notes"] == []
