"""``gpubox acp``: gpubox's own agent in an editor."""

from __future__ import annotations

import contextlib

import click

from gpubox.cli import diagnostics
from gpubox.cli.context import Context
from gpubox.concurrency import run_cancellable


@click.command("acp")
@click.option("--any-workdir", is_flag=True, help="Allow a home or system folder as workspace.")
@click.pass_obj
def command(context: Context, any_workdir: bool) -> None:
    """Answer an editor that speaks the Agent Client Protocol, over stdin and stdout.

    The editor starts it: Zed, JetBrains, Neovim, toad. Each session is a chat of gpubox, answered by the profile that
    runs. Nothing is written into your folder before you allow it.
    """
    from gpubox.acp.serving import EditorAgent
    from gpubox.json_rpc import own_streams

    async def serve() -> str:
        streams = await own_streams("An editor starts it, by its settings.")
        return await EditorAgent(context.paths, context.config, any_workdir=any_workdir).serve(*streams)

    with contextlib.suppress(KeyboardInterrupt):
        diagnostics.note(run_cancellable(serve()))
