"""``gpubox edit``, ``new``, ``rm`` and ``diff``, on real files and the help text of a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values

pytestmark = pytest.mark.usefixtures("box")


def test_edit_sets_a_flag_under_the_name_that_the_profile_uses(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "edit", "a", "--set", "c=8192") == (0, "- ctx-size = 2048\n+ ctx-size = 8192\n", "")
    assert "ctx-size = 8192" in (paths.profiles / "a.toml").read_text()


def test_edit_print_writes_nothing(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    before = (paths.profiles / "a.toml").read_text()
    code, out, _ = gpubox(capfd, "edit", "a", "--set", "threads=2", "--unset", "ctx-size", "--print")
    assert (code, out) == (0, "- ctx-size = 2048\n+ threads = 2\n")
    assert (paths.profiles / "a.toml").read_text() == before


def test_a_flag_that_the_engine_refuses_is_written_only_with_force(
    capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    before = (paths.profiles / "a.toml").read_text()
    code, _, err = gpubox(capfd, "edit", "a", "--set", "ctx-sise=1")
    assert code == 2 and "ctx-sise" in err and "nearest: ctx-size" in err
    assert (paths.profiles / "a.toml").read_text() == before
    assert gpubox(capfd, "edit", "a", "--set", "ctx-sise=1", "--force")[0] == 0


def test_a_broken_profile_can_be_mended_and_deleted(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    path = paths.profiles / "a.toml"
    path.write_text(path.read_text().replace("[flags]", "prot = 1\n[flags]"))
    assert gpubox(capfd, "edit", "a", "--set", "ctx-size=1024")[0] == 2
    path.write_text("model = \n")
    assert gpubox(capfd, "rm", "a")[0] == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("editor", "code", "kept"), [("false", 1, True), ("true", 0, False), ("no-such-editor", 1, False)]
)
def test_the_text_of_an_editor_that_fails_is_not_lost(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, editor: str, code: int, kept: bool
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.delenv("VISUAL", raising=False)
    result, _, err = gpubox(capfd, "edit", "a", "--editor")
    assert result == code
    if kept:
        copy = Path(err.split("Its text is in ")[1].strip().rstrip("."))
        assert "ctx-size = 2048" in copy.read_text()
        copy.unlink()


def test_new_copies_a_profile_with_its_comments(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    (paths.profiles / "a.toml").write_text("# mine\n" + (paths.profiles / "a.toml").read_text())
    assert gpubox(capfd, "new", "c", "--copy", "a", "--set", "ctx-size=512")[0] == 0
    text = (paths.profiles / "c.toml").read_text()
    assert text.startswith("# mine\n") and "ctx-size = 512" in text
    code, _, err = gpubox(capfd, "new", "c", "--copy", "a")
    assert code == 2 and "already" in err


def test_new_reads_a_pasted_command_line(capfd: pytest.CaptureFixture[str], paths: Paths, tiny_gguf: Path) -> None:
    assert gpubox(capfd, "new", "pasted", f"llama-server -m {tiny_gguf} -c 4096 --parallel 2")[0] == 0
    _, shown = values(capfd, "diff", "a", "pasted")
    assert {key["name"]: (key["left"], key["right"]) for key in shown["keys"] if key["table"] == "flags"} == {
        "ctx-size": (2048, 4096),
        "parallel": (None, 2),
    }


def test_rm_and_undo(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    text = (paths.profiles / "a.toml").read_text()
    assert gpubox(capfd, "rm", "a") == (0, "a is deleted. `gpubox rm --undo` brings it back.\n", "")
    assert gpubox(capfd, "show", "a")[0] == 2
    assert gpubox(capfd, "rm", "--undo")[0] == 0
    assert (paths.profiles / "a.toml").read_text() == text


def test_rename(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "edit", "a", "--rename", "z") == (0, "a is called z now.\n", "")
    code, _, err = gpubox(capfd, "edit", "z", "--rename", "b")
    assert code == 2 and "already" in err


def test_diff_treats_an_alias_as_the_same_flag(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    path = paths.profiles / "b.toml"
    path.write_text(path.read_text().replace("ctx-size = 4096", "c = 2048"))
    assert gpubox(capfd, "diff", "a", "b") == (0, "a and b have the same flags and keys.\n", "")
