"""config.toml and the API key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config, api_key, load_config
from gpubox.errors import UsageError
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.watcher import idle_command


def write(paths: Paths, text: str) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(text)


def key_file(paths: Paths, text: str | bytes, mode: int = 0o600) -> None:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_bytes(text.encode() if isinstance(text, str) else text)
    paths.api_key_file.chmod(mode)


def test_no_file_is_the_defaults(paths: Paths) -> None:
    assert load_config(paths) == Config()


def test_everything_is_read(paths: Paths, own_home: Path) -> None:
    write(
        paths,
        """
        default-engine = "turbo"
        model-dirs = ["~/gguf", "/mnt/models"]
        allow-exposed = true
        stall-seconds = 5
        stop-seconds = 2.5
        [engines]
        turbo = "~/turbo/llama-server"
        """,
    )

    assert load_config(paths) == Config(
        engines={"turbo": f"{own_home}/turbo/llama-server"},
        default_engine="turbo",
        model_dirs=(own_home / "gguf", Path("/mnt/models")),
        allow_exposed=True,
        stall_seconds=5.0,
        stop_seconds=2.5,
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('defualt-engine = "x"', "Did you mean 'default-engine'?"),
        ("stop-seconds = -1", "must be more than 0"),
        ("[engines]\nfork = 3", "[engines] fork must be a string"),
        ('[engines]\nfork = "~no-such-user/llama-server"', "[engines] fork names a user"),
        ('model-dirs = ["~no-such-user/x"]', "model-dirs names a user"),
        ('engines = "llama-server"', "engines must be a table"),
        ("nope", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_a_sentence_with_its_path(paths: Paths, text: str, problem: str) -> None:
    write(paths, text)

    with pytest.raises(UsageError) as caught:
        load_config(paths)

    assert str(paths.config_file) in str(caught.value)
    assert problem in str(caught.value)


def test_a_named_file_must_exist(paths: Paths, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml does not exist.*--config or GPUBOX_CONFIG"):
        load_config(replace(paths, config_override=tmp_path / "gone.toml"))


def test_a_named_file_with_an_impossible_name_is_a_sentence(paths: Paths) -> None:
    with pytest.raises(UsageError, match="File name too long"):
        load_config(replace(paths, config_override=Path("x" * 300)))


def test_gpubox_config_names_the_file_and_the_argument_beats_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUBOX_CONFIG", str(tmp_path / "env.toml"))

    assert Paths.default().config_file == tmp_path / "env.toml"
    assert Paths.default(tmp_path / "arg.toml").config_file == tmp_path / "arg.toml"


def test_a_relative_name_means_the_same_file_to_a_program_in_another_folder(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here, whole = (replace(paths, config_override=path) for path in (Path("own.toml"), tmp_path / "own.toml"))
    watching = idle_command(here, "main", ProcessIdentity(1, 2, "boot"), "lock")

    assert Paths.from_arguments(*watching[-4:]) == whole
    assert here.options == ("--config", str(tmp_path / "own.toml"))
    assert (Paths.from_arguments(*paths.arguments), paths.options) == (paths, ())


def test_another_config_file_moves_neither_key_nor_profiles(paths: Paths, tmp_path: Path) -> None:
    other = Paths.default(tmp_path / "arg.toml")

    assert (other.api_key_file, other.profiles) == (paths.api_key_file, paths.profiles)


def test_the_key_comes_from_gpubox_then_llama_then_the_file(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_key(paths) is None
    key_file(paths, "  from-file\n")
    assert api_key(paths) == "from-file"
    monkeypatch.setenv("LLAMA_API_KEY", "from-llama")
    assert api_key(paths) == "from-llama"
    monkeypatch.setenv("GPUBOX_API_KEY", "from-gpubox")
    assert api_key(paths) == "from-gpubox"
    monkeypatch.setenv("GPUBOX_API_KEY", "  ")
    assert api_key(paths) == "from-llama"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_can_read_is_refused_and_not_shown(paths: Paths, mode: int) -> None:
    key_file(paths, "sesame", mode)

    with pytest.raises(UsageError) as caught:
        api_key(paths)

    assert "chmod 600" in caught.value.hint
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_only_the_owner_can_read_is_used(paths: Paths, mode: int) -> None:
    key_file(paths, "sesame", mode)

    assert api_key(paths) == "sesame"


def test_an_empty_key_file_is_no_key_and_a_binary_one_is_a_sentence(paths: Paths) -> None:
    key_file(paths, "\n")
    assert api_key(paths) is None
    key_file(paths, b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        api_key(paths)
    paths.api_key_file.unlink()
    paths.api_key_file.mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        api_key(paths)
