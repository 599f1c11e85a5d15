"""``gpubox chat``: one prompt, the stored chats, a program in their sandbox."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.chat_changes import VERBS, print_result
from gpubox.cli.context import Context, server_url
from gpubox.cli.options import PlainHelpOption, Verbs, json_option
from gpubox.errors import ExitCode, UsageError
from gpubox.views.fields import json_fields

if TYPE_CHECKING:
    from gpubox.agent.chat_log import ChatSettings

_MAX_PROGRAM_BYTES = 4 * 1024 * 1024


class ChatGroup(Verbs):
    """Says how to ask, to who wrote a prompt without -p."""

    def without_near(self, ctx: click.Context, args: list[str]) -> str:
        return f"Write: gpubox chat -p {shlex.quote(' '.join(args))}"


@click.group("chat", cls=ChatGroup, invoke_without_command=True)
@click.option("-p", "--prompt", metavar="TEXT", help="Ask TEXT; - reads it from stdin.")
@click.option("--continue", "chat", metavar="NAME", help="Continue the chat NAME.")
@click.option("--name", metavar="NAME", help="Name the new chat. [default: made from the prompt]")
@click.option(
    "--workdir", metavar="FOLDER",
    help="The workspace: the model reads its files, and you take what it changes. '' for none. "
    "[default: the project you are in, if you allow it]",
)  # fmt: skip
@click.option("--any-workdir", is_flag=True, help="Allow a home or system folder as workspace.")
@click.option("--apply", type=click.Choice(["ask", "turn", "plan"]), metavar="WHEN",
              help="Take what it changed: ask (you do, afterwards), turn (at its end) or plan (it changes nothing). "
              "[default: ask]")  # fmt: skip
@click.option("--agent", metavar="NAME", help="Let another coding agent answer, in walls; '' for gpubox's own. "
              "`gpubox chat agents` lists them.")  # fmt: skip
@click.option("--max-rounds", "rounds", type=click.IntRange(1, 100), metavar="N", cls=PlainHelpOption,
              help="Ask to go on after N requests to the model. [default: 30]")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", cls=PlainHelpOption,
              help="Allow N tokens per answer, thinking included.")  # fmt: skip
@click.option("--tools/--no-tools", default=None, help="Let the model run code and change files. [default: --tools]")
@click.option("--thinking/--no-thinking", default=None, help="Let the model think. [default: the profile's]")
@click.option("--system", "system_prompt", metavar="TEXT", help="Replace the profile's system prompt.")
@click.option("--set", "sampling", multiple=True, metavar="KEY=N", help="Set a sampling parameter, such as top_k=20.")
@click.option("--reset", is_flag=True, help="Reset the chat's settings to the defaults first.")
@click.option("--url", metavar="URL", help="Ask a server that gpubox did not start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@click.pass_context
def command(
    ctx: click.Context, /, prompt: str | None, chat: str | None, name: str | None, url: str | None, as_json: bool,
    any_workdir: bool, sampling: tuple[str, ...], reset: bool, **changes: Any,
) -> int | None:  # fmt: skip
    """Ask the model. It may run code in the sandbox.

    The answer goes to stdout, everything else to stderr. A chat keeps its settings, such as tools and sampling.

    \b
    Exit codes:
      1    the turn ended without an answer
      3    no server answers
      130  interrupted; the text so far is kept
    """
    if ctx.invoked_subcommand is not None:
        if prompt is not None:
            raise UsageError("-p cannot be combined with a verb.", f"Write: gpubox chat {ctx.invoked_subcommand} ...")
        return None
    if prompt is None:
        raise UsageError("There is no prompt.", 'Write gpubox chat -p "...", or open the screen and press c.')
    if chat and name:
        raise UsageError(
            "--continue and --name cannot be combined.", "--continue names an existing chat, --name a new one."
        )
    url = server_url(url)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise UsageError("The prompt is empty.")
    from gpubox.cli.chat_turn import PromptRequest, send_prompt

    numbers = _sampling(sampling)

    def change(settings: ChatSettings) -> ChatSettings:
        import msgspec

        settings = type(settings)() if reset else settings
        given = {key: value for key, value in changes.items() if value is not None}
        return msgspec.structs.replace(settings, **given, sampling={**settings.sampling, **numbers})

    request = PromptRequest(
        text, chat or "", name or "", url, any_workdir, as_json, offer_workspace=not chat and changes["workdir"] is None
    )
    return send_prompt(ctx.obj, request, change)


@command.command("run")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--workdir", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path), metavar="FOLDER",
    help="The folder that it sees; what it changes there is thrown away. [default: an empty one]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(min=0.1, max=86400), metavar="N", cls=PlainHelpOption,
    help="Time limit in seconds. [default: 30]",
)  # fmt: skip
@json_option
@click.pass_obj
def run(context: Context, file: BinaryIO, workdir: Path | None, seconds: float | None, as_json: bool) -> int:
    """Run the Python program FILE (- for stdin) in the sandbox that the chat uses.

    It has no network, sees only its workspace, and has limits of time and memory. Exits 6 if the program fails or
    is stopped. The files that it changed are named; the folder itself stays as it is.
    """
    from gpubox.cli.sandboxed import run_over
    from gpubox.sandbox.policy import Policy

    code = file.read(_MAX_PROGRAM_BYTES + 1)
    if len(code) > _MAX_PROGRAM_BYTES:
        raise UsageError(f"{file.name} is too large for a program.", "The limit is 4 MiB.")
    policy = Policy(workspace=workdir)
    if seconds is not None:
        policy = replace(policy, wall_seconds=seconds, cpu_seconds=max(1, int(seconds + 1)))
    outcome = run_over(context.config, code.decode("utf-8", "surrogateescape"), policy)
    if as_json:
        output.emit_json(json_fields(outcome, "ok", "weakness"))
    else:
        if outcome.output:
            output.emit_verbatim(outcome.output.removesuffix("\n"))
        unchanged = [f"{workdir} itself is unchanged."] if outcome.files_changed else []
        weaker = [f"weaker: {outcome.weakness}"] if outcome.weakness else []
        for text in (*outcome.about_workspace, *unchanged, *weaker):
            diagnostics.note(text)
        ending = f"exit {outcome.exit_code}" if outcome.signal is None else outcome.signal
        reason = f": {outcome.why}" if outcome.why else ""
        diagnostics.note(f"{ending}{reason}, {outcome.seconds * 1000:.0f} ms, {outcome.isolation}")
    return ExitCode.OK if outcome.ok else ExitCode.PROGRAM_FAILED


def _sampling(assignments: tuple[str, ...]) -> dict[str, float]:
    """The numbers of every ``--set KEY=N``. Raises UsageError."""
    from gpubox.engines.option_values import parse_flag_change
    from gpubox.profiles.profile import SAMPLING_FLAGS
    from gpubox.toml_table import closest_match

    sampling: dict[str, float] = {}
    for key, value in map(parse_flag_change, assignments):
        if key not in SAMPLING_FLAGS:
            near = closest_match(key, SAMPLING_FLAGS)
            hint = f"Did you mean {near!r}?" if near else ", ".join(SAMPLING_FLAGS)
            raise UsageError(f"{key!r} is not a sampling parameter.", hint)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{key} needs a number.", f"Write --set {key}=0.5.")
        sampling[key] = value
    return sampling


@command.command("agents")
@json_option
@click.pass_obj
def agents(context: Context, as_json: bool) -> None:
    """List the coding agents that can answer a chat (--agent NAME), and where they are installed."""
    from gpubox.cli.chat_output import list_agents

    list_agents(context, as_json)


@command.command("ls")
@json_option
@click.pass_obj
def ls(context: Context, as_json: bool) -> None:
    """List the chats, the last changed first."""
    from gpubox.cli.chat_output import list_chats

    list_chats(context, as_json)


@command.command("show")
@click.argument("name")
@click.option("--turns", is_flag=True, help="List the turns of all branches with their ids.")
@json_option
@click.pass_obj
def show(context: Context, name: str, turns: bool, as_json: bool) -> None:
    """Print the chat NAME."""
    from gpubox.cli.chat_output import show_chat

    show_chat(context, name, turns, as_json)


@command.command("search")
@click.argument("text")
@json_option
@click.pass_obj
def search(context: Context, text: str, as_json: bool) -> int:
    """Search all chats for TEXT. Exits 1 without a hit."""
    from gpubox.cli.chat_output import search_chats

    return ExitCode.OK if search_chats(context, text, as_json) else ExitCode.FAILED


@command.command("rename")
@click.argument("name")
@click.argument("new")
@json_option
@click.pass_obj
def rename(context: Context, name: str, new: str, as_json: bool) -> None:
    """Rename the chat NAME to NEW."""
    from gpubox.agent import chat_files

    chat_files.rename_chat(context.paths, name, new)
    print_result(as_json, new, f"{name} is now {new}.")


@command.command("branch")
@click.argument("name")
@click.argument("new")
@click.option("--at", "turn", metavar="TURN", help="Copy up to TURN only; see `gpubox chat show --turns`.")
@json_option
@click.pass_obj
def branch(context: Context, name: str, new: str, turn: str | None, as_json: bool) -> None:
    """Copy the chat NAME to NEW, without the changes that you have not taken."""
    from gpubox.agent import chat_files

    log = chat_files.load_chat(chat_files.existing_chat(context.paths, name))
    lacking = chat_files.branch_chat(context.paths, log, new, turn)
    text = f"{new} is a copy of {name}; `gpubox chat --continue {new} -p ...` continues it. {lacking}"
    print_result(as_json, new, text.rstrip())


@command.command("rewind")
@click.argument("name")
@click.argument("turn", required=False)
@json_option
@click.pass_obj
def rewind(context: Context, name: str, turn: str | None, as_json: bool) -> None:
    """Rewind NAME: the next prompt continues after TURN (default: the turn before the last).

    Nothing is deleted.
    """
    from gpubox.agent.chat_files import rewind_chat

    head = rewind_chat(context.paths, name, turn)
    print_result(
        as_json, name, f"The next prompt continues {name} {f'after {head}' if head else 'from the beginning'}."
    )


@command.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask, even where changes are lost.")
@json_option
@click.pass_obj
def rm(context: Context, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the chats NAMES. Asks if changes of theirs wait for your decision."""
    from gpubox.agent import chat_files
    from gpubox.agent.work import loses

    lost = [f"{name}: {text}" for name in names if (text := loses(context.paths, name))]
    if lost and not diagnostics.confirmed("\n".join([*lost, "Delete?"]), " ".join(lost), yes=yes, as_json=as_json):
        return
    for name in names:
        chat_files.remove_chat(context.paths, name)
    print_result(as_json, names[0] if len(names) == 1 else None, f"Deleted: {', '.join(names)}.")


for _verb in VERBS:
    command.add_command(_verb)
