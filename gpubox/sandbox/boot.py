"""Runs inside the sandbox, ahead of the program: limits, user, lock, and one report on how it ended.

Its text is sent there with ``CONFIG = {...}`` ahead of it. It stands alone: Python 3.9, the fewest imports (each costs
milliseconds of every run), and nothing of it is left in the program's ``__main__``.
"""

import os
import sys

MYPY = False
if MYPY:
    from types import TracebackType
    from typing import Any
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}


def _supervise(pid: int) -> None:
    """Waits for the program, reports its status and CPU seconds, and takes everything with it."""
    import _signal  # type: ignore[import-not-found]

    # Should gpubox be gone: this process ends, and with it the whole namespace.
    _signal.alarm(CONFIG["alarm"])
    while True:
        done, status, usage = os.wait4(-1, 0)
        if done == pid:
            break
    os.write(CONFIG["status_fd"], b"%d %f\n" % (status, usage.ru_utime + usage.ru_stime))
    os._exit(0)


def _lock() -> None:
    """Opens /proc/self to the program again where the user changed, then gives away every call the filter names."""
    import _ctypes
    from array import array
    from struct import pack

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(prctl, (4, 1, 0, 0, 0))  # PR_SET_DUMPABLE
    refused = _ctypes.call_function(prctl, (38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    if CONFIG["filter"]:
        program = array("B", CONFIG["filter"])
        filter_ = pack("=HHIQ", len(program) // 8, 0, 0, program.buffer_info()[0])
        refused = refused or _ctypes.call_function(prctl, (22, 2, filter_))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    if refused:
        raise SystemExit("the kernel takes no seccomp filter")


def _limit() -> None:
    import resource

    for name, value in CONFIG["limits"].items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        soft, top = (v if hard == resource.RLIM_INFINITY else min(v, hard) for v in value)
        resource.setrlimit(number, (soft, top))


def _prepare() -> None:
    """A ``__main__`` as ``python3 FILE`` would have it, without site-packages."""
    import _sitebuiltins
    import builtins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    builtins.help = _sitebuiltins._Helper()
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - pathlib takes milliseconds
    sys.argv = [CONFIG["main"]]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    show, here = sys.excepthook, __file__

    def hook(kind: "type[BaseException]", error: BaseException, trace: "TracebackType | None") -> None:
        while trace and trace.tb_frame.f_code.co_filename == here:
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _main() -> "Any":
    """The compiled program, in the process that is to run it."""
    uid = CONFIG.get("uid")
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    pid = os.fork()
    if pid:
        _supervise(pid)
    os.close(CONFIG["status_fd"])
    _prepare()
    with open(CONFIG["main"], "rb") as file:  # noqa: PTH123
        source = file.read()
    _limit()
    _lock()
    return compile(source, CONFIG["main"], "exec", dont_inherit=True)


if CONFIG:
    _code, __file__ = (_main(), CONFIG["main"])
    for _name in [n for n in globals() if not n.startswith("__") and n != "_code"]:
        del globals()[_name]
    globals()["__doc__"] = None
    exec(globals().pop("_code"), globals())
