"""Changes of profile files: only the changed line differs, no other writer loses anything, deletion can be undone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.edit import (
    change_text,
    delete_profile,
    edit_in_editor,
    edit_profile,
    last_former,
    new_edit,
    read_profile,
    rename_profile,
    save_edit,
    unchanged,
    undo,
)
from gpubox.profiles.loader import load_profile
from gpubox.profiles.profile import Profile

TEXT = """# my box
title = "x"   # a name
model = "a.gguf"

[flags]
# the context
ctx_size = 4096    # as much as fits
n-cpu-moe=4
override-tensor = [
  "a=CPU", # the first
  "b=CPU",
]

# sampling comes last
[sampling]
temperature = 0.5
[[reference]]
what = "tg"
value = 3
unit = "tok/s"
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def own_profile(paths: Paths, name: str = "own", text: str = TEXT) -> Profile:
    paths.profiles.mkdir(parents=True, exist_ok=True)
    path = paths.profiles / f"{name}.toml"
    path.write_bytes(text.encode())
    return load_profile(path)


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    """(old, new) of lines that differ; both texts have the same number of lines."""
    pairs = zip(before.splitlines(keepends=True), after.splitlines(keepends=True), strict=True)
    return [(old, new) for old, new in pairs if old != new]


def test_a_changed_value_changes_one_line_and_keeps_its_spelling_and_comment() -> None:
    after = change_text(TEXT, {("flags", "ctx-size"): 65536})
    assert changed_lines(TEXT, after) == [
        ("ctx_size = 4096    # as much as fits\n", "ctx_size = 65536    # as much as fits\n")
    ]


@pytest.mark.parametrize("path", sorted(shipped_profiles().glob("*.toml")), ids=lambda path: path.stem)
def test_each_flag_of_each_shipped_profile_can_be_changed_alone(path: Path) -> None:
    text = path.read_text()
    for name, value in tomllib.loads(text).get("flags", {}).items():
        if isinstance(value, list):
            continue
        new = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else "other"
        (old_line, new_line), *others = changed_lines(text, change_text(text, {("flags", name): new}))
        assert not others
        assert old_line.partition("#")[2] == new_line.partition("#")[2], "its comment stays"


def test_a_text_that_is_not_toml_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be changed"):
        change_text("model = \n", {("port",): 1})
    with pytest.raises(UsageError):
        change_text("flags = 3\n", {("flags", "threads"): 1})


def test_a_change_that_would_not_load_is_refused_before_it_is_written(paths: Paths) -> None:
    profile = own_profile(paths)
    with pytest.raises(UsageError, match="port"):
        edit_profile(profile, {("port",): 99999}, paths)
    with pytest.raises(UsageError, match="secret"):
        edit_profile(profile, {("flags", "api-key"): "s"}, paths)
    assert read_profile(profile) == TEXT


def test_an_edit_is_written_and_loads(paths: Paths) -> None:
    profile = own_profile(paths)
    edit = edit_profile(profile, {("flags", "ctx-size"): 8192}, paths)
    assert edit.diff == ("- ctx_size = 4096    # as much as fits", "+ ctx_size = 8192    # as much as fits")
    assert load_profile(save_edit(edit, paths)).flags["ctx-size"] == 8192


def test_the_change_of_a_shipped_profile_becomes_the_owners_file_with_all_comments(paths: Paths) -> None:
    shipped = load_profile(shipped_profiles() / "demo.toml", shipped=True)
    path = save_edit(edit_profile(shipped, {("flags", "ctx-size"): 8192}, paths), paths)
    assert path == paths.profiles / "demo.toml"
    assert changed_lines(read_profile(shipped), path.read_text()) == [("ctx-size = 4096\n", "ctx-size = 8192\n")]


@pytest.mark.parametrize("other", ["[flags]\n", None], ids=["changed", "deleted"])
def test_a_file_that_changed_meanwhile_is_not_overwritten(paths: Paths, other: str | None) -> None:
    profile = own_profile(paths)
    edit = edit_profile(profile, {("flags", "ctx-size"): 8192}, paths)
    if other is None:
        edit.path.unlink()
    else:
        edit.path.write_text(other)
    with pytest.raises(GpuboxError, match="by another program meanwhile"):
        save_edit(edit, paths)
    assert (edit.path.read_text() if edit.path.exists() else None) == other


