"""Pictures of the chat at three terminal sizes. `--snapshot-update` accepts a wanted change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from gpubox.agent import events as e
from gpubox.agent.chat_log import ChatSettings
from gpubox.tui.app import GpuboxApp
from gpubox.tui.chat.turn import TurnProgress
from tests.tui.conftest import SIZES, pictured, shows, until
from tests.tui.fake import BUSY, STOPPED
from tests.tui.fake_chat import (
    MAY_IT,
    NETWORK,
    RUN,
    WORKSPACE,
    ChatServices,
    FakeChat,
    FakeChats,
    Step,
    changing_turn,
    coding_turn,
    hosted_turn,
    opening,
    reading_turn,
)
from tests.tui.fake_gateway import QUIET, view
from tests.tui.snapshots import PREFILL, READING_SLOT


async def ask(chat: FakeChat) -> Sequence[e.AgentEvent]:
    await chat.ask(NETWORK)
    return []


async def ask_permission(chat: FakeChat) -> Sequence[e.AgentEvent]:
    await chat.ask(MAY_IT)
    return []


def script(state: str) -> list[Step]:
    gate = asyncio.Event()
    scripts: dict[str, list[Step]] = {
        "finished": coding_turn(),
        "streaming": [*coding_turn()[:-30], e.GenerationStats(310, 70.4, 200, 196), gate],
        "prefill": [*reading_turn(), gate],
        "approval": [
            *opening(),
            e.TextDelta("I install what the tests need."),
            e.ToolRequested(RUN),
            e.QuestionAsked(NETWORK),
            ask,
        ],
        "changed": changing_turn(),
        "diff": changing_turn(),
        "commands": [],
        "queued": [*coding_turn()[:-30], e.GenerationStats(7_010, 70.4, 200, 196), gate],
        "no_server": [],
        "hosted": hosted_turn(ask_permission),
        "agents": [],
        "settings": [],
    }
    return scripts[state]


SHOWN = {
    "finished": ("2. An empty text is 0.", "■ gpubox"),
    "streaming": ("● answers", "70.4 tok/s", "sum(int(n)"),
    "prefill": ("● reading", "62%"),
    "approval": ("tab, then y or n",),
    "changed": ("5 changed files wait for you",),
    "diff": ("3 files marked",),
    "commands": ("/commit",),
    "queued": ("queued: then the README",),
    "no_server": ("No model runs",),
    "hosted": ("tab, then 1-3", "context 14.2k of 128K"),
    "agents": ("not installed",),
    "settings": ("who answers",),
}
SECONDS = {"prefill": 14.0, "queued": 107.2}
"""Of a running turn, as its tokens need at the speed of the other scenes."""


@pytest.mark.parametrize("state", SHOWN)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str, state: str) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    # The elapsed time depends on the machine.
    monkeypatch.setattr("gpubox.tui.chat.turn.TurnRunner.seconds", SECONDS.get(state, 11.9))
    monkeypatch.setattr(TurnProgress, "deltas_per_second", lambda progress, now: None)
    chats = FakeChats()
    services = ChatServices(chats)
    services.gateway_view = view(QUIET) if state == "hosted" else None
    if state == "no_server":
        services.status, services.last = STOPPED, "qwen36-mtp-16gb"
    if state in ("streaming", "prefill", "queued", "hosted"):  # the header says what the server does
        services.status = BUSY
    if state == "prefill":
        slot = replace(READING_SLOT, prompt_tokens=7_600, prompt_done_tokens=4_712, cached_tokens=1_014)
        services.extra_readings = {"throughput": PREFILL, "slots": (replace(slot, context_used_tokens=4_712),)}

    app = GpuboxApp(services)
    async with app.run_test(size=SIZES[size]) as pilot:
        chats.script = script(state)
        await until(pilot, lambda: app.bridge.overview and app.dashboard.header.gpu_readings, "readings")
        app.action_show("chat")
        await until(pilot, lambda: app.chat and app.chat.sandbox and app.chat.composer.has_focus, "the chat")
        if state not in ("finished", "streaming", "no_server"):
            assert app.chat
            app.chat.new_settings = ChatSettings(workdir=WORKSPACE, agent="opencode" if state == "hosted" else "")
            app.chat.draw_lines()
        if state == "commands":
            await pilot.press("slash")
        elif state == "agents":
            await pilot.press(*"/agent", "enter")
        elif state == "settings":
            await pilot.press("ctrl+t")
        elif state != "no_server":
            await pilot.press(*"Parse", "space", *"1h30m", "enter")
        if state == "diff":
            await shows(pilot, "5 changed files wait for you")
            await pilot.press("enter", *["down"] * 4)
        if state == "queued":
            await shows(pilot, "● answers")
            await pilot.press(*"then", "space", *"the", "space", *"README", "enter")
        await shows(pilot, *SHOWN[state])
        await until(pilot, lambda: app.chat and app.chat.header.gpu_readings)
        await pictured(pilot, snapshot)
