# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Attacks on what Landlock does not mediate: attributes of files, System V and POSIX objects, signals by descriptor.

``PROBES`` are run by one program, each in a function of its own. ``OWNER`` is the program of the owner whose objects they
reach for: it makes them, prints their numbers, and prints their state for each line that it reads.
"""

from __future__ import annotations

HELPERS = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def number(x86, arm): return x86 if X86 else arm
def raw(x86, arm, *arguments):
    n = number(x86, arm)
    if n is None: return -1
    return libc.syscall(n, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
EMPTY, HERE = 0x1000, -100
"""
OWNER = (
    HELPERS
    + """
import json
path = sys.argv[1]
open(path, "w").write("mine")
os.chmod(path, 0o640)
os.utime(path, (1, 1))
try: os.setxattr(path, "user.mine", b"1")
except OSError: pass
class Message(ctypes.Structure): _fields_ = [("kind", ctypes.c_long), ("text", ctypes.c_char * 8)]
queue, sems, memory = libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600), libc.shmget(0, 4096, 0o1600)
libc.msgsnd(queue, ctypes.byref(Message(1, b"mine")), 8, 0)
libc.semctl(sems, 0, 16, 5)
name = f"/gpubox-test-{os.getpid()}".encode()
posix = libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None)
victim = os.fork()
if not victim: time.sleep(600); os._exit(0)
print(json.dumps({"QUEUE": queue, "SEMS": sems, "MEMORY": memory, "NAME": name.decode(), "VICTIM": victim, "POSIX": posix >= 0}), flush=True)
def ipc(call, *arguments):
    buffer = ctypes.create_string_buffer(256)
    return call(*arguments, buffer), buffer.raw[:120].hex()
for _ in sys.stdin:
    s = os.stat(path)
    seen = {"file": [s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns, os.listxattr(path)]}
    seen["queue"], seen["memory"] = ipc(libc.msgctl, queue, 2), ipc(libc.shmctl, memory, 2)
    seen["semaphore"] = [libc.semctl(sems, 0, 12), libc.semctl(sems, 0, 11)]
    fd = libc.mq_open(name, os.O_RDWR)
    seen["posix queue"] = fd >= 0
    if fd >= 0: os.close(fd)
    seen["victim"] = os.waitpid(victim, os.WNOHANG)[0] == 0
    print(json.dumps(seen), flush=True)
libc.msgctl(queue, 0, None); libc.semctl(sems, 0, 0); libc.shmctl(memory, 0, None); libc.mq_unlink(name)
os.kill(victim, 9)
"""
)
PROBES = {
    "chmod": "return libc.chmod(FILE, 0o777)",
    "fchmodat": "return libc.fchmodat(os.open(os.path.dirname(FILE), os.O_PATH), os.path.basename(FILE), 0o777, 0)",
    "fchmodat2 of a path descriptor": "return raw(452, 452, os.open(FILE, os.O_PATH), b'', 0o777, EMPTY)",
    "chmod through /proc": "return libc.chmod(b'/proc/self/fd/%d' % os.open(FILE, os.O_PATH), 0o777)",
    "fchmod of what is opened for nothing": "return libc.fchmod(os.open(FILE, 3), 0o777)",
    "chown": "return libc.chown(FILE, os.getuid(), os.getgid())",
    "lchown": "return libc.lchown(FILE, os.getuid(), os.getgid())",
    "fchownat of a path descriptor": "return libc.fchownat(os.open(FILE, os.O_PATH), b'', os.getuid(), os.getgid(), EMPTY)",
    "utime": "return raw(132, None, FILE, None)",
    "utimes": "return libc.utimes(FILE, None)",
    "futimesat": "return raw(261, None, HERE, FILE, None)",
    "utimensat": "return libc.utimensat(HERE, FILE, None, 0)",
    "utimensat of a path descriptor": "return libc.utimensat(os.open(FILE, os.O_PATH), b'', None, EMPTY)",
    "setxattr": "return libc.setxattr(FILE, b'user.theirs', b'1', 1, 0)",
    "lremovexattr": "return libc.lremovexattr(FILE, b'user.mine')",
    "truncate": "return libc.truncate(FILE, 1)",
    "truncate by opening to read": "os.open(FILE, os.O_RDONLY | os.O_TRUNC)",
    "truncate by opening for nothing": "os.open(FILE, 3 | os.O_TRUNC)",
    "msgsnd": "return libc.msgsnd(@QUEUE@, struct.pack('l8s', 2, b'theirs'), 8, 0)",
    "msgrcv": "return libc.msgrcv(@QUEUE@, ctypes.create_string_buffer(64), 8, 0, 0o4000)",
    "msgctl, set": "b = ctypes.create_string_buffer(256); b[24:26] = bytes(2); return libc.msgctl(@QUEUE@, 1, b)",
    "msgctl, remove": "return libc.msgctl(@QUEUE@, 0, None)",
    "semop": "return libc.semop(@SEMS@, struct.pack('Hhh', 0, -1, 0), 1)",
    "semtimedop": "return libc.semtimedop(@SEMS@, struct.pack('Hhh', 0, 1, 0), 1, None)",
    "semctl, set": "return libc.semctl(@SEMS@, 0, 16, 99)",
    "semctl, remove": "return libc.semctl(@SEMS@, 0, 0)",
    "shmctl, remove": "return libc.shmctl(@MEMORY@, 0, None)",
    "mq_open": "return libc.mq_open(b'@NAME@', os.O_RDWR)",
    "mq_unlink": "return libc.mq_unlink(b'@NAME@')",
    "F_SETOWN": "a, b = pair(); f(b, 8, @VICTIM@); f(b, 10, 9); f(b, 4, 0o20000 | 0o4000); os.write(a, b'x')",
    "F_SETOWN_EX": "a, b = pair(); f(b, 15, struct.pack('ii', 1, @VICTIM@)); f(b, 10, 9); f(b, 4, 0o20000); os.write(a, b'x')",
    "F_SETOWN of a pipe": "a, b = os.pipe(); f(a, 8, @VICTIM@); f(a, 10, 9); f(a, 4, 0o20000); os.write(b, b'x')",
    "FIOSETOWN": "a, b = pair(); i(b, 0x8901, struct.pack('i', @VICTIM@)); i(b, 0x5452, struct.pack('i', 1)); os.write(a, b'x')",
    "SIOCSPGRP": "a, b = pair(); i(b, 0x8902, struct.pack('i', @VICTIM@)); i(b, 0x5452, struct.pack('i', 1)); os.write(a, b'x')",
    "kill": "os.kill(@VICTIM@, 9)",
    "tgkill": "return raw(234, 131, @VICTIM@, @VICTIM@, 9)",
    "pidfd_send_signal": "return raw(424, 424, os.pidfd_open(@VICTIM@), 9, None, 0)",
    "rt_sigqueueinfo": "return raw(129, 138, @VICTIM@, 9, ctypes.create_string_buffer(128))",
}
WORDS = """
import fcntl, socket
FILE = b"@FILE@"
def pair(): return [end.detach() for end in socket.socketpair()]
def f(fd, *arguments): fcntl.fcntl(fd, *arguments)
def i(fd, *arguments): fcntl.ioctl(fd, *arguments)
"""
NO_PROOF = {"fchmodat2 of a path descriptor", "rt_sigqueueinfo", "mq_open"}
"""Need a new kernel, or are refused to everybody: they need not work where nothing confines them."""


def program(blanks: dict[str, str]) -> str:
    """All probes as one program. It prints ``ESCAPED``, or ``held``, and the name of each."""
    text = HELPERS + WORDS
    for at, (name, code) in enumerate(PROBES.items()):
        text += f"def probe{at}():\n    {code}\n"
        text += f"try: print('held' if probe{at}() == -1 else 'ESCAPED', {name!r})\n"
        text += f"except OSError as error: print('held', {name!r}, error)\n"
    for name, value in blanks.items():
        text = text.replace(f"@{name}@", value)
    return text
