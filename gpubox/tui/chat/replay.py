"""A turn of a chat's file as the screen shows it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.agent.events import MessageAdded, ReasoningDelta, TextDelta
from gpubox.agent.thinking import split_thinking
from gpubox.tui.chat.turn import TurnView

if TYPE_CHECKING:
    from gpubox.agent.transcript.chat_log import Turn


def model_label(profile: str, build: str) -> str:
    """``qwen36-mtp-16gb   llama-server b11434``, as far as it is known."""
    return "   ".join(part for part in (profile, build) if part)


def turn_view_of(turn: Turn) -> TurnView:
    """The turn as it stood when it was over, or when gpubox was killed in it."""
    asked = turn.header
    view = TurnView(asked.text, model_label(asked.profile or asked.model, asked.build))
    view.id = turn.id
    for event in turn.events:
        if isinstance(event, MessageAdded):  # the file keeps what was said as messages, not as deltas
            if event.message.role == "assistant":
                thinking, visible = split_thinking(event.message.content)
                if thoughts := event.message.reasoning_content + thinking:
                    view.take(ReasoningDelta(thoughts))
                if visible:
                    view.take(TextDelta(visible))
            continue
        view.take(event)
    if not view.over:
        view.stop("cut off: gpubox was ended in this turn")
    return view
