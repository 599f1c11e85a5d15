"""``gpubox acp``: gpubox's own agent in an editor."""

from __future__ import annotations

import contextlib
import os
import stat

import click

from gpubox.cli import diagnostics
from gpubox.cli.context import Context
from gpubox.concurrency import run_cancellable
from gpubox.errors import UsageError


@click.command("acp")
@click.option("--any-workdir", is_flag=True, help="Allow a home or system folder as workspace.")
@click.pass_obj
def command(context: Context, any_workdir: bool) -> None:
    """Answer an editor that speaks the Agent Client Protocol, over stdin and stdout.

    The editor starts it: Zed, JetBrains, Neovim, toad. Each session is a chat of gpubox, answered by the profile that
    runs. Nothing is written into your folder before you allow it.
    """
    from gpubox.acp.serving import EditorAgent
    from gpubox.json_rpc import pipe_streams

    for number in (0, 1):
        mode = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
            raise UsageError("stdin and stdout are not pipes.", "An editor starts `gpubox acp`.")

    async def serve() -> str:
        streams = await pipe_streams(os.fdopen(os.dup(0), "rb"), writing)
        return await EditorAgent(context.paths, context.config, any_workdir=any_workdir).serve(*streams)

    writing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints must not come between the messages
    if os.isatty(0):
        diagnostics.note("This speaks the Agent Client Protocol: an editor starts it. Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        diagnostics.note(run_cancellable(serve()))
