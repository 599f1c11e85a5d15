"""Writing profiles: complete files that load again."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.edit import locked_profiles
from gpubox.profiles.loader import free_profile_name, load_profile, parse_profile
from gpubox.profiles.profile import ChatDefaults, HardwareNeeds, Profile, ReferenceFigure, RequestChanges
from gpubox.profiles.writer import profile_toml, save_profile

FULL = Profile(
    name="full",
    model=r"C:\models\it's.gguf",
    title='A "title"',
    description="two\nlines",
    engine="fork",
    host="::1",
    port=0,
    companion=True,
    env={"CUDA_VISIBLE_DEVICES": "0", "ODD_NAME": ""},
    flags={
        "override-tensor": r"\.ffn_(up|down)_exps=CPU",
        "no-mmap": True,
        "warmup": False,
        "tensor-split": (3, 1.5, "x"),
        "yarn-ext-factor": -1.5,
        "ctx-size": 4096,
        "odd.key": "é \x7f '",
    },
    sampling={"temperature": 0.0, "min_p": 0.05},
    fallback="small",
    requests=RequestChanges(remove=("top_k",), default={"max_tokens": 9}, set={"logit_bias": {"5": -1.5}}),
    personas={"full": {"seed": 1}, "full:high": {"chat_template_kwargs": {"effort": "high"}}, "a/b": {}},
    chat=ChatDefaults("Be brief.", {"enable_thinking": False, "effort": "low"}),
    needs=HardwareNeeds(16, 32.5, "a fork"),
    source="me",
    references=(
        ReferenceFigure("speed", 70.0, "tok/s", "box", "blog"),
        ReferenceFigure("share", 0.5, "%", "box", "blog", "~"),
    ),
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def reloaded(profile: Profile, header: str = "") -> Profile:
    return parse_profile(Path(f"{profile.name}.toml"), tomllib.loads(profile_toml(profile, header)))


def without_path(profile: Profile) -> Profile:
    return replace(profile, path=None, shipped=False)


@pytest.mark.parametrize("profile", [FULL, Profile("small", "m.gguf")], ids=lambda profile: profile.name)
def test_a_written_profile_loads_as_the_same_profile(profile: Profile) -> None:
    again = reloaded(profile, "a comment\n\nof # lines\x00\r and more")
    assert without_path(again) == profile
    assert list(again.flags) == list(profile.flags)


@pytest.mark.parametrize("path", sorted(shipped_profiles().glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_profiles_survive_being_written(path: Path) -> None:
    profile = load_profile(path)
    assert without_path(reloaded(profile)) == without_path(profile)


def test_a_small_profile_is_a_small_file() -> None:
    text = profile_toml(Profile("a", "~/m.gguf", flags={"ctx-size": 4096, "no-mmap": True}), "Mine.")
    assert text == '# Mine.\n\nmodel = "~/m.gguf"\n\n[flags]\nctx-size = 4096\nno-mmap = true\n'


def test_saving_makes_the_folder_and_leaves_nothing_else(paths: Paths) -> None:
    path = save_profile(Profile("mine", "m.gguf"), paths, header="Mine.")
    assert path == paths.profiles / "mine.toml"
    assert [entry.name for entry in paths.profiles.iterdir()] == ["mine.toml"]
    assert load_profile(path).model == "m.gguf"


def test_saving_does_not_replace_unasked(paths: Paths) -> None:
    save_profile(Profile("mine", "old.gguf"), paths)
    with pytest.raises(UsageError, match="already"):
        save_profile(Profile("mine", "new.gguf"), paths)
    assert load_profile(paths.profiles / "mine.toml").model == "old.gguf"
    save_profile(Profile("mine", "new.gguf"), paths, overwrite=True)
    assert load_profile(paths.profiles / "mine.toml").model == "new.gguf"


@pytest.mark.parametrize("name", ["../up", "a b", "", "-x", "a/b", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(paths: Paths, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        save_profile(Profile(name, "m.gguf"), paths)
    assert not paths.profiles.exists()


def test_a_profile_that_would_not_load_is_not_written(paths: Paths) -> None:
    with pytest.raises(UsageError, match="model"):
        save_profile(Profile("mine", ""), paths)
    with pytest.raises(UsageError, match="secret"):
        save_profile(Profile("mine", "m.gguf", flags={"api-key": "x"}), paths)
    with pytest.raises(UsageError, match="text"):
        save_profile(Profile("mine", "m\ud800.gguf"), paths)
    assert not paths.profiles.exists()


def test_the_shipped_folder_is_never_written(paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths.config.mkdir()
    (tmp_path / "shipped").mkdir()
    paths.profiles.symlink_to(tmp_path / "shipped")
    monkeypatch.setattr("gpubox.profiles.writer.shipped_profiles", lambda: tmp_path / "shipped")
    with pytest.raises(UsageError, match="is a shipped profile"):
        save_profile(Profile("demo", "m.gguf"), paths, overwrite=True)
    assert not list((tmp_path / "shipped").iterdir())


def test_a_profile_is_not_written_while_another_gpubox_changes_profiles(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubox.profiles.edit._LOCK_ATTEMPTS", 1)
    with locked_profiles(paths), pytest.raises(GpuboxError, match="Another gpubox is changing a profile"):
        save_profile(Profile("mine", "m.gguf"), paths)
    assert not paths.profiles.exists()


def test_a_free_name_among_many(paths: Paths) -> None:
    paths.profiles.mkdir(parents=True)
    for number in ("", *(f"-{number}" for number in range(2, 120))):
        (paths.profiles / f"mine{number}.toml").write_text("broken")
    assert (free_profile_name("mine", paths), free_profile_name("other", paths)) == ("mine-120", "other")
    assert free_profile_name("demo", paths) == "demo-2"
