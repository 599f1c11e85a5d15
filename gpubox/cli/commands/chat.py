"""``gpubox chat``: asking, and the chats there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpubox.cli import output
from gpubox.cli.context import Context, server_url
from gpubox.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gpubox.agent.transcript.records import ChatSettings

_SAMPLING = "temperature, top_p, top_k, min_p, seed ..."


@click.group("chat", invoke_without_command=True)
@click.option("-p", "--prompt", help="What to ask; - reads it from stdin.")
@click.option("--continue", "goes_on", metavar="NAME", help="Go on with this chat.")
@click.option("--name", help="What a new chat is called; without it, what is asked names it.")
@click.option("--workdir", type=click.Path(path_type=Path), help="The folder the model may look at and work in.")
@click.option("--any-workdir", is_flag=True, help="Even a home folder, / or a system folder will do.")
@click.option("--approve", type=click.Choice(["ask", "workspace", "never"]), help="Changes of files: ask for each "
              "(default), allow them in the workspace, refuse them.")  # fmt: skip
@click.option("--max-rounds", type=click.IntRange(1, 100), help="Requests to the model at most (default 5).")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens of one answer at most, thinking included.")
@click.option("--tools/--no-tools", default=None, help="Without: only talk, nothing is run, no file is touched.")
@click.option("--system", help="Another system prompt than the profile's.")
@click.option("--thinking/--no-thinking", default=None, help="As the profile has it, if neither is given.")
@click.option("--set", "sampling", multiple=True, metavar="KEY=NUMBER", help=f"Sampling: {_SAMPLING}")
@click.option("--reset", is_flag=True, help="Forget what was chosen for this chat before.")
@click.option("--url", help="Ask a server that gpubox did not start.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as a JSON object.")
@click.pass_context
def command(
    ctx: click.Context, /, prompt: str | None, goes_on: str | None, name: str | None, url: str | None, as_json: bool,
    any_workdir: bool, **chosen: Any,
) -> int | None:  # fmt: skip
    """Ask the model; it may run code, confined, and look at what it printed.

    The answer goes to stdout, everything beside it to stderr. What is chosen (tools, sampling ...) stays with the
    chat. Exit codes: 1 the turn ended without an answer, 3 no server or it went away, 130 interrupted; what was said
    is kept.
    """
    if ctx.invoked_subcommand is not None:
        if prompt is not None:
            raise UsageError("-p asks; it goes with no other word.", f"Write: gpubox chat {ctx.invoked_subcommand} ...")
        return None
    if prompt is None:
        raise UsageError("What should be asked?", 'Write gpubox chat -p "...", or open the screen and press c.')
    if goes_on and name:
        raise UsageError("--continue and --name exclude each other.", "--continue names the chat that is there.")
    url = server_url(url)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise UsageError("There is nothing to ask: the prompt is empty.")
    from gpubox.cli.chat_turn import PromptRequest, send_prompt

    numbers = _numbers(chosen.pop("sampling"))
    request = PromptRequest(text, goes_on or "", name or "", url, any_workdir, as_json)
    return send_prompt(ctx.obj, request, lambda before: _changed(before, numbers, **chosen))


def _changed(
    before: ChatSettings, sampling: dict[str, float], *, workdir: Path | None, approve: Any, max_rounds: int | None,
    max_tokens: int | None, tools: bool | None, system: str | None, thinking: bool | None, reset: bool,
) -> ChatSettings:  # fmt: skip
    import msgspec

    before = type(before)() if reset else before
    changes: dict[str, Any] = {
        "workdir": str(workdir) if workdir else None,
        "approvals": approve,
        "rounds": max_rounds,
        "max_tokens": max_tokens,
        "tools": tools,
        "system_prompt": system,
        "thinking": thinking,
        "sampling": {**before.sampling, **sampling} if sampling else None,
    }
    return msgspec.structs.replace(before, **{key: value for key, value in changes.items() if value is not None})


def _numbers(words: tuple[str, ...]) -> dict[str, float]:
    from gpubox.profiles.profile import SAMPLING_FLAGS
    from gpubox.toml_table import closest_match

    found: dict[str, float] = {}
    for word in words:
        key, _, number = word.partition("=")
        if key not in SAMPLING_FLAGS:
            near = closest_match(key, SAMPLING_FLAGS)
            raise UsageError(
                f"{key!r} is no sampling parameter.", f"Did you mean {near!r}?" if near else ", ".join(SAMPLING_FLAGS)
            )
        try:
            value = float(number)
        except ValueError:
            raise UsageError(f"{key} needs a number, not {number!r}.", f"Write --set {key}=0.5.") from None
        if value != value or abs(value) == float("inf"):
            raise UsageError(f"{key} needs an ordinary number.")
        found[key] = int(value) if value.is_integer() and key in ("top_k", "seed") else value
    return found


@command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def ls(context: Context, as_json: bool) -> None:
    """The chats, the one that changed last first."""
    from gpubox.cli.stored_chats import list_chats

    list_chats(context, as_json)


@command.command("show")
@click.argument("name")
@click.option("--turns", is_flag=True, help="Only the turns with their ids, those of other branches too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def show(context: Context, name: str, turns: bool, as_json: bool) -> None:
    """What was said in a chat, and who answered."""
    from gpubox.cli.stored_chats import show_chat

    show_chat(context, name, turns, as_json)


@command.command("search")
@click.argument("text")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def search(context: Context, text: str, as_json: bool) -> int:
    """Where TEXT was said, in all chats (exit 1: nowhere)."""
    from gpubox.cli.stored_chats import search_chats

    return ExitCode.OK if search_chats(context, text, as_json) else ExitCode.FAILED


@command.command("rename")
@click.argument("name")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def rename(context: Context, name: str, new: str, as_json: bool) -> None:
    """Give a chat another name."""
    from gpubox.agent.transcript import chat_files

    chat_files.rename(context.paths, name, new)
    _said(as_json, new, f"{name} is called {new} now.")


@command.command("branch")
@click.argument("name")
@click.argument("new")
@click.option("--at", "turn", help="Only up to this turn (`gpubox chat show NAME --turns`).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def branch(context: Context, name: str, new: str, turn: str | None, as_json: bool) -> None:
    """Make a chat NEW of NAME, which stays as it is."""
    from gpubox.agent.transcript.branch import branch_chat as make

    make(context.paths, name, new, turn)
    _said(as_json, new, f"{new} holds what {name} does; `gpubox chat --continue {new} -p ...` goes on with it.")


@command.command("rewind")
@click.argument("name")
@click.argument("turn", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def rewind(context: Context, name: str, turn: str | None, as_json: bool) -> None:
    """Go on from TURN next time; without it, from before the last one. Nothing is deleted."""
    from gpubox.agent.transcript.branch import rewind_chat as go_back

    head = go_back(context.paths, name, turn)
    _said(as_json, name, f"{name} goes on from {head or 'the beginning'}.")


@command.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def rm(context: Context, names: tuple[str, ...], as_json: bool) -> None:
    """Delete chats."""
    from gpubox.agent.transcript import chat_files

    for name in names:
        chat_files.existing_chat(context.paths, name)
    for name in names:
        chat_files.remove(context.paths, name)
    _said(as_json, names[0] if len(names) == 1 else None, f"Deleted: {', '.join(names)}.")


def _said(as_json: bool, name: str | None, text: str) -> None:
    if as_json:
        output.emit_json({**output.error_values(None), "chat": name, "message": text})
    else:
        output.emit(text)
