# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Programs that make the kernel hold memory for them, each in another way: no limit of a process counts any of it.

Run by tests/perf/kernel_memory.py, which watches the machine, and in short by the tests. All end by themselves or with
their sandbox.
"""

from __future__ import annotations

SPREAD = """
import ctypes, fcntl, mmap, os, resource, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def spread(count=60):
    for _ in range(count):
        try:
            if os.fork() == 0: return
        except OSError: break
"""
PROGRAMS = {
    "files": "n = 0\nspread(8)\nfolder = ('.', '/tmp', '/dev/shm')[os.getpid() % 3]\nwhile True: open(f'{folder}/{os.getpid()}-{n}', 'w').close(); n += 1",
    "folders": "n = 0\nspread(8)\nwhile True: os.mkdir(f'{os.getpid()}-{n}'); n += 1",
    "deep folders": "while True: os.mkdir('d'); os.chdir('d')",
    "links": "n = 0\nspread(4)\nwhile True: os.symlink('x' * 120, f'{os.getpid()}-{n}'); n += 1",
    "hard links": "open('a', 'w').close()\nn = 0\nspread(4)\nwhile True: os.link('a', f'{os.getpid()}-{n}'); n += 1",
    "extended attributes": "open('a', 'w').close()\nn = 0\nwhile True:\n    os.setxattr('a', f'user.{n}', b'x' * 4000); n += 1",
    "tcp": "spread()\nkeep = []\nwhile True:\n    a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()\n    b = socket.create_connection(a.getsockname()); c = a.accept()[0]; b.setblocking(False)\n    keep += [a, b, c]\n    try:\n        while True: b.send(bytes(1 << 20))\n    except BlockingIOError: pass",
    "socket pairs": "spread()\nkeep = []\nwhile True:\n    try: pair = socket.socketpair()\n    except OSError: time.sleep(20)\n    keep += pair\n    for one in pair:\n        one.setblocking(False)\n        try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 23)\n        except OSError: pass\n        try:\n            while True: one.send(bytes(1 << 18))\n        except BlockingIOError: pass",
    "sockets sent away": "a, b = socket.socketpair()\nspread(8)\nwhile True:\n    c, d = socket.socketpair(); c.setblocking(False)\n    try:\n        while True: c.send(bytes(1 << 18))\n    except BlockingIOError: pass\n    socket.send_fds(a, [b'x'], [c.fileno(), d.fileno()])",
    "pipes": "spread()\nkeep = []\nwhile True:\n    try: r, w = os.pipe()\n    except OSError: time.sleep(20)\n    os.set_blocking(w, False)\n    try: fcntl.fcntl(w, 1031, 1 << 20)\n    except OSError: pass\n    try:\n        while True: os.write(w, bytes(1 << 16))\n    except BlockingIOError: pass",
    "pinned pages": "spread(16)\nclass V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\nwhile True:\n    try: r, w = os.pipe()\n    except OSError: time.sleep(20)\n    for _ in range(16):\n        m = mmap.mmap(-1, 4 << 20); m.madvise(14); m[::4096] = b'x' * 1024\n        v = V(ctypes.addressof(ctypes.c_char.from_buffer(m)), 4096)\n        if libc.vmsplice(w, ctypes.byref(v), 1, 0) < 0: sys.exit('held')\n        del m",
    "locks": "n = 0\nspread(16)\nfile = open(f'{os.getpid()}', 'w')\nwhile True:\n    n += 1\n    if n % 2000 == 0: file2 = open(f'{os.getpid()}-{n}', 'w'); keep = globals().setdefault('keep', []); keep.append(file); file = file2\n    fcntl.lockf(file, fcntl.LOCK_EX, 1, n * 2)",
    "mappings": "spread(16)\nlibc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\nn = 0\nwhile True:\n    libc.mmap(0x100000000000 + n * 8192, 4096, 1 + n % 2 * 2, 0x22, -1, 0); n += 1",
    "page tables": "spread(16)\nlibc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\nn = os.getpid() << 8\nwhile True:\n    a = libc.mmap(0x100000000000 + (n << 21), 4096, 1, 0x8022, -1, 0); n += 1",
    "page tables, one process": "libc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\nn = 0\nwhile n < 60000:\n    a = libc.mmap(0x100000000000 + (n << 30), 4096, 1, 0x8022, -1, 0); n += 1",
    "file name lookups": "spread(8)\nn = 0\nwhile True:\n    n += 1\n    try: os.stat(f'/usr/lib/{os.getpid()}-{n}-' + 'x' * 180)\n    except OSError: pass",
    "file name lookups in the workspace": "spread(8)\nn = 0\nwhile True:\n    n += 1\n    try: os.stat(f'{os.getpid()}-{n}-' + 'x' * 180)\n    except OSError: pass",
    "watchers": "import select\nspread()\nkeep = [select.epoll() for _ in range(100)]\npipes = [fd for _ in range(60) for fd in os.pipe()]\nfor one in keep:\n    for fd in pipes: one.register(fd)\ntime.sleep(20)",
    "inotify": "spread(4)\nfor n in range(200): libc.inotify_init1(0) >= 0 or sys.exit('held')\ntime.sleep(5)",
    "timers": "libc.timer_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]\nspread()\nt = ctypes.c_void_p()\nwhile libc.timer_create(1, None, ctypes.byref(t)) == 0: pass\ntime.sleep(5)",
    "signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nspread()\nwhile True: libc.sigqueue(os.getpid(), 40, 0) == 0 or time.sleep(5)",
    "landlock rules": "fd = libc.syscall(444, (ctypes.c_uint64 * 3)(0, 3, 0), 16, 0)\nif fd < 0: sys.exit('held')\nfor port in range(65536): libc.syscall(445, fd, 2, (ctypes.c_uint64 * 2)(1, port), 0)\ntime.sleep(5)",
    "filters": "spread(30)\nclass P(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('p', ctypes.c_void_p)]\ncode = (ctypes.c_uint64 * 4000)(*[0x7fff000000000006] * 4000)\np = P(4000, ctypes.addressof(code))\nwhile libc.prctl(22, 2, ctypes.byref(p)) == 0: pass\nprint('held')\ntime.sleep(5)",
    "asynchronous writes": "ctx = ctypes.c_ulong()\nif libc.syscall(206 if os.uname().machine == 'x86_64' else 0, 60000, ctypes.byref(ctx)): sys.exit('held')\ntime.sleep(5)",
    "threads": "threading.stack_size(65536)\ntry:\n    while True: threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\nexcept RuntimeError: print('held')\ntime.sleep(3)",
}  # fmt: skip
