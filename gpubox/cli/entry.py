"""The console script: straight to the screen for the bare ``gpubox``, else to the verbs.

The short way leaves click and the verbs unimported; they would cost the screen a quarter of its first paint.
"""

from __future__ import annotations

import sys

from gpubox.cli import diagnostics
from gpubox.cli.context import Context


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    if len(sys.argv) > 1:
        import signal

        from gpubox.cli.main import run

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a verb that is ended tidies up as at Ctrl-C
        sys.exit(run())
    sys.exit(diagnostics.guarded(_screen, lambda: Context().paths.logs))


def _screen() -> int:
    from gpubox.cli.commands.screen import open_screen

    open_screen(Context())
    return 0
