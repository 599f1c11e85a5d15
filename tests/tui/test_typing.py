"""A question that comes while the owner types takes nothing of the text, and no text answers it."""

from __future__ import annotations

import asyncio
import random
import string
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from gpubox.tui import dialogs
from gpubox.tui.app import GpuboxApp
from gpubox.tui.chat.chat_screen import ChatScreen
from gpubox.tui.dialogs import QuestionScreen, ask
from tests.sampling import sampled
from tests.tui.conftest import SIZE, shows, text, until
from tests.tui.fake import FakeServices
from tests.tui.fake_chat import QUESTION, ChatServices, FakeChats

WORDS = "now: yes, no, wait, all. Run it, keep, stop & download!"
ANSWERS = (("n", "do nothing", "no"), ("y", "do it", "yes"), ("w", "wait", "wait"), ("a", "anyway", "anyway"))
KEYS = (*string.ascii_letters, *string.digits, "space", "comma", "backspace", "left", "end", "ctrl+j", "tab")
"""What people press while they write; a Tab among letters is a slip."""


async def a_question(app: GpuboxApp) -> Any:
    """As a switch, a download or a trial that was begun elsewhere asks."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    app.push_screen(QuestionScreen("Really?", "It takes long.", *ANSWERS), answer.set_result)
    return await answer


async def chat_of(app: GpuboxApp, pilot: Pilot[Any]) -> ChatScreen:
    app.action_show("chat")
    screen = app.chat
    await until(pilot, lambda: app.screen is screen and screen.composer.has_focus)
    return screen


async def type_words(pilot: Pilot[Any], words: str) -> None:
    await pilot.press(*words)


async def test_text_goes_on_where_it_was_begun_and_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 3600)
    app = GpuboxApp(ChatServices(FakeChats()))
    async with app.run_test(size=SIZE) as pilot:
        screen = await chat_of(app, pilot)
        await type_words(pilot, WORDS[:5])
        asked = asyncio.create_task(a_question(app))
        await until(pilot, lambda: isinstance(app.screen, QuestionScreen) and app.screen.is_mounted)
        await shows(pilot, "text goes to where you type", "tab y  ")
        await type_words(pilot, WORDS[5:] + "xx")
        await pilot.press("left", "right", "backspace", "backspace", "down", "up", "escape", "tab", "end")
        app.screen.post_message(events.Paste(" pasted\ntoo"))
        await until(pilot, lambda: screen.composer.text == f"{WORDS} pasted\ntoo")
        assert not asked.done() and isinstance(app.screen, QuestionScreen)

        monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 0)
        await pilot.press("enter")
        assert not asked.done(), "no answer is chosen before the arrows have chosen one"
        await pilot.press("down", "down", "enter")
        await until(pilot, asked.done)
        assert asked.result() == "yes"
        assert screen.composer.text == f"{WORDS} pasted\ntoo"


async def test_tab_gives_the_letters_to_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    app = GpuboxApp(ChatServices(FakeChats()))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await chat_of(app, pilot)
        await type_words(pilot, "draft")
        await pilot.press("ctrl+j")
        monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 3600)
        asked = asyncio.create_task(a_question(app))
        await shows(pilot, "tab y  ")
        await pilot.press("m", "ctrl+j", "tab", "y")
        await until(pilot, lambda: screen.composer.text == "draft\nm\ny")
        assert not asked.done(), "a Tab between letters is a slip"

        monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 0)
        await pilot.press("tab")
        await until(pilot, lambda: "tab y" not in text(pilot) and "text goes to" not in text(pilot))
        await pilot.press("y")
        await until(pilot, asked.done)
        assert asked.result() == "yes"
        assert screen.composer.text == "draft\nm\ny"


async def test_the_filter_of_the_dashboard_keeps_what_is_typed() -> None:
    app = GpuboxApp(FakeServices())
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "qwen36-mtp-16gb")
        await pilot.press("slash", "q")
        await until(pilot, lambda: isinstance(app.focused, Input))
        field = app.focused
        assert isinstance(field, Input)
        worker = app.run_worker(ask(app, "Really?", "", *ANSWERS))
        await until(pilot, lambda: isinstance(app.screen, QuestionScreen) and app.screen.is_mounted)
        await pilot.press("y", "w", "n", "backspace")
        await until(pilot, lambda: field.value == "qyw")
        assert not worker.is_finished


async def test_a_question_that_a_key_asked_for_is_answered_by_its_letters() -> None:
    app = GpuboxApp(ChatServices(FakeChats()))
    async with app.run_test(size=SIZE) as pilot:
        screen = await chat_of(app, pilot)
        await type_words(pilot, "draft")
        await pilot.press("f9")
        worker = app.run_worker(ask(app, "Really?", "", *ANSWERS))
        await shows(pilot, "y  do it")
        await pilot.press("y")
        await until(pilot, lambda: worker.is_finished)
        assert (worker.result, screen.composer.text) == ("yes", "draft")


@pytest.mark.parametrize("seed", sampled(range(200), 0.02))
async def test_an_approval_that_arrives_while_one_types_takes_no_letter_and_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 3600)
    chance = random.Random(seed)
    keys = chance.choices(KEYS, k=30)
    texts, arrives = [], chance.randrange(30)
    for asks in (False, True):
        app = GpuboxApp(ChatServices(FakeChats()))
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await chat_of(app, pilot)
            await pilot.press("x", *(key for key in keys[:arrives] if key != "tab"))
            asked = asyncio.create_task(screen.answer(QUESTION)) if asks else None
            await pilot.press(*(key for key in keys[arrives:] if asks or key != "tab"), "z")
            await until(pilot, lambda: "z" in screen.composer.text)  # noqa: B023
            assert screen.composer.has_focus
            assert asked is None or not asked.done()
            texts.append(screen.composer.text)
            if asked:
                asked.cancel()
    assert texts[0] == texts[1]


async def test_who_reads_answers_an_approval_once_the_focus_is_there() -> None:
    app = GpuboxApp(ChatServices(FakeChats()))
    async with app.run_test(size=SIZE) as pilot:
        screen = await chat_of(app, pilot)
        screen.transcript.focus()
        await until(pilot, lambda: screen.transcript.has_focus)
        asked = asyncio.create_task(screen.answer(QUESTION))
        await shows(pilot, "tab, then y or n")
        await pilot.press("y", "a", "tab")
        await until(pilot, lambda: screen.approvals.has_focus)
        assert not asked.done()
        await pilot.press("y")
        assert (await asked).yes
