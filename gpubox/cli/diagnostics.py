"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import sys

import click

from gpubox.errors import GpuboxError


def note(text: str) -> None:
    """A remark beside the answer."""
    click.echo(text, err=True)


def show_error(error: GpuboxError) -> None:
    """``gpubox: what happened`` and, on a line of its own, what to do."""
    click.echo(f"gpubox: {error.message}", err=True)
    if error.hint:
        click.echo(f"        {error.hint}", err=True)


def stderr_is_terminal() -> bool:
    """Whether a line may be redrawn in place."""
    return sys.stderr.isatty()


def redraw(text: str) -> None:
    """Replaces the current terminal line."""
    click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
