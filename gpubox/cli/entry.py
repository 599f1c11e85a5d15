"""The console script. The screen and `gpubox status`, which is often polled, start without click and the verbs.

Importing those would take a quarter of the time to the screen's first paint, and of `gpubox status`.
"""

import os
import sys

try:  # only modules that Python has loaded already are imported before this
    from gpubox.cli import interrupts

    interrupts.exit_on_interrupt()  # before the imports that take time
except KeyboardInterrupt:
    os._exit(130)


from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.errors import ExitCode


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    _open_streams()
    if "_GPUBOX_COMPLETE" in os.environ:  # a shell asks what can follow the words that were typed
        from gpubox.cli.commands.completion import answer

        sys.exit(answer())
    code: int = ExitCode.INTERRUPTED
    try:
        if len(sys.argv) > 1:
            import signal

            if sys.argv[1:] in (["status"], ["status", "--json"]):
                run = _status
            else:
                from gpubox.cli.main import run

            signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
            interrupts.raise_on_interrupt()
            code = run()
        else:
            code = diagnostics.run_guarded(_screen)
        interrupts.ignore_interrupts()
    except KeyboardInterrupt:  # between the end of the work and the line above
        interrupts.ignore_interrupts()
    sys.exit(code)


def _open_streams() -> None:
    # `gpubox ... <&-` closes a stream: the next opened file would get its number, and all that is written to it.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _status() -> int:
    import gc

    gc.disable()  # the process ends in 0.25 s; collecting would cost 5 % of that
    as_json = sys.argv[-1] == "--json"

    def show() -> int:
        from gpubox.cli.commands.status import show_status

        try:
            return show_status(Context(), as_json)
        except BrokenPipeError:
            output.discard()  # `gpubox status | head -1`
            return ExitCode.OK

    return diagnostics.run_guarded(show, as_json=as_json)


def _screen() -> int:
    from gpubox.cli.commands.screen import open_screen

    open_screen(Context())
    return 0
