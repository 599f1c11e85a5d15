"""``gpubox chat diff|take|drop|undo|redo NAME``: what the turns of a chat changed, and what becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, UsageError
from gpubox.sanitize import show_name
from gpubox.views.changes import change_mark, changed_sentence, doubt, step_sentence, taken_sentence, what_changed
from gpubox.views.fields import json_fields, json_value
from gpubox.views.rows import Table

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.sandbox.changes import Change, Choice
    from gpubox.sandbox.steps import StepResult

T = TypeVar("T")
_paths = click.argument("paths", nargs=-1)
_hunks = click.option("--hunks", metavar="N,M", help="Only these hunks of one file, counted from 1.")
_keep = click.option("--keep", multiple=True, metavar="PATH", help="Leave a file that you changed since as it is.")


def _in_chat(context: Context, name: str, work: Callable[[Chat], Awaitable[T]]) -> T:
    from gpubox.agent.chat import Chat
    from gpubox.concurrency import run_cancellable

    async def run() -> T:
        chat = Chat(context.paths, context.config, name, any_workdir=True)
        try:
            return await work(chat)
        finally:
            await chat.close()

    return run_cancellable(run())


def _choice(paths: tuple[str, ...], hunks: str | None) -> Choice | None:
    if hunks is None:
        return dict.fromkeys(paths) or None
    numbers = hunks.split(",")
    if len(paths) != 1 or not all(number.strip().isdecimal() and int(number) for number in numbers):
        raise UsageError("--hunks needs one PATH and numbers from 1.", "Write: gpubox chat take NAME PATH --hunks 1,3")
    return {paths[0]: frozenset(int(number) - 1 for number in numbers)}


def print_result(as_json: bool, name: str | None, text: str, **values: Any) -> None:
    """Prints what a verb did to the chat ``name``."""
    output.emit_result(text, {**output.error_values(None), "chat": name, "message": text, **values}, as_json=as_json)


@click.command("diff")
@click.argument("name")
@_paths
@click.option("--stat", is_flag=True, help="Print one line for each file.")
@json_option
@click.pass_obj
def diff(context: Context, name: str, paths: tuple[str, ...], stat: bool, as_json: bool) -> int:
    """Print what the turns of NAME changed and you have not decided on. Exits 1 if that is nothing."""
    from gpubox.sandbox.changes import unified

    changes, chosen = _in_chat(context, name, lambda chat: chat.changes()), tuple(f"{path}/" for path in paths)
    changes = [change for change in changes if not paths or f"{change.path}/".startswith(chosen)]
    if as_json:
        output.emit_json({"chat": name, "changes": [json_fields(change) for change in changes]})
    elif stat:
        rows = [
            (change_mark(change).glyph, show_name(change.path), what_changed(change), doubt(change))
            for change in changes
        ]
        output.emit_table(Table(rows, empty="No changes wait for you."))
    else:
        for change in changes:
            output.emit_verbatim(unified(change).removesuffix("\n"))
            if doubt(change):
                output.emit(f"! {show_name(change.path)}: {doubt(change)}")
    return ExitCode.OK if changes else ExitCode.FAILED


@click.command("take")
@click.argument("name")
@_paths
@_hunks
@click.option("--allow", multiple=True, metavar="PATH", help="Also take PATH, which your tools run by themselves.")
@json_option
@click.pass_obj
def take(
    context: Context, name: str, paths: tuple[str, ...], hunks: str | None, allow: tuple[str, ...], as_json: bool
) -> int:
    """Write the changes of NAME into the workspace: those of PATHS, or all. Exits 1 if some of PATHS are left."""
    choice = _choice(paths, hunks)
    result = _in_chat(context, name, lambda chat: chat.take(choice, allow=allow))
    print_result(
        as_json, name, taken_sentence(result), taken=json_value(result.taken), notes=json_value(result.notes),
        left=[{"path": change.path, "why": doubt(change)} for change in result.left],
    )  # fmt: skip
    return ExitCode.FAILED if result.left and (paths or allow) else ExitCode.OK


@click.command("drop")
@click.argument("name")
@_paths
@_hunks
@click.option("--why", default="", metavar="TEXT", help="Tell the model why, before the next prompt.")
@json_option
@click.pass_obj
def drop(context: Context, name: str, paths: tuple[str, ...], hunks: str | None, why: str, as_json: bool) -> None:
    """Forget the changes of NAME: those of PATHS, or all. The workspace stays as it is."""
    choice = _choice(paths, hunks)

    async def work(chat: Chat) -> list[Change]:
        await chat.drop(choice, why)
        return await chat.changes()

    left = _in_chat(context, name, work)
    waits = f"{changed_sentence(left)} wait for you." if left else "Nothing waits for you."
    print_result(as_json, name, f"Dropped. {waits}", left=[change.path for change in left])


@click.command("undo")
@click.argument("name")
@click.argument("turn", required=False, default="")
@_keep
@json_option
@click.pass_obj
def undo(context: Context, name: str, turn: str, keep: tuple[str, ...], as_json: bool) -> None:
    """Undo the last turn of NAME, or all from TURN on: its files, and its place in the chat."""
    _step(context, name, lambda chat: chat.undo(turn, keep=keep), "Undone", as_json)


@click.command("redo")
@click.argument("name")
@_keep
@json_option
@click.pass_obj
def redo(context: Context, name: str, keep: tuple[str, ...], as_json: bool) -> None:
    """Redo the turn of NAME that was undone last."""
    _step(context, name, lambda chat: chat.redo(keep=keep), "Redone", as_json)


def _step(context: Context, name: str, act: Callable[[Chat], Awaitable[StepResult]], verb: str, as_json: bool) -> None:
    async def work(chat: Chat) -> tuple[StepResult, list[str]]:
        before = {turn.id: turn.header.text for turn in chat.log.path()}
        result = await act(chat)
        after = {turn.id: turn.header.text for turn in chat.log.path()}
        return result, [text for turn, text in {**before, **after}.items() if (turn in before) != (turn in after)]

    result, prompts = _in_chat(context, name, work)
    print_result(
        as_json, name, step_sentence(result, verb, prompts), turns=json_value(result.turns),
        files=json_value(result.files), kept=json_value(result.kept),
    )  # fmt: skip


VERBS = (diff, take, drop, undo, redo)
