"""The console script: straight to the screen, straight to `status`, which is polled, else to the verbs.

The short ways leave click and the verbs unimported: they would be a quarter of the screen's first paint, and of
`gpubox status`.
"""

import os
import sys

try:  # nothing is imported before this that Python has not imported itself
    from gpubox.cli import interrupts

    interrupts.exit_on_interrupt()  # before all that takes time to import
except KeyboardInterrupt:
    os._exit(130)


from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    _open_streams()
    code: int = ExitCode.INTERRUPTED
    try:
        if len(sys.argv) > 1:
            import signal

            if sys.argv[1:] in (["status"], ["status", "--json"]):
                run = _status
            else:
                from gpubox.cli.main import run

            signal.signal(signal.SIGTERM, signal.default_int_handler)  # a verb that is ended tidies up as at Ctrl-C
            interrupts.hear()
            code = run()
        else:
            code = diagnostics.guarded(_screen, lambda: Context().paths.logs)
        interrupts.deaf()
    except KeyboardInterrupt:  # in the moment between the two
        interrupts.deaf()
    sys.exit(code)


def _open_streams() -> None:
    # `gpubox ... <&-`: else the next file that is opened gets the closed stream's number, and all that it is fed.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _status() -> int:
    import gc

    gc.disable()  # it ends in a quarter of a second: there is nothing to collect, and looking costs 5 % of it
    as_json = sys.argv[-1] == "--json"

    def show() -> int:
        from gpubox.cli.commands.status import show_status

        try:
            return show_status(Context(), as_json)
        except BrokenPipeError:
            output.discard()  # `gpubox status | head -1`: the reader left
            return ExitCode.OK

    tell = output.emit_error if as_json else (lambda error: None)
    return diagnostics.guarded(show, lambda: Context().paths.logs, tell)


def _screen() -> int:
    from gpubox.cli.commands.screen import open_screen

    open_screen(Context())
    return 0
