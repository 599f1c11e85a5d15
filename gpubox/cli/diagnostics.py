"""The only writer of stderr, and the exit codes."""

from __future__ import annotations

import contextlib
import shutil
import sys

import click

from gpubox.errors import GpuboxError


def note(text: str) -> None:
    """A remark beside the answer. A terminal that is gone does not stop what is being done."""
    with contextlib.suppress(OSError):
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
    """Replaces the current terminal line, cut to its width."""
    with contextlib.suppress(OSError):
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[2K{text[:width]}", err=True, nl=False)
