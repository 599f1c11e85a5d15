"""The command line. A verb is imported when it is called, so that each one starts quickly."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from gpubox import __version__
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import Verbs
from gpubox.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Run and stop": {
        "demo": "run a small model on the embedded engine",
        "start": "load the model of a profile, if nothing runs",
        "stop": "stop the server, which frees the memory of the GPU",
        "restart": "load the running profile again, with the flags of its file",
        "switch": "replace the running profile; restore it if the new one fails",
        "status": "show what runs now; record it for `gpubox --replay FILE`",
        "logs": "print llama-server's log",
        "doctor": "check what this machine has and what is missing",
        "engines": "list llama-server binaries; build, choose and remove them",
        "completion": "print the script that completes command lines in bash, zsh or fish",
    },
    "Profiles": {
        "ls": "list profiles and whether they can start",
        "show": "show one profile and its command line, or compare two",
        "edit": "change, rename, copy or delete a profile; comments stay",
        "import": "make profiles from models, command lines, scripts or other programs' files",
        "export": "write a profile as a unit, a script or another program's file",
        "find": "find models on this machine and on Hugging Face, and say which would fit",
        "fit": "predict the memory of a profile, and whether it fits",
        "advice": "say what to change on a profile, with the evidence",
    },
    "Measure": {
        "try": "run a changed profile without writing it; then keep or revert",
        "tune": "find the fastest flags of a profile that fit",
        "bench": "measure speed and quality, and read the results",
        "history": "sum up the last days, or list requests; say what became slower",
    },
    "Clients": {
        "serve": "answer all clients at one address, and switch by the model they name",
        "connect": "print the settings of opencode, aider, Continue, Cline, curl or Python for the gateway",
        "acp": "be the coding agent of an editor that speaks ACP: Zed, JetBrains, Neovim, toad",
        "launch": "start claude, codex, opencode, qwen, goose, crush, aider or pi here, at the gateway",
        "keys": "say who may ask the gateway, and how much: make, change and remove the keys of clients",
        "clients": "list the gateway's clients; hold their requests",
        "mcp": "offer the box to coding agents and editors, as an MCP server",
        "web": "show the screen in a browser, to whoever has a key",
    },
    "Chat": {"chat": "ask the model; list, search and edit chats; run a program in their sandbox"},
}
VERBS = [verb for verbs in SECTIONS.values() for verb in verbs]
_MODULES = {"import": "import_", "try": "try_", "start": "switch", "stop": "switch", "restart": "switch"}


class VerbGroup(Verbs):
    """Finds a verb in its own module of ``gpubox.cli.commands``."""

    sections: ClassVar[Mapping[str, Mapping[str, str]]] = SECTIONS
    """Title -> the verbs below it in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verbs in self.sections.values() for verb in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"gpubox.cli.commands.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command", None) or module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        verbs = [item for section in self.sections.values() for item in section.items()]
        return [CompletionItem(verb, help=text) for verb, text in verbs if verb.startswith(incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `gpubox logs | head`; click would call it a failure
            output.discard()
            return ExitCode.OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


@click.command(cls=VerbGroup, invoke_without_command=True, subcommand_metavar="[VERB] [ARGS]...",
               context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
@click.version_option(__version__, prog_name="gpubox")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Read FILE instead of config.toml.")
@click.option("--url", metavar="URL", help="Watch the box of a gateway, or a server that gpubox did not start.")
@click.option(
    "--replay", type=click.Path(path_type=Path), metavar="FILE", help="Play a recording of `gpubox status --record`."
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None, url: str | None, replay: Path | None) -> None:
    """The control room of a home GPU box. Without a verb, the screen opens.

    A profile is a model with the flags of its llama-server.

    \b
    Exit codes:
      0    ok
      1    failed
      2    wrong usage, profile or configuration
      3    not running or unreachable
      4    the server does not answer correctly
      5    does not fit into memory
      6    a program failed in the sandbox
      130  interrupted
    """
    ctx.obj = Context(config)
    if ctx.invoked_subcommand is not None:
        if url:  # the verb would ignore it and read another server
            raise UsageError(
                "--url before a verb is only for the screen.", "Write it after the verb: gpubox status --url URL."
            )
        if replay:
            raise UsageError("--replay is only for the screen: it takes no verb.", f"Write: gpubox --replay {replay}")
    else:
        from gpubox.cli.commands.screen import open_screen
        from gpubox.cli.context import server_url

        url = server_url(url)
        if url and replay:
            raise UsageError("--url and --replay cannot be combined.", "A recording needs no server.")
        open_screen(ctx.obj, url=url, replay=replay)


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; a traceback goes into a file.

    With --json every error is also a JSON object.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    output.begin_command()
    return diagnostics.run_guarded(lambda: _run(arguments, as_json), as_json=as_json)


def _run(arguments: list[str], as_json: bool) -> int:
    try:
        result = cli.main(args=arguments, prog_name="gpubox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        lacks_profile = isinstance(error, click.MissingParameter) and error.param and error.param.name == "profile"
        hint = "`gpubox ls` lists them." if lacks_profile else ""
        change, ctx = re.search(r"extra arguments? \(([^\s()=]+)=", error.message), getattr(error, "ctx", None)
        if change and ctx and "--set" in ctx.command.get_help(ctx):
            hint = f"A change is written after --set: --set {change[1]}=VALUE"
        if isinstance(error, click.NoSuchOption) and ctx and ctx.command.name == "launch":
            hint = f"What is the agent's own stands behind --: gpubox launch AGENT -- {error.option_name}"
        if hint:
            diagnostics.note(f"       {hint}")
        if as_json:
            output.emit_error(UsageError(error.format_message(), hint))
        return ExitCode.USAGE
    except click.Abort:
        raise KeyboardInterrupt from None
    return int(result) if isinstance(result, int) else ExitCode.OK
