"""A chat that another program's agent answers, on a real process: good turns, and broken agents."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gpubox.acp import updates
from gpubox.acp.hosted import HostedProgram
from gpubox.acp.hosted_turn import HowHosted, Started
from gpubox.agent.chat import Chat
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import (
    AgentEvent,
    AgentOffers,
    FilesChanged,
    Notice,
    PlanChanged,
    QuestionAsked,
    ReasoningDelta,
    RoundFinished,
    TextDelta,
    ToolFinished,
    ToolRequested,
    TurnFailed,
    TurnFinished,
)
from gpubox.agent.hosting import HostedTurn
from gpubox.agent.tools import Answer, AskOwner, OwnerQuestion
from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests import acp_agent_faults as faults
from tests.hosted_process import OpenProcess, start_open

AGENT = Path(faults.__file__).with_name("acp_agent.py")
CODE = "def add(a, b):\n    return a - b\n"


class Bench:
    """A project, and chats over it that the scripted agent answers."""

    def __init__(self, paths: Paths, folder: Path) -> None:
        self.paths, self.root, self.state = paths, folder / "project", folder / "state.json"
        self.fault, self.answer = "", Answer(True)
        self.questions: list[OwnerQuestion] = []
        self.started: list[OpenProcess] = []
        self.limits: dict[str, float] = {"start_seconds": 20.0, "stop_seconds": 0.3, "ledger_seconds": 0.0}
        self.chats: list[Chat] = []
        self.root.mkdir()
        (self.root / "calc.py").write_text(CODE)

    def host(self, name: str, ask: AskOwner) -> HostedProgram:
        if name not in ("robot", "other"):
            raise UsageError(f"gpubox knows no agent {name!r}.")

        async def connect() -> ServerEndpoint:
            return ServerEndpoint("http://127.0.0.1:1", "box", build="Robot")

        async def start(turn: HostedTurn) -> Started:
            argv = [sys.executable, "-S", "-E", str(AGENT), self.fault, str(self.state)]
            started = await start_open(turn, argv, {}, turn.chat.with_suffix(".open"))
            assert isinstance(started.process, OpenProcess)
            self.started.append(started.process)
            return started

        async def asks_now() -> bool:
            return False

        how = HowHosted("Robot", connect, start, self.paths.ledger, "hosted-robot", asks_now, **self.limits)  # type: ignore[arg-type]
        return HostedProgram(how, ask)

    async def ask_owner(self, question: OwnerQuestion) -> Answer:
        self.questions.append(question)
        return self.answer

    def chat(self, name: str = "", **settings: Any) -> Chat:
        chat = Chat(self.paths, Config(), name, ask=self.ask_owner, host=self.host)
        self.chats.append(chat)
        if not name:
            chat.change_settings(ChatSettings(**{"workdir": str(self.root), "agent": "robot", **settings}))
        return chat

    def nothing_runs(self) -> bool:
        return all(process.process.poll() is not None for process in self.started)


@pytest.fixture
async def bench(paths: Paths, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(paths, tmp_path)
    yield bench
    for chat in bench.chats:
        await chat.close()
    assert bench.nothing_runs()


async def send(chat: Chat, text: str, stop_at: type[AgentEvent] | None = None) -> list[AgentEvent]:
    events = list[AgentEvent]()
    async with asyncio.timeout(60), aclosing(chat.send(text)) as turn:
        async for event in turn:
            events.append(event)
            if stop_at and isinstance(event, stop_at):
                chat.stop()
    return events


def answer(events: list[AgentEvent]) -> str:
    assert isinstance(events[-1], TurnFinished), events[-1]
    return events[-1].text


def outputs(events: list[AgentEvent]) -> dict[str, ToolFinished]:
    return {event.call.title: event for event in events if isinstance(event, ToolFinished)}


async def test_a_turn_shows_what_the_agent_does_and_its_changes_wait_for_the_owner(bench: Bench) -> None:
    chat = bench.chat()
    events = await send(chat, "plan, think, read, edit, write and run")
    assert answer(events) == "[yes]Done."
    steps = next(event.steps for event in events if isinstance(event, PlanChanged))
    assert [(step.text, step.status) for step in steps] == [("look", "completed"), ("mend", "pending")]
    assert ReasoningDelta("Hm.") in events
    done = outputs(events)
    assert done["Read calc.py"].output.text == "def add(a, b):\n"
    assert "+    return a + b" in done["Edit calc.py"].output.diff
    assert done["Edit calc.py"].output.files_changed == ("calc.py",)
    assert done["python3 calc.py"].output.ok
    assert bench.questions[0].kind == "permission"
    assert bench.questions[0].options == ("Allow", "Always allow", "Reject")
    changed = next(event.files for event in events if isinstance(event, FilesChanged))
    assert [change.path for change in changed] == ["calc.py", "new/note.txt", "ran.txt"]
    assert (bench.root / "calc.py").read_text() == CODE
    await chat.take()
    assert (bench.root / "calc.py").read_text() == CODE.replace("-", "+")
    assert (bench.root / "new/note.txt").read_text() == "made\n"


async def test_the_owner_chooses_an_option_or_says_no(bench: Bench) -> None:
    chat = bench.chat()
    bench.answer = Answer(True, "Always allow")
    assert answer(await send(chat, "run")).startswith("[always]")
    bench.answer = Answer(False, "rather not")
    events = await send(chat, "run")
    assert answer(events).startswith("[no]")
    finished = outputs(events)["python3 calc.py"].output
    assert not finished.ok
    assert finished.ended_by == "denied"


async def test_a_stopped_turn_ends_and_the_agent_stays(bench: Bench) -> None:
    chat = bench.chat()
    last = (await send(chat, "slow", TextDelta))[-1]
    assert isinstance(last, TurnFinished)
    assert last.reason == "stopped"
    assert answer(await send(chat, "recall")) == "slow << recall"
    assert len(bench.started) == 1


async def test_a_turn_that_waits_for_the_owner_is_stopped(bench: Bench) -> None:
    async def never(question: OwnerQuestion) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    bench.ask_owner = never  # type: ignore[method-assign]
    last = (await send(bench.chat(), "run", QuestionAsked))[-1]
    assert isinstance(last, TurnFinished)
    assert last.reason == "stopped"


async def test_an_agent_that_does_not_stop_is_ended(bench: Bench) -> None:
    bench.fault, chat = "never stops", bench.chat()
    events = await send(chat, "go", TextDelta)
    assert Notice("stopped", "Robot did not stop, and was ended.") in events
    assert isinstance(events[-1], TurnFinished)
    assert bench.nothing_runs()


@pytest.mark.parametrize("fault", ["", "resumes"])
async def test_another_process_goes_on_with_the_session(bench: Bench, fault: str) -> None:
    bench.fault, chat = fault, bench.chat()
    await send(chat, "one")
    await chat.close()
    again = bench.chat(chat.name)
    events = await send(again, "recall")
    assert answer(events) == "one << recall"
    assert not any(isinstance(event, TextDelta) and "REPLAYED" in event.text for event in events)


@pytest.mark.parametrize("fault", ["forgets", "lost its sessions"])
async def test_an_agent_that_does_not_remember_is_told_what_was_said(bench: Bench, fault: str) -> None:
    bench.fault, chat = fault, bench.chat()
    await send(chat, "one")
    await chat.close()
    bench.state.unlink()
    events = await send(bench.chat(chat.name), "recall")
    assert "Owner: one\n\nAnswer: Done." in answer(events)
    assert any(isinstance(event, Notice) and "does not remember" in event.text for event in events)


async def test_the_agent_learns_what_the_owner_undid_and_dropped(bench: Bench) -> None:
    chat = bench.chat()
    await send(chat, "edit")
    await chat.undo()
    assert await chat.changes() == []
    assert "took your last turn back" in answer(await send(chat, "recall and read"))
    await send(chat, "write")
    await chat.drop(why="no notes")
    assert "no notes" in answer(await send(chat, "recall"))
    await send(chat, "edit")
    assert [change.path for change in await chat.changes()] == ["calc.py"]


async def test_after_the_chat_was_renamed_the_agent_goes_on(bench: Bench) -> None:
    chat = bench.chat()
    await send(chat, "edit")
    chat.rename_to("renamed")
    assert answer(await send(chat, "recall and write")) == "edit << recall and write"
    assert [change.path for change in await chat.changes()] == ["calc.py", "new/note.txt"]


async def test_what_the_owner_edits_is_what_the_agent_reads(bench: Bench) -> None:
    chat = bench.chat()
    await send(chat, "read")
    (bench.root / "calc.py").write_text("# new\n")
    assert outputs(await send(chat, "read"))["Read calc.py"].output.text == "# new\n"


async def test_in_plan_mode_nothing_is_kept_and_the_agent_plans(bench: Bench) -> None:
    chat = bench.chat(apply="plan")
    await send(chat, "edit")
    assert await chat.changes() == []
    assert bench.state.with_suffix(".mode").read_text() == "plan"
    chat.change_settings(ChatSettings(workdir=str(bench.root), agent="robot"))
    await send(chat, "edit")
    assert bench.state.with_suffix(".mode").read_text() == "code"
    assert [change.path for change in await chat.changes()] == ["calc.py"]
    assert len(bench.started) == 1


async def test_a_chosen_mode_is_set_and_offered(bench: Bench) -> None:
    chat = bench.chat(agent_choices={"mode": "plan", "nothing": "x"})
    events = await send(chat, "hello")
    offers = [event for event in events if isinstance(event, AgentOffers)]
    assert [(choice.id, choice.value) for choice in offers[-1].choices] == [("mode", "plan")]


async def test_the_rounds_are_the_agents_requests_in_the_ledger(bench: Bench) -> None:
    ledger = Ledger(bench.paths.ledger)

    async def decide(question: OwnerQuestion) -> Answer:
        for client in ("hosted-robot", "somebody", "hosted-robot"):
            ledger.add(FinishedRequest(
                utc_now(), client, "box", "/v1", 200, "done", seconds=0.001, prompt_tokens=1000, cached_tokens=400,
                generated_tokens=20, prefill_seconds=0.0004, generation_seconds=0.0005, tg_tokens_per_second=40.0,
            ))  # fmt: skip
            await asyncio.sleep(0.005)
        return Answer(True)

    bench.ask_owner = decide  # type: ignore[method-assign]
    events = await send(bench.chat(), "run")
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [each.round for each in rounds] == [1, 2]
    assert rounds[0].timing.cached_tokens == 400
    assert rounds[0].timing.prefill_new_tokens == 600
    assert rounds[0].timing.prefill_reprocessed_tokens is None
    assert rounds[0].timing.context_tokens == 1020
    last = events[-1]
    assert isinstance(last, TurnFinished)
    assert last.totals.rounds == 2
    assert last.totals.timing.generated_tokens == 40
    parts = sum(each.timing.wall_seconds for each in rounds)
    assert last.totals.timing.wall_seconds == pytest.approx(parts)


async def test_gpuboxs_own_agent_and_another_one_take_turns(bench: Bench) -> None:
    chat = bench.chat()
    await send(chat, "one")
    chat.change_settings(ChatSettings(workdir=str(bench.root), agent="other"))
    assert "Owner: one" in answer(await send(chat, "recall"))
    chat.change_settings(ChatSettings(workdir=str(bench.root), agent="robot"))
    assert "Owner: recall" in answer(await send(chat, "recall"))
    chat.change_settings(ChatSettings(agent="nobody"))
    with pytest.raises(UsageError):
        await send(chat, "hello")
    assert not chat.busy


async def test_without_a_workspace_it_works_in_a_scratch_folder(bench: Bench) -> None:
    chat = bench.chat(workdir="")
    assert answer(await send(chat, "write")) == "Done."
    assert answer(await send(chat, "recall")) == "write << recall"


async def test_the_file_of_the_chat_shows_the_same_turn(bench: Bench) -> None:
    chat = bench.chat()
    events = await send(chat, "think, read and edit")
    await chat.close()
    log = bench.chat(chat.name).log
    stored = log.path()[-1].events
    for kind in (ToolRequested, ToolFinished, FilesChanged, TurnFinished):
        assert [e for e in stored if isinstance(e, kind)] == [e for e in events if isinstance(e, kind)]
    assert log.path()[-1].answer == "Done."
    assert log.path()[-1].header.agent == "robot"
    assert log.sessions == {"robot": "s-1"}


async def usable_again(bench: Bench, chat: Chat) -> None:
    """The chat is not busy, nothing runs, and with a good agent its next turn is good."""
    assert not chat.busy
    assert bench.nothing_runs()
    bench.fault = ""
    assert answer(await send(chat, "read and edit")).endswith("Done.")
    assert [change.path for change in await chat.changes()] == ["calc.py"]


@pytest.mark.parametrize("fault", faults.ENDING)
async def test_a_broken_agent_is_a_sentence_and_the_chat_goes_on(
    bench: Bench, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MAX_UPDATES", 10_000)
    bench.fault, limits = fault, dict(bench.limits)
    if "silent" in fault or fault in ("stdout closed", "wrong ids"):
        bench.limits |= {"start_seconds": 0.4, "silence_seconds": 0.4, "call_seconds": 0.4}
    chat = bench.chat()
    last = (await send(chat, "hello"))[-1]
    assert isinstance(last, TurnFailed)
    assert last.message.startswith("Robot ")
    assert last.message.endswith(".") or "refused" in last.message or "no JSON-RPC: " in last.message
    assert all(letter >= " " for letter in last.message + last.hint)
    if fault.startswith("dead in ") and "/" in fault:
        assert "panic" in last.hint
    bench.limits = limits
    await chat.close()
    await usable_again(bench, bench.chat(chat.name))


@pytest.mark.parametrize("fault", faults.HARMLESS)
async def test_a_strange_agent_ends_its_turn_all_the_same(bench: Bench, fault: str) -> None:
    bench.fault, chat = fault, bench.chat()
    events = await send(chat, "read")
    text = answer(events)
    assert text.endswith("Done.")
    assert "FOREIGN" not in text
    assert "Read calc.py" in outputs(events)
    for event in events:
        if isinstance(event, ToolRequested | ToolFinished):
            assert event.call.title.isprintable()
            assert event.call.name.isprintable()
    assert len(events) < 1000
    requested = {event.call.id for event in events if isinstance(event, ToolRequested)}
    ended = [event.call.id for event in events if isinstance(event, ToolFinished)]
    assert sorted(requested) == sorted(ended)
    assert answer(await send(chat, "read")).endswith("Done.")
    assert len(bench.started) == 1


async def test_an_agent_reads_and_writes_nothing_outside_its_workspace(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:secret")
    bench.fault, chat = "steals", bench.chat()
    assert "nothing" in answer(await send(chat, "hello"))
    assert (tmp_path / "secret").read_text() == "root:secret"
    assert await chat.changes() == []


async def test_what_is_said_after_the_end_belongs_to_no_turn(bench: Bench) -> None:
    bench.fault, chat = "speaks after the end", bench.chat()
    for _ in range(3):  # what came in one go with the end is shown
        assert answer(await send(chat, "one")) in ("Done.", "Done.LATE")


async def test_version_2_is_read_as_far_as_it_goes(bench: Bench) -> None:
    bench.fault = "version 2"
    assert answer(await send(bench.chat(), "read")) == "Done."


async def test_a_turn_whose_consumer_leaves_ends_the_agent(bench: Bench) -> None:
    chat = bench.chat()
    async with aclosing(chat.send("slow")) as turn:
        async for event in turn:
            if isinstance(event, TextDelta):
                break
    assert bench.nothing_runs()
    assert answer(await send(chat, "recall")).startswith("slow <<")


def test_the_scripted_agent_has_all_faults() -> None:
    text = AGENT.read_text()
    assert len(faults.ENDING) + len(faults.HARMLESS) >= 60
    for fault in (*faults.ENDING, *faults.HARMLESS):
        assert json.dumps(fault) in text or fault.split(" ")[0] in ("dead", "silent", "refuses"), fault
    assert os.access(AGENT, os.R_OK)