def test_an_owners_file_that_appeared_meanwhile_is_not_overwritten_by_the_copy_of_a_shipped_one(paths: Paths) -> None:
    shipped = load_profile(shipped_profiles() / "demo.toml", shipped=True)
    edit = edit_profile(shipped, {("flags", "ctx-size"): 8192}, paths)
    own_profile(paths, "demo")
    with pytest.raises(GpuboxError, match="was made by another program"):
        save_edit(edit, paths)
    assert edit.path.read_text() == TEXT


def test_a_new_profile_never_replaces_one(paths: Paths) -> None:
    own_profile(paths)
    with pytest.raises(UsageError, match="already"):
        new_edit("own", TEXT, paths)
    with pytest.raises(UsageError, match="name"):
        new_edit("../own", TEXT, paths)
    assert load_profile(save_edit(new_edit("other", TEXT, paths), paths)).name == "other"


def test_a_profile_can_be_renamed_but_not_over_another(paths: Paths) -> None:
    profile = own_profile(paths)
    own_profile(paths, "taken", 'model = "b.gguf"\n')
    with pytest.raises(UsageError, match="already"):
        rename_profile(profile, "taken", paths)
    path = rename_profile(profile, "new", paths)
    assert path.read_text() == TEXT
    assert sorted(path.stem for path in paths.profiles.iterdir()) == ["new", "taken"]


def test_a_deleted_profile_comes_back(paths: Paths) -> None:
    profile = own_profile(paths)
    delete_profile(profile, paths)
    assert not list(paths.profiles.iterdir())
    assert undo(paths)[1].read_text() == TEXT
    with pytest.raises(UsageError, match="There is nothing to take back"):
        undo(paths)


def test_edits_are_taken_back_one_after_the_other_unless_the_file_changed_since(paths: Paths) -> None:
    own_profile(paths)
    file = paths.profiles / "own.toml"
    for size, kind in ((8192, "edit"), (16384, "trial")):
        save_edit(edit_profile(load_profile(file), {("flags", "ctx-size"): size}, paths), paths, kind)
    assert str(last_former(paths)) == "undo the kept trial of own"
    tried = file.read_text()
    assert "8192" in undo(paths, "own")[1].read_text()
    assert [path.read_text() for path in paths.former_profiles.glob("*undone*")] == [tried]
    edited = file.read_text()
    file.write_text(edited + "# by hand\n")
    assert last_former(paths) is None  # an undo would lose what was written by hand
    file.write_text(edited)
    assert undo(paths)[1].read_text() == TEXT and last_former(paths) is None


def test_a_restored_profile_does_not_replace_its_successor(paths: Paths) -> None:
    delete_profile(own_profile(paths), paths)
    own_profile(paths, text='model = "b.gguf"\n')
    with pytest.raises(UsageError, match="nothing to take back of 'own'"):
        undo(paths, "own")
    assert (paths.profiles / "own.toml").read_text() == 'model = "b.gguf"\n'


def test_a_shipped_profile_can_neither_be_deleted_nor_renamed(paths: Paths) -> None:
    shipped = load_profile(shipped_profiles() / "demo.toml", shipped=True)
    with pytest.raises(UsageError, match="shipped"):
        delete_profile(shipped, paths)
    with pytest.raises(UsageError, match="shipped"):
        rename_profile(shipped, "other", paths)


def test_a_symbolic_link_stays_a_link(paths: Paths, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "own.toml"
    target.parent.mkdir()
    target.write_text(TEXT)
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "own.toml").symlink_to(target)
    profile = load_profile(paths.profiles / "own.toml")
    save_edit(edit_profile(profile, {("flags", "ctx-size"): 8192}, paths), paths)
    assert (paths.profiles / "own.toml").is_symlink()
    assert "ctx_size = 8192" in target.read_text()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_deleted_link_comes_back_as_a_link(paths: Paths, tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "dotfiles" / "own.toml"
    target.parent.mkdir()
    target.write_text(TEXT)
    paths.profiles.mkdir(parents=True)
    link = paths.profiles / "own.toml"
    link.symlink_to(target)
    paths.profiles.chmod(0o755)
    profile = load_profile(link)
    if dangling:
        target.unlink()
    delete_profile(profile, paths)
    assert not link.is_symlink()
    assert undo(paths)[1].readlink() == target
    assert paths.profiles.stat().st_mode & 0o777 == 0o755


def test_an_editor_that_takes_the_file_away_loses_nothing(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "rm")
    monkeypatch.delenv("VISUAL", raising=False)
    profile = own_profile(paths)
    with pytest.raises(GpuboxError, match="left no text"), edit_in_editor(unchanged(profile, paths), profile, paths):
        pass
    assert read_profile(profile) == TEXT
