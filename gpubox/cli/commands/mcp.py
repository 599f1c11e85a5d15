"""``gpubox mcp``: the box as an MCP server, for coding agents and editors."""

from __future__ import annotations

import click

from gpubox.cli import diagnostics
from gpubox.cli.context import Context
from gpubox.concurrency import run_cancellable


@click.command("mcp")
@click.option(
    "--allow", type=click.Choice(("switch",)), multiple=True, help="Let the client switch without asking you."
)
@click.pass_obj
def command(context: Context, allow: tuple[str, ...]) -> None:
    """Offer this box to a client of the Model Context Protocol, over stdin and stdout.

    Its tools are status, profiles, profile, fit, bench_runs, bench_report, docs and switch. A switch asks you through
    the client; a client that cannot ask is refused, unless you give --allow switch.
    """
    from gpubox.cli.mcp_server import McpBox
    from gpubox.json_rpc import own_streams

    async def serve() -> str:
        streams = await own_streams("An MCP client starts it: claude mcp add gpubox -- gpubox mcp")
        return await McpBox(*streams, options=context.paths.options, may_switch="switch" in allow).run()

    diagnostics.note(run_cancellable(serve()))
