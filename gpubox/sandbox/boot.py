"""Runs inside the sandbox before the program: sets limits, drops the user, locks itself in, reports how it ended.

gpubox sends its text there with ``CONFIG = {...}`` in front. It must work alone, with Python 3.9, and with few imports
(each costs every run some milliseconds); and it leaves nothing in the program's ``__main__``.
"""

import os
import sys

MYPY = False
if MYPY:
    from types import TracebackType
    from typing import Any
_QUICK_SECONDS = 0.01
_MAX_ARGUMENT = 100_000
"""The kernel takes arguments of up to 128 KiB (execve(2))."""
if "CONFIG" not in globals():  # imported for its text
    CONFIG: "dict[str, Any]" = {}


def _wait(pid: int) -> None:
    """Reports how a quick program ended. A longer one is left to the monitor, which takes a while to compile."""
    import _signal  # type: ignore[import-not-found]

    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGCHLD])  # it stays pending until sigtimedwait
    done, status, usage = os.wait4(pid, os.WNOHANG)
    if not done and not CONFIG.get("group") and _signal.sigtimedwait([_signal.SIGCHLD], _QUICK_SECONDS):
        done, status, usage = os.wait4(pid, os.WNOHANG)
    if done and not CONFIG.get("group"):
        os.write(CONFIG["status_fd"], b"%d %f\n" % (status, usage.ru_utime + usage.ru_stime))
        os._exit(0)
    ended = (status, usage) if done else None
    names = {"CONFIG": CONFIG, "PROGRAM": pid, "ENDED": ended, "call": _call}
    exec(compile(CONFIG["monitor"], "monitor", "exec"), names)


def _call(name: str, *arguments: object) -> int:
    """Calls a function of the C library; bytes are passed as a pointer. Importing ctypes takes ten times as long."""
    import _ctypes

    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # type: ignore[arg-type]
    return int(_ctypes.call_function(function, arguments))


def _lock() -> None:
    """Gives the program access to its /proc/self, then gives up everything that it must not have."""
    from struct import pack

    _call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
    refused = _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if CONFIG.get("landlock"):
        refused = refused or _landlock(*CONFIG["landlock"])
    if CONFIG["filter"]:
        from _ctypes import Array, _SimpleCData, addressof

        class Byte(_SimpleCData):  # type: ignore[type-arg]
            _type_ = "B"

        class Program(Array):  # type: ignore[type-arg]
            _type_, _length_ = Byte, len(CONFIG["filter"])

        program = Program.from_buffer_copy(CONFIG["filter"])
        filter_ = pack("=HHIQ", len(program) // 8, 0, 0, addressof(program))
        refused = refused or _call("prctl", 22, 2, filter_)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    if refused:
        raise SystemExit("the kernel refused to confine this program")


def _landlock(abi: int, rules: "dict[str, list[str]]", no_tcp: bool) -> int:
    """Allows only these folders and devices, no TCP if so said, no signals to others, as far as this kernel can."""
    from struct import pack

    known = 0x1FFF | (0x2000 if abi >= 2 else 0) | (0x4000 if abi >= 3 else 0) | (0x8000 if abi >= 5 else 0)
    attributes = pack("=QQQ", known, 3 * no_tcp, 3)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _call("syscall", 444, attributes, len(attributes), 0)
    if ruleset < 0:
        return ruleset
    # Execute, read a file, list a folder; everything but making devices, sockets and FIFOs; read and write.
    rights = {"read": 0x1 | 0x4 | 0x8, "write": known & ~0x8E40, "devices": 0x2 | 0x4}
    for kind, paths in rules.items():
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            right = rights[kind] if os.path.isdir(path) else rights[kind] & 0x4007  # noqa: PTH112
            if _call("syscall", 445, ruleset, 1, pack("=Qi", right, fd), 0):
                return 1
            os.close(fd)
    refused = _call("syscall", 446, ruleset, 0)
    os.close(ruleset)
    return refused


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


def _become(program: str, words: "list[str]") -> None:
    """Runs another program in this process."""
    import _signal

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores these, and what it becomes would, too
        _signal.signal(number, _signal.SIG_DFL)
    os.execv(program, [os.path.basename(program), *words])  # noqa: PTH119 - pathlib takes milliseconds


def _main() -> "Any":
    """The compiled program, in the process that is to run it."""
    if CONFIG.get("writes") and os.statvfs(CONFIG["work"]).f_flag & os.ST_RDONLY:
        os.write(2, b"bwrap: the kernel mounts the overlay read-only\n")  # as where it cannot use the work folder
        os._exit(1)
    # Otherwise a process of the same user could open the report pipe in /proc and write a false report.
    _call("prctl", 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    pid = os.fork()
    if pid:
        _wait(pid)
    uid = CONFIG.get("uid")
    if uid:  # not the parent: bwrap of root could not kill a monitor of another user
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.nice(5)  # the model's server has priority
    os.chdir(CONFIG["work"])  # bwrap itself may not be allowed into the folder
    os.close(CONFIG["status_fd"])
    if CONFIG.get("control_fd") is not None:
        os.close(CONFIG["control_fd"])
    if CONFIG.get("terminal"):
        import fcntl

        os.setsid()
        fcntl.ioctl(0, 0x540E, 0)  # TIOCSCTTY
    if __file__.startswith("/proc/self/fd/"):
        os.close(int(__file__[14:]))
    python = next((path for path in CONFIG.get("pythons", ()) if os.access(path, os.X_OK)), "")
    if not CONFIG.get("shell") and not CONFIG.get("argv") and not python:
        _prepare()
    with open(CONFIG["main"], "rb") as file:  # noqa: PTH123
        source = file.read()
    _limit()
    if CONFIG.get("go_fd") is not None:
        os.read(CONFIG["go_fd"], 1)  # written once this process is in its cgroup
        os.close(CONFIG["go_fd"])
    if CONFIG.get("relay"):
        # Before the lock, because it connects to unix sockets. It is not dumpable: the program can but kill it.
        exec(compile(CONFIG["relay"], "relay", "exec"), {"CONFIG": CONFIG})
    _lock()
    if CONFIG.get("argv"):
        try:
            _become(CONFIG["argv"][0], CONFIG["argv"][1:])
        except OSError as error:
            raise SystemExit(f"{CONFIG['argv'][0]}: {error.strerror}") from None
    if CONFIG.get("shell"):
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        _become(shell, ["-c", os.fsdecode(source)] if len(source) < _MAX_ARGUMENT else [str(CONFIG["main"])])
    if python:
        os.environ["PYTHONPATH"] = CONFIG["work"]
        _become(python, [str(CONFIG["main"])])
    return compile(source, CONFIG["main"], "exec", dont_inherit=True)


if CONFIG:
    _code, __file__ = (_main(), CONFIG["main"])
    for _name in [n for n in globals() if not n.startswith("__") and n != "_code"]:
        del globals()[_name]
    globals()["__doc__"] = None
    exec(globals().pop("_code"), globals())
