"""``gpubox web``: the screen in a browser."""

from __future__ import annotations

import contextlib

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.concurrency import run_cancellable
from gpubox.profiles.profile import is_loopback


@click.command("web")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Listen on ADDRESS.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(1, 65535), metavar="PORT")
@click.pass_obj
def command(context: Context, host: str, port: int) -> None:
    """Show the screen in a browser, to whoever has a key.

    The box's own API key opens the whole screen. A key of `gpubox keys add NAME --watch` shows it and changes nothing;
    for that the gateway must run. Stays in the foreground until Ctrl-C.
    """
    from gpubox.tui.web import WebScreen, serve_web

    def listening(url: str) -> None:
        output.emit(f"The screen is at {url}; Ctrl-C ends it.")
        if not is_loopback(host):
            diagnostics.note("  ! Keys and pages travel unencrypted: only in a network that you trust, or behind TLS.")

    screen = WebScreen(context.paths, context.config, host)
    with contextlib.suppress(KeyboardInterrupt):
        run_cancellable(serve_web(screen, host, port, listening))
