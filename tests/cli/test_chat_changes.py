"""``gpubox chat diff|take|drop|undo|redo`` over a chat whose turns were laid by hand: no server runs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.chat_files import chat_path, layers_folder, load_chat
from gpubox.agent.chat_log import ChatSettings, SettingsChanged, TurnHeader
from gpubox.agent.events import TurnFinished, TurnTotals
from gpubox.agent.journal import ChatJournal
from gpubox.cli.main import run
from gpubox.paths import Paths
from gpubox.sandbox.layers import TopLayer
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import Steps

GOLDEN = """\
!  .envrc   +1     runs by itself: run on entering the folder
M  a.py     +1 −2
D  old.txt  −1
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workspace(tmp_path: Path, paths: Paths) -> Path:
    """The workspace of the chat ``fix``, with one turn that waits for a decision."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("".join(f"line {number}\n" for number in range(30)))
    (folder / "old.txt").write_text("old\n")
    path = chat_path(paths, "fix")
    with closing(ChatJournal(path, new=True)) as journal:
        journal.add(SettingsChanged(ChatSettings(workdir=str(folder)), "2026-01-01T00:00:00Z"))
        journal.add(TurnHeader("t1", "", "2026-01-01T00:00:00Z", "Make it better"))
        journal.add_event(TurnFinished(TurnTotals(), "answered", "Done."))
    with closing(Steps(folder, layers_folder(path), layer_owner())) as steps:
        steps.begin_turn("t1")
        layer = TopLayer(steps.view())
        text = (folder / "a.py").read_text().replace("line 3\n", "LINE 3\n").replace("line 25\n", "")
        layer.write(("a.py",), text.encode())
        layer.write((".envrc",), b"export X=1\n")
        layer.remove(("old.txt",))
        steps.note_changes(2**62)
        steps.end_turn()
    return folder


def chat(capfd: Capture, *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(["chat", *words])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def values(capfd: Capture, *words: str) -> dict[str, Any]:
    return dict(json.loads(chat(capfd, *words, "--json")[1]))


def test_the_diff(workspace: Path, capfd: Capture) -> None:
    assert chat(capfd, "diff", "fix", "--stat")[1] == GOLDEN
    code, out, _ = chat(capfd, "diff", "fix", "old.txt", ".envrc")
    assert (code, out) == (
        0,
        "--- /dev/null\n+++ .envrc\n@@ -0,0 +1,1 @@\n+export X=1\n"
        "! .envrc: runs by itself: run on entering the folder\n"
        "--- old.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-old\n",
    )
    (change,) = values(capfd, "diff", "fix", "a.py")["changes"]
    assert [len(change["hunks"]), change["added"], change["removed"], change["conflict"]] == [2, 1, 2, None]


def test_a_take_by_hunk_then_the_rest_then_undo_and_redo(workspace: Path, capfd: Capture, paths: Paths) -> None:
    before = (workspace / "a.py").read_text()
    assert values(capfd, "take", "fix", "a.py", "--hunks", "2")["taken"] == ["a.py"]
    assert "LINE 3" not in (workspace / "a.py").read_text() and "line 25\n" not in (workspace / "a.py").read_text()
    code, out, _ = chat(capfd, "take", "fix")
    assert (code, out) == (
        0, "Taken: 2 files. .envrc is left: runs by itself: run on entering the folder.\n"
    )  # fmt: skip
    assert chat(capfd, "take", "fix", ".envrc")[0] == 1
    assert chat(capfd, "take", "fix", "--allow", ".envrc")[:2] == (0, "Taken: 1 file.\n")
    assert chat(capfd, "diff", "fix")[0] == 1
    assert not (workspace / "old.txt").exists()
    code, out, _ = chat(capfd, "undo", "fix")
    assert (code, out) == (0, "Undone: “Make it better”, 3 files of yours put back.\n")
    assert (workspace / "a.py").read_text() == before and (workspace / "old.txt").exists()
    assert not (workspace / ".envrc").exists() and load_chat(chat_path(paths, "fix")).head == ""
    assert values(capfd, "redo", "fix")["turns"] == ["t1"]
    assert (workspace / ".envrc").exists() and load_chat(chat_path(paths, "fix")).head == "t1"


def test_what_the_owner_changed_since_is_kept_on_request(workspace: Path, capfd: Capture) -> None:
    chat(capfd, "take", "fix")
    (workspace / "a.py").write_text("mine\n")
    code, _, err = chat(capfd, "undo", "fix")
    assert code == 1 and "You changed a.py since: nothing was undone." in err
    assert values(capfd, "undo", "fix", "--keep", "a.py")["kept"] == ["a.py"]
    assert (workspace / "a.py").read_text() == "mine\n" and (workspace / "old.txt").exists()


def test_a_drop_is_told_to_the_model(workspace: Path, capfd: Capture, paths: Paths) -> None:
    assert values(capfd, "drop", "fix", "a.py", "--why", "wrong file")["left"] == [".envrc", "old.txt"]
    assert "wrong file" in load_chat(chat_path(paths, "fix")).notes[-1]
    assert chat(capfd, "drop", "fix")[:2] == (0, "Dropped. Nothing waits for you.\n")
    assert chat(capfd, "diff", "fix", "--stat")[:2] == (1, "No changes wait for you.\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("diff", "nix"), 2, "There is no chat nix."),
        (("take", "fix", "b.py"), 2, "b.py has no change that waits."),
        (("take", "fix", "a.py", "--hunks", "3"), 2, "a.py has 2 hunks"),
        (("take", "fix", "--hunks", "1"), 2, "--hunks needs one PATH"),
        (("drop", "fix", "a.py", "--hunks", "0"), 2, "--hunks needs one PATH"),
        (("undo", "fix", "t9"), 2, "There is no turn t9"),
        (("redo", "fix"), 2, "There is no turn to redo."),
    ],
)
def test_mistakes(workspace: Path, capfd: Capture, words: tuple[str, ...], code: int, message: str) -> None:
    result = chat(capfd, *words)
    assert result[0] == code and message in result[2]


def test_a_chat_with_open_changes_is_deleted_after_a_yes(workspace: Path, capfd: Capture, paths: Paths) -> None:
    code, _, err = chat(capfd, "rm", "fix")
    assert code == 2 and "3 changes wait for your decision" in err and "--yes" in err
    assert chat_path(paths, "fix").exists()
    assert chat(capfd, "rm", "fix", "--yes")[0] == 0
    assert not chat_path(paths, "fix").exists() and not layers_folder(chat_path(paths, "fix")).exists()
    assert (workspace / "old.txt").exists()


def test_a_chat_whose_workspace_is_gone_can_be_deleted(workspace: Path, capfd: Capture, paths: Paths) -> None:
    workspace.rename(workspace.with_name("elsewhere"))
    code, _, err = chat(capfd, "rm", "fix")
    assert code == 2 and "cannot be counted" in err
    assert chat(capfd, "rm", "fix", "--yes")[0] == 0
    assert not chat_path(paths, "fix").exists()


def test_a_chat_whose_changes_are_decided_is_deleted_without_a_question(
    workspace: Path, capfd: Capture, paths: Paths
) -> None:
    assert chat(capfd, "drop", "fix")[0] == 0
    assert chat(capfd, "rm", "fix")[0] == 0
    assert workspace.exists() and not chat_path(paths, "fix").exists()


def test_names_that_hide_something_are_shown_with_marks(workspace: Path, capfd: Capture, paths: Paths) -> None:
    with closing(Steps(workspace, layers_folder(chat_path(paths, "fix")), layer_owner())) as steps:
        steps.begin_turn("t2")
        layer = TopLayer(steps.view())
        layer.write(("a.py ",), b"1\n")
        layer.write(("a\u200b.py",), b"1\n")
        steps.note_changes(2**62)
        steps.end_turn()
    for words in (("diff", "fix", "--stat"), ("diff", "fix")):
        shown = chat(capfd, *words)[1]
        assert "a.py\u2420" in shown and "a\ufffd.py" in shown
