"""Which models are on this machine, and what a profile's model text means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models.demo_model import SMOLLM2, demo_path
from gpubox.models.find import find_models
from gpubox.models.quants import HfReference, choose_files, group_shards, parse_reference, quant_label
from gpubox.models.resolve import profile_model, resolve_model, with_resolved_flag_paths
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile


def put(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF".ljust(size, b"x"))
    return path


def in_cache(repo: str, names: list[str], revision: str = "abc") -> Path:
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "huggingface/hub" / f"models--{repo.replace('/', '--')}"
    for name in names:
        put(folder / "snapshots" / revision / name)
    put(folder / "refs/main").write_text(revision)
    return folder / "snapshots" / revision


def test_models_are_found_where_tools_put_them(own_home: Path, tmp_path: Path, paths: Paths) -> None:
    wanted = [
        put(own_home / "models/a.gguf"),
        put(own_home / "models/deep/er/b.GGUF"),
        put(own_home / ".lmstudio/models/who/what/c.gguf"),
        put(tmp_path / "disk/d-00001-of-00002.gguf"),
        put(paths.models / "e.gguf"),
        in_cache("u/r", ["f.gguf"]) / "f.gguf",
    ]
    for name in ("mmproj-F16.gguf", "d-00002-of-00002.gguf", "notes.txt", "model-mmproj.gguf"):
        put(tmp_path / "disk" / name)
    assert find_models(Config(model_dirs=(tmp_path / "disk",)), paths) == sorted(wanted)


def test_links_loops_and_forbidden_folders(own_home: Path, tmp_path: Path, paths: Paths) -> None:
    put(tmp_path / "disk/a.gguf")
    (own_home / "models").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/loop").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "disk/same.gguf").symlink_to(tmp_path / "disk/a.gguf")
    (tmp_path / "disk/closed").mkdir(mode=0)
    try:
        assert [p.name for p in find_models(Config(model_dirs=(Path("/nonexistent"),)), paths)] == ["a.gguf"]
    finally:
        (tmp_path / "disk/closed").chmod(0o700)


def test_a_path(own_home: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    model = put(own_home / "models/a.gguf")
    monkeypatch.setenv("DISK", str(own_home / "models"))
    for text in (str(model), "~/models/a.gguf", "$DISK/a.gguf", "${DISK}/a.gguf", "a.gguf"):
        source = resolve_model(text, paths, Config())
        assert (source.path, source.argv, source.fetch, source.size) == (model, ("--model", str(model)), "", 10)
    missing = resolve_model("/no/such/m.gguf", paths, Config())
    assert (missing.path, missing.size) == (Path("/no/such/m.gguf"), None)


def test_a_relative_path_is_meant_from_the_profile_and_never_from_the_current_folder(
    own_home: Path, tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "profiles", tmp_path / "here"
    put(here / "a.gguf")
    monkeypatch.chdir(here)
    with pytest.raises(GpuboxError, match=r"no model 'a\.gguf' in the model folders"):
        resolve_model("a.gguf", paths, Config())
    profile = Profile("p", "a.gguf", path=beside / "p.toml", flags={"mmproj": "mm.gguf", "lora": "x.gguf,/y.gguf"})
    with pytest.raises(GpuboxError) as error:
        profile_model(profile, paths, Config())
    assert f"in {beside} and the model folders" in error.value.message

    path = put(own_home / "models/a.gguf")
    assert profile_model(profile, paths, Config()).path == path
    near = put(beside / "a.gguf")
    assert profile_model(profile, paths, Config()).path == near
    assert with_resolved_flag_paths(profile, paths, Config()).flags == {
        "mmproj": str(beside / "mm.gguf"), "lora": f"{beside}/x.gguf,/y.gguf",
    }  # fmt: skip
    projector = put(own_home / "models/mm.gguf")
    assert with_resolved_flag_paths(profile, paths, Config()).flags["mmproj"] == str(projector)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$NO_SUCH_VARIABLE/a.gguf", "NO_SUCH_VARIABLE, which is not set"),
        ("~nobody-of-that-name/a.gguf", "names a user"),
        ("qwen3-4b-q4.gguf", "Did you mean qwen3-4b-q4_k_m.gguf"),
        ("nothing-like-it", "model-dirs"),
        ("demo:smolm2", 'Write "demo:smollm2"'),
        ("hf:alone", "hf:user/repo:quant"),
        ("hf:../../etc", "hf:user/repo:quant"),
    ],
)
def test_words_that_name_nothing(own_home: Path, paths: Paths, text: str, message: str) -> None:
    put(own_home / "models/qwen3-4b-q4_k_m.gguf")
    with pytest.raises(GpuboxError) as error:
        resolve_model(text, paths, Config())
    assert message in str(error.value)


def test_a_name_that_two_files_have(own_home: Path, tmp_path: Path, paths: Paths) -> None:
    put(own_home / "models/x/a.gguf", 1)
    put(own_home / "models/y/a.gguf", 2)
    with pytest.raises(GpuboxError, match=r"2 models called a\.gguf"):
        resolve_model("a.gguf", paths, Config())


def test_demo_before_and_after_it_is_here(paths: Paths) -> None:
    before = resolve_model("demo:SmolLM2", paths, Config())
    assert (before.fetch, before.path, before.argv, before.size) == ("demo", None, (), SMOLLM2.size)
    target = demo_path(SMOLLM2, paths)
    target.parent.mkdir(parents=True)
    with target.open("wb") as file:
        file.truncate(SMOLLM2.size)  # sparse
    assert resolve_model("demo:smollm2", paths, Config()).path == target


def test_hf_models_come_from_the_cache(paths: Paths) -> None:
    assert resolve_model("hf:u/m-GGUF:Q8_0", paths, Config()).fetch == "hf"
    folder = in_cache("u/m-GGUF", ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", "big-Q6_K-00001-of-00002.gguf"])
    assert resolve_model("hf:u/m-GGUF:q8_0", paths, Config()).path == folder / "m-Q8_0.gguf"
    assert resolve_model("hf:u/m-GGUF", paths, Config()).path == folder / "m-Q4_K_M.gguf"
    assert resolve_model("hf:u/m-GGUF:Q6_K", paths, Config()).fetch == "hf"  # its second part is not here
    alone = in_cache("u/one", ["one-Q5_K_M.gguf"])
    assert resolve_model("hf:u/one", paths, Config()).path == alone / "one-Q5_K_M.gguf"


def test_quant_labels() -> None:
    labels = {
        "m-Q4_K_M.gguf": "Q4_K_M", "m.Q4_1.gguf": "Q4_1", "m-UD-Q4_K_XL.gguf": "UD-Q4_K_XL",
        "m-iq3_xxs.gguf": "IQ3_XXS",
        "BF16/m-BF16-00001-of-00002.gguf": "BF16", "gpt-oss-20b-mxfp4.gguf": "MXFP4", "plain.gguf": "",
    }  # fmt: skip
    assert {name: quant_label(name) for name in labels} == labels


def test_choosing_a_quant() -> None:
    names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md", "x-F16-00001-of-00002.gguf", "x-F16-00002-of-00002.gguf"]
    assert choose_files(parse_reference("hf:u/m"), names) == ("m-Q4_K_M.gguf",)
    assert choose_files(parse_reference("hf:u/m:f16"), names) == tuple(names[3:])
    assert choose_files(parse_reference("hf:u/m:m-Q8_0.gguf"), names) == ("m-Q8_0.gguf",)
    assert choose_files(HfReference("u/m", ""), ["m-Q8_0.gguf", "m-Q4_K_S.gguf"]) == ("m-Q4_K_S.gguf",)
    assert choose_files(HfReference("u/m", ""), ["only-Q8_0.gguf", "mmproj-F16.gguf"]) == ("only-Q8_0.gguf",)
    assert group_shards(["a-00001-of-00002.gguf"]) == {}
    for reference, message in (
        ("hf:u/m:Q9_9", "It has: F16, Q4_K_M, Q8_0."),
        ("hf:u/m:Q4_K_X", "Did you mean Q4_K_M?"),
    ):
        with pytest.raises(GpuboxError) as error:
            choose_files(parse_reference(reference), names)
        assert message in error.value.hint
    with pytest.raises(GpuboxError, match="name a quant") as error:
        choose_files(HfReference("u/m", ""), ["m-Q8_0.gguf", "m-Q2_K.gguf"])
    assert "Q2_K, Q8_0" in error.value.hint
    with pytest.raises(GpuboxError, match="names 2 models"):
        choose_files(HfReference("u/m", "Q8_0"), ["a-Q8_0.gguf", "b-Q8_0.gguf"])
    with pytest.raises(GpuboxError, match="holds no GGUF"):
        choose_files(HfReference("u/m", ""), ["model.safetensors"])


def test_what_is_no_gguf_is_not_listed_as_a_model(paths: Paths) -> None:
    good = put(paths.models / "good.gguf")
    for name, start in {
        "page": b"<!DOCTYPE html>",
        "pointer": b"version https://git-lfs",
        "empty": b"",
        "short": b"GG",
    }.items():
        put(paths.models / f"{name}.gguf").write_bytes(start)
    os.mkfifo(paths.models / "fifo.gguf")
    assert find_models(Config(), paths) == [good]
