"""One turn of a chat from the command line: its events as text or as JSON lines, and how it ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from gpubox.agent.chat import CLOSE_TIMEOUT_SECONDS, Chat
from gpubox.agent.endpoint import ServerEndpoint, find_endpoint
from gpubox.agent.events import AgentEvent, ApprovalRequested, TurnFailed, TurnFinished, event_values
from gpubox.agent.tools import ToolCall
from gpubox.agent.transcript.records import ChatSettings
from gpubox.cli import diagnostics, output
from gpubox.cli.chat_output import TextTurnOutput
from gpubox.cli.context import Context
from gpubox.cli.operations import run_cancellable
from gpubox.errors import ExitCode, GpuboxError
from gpubox.sanitize import reveal_hidden
from gpubox.threads import run_in_thread

_LIMITS = {
    "rounds": ("The turn used all its rounds without an answer.", "--max-rounds gives it more."),
    "tokens": ("The turn reached its limit of tokens.", "--continue goes on."),
    "wall": ("The turn reached its limit of time.", "--continue goes on."),
    "length": ("The answer was cut off by its length.", "--max-tokens gives it more."),
    "repetition": ("The model turned in circles and was stopped.", "--set temperature=0.7, or ask in other words."),
}


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """What the command line asks for. Empty names: a new chat, called after what is asked."""

    text: str
    goes_on: str
    name: str
    url: str | None
    any_workdir: bool
    as_json: bool


class JsonTurnOutput:
    """One object a line: ``chat`` first, then the turn's events, ``error`` last where it did not end well."""

    def begin(self, chat: Chat) -> None:
        """Which chat it is, and who answers."""
        endpoint, turn = chat.endpoint, chat.log.path()[-1]
        output.emit_json(
            {
                "event": "chat",
                "chat": chat.name,
                "turn": turn.id,
                "profile": endpoint.profile_name or None if endpoint else None,
                "build": endpoint.build or None if endpoint else None,
                "model": endpoint.model or None if endpoint else None,
                "base_url": endpoint.base_url if endpoint else None,
            },
            one_line=True,
        )

    def show(self, event: AgentEvent) -> None:
        """One event."""
        output.emit_json(event_values(event), one_line=True)

    def fail(self, error: GpuboxError) -> None:
        """Why the exit code is not 0."""
        output.emit_json({"event": "error", **output.error_values(error)}, one_line=True)


def send_prompt(context: Context, request: PromptRequest, change: Callable[[ChatSettings], ChatSettings]) -> int:
    """Asks, shows what comes, and returns 0. Raises GpuboxError where it did not end with an answer."""
    shown = JsonTurnOutput() if request.as_json else TextTurnOutput()
    try:
        end, code = run_cancellable(_asked(context, request, change, shown))
        if error := _error(end, code):
            raise error
    except GpuboxError as error:
        shown.fail(error)
        raise
    except KeyboardInterrupt:
        interrupt = diagnostics.interrupted()
        shown.fail(interrupt)
        raise interrupt from None
    return ExitCode.OK


async def _asked(
    context: Context,
    request: PromptRequest,
    change: Callable[[ChatSettings], ChatSettings],
    shown: JsonTurnOutput | TextTurnOutput,
) -> tuple[AgentEvent | None, ExitCode]:
    """The last event of the turn, and the exit code where that is a failure."""

    def find() -> asyncio.Future[ServerEndpoint]:
        return asyncio.ensure_future(find_endpoint(context.paths, context.config, url=request.url))

    asker = ApprovalPrompt(sys.stdin.isatty() and diagnostics.stderr_is_terminal() and not request.as_json)
    chat = Chat(
        context.paths, context.config, request.goes_on, find=find, approve=asker, any_workdir=request.any_workdir
    )
    try:
        if request.name:
            chat.rename_to(request.name)
        chat.change_settings(change(chat.settings))
        end = await _to_its_end(chat, asyncio.create_task(_follow(chat, request.text, shown, asker)))
        code = ExitCode.OK
        if isinstance(end, TurnFailed):
            code = await _whose_fault(find)
        return end, code
    finally:
        await chat.close()


async def _to_its_end(chat: Chat, turn: asyncio.Task[AgentEvent | None]) -> AgentEvent | None:
    """What ``turn`` returns. Interrupted, it is stopped and its last events are still shown."""
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


async def _follow(
    chat: Chat, text: str, shown: JsonTurnOutput | TextTurnOutput, asker: ApprovalPrompt
) -> AgentEvent | None:
    last: AgentEvent | None = None
    async with aclosing(chat.send(text)) as events:
        async for event in events:
            if last is None:
                shown.begin(chat)
            shown.show(event)
            if isinstance(event, ApprovalRequested):
                asker.told.set()
            last = event
    return last


async def _whose_fault(find: Callable[[], asyncio.Future[ServerEndpoint]]) -> ExitCode:
    """The exit code of a turn that broke: what the server's state says, where that is the reason."""
    try:
        await find()
    except GpuboxError as error:
        return error.code
    return ExitCode.FAILED


def _error(end: AgentEvent | None, code: ExitCode) -> GpuboxError | None:
    if isinstance(end, TurnFailed):
        return GpuboxError(end.message, end.hint, code=code)
    if not isinstance(end, TurnFinished):
        return GpuboxError("The turn ended without a word.")
    if end.reason == "stopped":
        return diagnostics.interrupted()
    if end.reason in _LIMITS:
        return GpuboxError(*_LIMITS[end.reason])
    return None


class ApprovalPrompt:
    """Asks at the terminal whether a change may be made."""

    def __init__(self, may_ask: bool) -> None:
        self.may_ask = may_ask
        self.told = asyncio.Event()
        """The call that the question is about is on the terminal."""

    async def __call__(self, call: ToolCall, diff: str) -> bool:
        """The owner's answer; no where nobody can be asked."""
        if not self.may_ask:
            diagnostics.note(f"  ! {call.name} was not allowed: nobody can be asked. --approve workspace allows it.")
            return False
        await self.told.wait()
        self.told.clear()
        diagnostics.note_text(f"{reveal_hidden(diff)}\nAllow this? y and Enter allow it, anything else does not.")
        answer = await run_in_thread(sys.stdin.readline)
        return answer.strip().casefold() in ("y", "yes")
