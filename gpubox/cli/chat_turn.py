"""One chat turn from the command line: its events as text or as JSON lines, and its exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from gpubox.agent.chat import CLOSE_TIMEOUT_SECONDS, Chat
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.endpoint import ServerEndpoint, find_endpoint
from gpubox.agent.events import AgentEvent, QuestionAsked, TurnFailed, TurnFinished, event_values
from gpubox.agent.projects import project_here, remember_allowed
from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.cli import diagnostics, output
from gpubox.cli.chat_output import TextTurnOutput
from gpubox.cli.context import Context
from gpubox.concurrency import run_cancellable, run_in_thread
from gpubox.errors import ExitCode, GpuboxError
from gpubox.sanitize import reveal_hidden

_LIMIT_ERRORS = {
    "rounds": ("The turn used all its rounds.", "--max-rounds allows more."),
    "tokens": ("The turn reached its token limit.", "Continue the chat with --continue."),
    "wall": ("The turn reached its time limit.", "Continue the chat with --continue."),
    "length": ("The answer reached its token limit.", "--max-tokens allows more."),
    "repetition": ("The model repeated itself and was stopped.", "Try --set temperature=0.7, or another prompt."),
}


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """What the command line asks for."""

    text: str
    chat: str
    """The chat to continue; ``""``: a new one."""
    name: str
    """The name of a new chat; ``""``: made from the prompt."""
    url: str | None
    any_workdir: bool
    as_json: bool
    offer_workspace: bool = False
    """Whether the folder in which this was called may become the workspace."""


class JsonTurnOutput:
    """One JSON object a line: ``chat`` first, then the events of the turn, at last ``error`` if it failed."""

    def begin(self, chat: Chat) -> None:
        """Prints which model answers in which chat."""
        about, endpoint = {"event": "chat", "chat": chat.name, "turn": chat.log.path()[-1].id}, chat.endpoint
        asked = {"profile": "profile_name", "build": "build", "model": "model", "base_url": "base_url"}
        names = {name: getattr(endpoint, field, None) or None for name, field in asked.items()}
        output.emit_json({**about, **names}, one_line=True)

    def show(self, event: AgentEvent) -> None:
        """Prints one event."""
        output.emit_json(event_values(event), one_line=True)

    def fail(self, error: GpuboxError) -> None:
        """Prints why the exit code is not 0."""
        output.emit_json({"event": "error", **output.error_values(error)}, one_line=True)


TurnOutput = JsonTurnOutput | TextTurnOutput


def send_prompt(context: Context, request: PromptRequest, change: Callable[[ChatSettings], ChatSettings]) -> int:
    """Sends the prompt, prints the turn and returns 0. Raises GpuboxError if it ends without an answer."""
    shown = JsonTurnOutput() if request.as_json else TextTurnOutput()
    try:
        run_cancellable(_run_turn(context, request, change, shown))
    except GpuboxError as error:
        shown.fail(error)
        raise
    except KeyboardInterrupt:
        interrupt = diagnostics.interrupted()
        shown.fail(interrupt)
        raise interrupt from None
    return ExitCode.OK


async def _run_turn(
    context: Context, request: PromptRequest, change: Callable[[ChatSettings], ChatSettings], shown: TurnOutput
) -> None:
    def find() -> asyncio.Future[ServerEndpoint]:
        return asyncio.ensure_future(find_endpoint(context.paths, context.config, url=request.url))

    approval = ApprovalPrompt(_can_read() and diagnostics.stderr_is_terminal() and not request.as_json)
    from gpubox.acp.host import host_agents

    chat = Chat(
        context.paths, context.config, request.chat, find=find, ask=approval, any_workdir=request.any_workdir,
        host=host_agents(context.paths, context.config),
    )  # fmt: skip
    try:
        if request.name:
            chat.rename_to(request.name)
        settings = change(chat.settings)
        if request.offer_workspace and settings.tools and not settings.workdir:
            settings = msgspec.structs.replace(settings, workdir=await _workspace_here(context, approval))
        chat.change_settings(settings)
        last = await _finish_or_stop(chat, asyncio.create_task(_print_events(chat, request.text, shown, approval)))
        if isinstance(last, TurnFailed):
            try:
                if not chat.settings.agent:
                    await find()
                code = ExitCode.FAILED
            except GpuboxError as error:  # the server is gone: its state is the reason
                code = error.code
            raise GpuboxError(last.message, last.hint, code=code)
        if not isinstance(last, TurnFinished):
            raise GpuboxError("The turn ended without a result.")
        if last.reason == "stopped":
            raise diagnostics.interrupted()
        if last.reason in _LIMIT_ERRORS:
            raise GpuboxError(*_LIMIT_ERRORS[last.reason])
    finally:
        await chat.close()


def _can_read() -> bool:
    """Whether stdin is a terminal, and this its job in the foreground: another one would be stopped by a question."""
    try:
        return sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


async def _finish_or_stop(chat: Chat, turn: asyncio.Task[AgentEvent | None]) -> AgentEvent | None:
    """The result of ``turn``. If this is cancelled, the turn is stopped and its last events are still printed."""
    try:
        return await asyncio.shield(turn)
    except asyncio.CancelledError:
        if chat.stop():
            await asyncio.wait([turn], timeout=CLOSE_TIMEOUT_SECONDS)
        raise
    finally:
        if not turn.done():
            turn.cancel()
            await asyncio.wait([turn])


async def _print_events(chat: Chat, text: str, shown: TurnOutput, approval: ApprovalPrompt) -> AgentEvent | None:
    """Returns the last event."""
    last: AgentEvent | None = None
    async with aclosing(chat.send(text)) as events:
        async for event in events:
            if last is None:
                shown.begin(chat)
            shown.show(event)
            if isinstance(event, QuestionAsked):
                approval.call_shown.set()
            last = event
    return last


async def _workspace_here(context: Context, approval: ApprovalPrompt) -> str:
    """The folder in which this was called, if it is a project and the owner allows it; he is asked once."""
    root, allowed = await run_in_thread(project_here, context.paths)
    if root is None or (allowed is None and not approval.can_ask):
        return ""
    if allowed is None:
        approval.call_shown.set()
        text = f"Use {root} as the workspace of new chats? The model reads its files; you take what it changes."
        allowed = (await approval(OwnerQuestion("go_on", text))).yes
        if approval.can_ask:
            await run_in_thread(remember_allowed, context.paths, root, allowed)
    return str(root) if allowed else ""


class ApprovalPrompt:
    """Asks at the terminal."""

    def __init__(self, can_ask: bool) -> None:
        self.can_ask = can_ask
        """False also after the end of the input (ctrl+d)."""
        self.call_shown = asyncio.Event()
        """Set when the call in question is on the terminal."""

    async def __call__(self, question: OwnerQuestion) -> Answer:
        """The owner's answer; no without a terminal."""
        if not self.can_ask:
            what = f"{question.call.name}." if question.call else question.text
            diagnostics.note_text(f"  ! There is no terminal to ask at, so the answer is no: {what}")
            return Answer(False)
        await self.call_shown.wait()
        self.call_shown.clear()
        how = "the answer" if question.kind == "ask" else "y for yes, or why not,"
        choices = f"\n({' / '.join(question.options)})" if question.options else ""
        if question.kind == "permission":
            how = "a number, or n for no,"
            choices = "".join(f"\n  {number}  {name}" for number, name in enumerate(question.options, 1))
        diff = f"\n{question.diff}" if question.diff else ""
        diagnostics.note_text(reveal_hidden(f"{question.text}{diff}{choices}") + f"\nType {how} and Enter.")
        line = await run_in_thread(sys.stdin.readline)
        self.can_ask, answer = bool(line), line.strip()
        if question.kind == "ask":
            return Answer(bool(answer), answer)
        if answer.isdecimal() and 0 < int(answer) <= len(question.options):
            return Answer(True, question.options[int(answer) - 1])
        return Answer(True) if answer.casefold() in ("y", "yes") else Answer(False, answer)
