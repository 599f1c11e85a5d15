"""The command line: verbs are imported when they are called, so that each answers at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpubox import __version__
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode, GpuboxError, UsageError

VERBS = {
    "demo": "a first run: the embedded engine with a small model",
    "ls": "the profiles, and whether their engine takes them",
    "show": "one profile and its exact command line",
    "start": "start a profile where nothing runs",
    "stop": "stop the server",
    "restart": "stop and start the profile that runs",
    "switch": "replace the running profile; bring it back if the new one fails",
    "status": "what runs now",
    "ps": "every server of gpubox, with its slots",
    "logs": "the server's log",
    "requests": "the last requests, each with its times and tokens",
    "chat": "ask the model, which may run code confined; the chats there are",
    "sandbox": "run a program confined, as the chat runs the model's",
    "record": "write every reading into a file, for `gpubox --replay FILE`",
    "engines": "the llama-server binaries, their builds and devices",
    "bench": "measure: what is fast here, and how sure that is; resumable, with everything kept",
    "doctor": "what this box has and what is missing",
    "import": "make a profile of a command line, a script, a unit, a llama-swap or models.ini file, a GGUF",
    "schema": "the JSON Schema of profile files, for an editor",
    "export": "write a profile as a unit, a script, or a client's settings",
}
_MODULES = {"import": "import_"}


class VerbGroup(click.Group):
    """Finds a verb in its own module of ``gpubox.cli.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"gpubox.cli.commands.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from gpubox.toml_table import closest_match

            near = closest_match(args[0], self.list_commands(ctx))
            more = f" Did you mean {near!r}?" if near else f" `{ctx.command_path} --help` lists the verbs."
            raise click.UsageError(f"There is no verb {args[0]!r}.{more}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click sees it, who calls it a failure
            output.discard()  # `gpubox logs | head`: the reader left
            return ExitCode.OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=VerbGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpubox")
@click.option("--config", type=click.Path(path_type=Path), help="Another config.toml.")
@click.option("--url", help="Watch a server that gpubox did not start, read only.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Play a recording on the screen.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, url: str | None, replay: Path | None) -> None:
    """The control room of a home GPU box. Without a verb: the screen.

    Exit codes: 0 ok, 1 failed, 2 usage or config, 3 not running or unreachable, 4 unhealthy, 5 would not fit,
    6 a confined program failed, 130 interrupted.
    """
    ctx.obj = Context(config)
    if ctx.invoked_subcommand is not None:
        if url:  # it would be ignored, and another server's answer taken for this one's
            raise UsageError("--url before a verb belongs to the screen.", "`gpubox status --url URL` has its own.")
        if replay:
            raise UsageError("--replay belongs to the screen: it takes no verb.", f"Write: gpubox --replay {replay}")
    else:
        from gpubox.cli.commands.screen import open_screen
        from gpubox.cli.context import server_url

        url = server_url(url)
        if url and replay:
            raise UsageError("--url and --replay exclude each other.", "A recording shows what it holds.")
        open_screen(ctx.obj, url=url, replay=replay)


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; no traceback leaves here.

    With --json every error is a JSON object too, whatever verb it comes from.
    """
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    output.begin()
    tell = output.emit_error if as_json else (lambda error: None)
    return diagnostics.guarded(lambda: _run(words, tell), lambda: Context().paths.logs, tell)


def _run(arguments: list[str], tell: Callable[[GpuboxError], None]) -> int:
    try:
        result = cli.main(args=arguments, prog_name="gpubox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        tell(UsageError(error.format_message()))
        return ExitCode.USAGE
    except click.Abort:
        raise KeyboardInterrupt from None
    return int(result) if isinstance(result, int) else ExitCode.OK
