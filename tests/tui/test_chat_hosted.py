"""Another agent in the chat pane: who answers, what it shows, what it asks, what it lets the owner choose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gpubox.agent import events as e
from gpubox.agent.chat_log import ChatSettings, Turn, TurnHeader
from gpubox.agent.tools import Answer, OwnerQuestion, ToolCall, ToolOutput
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Confinement
from gpubox.tui import dialogs
from gpubox.tui.chat import turn
from gpubox.tui.chat.suggestions import agent_commands
from gpubox.tui.chat.turn import TurnView, stored_turn_view
from tests.tui.conftest import settled, shows, text, until
from tests.tui.fake import STOPPED
from tests.tui.fake_chat import (
    MAY_IT,
    OFFERS,
    ROUND_1,
    STEPS,
    TRIES,
    WORKSPACE,
    ChatServices,
    FakeChat,
    FakeChats,
    hosted_turn,
)
from tests.tui.fake_gateway import QUIET, FakeGateway, view
from tests.tui.test_chat import HOSTILE, chatting
from tests.tui.test_chat_turn import drawn

HOSTED = ChatSettings(workdir=WORKSPACE, agent="opencode")
END = e.TurnFinished(e.TurnTotals(2, e.RoundTiming(wall_seconds=3.0, answer_seconds=3.0), None, 3), "answered", "Done.")


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FRAME_SECONDS", 0.005)
    monkeypatch.setattr(turn, "REST_FACTOR", 0)
    monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 0)


def services(chats: FakeChats, *, gateway: bool = True) -> ChatServices:
    made = ChatServices(chats)
    made.gateways = FakeGateway(made)
    made.gateway_view = view(QUIET) if gateway else None
    return made


def played(*steps: object) -> TurnView:
    shown = TurnView("Parse 1h30m", agent="opencode")
    for number, event in enumerate(steps):
        shown.apply(event, number * 0.1)  # type: ignore[arg-type]
    return shown


# -- a turn -------------------------------------------------------------------------------------------


def test_a_plan_is_one_part_that_changes_in_place() -> None:
    done = tuple(e.PlanStep(step.text, "completed") for step in STEPS)
    shown = played(e.TurnStarted("acp"), e.PlanChanged(STEPS), e.TextDelta("I read it."), e.PlanChanged(done))
    assert drawn(shown).count("plan ") == 1
    assert "plan 3 of 3 done\n✓ Read src/durations.py\n✓ Read each part" in drawn(shown)
    assert "○" not in drawn(shown)
    assert shown.progress.plan == "3 of 3"


def test_a_long_plan_shows_where_it_is_and_unfolds() -> None:
    steps = tuple(e.PlanStep(f"Step {n} {HOSTILE}", "completed" if n < 40 else "pending") for n in range(100))
    shown = played(e.PlanChanged(steps))
    assert len(drawn(shown, 60).splitlines()) < 40
    assert "… 38 steps before" in drawn(shown) and "○ Step 40" in drawn(shown) and "more steps" in drawn(shown)
    assert "\x1b" not in drawn(shown)
    shown.parts[-1].open = True
    assert "✓ Step 0" in drawn(shown) and "○ Step 99" in drawn(shown)


def test_a_call_shows_what_the_agent_says_of_it_last_and_its_command() -> None:
    early = ToolCall("1.3", "execute", {}, title="bash")
    shown = drawn(played(e.ToolRequested(early), e.ToolRequested(TRIES), e.ToolFinished(TRIES, ToolOutput("4 passed"))))
    assert "bash" not in shown
    assert "Run the tests" in shown and "command pytest -q" in shown and "4 passed" in shown
    read = ToolCall("1.1", "read", {"filePath": "a.py", "limit": 10}, title="Read a.py")
    assert "limit" not in drawn(played(e.ToolRequested(read)))


def test_figures_that_come_while_it_writes_do_not_cut_its_answer() -> None:
    shown = played(
        e.TurnStarted("acp"), e.TextDelta("One **sent"), e.RoundFinished(1, ROUND_1), e.TextDelta("ence**."),
        e.ToolRequested(TRIES), e.ToolFinished(TRIES, ToolOutput("")), e.RoundFinished(2, ROUND_1), END,
    )  # fmt: skip
    text = drawn(shown)
    assert "One sentence." in text
    assert text.index("One sentence.") < text.index("round 1 ") < text.index("execute") < text.index("round 2 ")


def test_its_own_count_of_the_context_is_what_is_shown() -> None:
    shown = played(e.TurnStarted("acp"), e.UsageReported(14_200, 131_072), e.RoundFinished(1, ROUND_1))
    assert (shown.context_used_tokens, shown.context_size_tokens) == (14_200, 131_072)


def test_it_is_said_that_it_starts_until_it_says_something() -> None:
    assert played(e.TurnStarted("acp")).progress.phase == "starts"
    assert played(e.TurnStarted("acp"), OFFERS).progress.phase == "asks"
    assert played(e.TurnStarted("acp"), e.TextDelta("x")).progress.phase == "answers"


def test_a_stored_turn_knows_who_answered_and_what_it_offers() -> None:
    stored = Turn(TurnHeader("t", "", "2026-11-20T12:00:00Z", "Parse", "qwen", "b1", agent="opencode"))
    stored.events = [e.TurnStarted("acp"), OFFERS, e.PlanChanged(STEPS), END]
    shown = stored_turn_view(stored)
    assert (shown.agent, shown.offers) == ("opencode", OFFERS)
    assert "\nqwen   b1\n" in drawn(shown) and "plan 1 of 3 done" in drawn(shown)


# -- permissions --------------------------------------------------------------------------------------


async def test_a_permission_takes_no_focus_and_is_answered_by_a_number() -> None:
    answers: list[Answer] = []
    gate = asyncio.Event()

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        answers.append(await chat.ask(MAY_IT))
        return []

    chats = FakeChats(hosted_turn(ask, gate, e.ToolFinished(TRIES, ToolOutput("4 passed")), END))
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "? waits for you", "$ pytest -q", "1 Allow once", "3 Reject", "tab, then 1-3")
        await pilot.press(*"y1")  # it belongs to the prompt
        assert chat.composer.text == "y1" and not answers
        await pilot.press("tab", "y")  # only one of its options answers
        await shows(pilot, "1-3 chooses n no")
        assert not answers
        await pilot.press("2")
        await until(pilot, lambda: answers == [Answer(True, "Always allow")], "the answer")
        await shows(pilot, "● runs", "execute · runs")
        gate.set()
        await shows(pilot, "4 passed")


async def test_no_refuses_at_once() -> None:
    answers: list[Answer] = []

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        answers.append(await chat.ask(MAY_IT))
        return []

    chats = FakeChats(hosted_turn(ask, END))
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "tab, then 1-3")
        await pilot.press("tab", "n")
        await until(pilot, lambda: answers == [Answer(False)], "the answer")


async def test_a_permission_hides_nothing_of_what_would_run() -> None:
    call = ToolCall("1", "execute", {"command": "ls\x1b[2K\nrm -rf ~ \u202e#", "cwd": "/x"}, title="List files")
    question = OwnerQuestion("permission", "May it do this? List files", ("[b]Yes[/b]", "No"), call)

    async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
        await chat.ask(question)
        return []

    chats = FakeChats(hosted_turn(ask, END))
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "$ ls␛[2K", "rm -rf ~ \ufffd#", "1 [b]Yes[/b]", "cwd: /x")


# -- who answers --------------------------------------------------------------------------------------


async def test_the_agent_is_chosen_from_a_list_and_named_above_the_chat() -> None:
    chats = FakeChats([e.TurnStarted("acp"), e.TextDelta("Done."), END])
    async with chatting(chats, services(chats), toasts=True) as (pilot, _):
        await pilot.press(*"/agent", "enter")
        await shows(pilot, "Who answers in this chat?", "1 ● gpubox", "2 opencode", "not installed", "codex-acp")
        await pilot.press("2")
        await shows(pilot, "opencode answers from the next prompt on.", "▣ opencode, confined through the gateway")
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "Done.")
        assert chats.opened[0].settings.agent == "opencode"
        await pilot.press(*"/agent", "enter")
        await shows(pilot, "2 ● opencode")
        await pilot.press("1")
        await shows(pilot, "gpubox answers from the next prompt on.", "▣ sandbox on")


async def test_one_that_is_not_installed_leaves_its_command_in_the_clipboard() -> None:
    chats = FakeChats()
    async with chatting(chats, services(chats), toasts=True) as (pilot, chat):
        await pilot.press(*"/agent", "enter")
        await shows(pilot, "Who answers in this chat?")
        await pilot.press("4")
        await shows(pilot, "Copied npm install -g @zed-industries/codex-acp")
        assert pilot.app.clipboard == "npm install -g @zed-industries/codex-acp"
        assert not chat.settings.agent


async def test_without_bubblewrap_it_is_said_before_a_prompt_is_written() -> None:
    chats = FakeChats()
    chats.sandbox = Confinement("landlock", hint="bwrap is not installed.")
    async with chatting(chats, services(chats), toasts=True) as (pilot, chat):
        await pilot.press(*"/agent", "enter")
        await shows(pilot, "Who answers in this chat?")
        await pilot.press("2")
        await shows(pilot, "opencode cannot be confined here, which needs bubblewrap. bwrap is not installed.")
        assert not chat.settings.agent


async def test_without_a_gateway_it_is_offered_and_the_prompt_is_not_lost() -> None:
    chats = FakeChats([e.TurnStarted("acp"), e.TextDelta("Done."), END])
    made = services(chats, gateway=False)
    made.status = STOPPED  # the gateway starts what is asked for
    async with chatting(chats, made) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "Start the gateway?", "opencode reaches the model only through the gateway")
        await pilot.press("n")
        await until(pilot, lambda: chat.is_current)
        assert chat.composer.text == "Parse" and not chats.asked
        await pilot.press("enter")
        await shows(pilot, "Start the gateway?")
        await pilot.press("y")
        await shows(pilot, "Done.")
        assert made.gateways.asked == ["start"] and chats.asked == ["Parse"]


async def test_one_that_died_is_asked_again_by_r() -> None:
    chats = FakeChats([e.TurnStarted("acp"), e.TurnFailed("opencode has ended.", "Its last words: killed")])
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "✗ opencode has ended.", "Its last words: killed")
        chats.script = [e.TurnStarted("acp"), e.TextDelta("Done."), END]
        await pilot.press("ctrl+r")
        await shows(pilot, "Done.")
        assert chats.asked == ["Parse", "Parse"]


async def test_a_refused_start_is_a_sentence_and_the_prompt_stays() -> None:
    chats = FakeChats()
    chats.error = GpuboxError("opencode is not installed: opencode is not on PATH.", "Install it: npm install -g x")
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "✗ opencode is not installed", "Install it: npm install -g x")
        assert chat.composer.text == "Parse"


async def test_the_settings_name_it_and_show_what_is_its_own_affair() -> None:
    chats = FakeChats()
    async with chatting(chats, services(chats)) as (pilot, chat):
        await pilot.press("ctrl+t")
        await shows(pilot, "who answers ‹ gpubox ›")
        await pilot.press("up", "right")
        await shows(pilot, "‹ opencode ›")
        assert pilot.app.screen.query("Input:disabled") and not pilot.app.screen.query("#workdir:disabled")
        await pilot.press("ctrl+s")
        await shows(pilot, "▣ opencode, confined")
        assert chat.settings.agent == "opencode"


# -- what it offers -----------------------------------------------------------------------------------


def test_ours_win_where_both_have_a_command_and_the_other_stays_in_reach() -> None:
    rows = {row.text: row.about for row in agent_commands("", OFFERS.commands, "opencode")}
    assert rows["/init"] == "opencode: create or update AGENTS.md"
    assert rows["/review "].startswith("opencode: commit, branch or pr")
    assert "//compact" in rows and "/compact" not in rows


def test_a_command_that_cannot_be_typed_is_left_out() -> None:
    bad = [e.AgentCommand(name) for name in ("", "two words", "a\x1b[2J", "\u202ex", "y" * 500, "[b]")]
    assert agent_commands("", bad, "opencode") == []
    hostile = agent_commands("", [e.AgentCommand("ok", HOSTILE, HOSTILE)], "opencode")[0]
    assert "\x1b" not in hostile.about and "\n" not in hostile.about


async def test_its_commands_are_among_the_suggestions_and_are_sent_as_prompts() -> None:
    chats = FakeChats([e.TurnStarted("acp"), OFFERS, e.TextDelta("Done."), END])
    async with chatting(chats, services(chats), toasts=True) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"/init", "enter")  # it may know this before it has said so
        await shows(pilot, "Done.")
        await pilot.press(*"/rev")
        await shows(pilot, "opencode: commit, branch or pr: review changes")
        await pilot.press("enter")  # it wants more
        assert chat.composer.text == "/review "
        await pilot.press(*"main", "enter")
        await until(pilot, lambda: chats.asked == ["/init", "/review main"], "the prompts")
        await until(pilot, lambda: not chat.runner.running)
        await pilot.press(*"//com")
        await shows(pilot, "//compact opencode: compact the session")
        await pilot.press("enter")
        await until(pilot, lambda: chats.asked[-1] == "/compact", "the agent's own")
        await until(pilot, lambda: not chat.runner.running)
        await pilot.press(*"/nothing", "enter")
        await shows(pilot, "There is no command /nothing")


async def test_its_modes_and_models_are_shown_and_chosen() -> None:
    chats = FakeChats([e.TurnStarted("acp"), OFFERS, e.TextDelta("Done."), END])
    async with chatting(chats, services(chats), toasts=True) as (pilot, chat):
        await pilot.press(*"/mode", "enter")
        await shows(pilot, "gpubox's own agent has /plan and its settings.")
        chat.new_settings = HOSTED
        await pilot.press(*"/mode", "enter")
        await shows(pilot, "opencode says what can be chosen once it has answered a prompt.")
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "Done.")
        await pilot.press(*"/mode", "enter")
        await shows(pilot, "Choices of opencode", "1 ● Mode: Build", "2 Mode: Plan", "3 ● Model: qwen36-mtp-16gb")
        await pilot.press("2")
        await until(pilot, lambda: chat.settings.agent_choices == {"mode": "plan"}, "the choice")
        await pilot.press(*"/mode", "enter")
        await shows(pilot, "2 ● Mode: Plan")


async def test_choices_of_any_number_and_kind_can_be_read() -> None:
    models = tuple((f"id{n}" if n != 3 else "id2", f"{n} {HOSTILE}") for n in range(200))
    offers = e.AgentOffers((), (e.AgentChoice("model", HOSTILE, "id0", models),))
    chats = FakeChats([e.TurnStarted("acp"), offers, e.TextDelta("Done."), END])
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "Done.")
        await pilot.press(*"/mode", "enter")
        await shows(pilot, "They hold from the next prompt on.")
        await pilot.press("end", "enter")
        await until(pilot, lambda: chat.settings.agent_choices == {"model": "id199"}, "the last one")


async def test_the_list_names_who_answered() -> None:
    chats = FakeChats([e.TurnStarted("acp"), e.TextDelta("Done."), END])
    async with chatting(chats, services(chats)) as (pilot, chat):
        chat.new_settings = HOSTED
        await pilot.press(*"Parse", "enter")
        await shows(pilot, "Done.")
        await pilot.press("ctrl+l")
        await shows(pilot, "● parse")
        await settled(pilot)
        assert "opencode" in text(pilot).split("Chats")[1]
