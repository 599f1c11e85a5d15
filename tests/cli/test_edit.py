"""``gpubox edit``, ``import`` and ``show A B``, on real files and the help text of a real engine."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.paths import Paths
from gpubox.profiles import edit as edit_module
from gpubox.storage import write_atomically
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
    assert code == 2 and "ctx-sise" in err and "did you mean ctx-size?" in err
    assert (paths.profiles / "a.toml").read_text() == before
    assert gpubox(capfd, "edit", "a", "--set", "ctx-sise=1", "--force")[0] == 0


def test_a_broken_profile_can_be_mended_and_deleted(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    path = paths.profiles / "a.toml"
    path.write_text(path.read_text().replace("[flags]", "prot = 1\n[flags]"))
    assert gpubox(capfd, "edit", "a", "--set", "ctx-size=1024")[0] == 2
    path.write_text("model = \n")
    assert gpubox(capfd, "edit", "a", "--delete")[0] == 0
    assert not path.exists()


TYPED = 'sed -i "s/2048/1024 # typed/" "$1"'
AFTER_TYPING = {
    "a mistyped flag": 'echo "ctx-sise = 1" >> "$1"',
    "no TOML": 'echo "[flags" >> "$1"',
    "no UTF-8": 'printf "\\377" >> "$1"',
    "changed meanwhile": 'echo "# mine" >> "$PROFILE"',
    "deleted meanwhile": 'rm "$PROFILE"',
    "the editor fails": "exit 3",
    "a full disk": "true",
    "another gpubox": "true",
}


def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: Paths, script: str) -> None:
    program = tmp_path / "editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(program))
    monkeypatch.setenv("PROFILE", str(paths.profiles / "a.toml"))
    monkeypatch.delenv("VISUAL", raising=False)


@pytest.mark.parametrize("failure", AFTER_TYPING)
def test_what_was_typed_in_an_editor_survives_every_failure_after_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: Paths, failure: str
) -> None:
    editor(monkeypatch, tmp_path, paths, f"{TYPED}\n{AFTER_TYPING[failure]}")
    with contextlib.ExitStack() as stack:
        if failure == "a full disk":
            write = write_atomically

            def full(path: Path, data: bytes, *, like: Path | None = None) -> None:
                if path.parent == paths.profiles:
                    raise OSError(errno.ENOSPC, "No space left on device")
                write(path, data, like=like)

            monkeypatch.setattr(edit_module, "write_atomically", full)
        if failure == "another gpubox":
            monkeypatch.setattr(edit_module, "_LOCK_ATTEMPTS", 1)
            stack.enter_context(edit_module.locked_profiles(paths))
        code, _, err = gpubox(capfd, "edit", "a", "--editor")

    assert code in (1, 2)
    (copy,) = paths.drafts.iterdir()
    assert f"Your text is in {copy}." in err
    assert b"1024 # typed" in copy.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not (paths.profiles / "a.toml").exists() or "# typed" not in (paths.profiles / "a.toml").read_text()


def test_what_was_typed_survives_a_kill_and_the_next_edit_names_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: Paths
) -> None:
    editor(monkeypatch, tmp_path, paths, f"{TYPED}\nkill -9 $PPID")
    assert subprocess.run([sys.executable, "-m", "gpubox", "edit", "a", "--editor"], check=False).returncode == -9
    (copy,) = paths.drafts.iterdir()
    assert "1024 # typed" in copy.read_text()

    editor(monkeypatch, tmp_path, paths, "true")
    assert str(copy) in gpubox(capfd, "edit", "a", "--editor")[2]


@pytest.mark.parametrize("script", [TYPED, f"kill -INT $PPID\n{TYPED}"], ids=["saved", "ctrl-c in the editor"])
def test_a_saved_text_leaves_no_copy(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: Paths, script: str
) -> None:
    editor(monkeypatch, tmp_path, paths, script)
    assert gpubox(capfd, "edit", "a", "--editor")[0] == 0
    assert "1024 # typed" in (paths.profiles / "a.toml").read_text()
    assert not list(paths.drafts.iterdir())


@pytest.mark.parametrize(("program", "code"), [("false", 1), ("true", 0), ("no-such-editor", 1), ("rm", 1)])
def test_an_editor_in_which_nothing_was_typed_leaves_no_copy(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, paths: Paths, program: str, code: int
) -> None:
    monkeypatch.setenv("EDITOR", program)
    monkeypatch.delenv("VISUAL", raising=False)
    result, _, err = gpubox(capfd, "edit", "a", "--editor")
    assert (result, "Your text" in err) == (code, False)
    assert not list(paths.drafts.iterdir())


def test_copy_takes_a_profile_with_its_comments(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    (paths.profiles / "a.toml").write_text("# mine\n" + (paths.profiles / "a.toml").read_text())
    assert gpubox(capfd, "edit", "a", "--copy", "c", "--set", "ctx-size=512")[0] == 0
    text = (paths.profiles / "c.toml").read_text()
    assert text.startswith("# mine\n") and "ctx-size = 512" in text
    code, _, err = gpubox(capfd, "edit", "a", "--copy", "c")
    assert code == 2 and "already" in err


def test_import_reads_a_pasted_command_line(capfd: pytest.CaptureFixture[str], tiny_gguf: Path) -> None:
    line = f"llama-server -m {tiny_gguf} -c 4096 --parallel 2"
    assert gpubox(capfd, "import", line, "--name", "pasted")[0] == 0
    _, shown = values(capfd, "show", "a", "pasted")
    assert {key["name"]: (key["left"], key["right"]) for key in shown["keys"] if key["table"] == "flags"} == {
        "ctx-size": (2048, 4096),
        "parallel": (None, 2),
    }


def test_a_model_on_hugging_face_becomes_a_profile(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "import", "hf:u/Small-GGUF:Q4_K_M")[0] == 0
    assert 'model = "hf:u/Small-GGUF:Q4_K_M"' in (paths.profiles / "small-q4_k_m.toml").read_text()


def test_delete_and_undo(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    text = (paths.profiles / "a.toml").read_text()
    assert gpubox(capfd, "edit", "a", "--delete") == (
        0, "a is deleted. `gpubox edit a --undo` brings it back.\n", "",
    )  # fmt: skip
    assert gpubox(capfd, "show", "a")[0] == 2
    assert gpubox(capfd, "edit", "a", "--undo")[0] == 0
    assert (paths.profiles / "a.toml").read_text() == text


def test_rename(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "edit", "a", "--rename", "z") == (0, "a is called z now.\n", "")
    code, _, err = gpubox(capfd, "edit", "z", "--rename", "b")
    assert code == 2 and "already" in err


def test_show_of_two_treats_an_alias_as_the_same_flag(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    path = paths.profiles / "b.toml"
    path.write_text(path.read_text().replace("ctx-size = 4096", "c = 2048"))
    assert gpubox(capfd, "show", "a", "b") == (0, "a and b have the same flags and keys.\n", "")
