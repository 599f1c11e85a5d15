"""Import: kinds of sources, and profiles of model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.importing import import_source
from gpubox.profiles.profile import Profile


def test_a_source_is_a_path_or_the_text_itself(tmp_path: Path) -> None:
    script = tmp_path / "my start.sh"
    script.write_text("llama-server -m a.gguf", encoding="utf-8-sig")
    (read,) = import_source(str(script))
    assert read.profile.name == "my-start"
    (tmp_path / "w.bat").write_text("llama-server.exe -m C:\\a.gguf\r\n", encoding="utf-16")
    assert import_source(str(tmp_path / "w.bat"))[0].profile.model == r"C:\a.gguf"
    assert import_source("llama-server -m a.gguf")[0].profile.name == "a"
    assert import_source("llama-server " + "-c 1 " * 2000)[0].profile.flags == {"ctx-size": 1}


@pytest.mark.parametrize("source", ["", "  "])
def test_nothing_is_no_folder(source: str) -> None:
    with pytest.raises(UsageError, match="nothing here that starts llama-server"):
        import_source(source)


@pytest.mark.parametrize("source", ["nothere.sh", "/no/such/file", "~nobodyhere/x.gguf", "x.gguf"])
def test_a_missing_file_is_named(source: str) -> None:
    with pytest.raises(GpuboxError) as error:
        import_source(source)
    assert "does not exist" in str(error.value) or "nothing here" in str(error.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        import_source(str(tmp_path))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("<!doctype html>")
    with pytest.raises(GpuboxError, match="not a GGUF"):
        import_source(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("architecture", "metadata", "expected"),
    [
        ("qwen35moe", {"qwen35moe.context_length": 262144}, {"ctx-size": 32768, "parallel": 1}),
        ("llama", {"llama.context_length": 8192}, {"ctx-size": 8192, "parallel": 1}),
        ("nomic-bert", {}, {"embeddings": True}),
    ],
)
def test_a_gguf_becomes_a_profile_with_sane_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, metadata: dict[str, int], expected: object
) -> None:
    from gpubox.models.gguf import GgufFile

    path = tmp_path / "My Model-Q4_K_M.gguf"
    path.touch()
    model = GgufFile(path, 1, (path,), architecture, "My Model", metadata)
    monkeypatch.setattr("gpubox.interchange.importing.check_gguf", lambda _: model)
    (imported,) = import_source(str(path))
    assert imported.profile == Profile("my-model-q4_k_m", str(path), "My Model-Q4_K_M", flags=expected)  # type: ignore[arg-type]
