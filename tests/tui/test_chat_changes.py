"""What the owner does about changes: looks, takes some, drops some, undoes; commands, queue and files named."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from gpubox.agent import events as e
from gpubox.agent import files_named
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.tools import ToolOutput
from gpubox.sandbox.changes import Change, Choice, Hunk
from gpubox.sandbox.layers import View
from gpubox.sandbox.policy import Confinement
from gpubox.tui.chat.chat_lines import chat_line
from gpubox.tui.chat.chat_screen import ChatScreen
from gpubox.tui.chat.commit import CommitScreen
from gpubox.tui.chat.diff_lines import is_shown_whole
from gpubox.tui.chat.diff_screen import DiffScreen, diff_rows, toggled
from gpubox.tui.chat.suggestions import best_names
from gpubox.tui.dialogs import PromptScreen, QuestionScreen
from tests.tui.conftest import act, app_of, shows, text, until
from tests.tui.fake_chat import (
    CHANGES,
    TESTS,
    WORKSPACE,
    ChatServices,
    FakeChats,
    changing_turn,
    opening,
)  # fmt: skip
from tests.tui.test_chat import HOSTILE, answer, bar, chatting, over, say

IN_WORKSPACE = ChatSettings(workdir=WORKSPACE)


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.tui.chat.turn.FRAME_SECONDS", 0.005)
    monkeypatch.setattr("gpubox.tui.chat.turn.REST_FACTOR", 0)
    monkeypatch.setattr("gpubox.tui.dialogs.TYPING_PAUSE_SECONDS", 0)


@asynccontextmanager
async def changed(chats: FakeChats) -> AsyncIterator[tuple[Pilot[bool], ChatScreen]]:
    """The chat in a workspace after a turn, which has changed files."""
    async with chatting(chats) as (pilot, screen):
        screen.new_settings = IN_WORKSPACE
        await say(pilot, "read units")
        await over(pilot, screen)
        yield pilot, screen


async def test_a_turn_ends_with_its_diff_and_enter_opens_it() -> None:
    async with changed(chats := FakeChats(changing_turn())) as (pilot, screen):
        await shows(
            pilot, "5 files changed: +2", "M src/durations.py", "runs by itself: an editor's tasks", "pytest -q"
        )
        await shows(pilot, "you changed it meanwhile", "12.3 kB → 14.1 kB", "5 changed files wait for you")
        assert "⏎ diff" in bar(pilot)
        await pilot.press(*"and", "enter")
        await until(pilot, lambda: len(chats.asked) == 2)
        await over(pilot, screen)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app_of(pilot).screen, DiffScreen))
        await shows(
            pilot, "3 files marked", "! 2 to look at", "t take", "□ ! .vscode/tasks.json", "■ M src/durations.py"
        )


async def test_files_and_hunks_are_taken_and_the_rest_waits() -> None:
    async with changed(chats := FakeChats(changing_turn())) as (pilot, screen):
        await pilot.press("ctrl+d")
        await shows(pilot, "3 files marked")
        diff = app_of(pilot).screen
        assert isinstance(diff, DiffScreen)
        await pilot.press("down", "down", "space", "down", "down", "space")  # not the image, not the first hunk
        await shows(pilot, "□ M docs/units.png", "◧ M src/durations.py", "2 files marked")
        await pilot.press("home", "space", "t")
        await shows(pilot, "Take what runs by itself?", ".vscode/tasks.json", "an editor's tasks")
        await until(pilot, lambda: isinstance(app_of(pilot).screen, QuestionScreen))
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        chosen, allowed = chats.opened[0].decisions[0][1]
        assert chosen == {"src/durations.py": frozenset({1}), "tests/test_durations.py": None} and not allowed
        await shows(pilot, "✓ Taken: 2 files.", "/undo takes the turn back", "3 changed files wait for you")
        await shows(pilot, "5 files changed: +24 −4   3 left")


async def test_a_key_means_what_the_diff_will_show_before_it_is_shown() -> None:
    async with changed(FakeChats(changing_turn())) as (pilot, screen):
        await screen.commands.diff()
        for action in ("mark", "mark", "take"):
            await pilot.app.run_action(f"screen.diff_{action}")
        await shows(pilot, "✓ Taken: 3 files.", "2 changed files wait for you")


async def test_a_decision_is_carried_out_once_and_to_its_end() -> None:
    gate, begun, done = asyncio.Event(), list[Choice](), list[Choice]()

    async def take(choice: Choice, _allowed: object) -> None:
        begun.append(choice)
        await gate.wait()
        done.append(choice)

    async def drop(_choice: Choice, _why: str) -> None:
        raise AssertionError

    async with chatting(FakeChats()) as (pilot, screen):
        await app_of(pilot).push_screen(DiffScreen(CHANGES, take, drop))
        await shows(pilot, "3 files marked")
        await pilot.press("t", "t", "d", "escape")
        assert len(begun) == 1 and pilot.app.screen is not screen
        gate.set()
        await until(pilot, lambda: pilot.app.screen is screen)
        assert done == begun


async def test_what_runs_by_itself_is_taken_after_a_yes_of_its_own() -> None:
    async with changed(chats := FakeChats(changing_turn())) as (pilot, screen):
        await pilot.press("escape", "d")
        await shows(pilot, "3 files marked")
        await pilot.press("space", "t")
        await shows(pilot, "Take what runs by itself?", ".vscode/tasks.json")
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert chats.opened[0].decisions[0][1][1] == {".vscode/tasks.json"}
        await shows(pilot, "✓ Taken: 4 files.", "1 changed file waits for you")


async def test_dropped_changes_have_a_reason_for_the_model() -> None:
    async with changed(chats := FakeChats(changing_turn())) as (pilot, screen):
        await pilot.press("ctrl+d")
        await shows(pilot, "3 files marked")
        await pilot.press("a", "d")
        await pilot.pause(0)
        assert not chats.opened[0].decisions, "nothing is marked"
        await pilot.press("a", "d")
        await shows(pilot, "Drop 3 files", "Why? The model reads it")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app_of(pilot).screen, DiffScreen))
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app_of(pilot).screen, PromptScreen))
        await pilot.press(*"too", "space", *"long", "enter")
        await until(pilot, lambda: pilot.app.screen is screen)
        [(kind, (chosen, why))] = chats.opened[0].decisions
        assert kind == "drop" and why == "too long" and len(chosen) == 3
        await shows(pilot, "✗ Dropped: 3 files.", "The model reads why")


async def test_a_turn_is_undone_and_redone() -> None:
    chats = FakeChats(answer("Yes."))
    async with chatting(chats) as (pilot, screen):
        screen.new_settings = IN_WORKSPACE
        await say(pilot, "first")
        await over(pilot, screen)
        chats.script = changing_turn()
        await say(pilot, "second")
        await over(pilot, screen)
        await say(pilot, "/undo")
        await shows(pilot, "↶ Undone: “second”, 2 files of yours put back.", "/redo brings it back")
        assert "❯ second" not in text(pilot) and not screen.commands.changes
        await shows(pilot, "A turn is undone.   /redo brings it back")
        await say(pilot, "/redo")
        await shows(pilot, "↶ Redone: “second”", "5 changed files wait for you", "tests/test_durations.py")


async def test_commands_complete_and_only_at_the_start() -> None:
    chats = FakeChats(answer("Yes."))
    async with chatting(chats) as (pilot, screen):
        await pilot.press("slash")
        await shows(pilot, "13 commands", "/undo", "tab completes")
        await pilot.press(*"co")
        await until(pilot, lambda: [each.text for each in screen.suggestions.values] == ["/commit", "/compact"])
        await pilot.press("down", "tab")
        await until(pilot, lambda: screen.composer.text == "/compact" and not screen.suggestions.display)
        screen.composer.set_text("")
        await say(pilot, "see /undo")
        await until(pilot, lambda: chats.asked == ["see /undo"])
        await over(pilot, screen)
        await pilot.press("slash", *"pla", "escape")
        await until(pilot, lambda: not screen.suggestions.display)
        assert screen.is_current and screen.composer.has_focus
        await pilot.press("n", "enter")
        await until(pilot, lambda: screen.settings.apply == "plan")
        await shows(pilot, "plan only")
        await say(pilot, "/nothing")
        await until(pilot, lambda: screen.composer.text == "/nothing")
        assert len(chats.asked) == 1


@pytest.mark.parametrize("name", ["new", "help", "share", "commit", "test"])
async def test_a_command_does_what_its_name_says(name: str) -> None:
    expected = {"new": "Ask something.", "help": "Keys in the chat", "share": "Write the chat as Markdown",
                "commit": "Read durations with several units", "test": "4 passed in 0.21s"}  # fmt: skip
    chats = FakeChats(answer("Yes."))
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "hello")
        await over(pilot, screen)
        chats.opened[0].log.taken = {"src/durations.py": ""}
        await say(pilot, f"/{name}")
        await shows(pilot, expected[name])
        if name == "share":
            await pilot.press("enter")
            await until(pilot, lambda: chats.saved)
            assert chats.saved[0][0] == "hello.md" and "> hello" in chats.saved[0][1]
        elif name == "commit":
            await shows(pilot, "1 file, with your git", "src/durations.py")
            await pilot.press("enter")
            await shows(pilot, "✓ Committed.", "[main 1f0c2aa]")
            assert chats.opened[0].decisions[0][0] == "commit"


async def test_what_is_typed_meanwhile_is_queued_and_sent() -> None:
    gate = asyncio.Event()
    chats = FakeChats([*opening(), gate, *answer("Yes.")])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "one")
        await until(pilot, lambda: screen.runner.running and screen.chat)
        await say(pilot, "two")
        await say(pilot, "three")
        await shows(pilot, "queued: two and 1 more")
        await pilot.press("up")
        await until(pilot, lambda: screen.composer.text == "three")
        screen.composer.set_text("")
        gate.set()
        await until(pilot, lambda: chats.asked == ["one", "two"])
        await over(pilot, screen)
        assert "queued" not in text(pilot)


async def test_a_file_is_found_by_a_few_letters() -> None:
    async with chatting(FakeChats()) as (pilot, screen):
        await pilot.press(*"see", "space", "at", *"tdur")
        await shows(pilot, "1 file ─", "tests/test_durations.py")
        await pilot.press("tab")
        await until(pilot, lambda: screen.composer.text == "see @tests/test_durations.py ")
        assert not screen.suggestions.display


@pytest.mark.parametrize(("key", "used"), [("y", True), ("n", False)])
async def test_the_folder_is_offered_as_workspace_once(key: str, used: bool) -> None:
    chats = FakeChats()
    chats.offered = (Path(WORKSPACE), None)
    async with chatting(chats) as (pilot, screen):
        await shows(pilot, f"Use {WORKSPACE} as workspace?", "before they reach your folder")
        await pilot.press("tab", key, *["enter"] * (not used))
        await until(pilot, lambda: chats.remembered == [(Path(WORKSPACE), used)])
        await until(pilot, lambda: bool(screen.settings.workdir) == used)


async def test_a_remembered_workspace_is_used_without_a_question() -> None:
    chats = FakeChats()
    chats.offered = (Path(WORKSPACE), True)
    async with chatting(chats) as (pilot, screen):
        await until(pilot, lambda: screen.settings.workdir == WORKSPACE)
        await shows(pilot, WORKSPACE)
        assert not screen.questions.display


# -- what is computed ---------------------------------------------------------------------------------


def test_hunks_are_marked_one_by_one() -> None:
    rows = {row.key: row for row in diff_rows(CHANGES)}
    path = "src/durations.py"
    marked = toggled({}, rows[path, 1])
    assert marked == {path: frozenset({1})}
    marked = toggled(marked, rows[path, 0])
    assert marked == {path: None}
    marked = toggled(marked, rows[path, 0])
    assert marked == {path: frozenset({1})}
    assert toggled(marked, rows[path, -1]) == {}
    assert ("tests/test_durations.py", 0) not in rows, "a file with one hunk has one row"


def test_the_text_of_named_files_is_bounded_by_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a b.py").write_text(TESTS)
    (tmp_path / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    (tmp_path / "data.bin").write_bytes(b"\0\1")
    (tmp_path / "link").symlink_to("/etc/passwd")
    view = View((tmp_path,))
    prompt = files_named.read_named('see @"src/a b.py", @long.txt. @data.bin @link @../x @nowhere me@x.org', view)
    attached = files_named.attachment(prompt.attached)
    assert prompt.text.startswith('see @"src/a b.py"') and attached.startswith("src/a b.py, long.txt\n")
    assert TESTS.strip() in attached and "line 200\n[line 201 is the next of 1,000]" in attached
    assert "root:" not in attached and prompt.notes == ("data.bin was not added: it is no text.",)
    assert files_named.read_named("no file", view) == files_named.Prompt("no file")
    assert "src/" in files_named.read_named("@./", view).attached


def test_names_of_a_workspace_leave_out_what_nobody_names(tmp_path: Path) -> None:
    for name in (".git/config", "node_modules/x/y.js", "src/main.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    names = files_named.workspace_names(View((tmp_path,)))
    assert sorted(names) == ["README.md", "src/", "src/main.py"]
    assert best_names("smain", names) == ["src/main.py"]


@pytest.mark.parametrize(
    ("pasted", "inserted"),
    [("/tmp/a.png\n", "@/tmp/a.png "), ("'/tmp/my shot.PNG'", '@"/tmp/my shot.PNG" '), ("a.png", ""), ("/x.py", "")],
)
def test_a_pasted_path_of_an_image_names_it(pasted: str, inserted: str) -> None:
    assert files_named.pasted_image(pasted) == inserted


async def test_palette_and_menu_reach_the_commands() -> None:
    chats = FakeChats(changing_turn())
    async with chatting(chats, ChatServices(chats)) as (pilot, screen):
        screen.new_settings = IN_WORKSPACE
        await say(pilot, "read units")
        await over(pilot, screen)
        await act(pilot, "chat_diff")
        await shows(pilot, "3 files marked")
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert isinstance(chats.opened[0].log.turns["turn-1"].events[-1], e.TurnFinished)


async def test_text_is_pasted_once_and_an_image_by_its_name(tmp_path: Path) -> None:
    chats = FakeChats(answer("A cat."))
    image = tmp_path / "cat.png"
    image.write_bytes(b"\x89PNG" + b"0" * 4000)
    async with chatting(chats) as (pilot, screen):
        pilot.app.screen.post_message(events.Paste("what is this? "))
        await until(pilot, lambda: screen.composer.text == "what is this? ")
        pilot.app.screen.post_message(events.Paste(str(image)))
        await until(pilot, lambda: screen.composer.text == f"what is this? @{image} ")
        await until(pilot, lambda: not screen.suggestions.display)
        await pilot.press("enter")
        await over(pilot, screen)
        await shows(pilot, "[image cat.png 4.0 kB]", "A cat.")
        assert chats.images == [image]


async def test_the_conversation_is_shortened_after_its_cost_is_known() -> None:
    async with chatting(FakeChats(answer("Yes."))) as (pilot, screen):
        await say(pilot, "hello")
        await over(pilot, screen)
        await say(pilot, "/compact")
        await shows(pilot, "Shorten the conversation?", "About 1,400 tokens are read again")
        await pilot.press("y")
        await shows(pilot, "Summary made: 7,900 tokens became 1,400", "▸ summary of what was said before  The goal is")
        await pilot.press("ctrl+o")
        await shows(pilot, "│ Its tests pass.")


async def test_the_tests_of_a_project_are_offered_once() -> None:
    chats = FakeChats(changing_turn())
    chats.test_commands = ("", "pytest -q")
    async with chatting(chats) as (pilot, screen):
        screen.new_settings = IN_WORKSPACE
        await say(pilot, "read units")
        await shows(pilot, "Test what it changes?", "pytest -q", "after each turn that changes files?")
        await pilot.press("tab", "y")
        await until(pilot, lambda: ("test", "pytest -q") in chats.opened[0].decisions)
        await until(pilot, lambda: text(pilot).count("✓ tests passed") == 2)
        chats.test_commands = ("", "pytest -q")
        await say(pilot, "again")
        await over(pilot, screen)
        assert not screen.questions.pending


async def test_hostile_names_and_lines_reach_no_terminal() -> None:
    hostile = HOSTILE + "\ud800\r\x0b\u2028"
    odd = Hunk(1, "@@ nonsense", (hostile, "\\ No newline at end of file"))
    hunks = (Hunk(0, "@@ -0,0 +1,1 @@ " + hostile, ("+" + hostile,)), odd)
    change = Change(hostile, "new", None, 0o644, None, 9, hunks, 1, 0, hostile, hostile)
    changed = e.FilesChanged((e.ChangedFile(hostile, hostile, 1, 0),))
    tested = e.TestFinished(hostile, ToolOutput(hostile))
    chats = FakeChats([*opening(), changed, tested, e.TurnFinished(e.TurnTotals(), "answered", "Done.")])
    chats.changes = [change, dataclasses.replace(change, path="b" + hostile, hunks=())]
    chats.test_commands = ("", hostile)

    async def harmless() -> None:
        await pilot.pause(0)
        shown = text(pilot)
        assert not any(ord(char) < 32 and char != "\n" for char in shown) and "\u202e" not in shown
        assert not any("\ud800" <= char <= "\udfff" for char in shown)

    async with chatting(chats) as (pilot, screen):
        screen.new_settings = IN_WORKSPACE
        await say(pilot, "go")
        await over(pilot, screen)
        await shows(pilot, "Test what it changes?")
        await harmless()
        await pilot.press("ctrl+o")
        await harmless()
        await pilot.press("enter")
        await shows(pilot, "0 files marked")
        for keys in ("j", "j", "space", "t"):
            await pilot.press(keys)
            await harmless()
        await shows(pilot, "take it, too")
        await pilot.press("y")
        await shows(pilot, "Nothing was taken.")
        await harmless()


async def test_a_file_whose_lines_are_not_all_shown_is_not_marked() -> None:
    chats = FakeChats(changing_turn())
    lines = tuple(f"+line {number}" for number in range(2500))
    long = Change("long.txt", "new", None, 0o644, None, 9, (Hunk(0, "@@ -0,0 +1,2500 @@", lines),), 2500)
    large = Change("large.txt", "new", None, 0o644, None, 5 << 20)
    assert not is_shown_whole(dataclasses.replace(large, kind="changed", old_bytes=3 << 20, new_bytes=3 << 20))
    chats.changes = [dataclasses.replace(CHANGES[4], path="a.py"), large, long]
    async with changed(chats) as (pilot, _):
        await pilot.press("ctrl+d")
        await shows(pilot, "1 file marked", "! 2 to look at", "■ A a.py", "□ A large.txt", "□ A long.txt")
        await pilot.press("down", "down", "space")
        await shows(pilot, "2 files marked", "! 1 to look at")


async def test_a_message_leaves_the_keys_on_the_screen() -> None:
    chats = FakeChats(changing_turn())
    async with chatting(chats, toasts=True) as (pilot, screen):
        screen.say("Nothing waits for you.")
        await shows(pilot, "· Nothing waits for you.", "F1 help")
        rows = text(pilot).rstrip().split("\n")
        assert "Nothing waits for you." in rows[-1] and "F1 help" in rows[-1]
        screen.say("What waits. " * 9)
        await shows(pilot, "· What waits. What waits.", "F1 help")
        rows = text(pilot).rstrip().split("\n")
        assert "What waits." in rows[-2] and "F1 help" in rows[-1]
        await say(pilot, "second")  # they are about what was before
        await until(pilot, lambda: chats.asked == ["second"])
        assert not app_of(pilot).notices


async def test_who_deletes_a_chat_with_open_changes_is_told() -> None:
    chats = FakeChats(changing_turn())
    chats.keep("other", ["A question"])
    chats.lost["other"] = "2 changes wait for your decision: they are lost with it."
    async with changed(chats) as (pilot, screen):
        await pilot.press("escape")
        await act(pilot, "chat_delete")
        await shows(pilot, "5 changes of it wait for your decision: they are lost.")
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: screen.chat_list.rows.has_focus)
        names = [chat.name for chat in screen.chat_list.rows.values]
        await pilot.press("home", *["down"] * names.index("other"))
        await act(pilot, "chat_delete")
        await shows(pilot, "Delete other?", "2 changes wait for your decision")
        await pilot.press("y")
        await until(pilot, lambda: "other" not in chats.logs)


async def test_hooks_that_the_chat_changed_are_named_before_a_commit(tmp_path: Path) -> None:
    async with chatting(FakeChats(changing_turn())) as (pilot, _):
        await app_of(pilot).push_screen(CommitScreen("Say more", ["a.py "], ["tools/hooks/pre-commit"]))
        await shows(pilot, "Git runs hooks that this chat changed: tools/hooks/pre-commit", "a.py␠")


def test_the_path_of_the_workspace_is_shortened_before_anything_is_left_out() -> None:
    settings = ChatSettings(workdir="/home/me/code/a/rather/long/path/to/durations")
    for name in ("parse-durations", "a-chat-with-a-name-of-forty-characters-x"):
        line = "".join(part for part, _ in chat_line(name, settings, Confinement("bubblewrap"), "", 80))
        assert "you take what it changes" in line and "durations " in line and "sandbox on" in line
