"""A chat file keeps the chat, whatever happens to the program, the disk or the file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpubox.agent.chat_files import (
    ChatSummary,
    chat_names,
    chat_path,
    chat_summaries,
    free_name,
    load_chat,
    remove_chat,
    rename_chat,
    search,
)
from gpubox.agent.chat_log import INTERRUPTED_CALL_OUTPUT, ChatLog, ChatSettings, HeadMoved, SettingsChanged, TurnHeader
from gpubox.agent.events import (
    AgentEvent,
    Message,
    MessageAdded,
    MessageShortened,
    PrefillProgress,
    ReasoningDelta,
    RoundRestarted,
    RoundStarted,
    TextDelta,
    TurnFinished,
    TurnTotals,
)
from gpubox.agent.journal import ChatJournal
from gpubox.agent.tools import ToolCall
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths


@pytest.fixture
def path(paths: Paths) -> Path:
    return chat_path(paths, "one")


@pytest.fixture
def journal(path: Path) -> ChatJournal:
    return ChatJournal(path)


def ask(journal: ChatJournal, turn: str, text: str, parent: str = "", profile: str = "demo") -> None:
    journal.add(TurnHeader(turn, parent, "2026-01-01T00:00:00Z", text, profile, "b1"))
    journal.add_event(MessageAdded(Message("user", text)))


def answer(journal: ChatJournal, text: str, *last_events: AgentEvent) -> None:
    journal.add_event(RoundStarted(1, 5))
    for word in text.split(" "):
        journal.add_event(TextDelta(f"{word} "))
    journal.add_event(MessageAdded(Message("assistant", text)))
    for event in last_events:
        journal.add_event(event)
    journal.add_event(TurnFinished(TurnTotals(), "answered", text))


def talk(path: Path) -> ChatLog:
    journal = ChatJournal(path)
    ask(journal, "t1", "What is 2 + 2?")
    answer(journal, "It is 4.")
    ask(journal, "t2", "And 3 + 3?", "t1")
    answer(journal, "It is 6.")
    journal.close()
    return load_chat(path)


def contents(log: ChatLog) -> list[str]:
    return [message.content for message in log.conversation().messages]


def test_a_chat_is_read_back(path: Path) -> None:
    log = talk(path)

    assert contents(log) == ["What is 2 + 2?", "It is 4.", "And 3 + 3?", "It is 6."]
    assert [(turn.id, turn.header.profile, turn.header.build, turn.state) for turn in log.path()] == [
        ("t1", "demo", "b1", "answered"), ("t2", "demo", "b1", "answered"),
    ]  # fmt: skip
    assert not any(isinstance(event, TextDelta) for turn in log.turns.values() for event in turn.events)
    assert (log.damaged_lines, log.unknown_lines) == (0, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_crash_in_mid_answer_keeps_what_was_flushed(path: Path, journal: ChatJournal) -> None:
    ask(journal, "t1", "Tell me.")
    journal.add_event(ReasoningDelta("Let me "))
    journal.add_event(ReasoningDelta("think."))
    journal.add_event(TextDelta("Once "))
    journal.add_event(PrefillProgress(1, 2, 0))
    journal.add_event(TextDelta("upon"))
    journal.flush()
    journal.add_event(TextDelta(" a time, not flushed"))
    lines = path.read_bytes()

    (turn,) = load_chat(path).path()

    assert turn.state == "cut off"
    (_, partial) = turn.messages()
    assert (partial.content, partial.reasoning_content, partial.partial) == ("Once upon", "Let me think.", True)
    assert b"prefill" not in lines
    assert lines.count(b"\n") == 5  # chat header, turn header, message, thinking, text: deltas are joined
    journal.close()
    assert load_chat(path).path()[0].answer == "Once upon a time, not flushed"


def test_an_interrupted_call_gets_an_output_on_replay(path: Path, journal: ChatJournal) -> None:
    ask(journal, "t1", "Run it.")
    journal.add_event(MessageAdded(Message("assistant", "", tool_calls=(ToolCall("c1", "run", {"code": "1"}),))))
    journal.close()

    messages = load_chat(path).conversation().messages

    assert [(m.role, m.tool_call_id, m.content) for m in messages[2:]] == [("tool", "c1", INTERRUPTED_CALL_OUTPUT)]


def test_a_repeated_round_and_a_shortened_output(path: Path, journal: ChatJournal) -> None:
    ask(journal, "t1", "Run it.")
    journal.add_event(TextDelta("a stream that bro"))
    journal.add_event(RoundRestarted(1, "the stream broke"))
    journal.add_event(MessageAdded(Message("assistant", "", tool_calls=(ToolCall("c1", "run"),))))
    journal.add_event(MessageAdded(Message("tool", "1\n" * 1000, tool_call_id="c1")))
    journal.add_event(MessageShortened(2, "[removed]"))
    journal.close()

    log = load_chat(path)

    assert contents(log) == ["Run it.", "", "[removed]"]
    assert [message.content[:3] for message in log.path()[0].messages()] == ["Run", "", "1\n1"]


def test_a_retry_and_a_branch_lose_nothing(path: Path) -> None:
    talk(path)
    journal = ChatJournal(path)
    ask(journal, "t3", "And 4 + 4?", "t1")
    answer(journal, "It is 8.")
    journal.add(HeadMoved("t2", "utc_now"))
    journal.close()

    log = load_chat(path)

    assert contents(log)[-1] == "It is 6."
    assert [turn.id for turn in log.turns.values() if turn.parent_id == "t1"] == ["t2", "t3"]
    log.head = "t3"
    assert contents(log) == ["What is 2 + 2?", "It is 4.", "And 4 + 4?", "It is 8."]
    log.head = ""
    assert contents(log) == []


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_damages_nothing_else(path: Path, cut: int) -> None:
    talk(path)
    os.truncate(path, path.stat().st_size - cut)

    journal = ChatJournal(path)
    ask(journal, "t3", "Still there?", "t2")
    answer(journal, "Yes.")
    journal.close()

    log = load_chat(path)
    assert contents(log)[-2:] == ["Still there?", "Yes."]
    assert contents(log)[:4] == ["What is 2 + 2?", "It is 4.", "And 3 + 3?", "It is 6."]
    assert log.damaged_lines == (cut > 1)
    assert log.turns["t2"].state == ("answered" if cut == 1 else "cut off")


@pytest.mark.parametrize(
    ("line", "damaged", "unknown"),
    [
        (b'{"record":"from_the_future","x":{"y":1}}', 0, 1),
        (b'{"record":"logged_event","event":{"event":"telepathy","text":"x"},"at":"t"}', 0, 1),
        (b'{"record":"turn_header","turn_id":17}', 0, 1),
        (b'{"record":"logged_event","event":{"event":"text_delta"', 1, 0),
        (b"\0\0\0\0", 1, 0),
        (b'\xff\xfe"', 1, 0),
        (b"[" * 100_000, 1, 0),
        (b"17", 1, 0),
    ],
)
def test_unknown_and_damaged_lines_are_counted_and_skipped(path: Path, line: bytes, damaged: int, unknown: int) -> None:
    talk(path)
    with path.open("ab") as file:
        file.write(line + b"\n")
    journal = ChatJournal(path)
    ask(journal, "t3", "Still there?", "t2")
    answer(journal, "Yes.")
    journal.close()

    log = load_chat(path)

    assert contents(log)[-1] == "Yes."
    assert (log.damaged_lines, log.unknown_lines) == (damaged, unknown)
    assert [chat.turns for chat in summaries_of(path)] == [4 if b"turn_header" in line else 3]


def summaries_of(path: Path) -> list[ChatSummary]:
    return list(chat_summaries(Paths(path.parent, path.parent.parent, path.parent)))


def test_a_second_writer_is_refused_but_readers_are_not(path: Path) -> None:
    talk(path)
    journal = ChatJournal(path)

    with pytest.raises(GpuboxError, match="Another gpubox has the chat one open"):
        ChatJournal(path)
    assert contents(load_chat(path))[-1] == "It is 6."

    journal.close()
    journal.close()
    ChatJournal(path).close()


def test_after_a_full_disk_everything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [10]
    real = os.write

    def write(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(file, bytes(data)[: room[0]])
        room[0] -= done
        return done

    journal = ChatJournal(path)
    monkeypatch.setattr(os, "write", write)
    ask(journal, "t1", "What is 2 + 2?")
    assert "No space left" in journal.problem
    answer(journal, "It is 4.")
    assert contents(load_chat(path)) == []

    room[0] = 10**9
    journal.flush()

    assert journal.problem == ""
    assert contents(load_chat(path)) == ["What is 2 + 2?", "It is 4."]
    assert load_chat(path).damaged_lines == 0
    journal.close()


def test_a_deleted_file_is_reported(path: Path, journal: ChatJournal) -> None:
    ask(journal, "t1", "What is 2 + 2?")
    path.unlink()

    answer(journal, "It is 4.")

    assert "deleted" in journal.problem
    journal.close()
    assert not path.exists()


def test_lone_surrogates_are_replaced(path: Path, journal: ChatJournal) -> None:
    ask(journal, "t1", "half \ud83d and \x1b[31m \u202e 🙂")
    answer(journal, "\udcff [/foo]")
    journal.close()

    assert contents(load_chat(path)) == ["half ? and \x1b[31m \u202e 🙂", "? [/foo]"]


def test_other_files_are_refused_and_listed_with_their_problem(paths: Paths) -> None:
    talk(chat_path(paths, "good"))
    newer = '{"record":"chat_header","format":"gpubox-chat","version":2,"gpubox_version":"9.9","at":"t"}\n'
    for name, text in (("other", "{}\n"), ("image", "\x89PNG"), ("newer", newer)):
        chat_path(paths, name).write_text(text)
        with pytest.raises(UsageError, match="is not a chat"):
            load_chat(chat_path(paths, name))
    chat_path(paths, "empty").write_text("")

    assert contents(load_chat(chat_path(paths, "empty"))) == []
    assert {chat.name: bool(chat.problem) for chat in chat_summaries(paths)} == {
        "good": False, "other": True, "image": True, "newer": True, "empty": False,
    }  # fmt: skip
    assert [hit.chat for hit in search(paths, "3 + 3")] == ["good"]


def test_the_list_of_chats(paths: Paths) -> None:
    assert chat_summaries(paths) == []
    talk(chat_path(paths, "old"))
    os.utime(chat_path(paths, "old"), (1, 1))
    talk(chat_path(paths, "new one"))

    summaries = chat_summaries(paths)

    assert [(chat.name, chat.turns, chat.title, chat.profile) for chat in summaries] == [
        ("new one", 2, "What is 2 + 2?", "demo"), ("old", 2, "What is 2 + 2?", "demo"),
    ]  # fmt: skip
    assert summaries[1].changed_at == "1970-01-01T00:00:01Z"


def test_search_finds_questions_answers_code_and_outputs(paths: Paths) -> None:
    journal = ChatJournal(chat_path(paths, "one"))
    ask(journal, "t1", 'Say "Grüß\ndich" there')
    call = ToolCall("c1", "run", {"code": "x"}, code="print('needle in code')")
    journal.add_event(MessageAdded(Message("assistant", "", tool_calls=(call,))))
    journal.add_event(MessageAdded(Message("tool", "needle in output", tool_call_id="c1")))
    answer(journal, "A " + "long " * 50 + "needle" + " tail" * 50)
    journal.close()

    hits = search(paths, "NEEDLE")

    assert [(hit.chat, hit.turn, hit.role) for hit in hits] == [
        ("one", "t1", "assistant"), ("one", "t1", "tool"), ("one", "t1", "assistant"),
    ]  # fmt: skip
    assert hits[2].excerpt.startswith("…long long")
    assert len(search(paths, '"grüss dich"')) == len(search(paths, "grüß dich")) == 1
    assert search(paths, "nothing of it") == search(paths, "  ") == []


def test_names(paths: Paths) -> None:
    for bad in ("", "../x", "a/b", ".hidden", "~x", "a\nb", "x" * 81, "a ", "-x"):
        with pytest.raises(UsageError):
            chat_path(paths, bad)
    assert free_name(paths, "Write a [quick] sort, please, in C!") == "write-a-quick-sort-please"
    assert free_name(paths, "…") == "chat"
    talk(chat_path(paths, "chat"))
    assert free_name(paths, "…") == "chat-2"


def test_renaming_and_removing(paths: Paths) -> None:
    talk(chat_path(paths, "one"))
    talk(chat_path(paths, "two"))
    with pytest.raises(UsageError, match="already"):
        rename_chat(paths, "one", "two")
    rename_chat(paths, "one", "three")
    assert sorted(chat_names(paths)) == ["three", "two"]

    journal = ChatJournal(chat_path(paths, "two"))
    with pytest.raises(GpuboxError, match="has the chat two open"):
        rename_chat(paths, "two", "x")
    with pytest.raises(GpuboxError, match="has the chat two open"):
        remove_chat(paths, "two")
    journal.close()

    remove_chat(paths, "two")
    assert chat_names(paths) == ["three"]
    with pytest.raises(UsageError, match="Did you mean 'three'"):
        remove_chat(paths, "thre")


def test_the_settings_of_a_chat(path: Path, journal: ChatJournal) -> None:
    journal.add(SettingsChanged(ChatSettings(thinking=False, sampling={"temperature": 0.2}), "t"))
    journal.add(SettingsChanged(ChatSettings(thinking=True, system_prompt="Be brief."), "t"))
    journal.close()

    settings = load_chat(path).settings

    assert settings == ChatSettings(thinking=True, system_prompt="Be brief.")
    assert settings.agent_settings("the profile's").system_prompt == "Be brief."
    assert ChatSettings().agent_settings("the profile's").system_prompt == "the profile's"
    assert "programmer" in ChatSettings().agent_settings("").system_prompt
    assert ChatSettings(system_prompt="").agent_settings("the profile's").system_prompt == ""
    assert ChatSettings(tools=False, protocol="native").agent_settings("").protocol == "none"
