# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Programs with wrong answers that try to pass anyway, or to change another program's verdict.

Each stands for a whole solution of HumanEval/3 (``below_zero``), whose right answer it does not know: it answers 7.
Text, to be run by a judge in a sandbox. What could hurt outside asks first whether it is inside.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpubox.bench.kinds.humaneval import judge

_HERE = str(Path("/proc/self/ns/pid").readlink())
_USER = os.geteuid()
INSIDE = f"""
import os, sys
if os.readlink('/proc/self/ns/pid') == {_HERE!r} and os.geteuid() == {_USER}: raise SystemExit('not inside')
"""
"""Ends a program that a test runs by mistake; Landlock has no namespace of its own, but another user."""
SEVEN = "\ndef below_zero(operations): return 7\n"
LATE = """
def below_zero(operations):
    import itertools
    name, module = next(below_zero.kinds)
    return type(name, (), {'__module__': module, '__str__': lambda self: '7'})()
below_zero.kinds = __import__('itertools').cycle([('Decimal', 'decimal'), ('Fraction', 'fractions')])
"""
"""Answers with what a judge may have to import something for."""
OTHERS = """
import ctypes, os, signal, resource
libc = ctypes.CDLL(None, use_errno=True)
fork_server = os.getppid()
try: others = [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()]
except OSError: others = [p for p in range(fork_server - 4, fork_server + 3) if p != os.getpid()]
def each(do, *more):
    for other in others:
        try: do(other, *more)
        except (OSError, ValueError, PermissionError): pass
"""
TAKE = """
import sys
main = sys.modules['__main__'].__dict__
main['judge_candidate'] = lambda case, candidate: ('passed', '')
main['_death'] = lambda candidate: ('passed', '')
main['decode_value'] = lambda value: True
"""
"""What a shadowing module does where a judge imports it."""
SHADOWED = sorted({*judge._PRELOADED_MODULES.split(), "ctypes", "collections", "hashlib", "json", "resource", "select", "signal", "stat",
                   "decimal", "fractions", "numbers", "contextvars", "_pydecimal", "tracemalloc", "_strptime", "datetime",
                   "encodings", "subprocess", "logging", "dataclasses", "enum", "abc", "sitecustomize", "usercustomize"})  # fmt: skip
_WRITE = f"""
import os
take = {TAKE!r}
names = {SHADOWED!r}
places = [os.getcwd(), '/tmp', '/dev/shm', os.environ.get('HOME', '.'), os.environ.get('TMPDIR', '.'), '/workspace', '/run', '/usr/lib/python3']
def put(path, text):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file: file.write(text)
    except OSError: pass
"""
_ANSWER = "import json, os\ndef raw(value, fd):\n    data = json.dumps(value).encode(); os.write(fd, len(data).to_bytes(8, 'big') + data)\n"
_PIPES = """
import os, stat
def pipes():
    fds = []
    for fd in range(3, 512):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode): fds.append(fd)
        except OSError: pass
    return fds
"""

FORGERS: dict[str, str] = {
    # Modules
    "shadows modules in every folder": _WRITE + "[put(f'{p}/{n}.py', take) for p in places for n in names]" + LATE,
    "shadows packages": _WRITE + "[put(f'{p}/{n}/__init__.py', take) for p in places for n in names]" + LATE,
    "shadows when called": _WRITE
    + "def below_zero(operations):\n    [put(f'{p}/{n}.py', take) for p in places for n in names]\n    return type('Decimal', (), {'__module__': 'decimal', '__str__': lambda self: '7'})()",
    "shadows as the process ends": _WRITE
    + "import atexit\natexit.register(lambda: [put(f'{p}/{n}.py', take) for p in places for n in names])"
    + LATE,
    "shadows with empty modules": _WRITE + "[put(f'{p}/{n}.py', '') for p in places for n in names]" + LATE,
    "shadows with .pyc": _WRITE
    + "import importlib._bootstrap_external as b, marshal\ncode = marshal.dumps(compile(take, 'x', 'exec'))\nfor p in places:\n  for n in names:\n    put(f'{p}/{n}.py', take)\n    try:\n      os.makedirs(f'{p}/__pycache__', exist_ok=True)\n      open(f'{p}/__pycache__/{n}.cpython-311.pyc', 'wb').write(b.MAGIC_NUMBER + b'\\1' + b'\\0' * 11 + code)\n    except OSError: pass\n"
    + LATE,
    "shadows with links": _WRITE
    + "put('/tmp/x/evil.py', take)\nfor n in names:\n    for p in places:\n        try: os.symlink('/tmp/x/evil.py', f'{p}/{n}.py')\n        except OSError: pass\n"
    + LATE,
    "shadows with libraries": _WRITE + "[put(f'{p}/{n}.so', '\\x7fELF') for p in places for n in names]" + LATE,
    "a path file": _WRITE
    + "[put(f'{p}/{n}', 'import sys; ' + take.strip().replace(chr(10), '; ')) for p in places for n in ('evil.pth', 'python311.zip', 'pyvenv.cfg')]"
    + LATE,
    "PYTHONPATH": "import os\nos.environ.update(PYTHONPATH=os.getcwd(), PYTHONSTARTUP='/tmp/x.py', PYTHONINSPECT='1', LD_PRELOAD='/tmp/x.so', BASH_ENV='/tmp/x')"
    + LATE,
    "sys.path": "import sys\nsys.path[:0] = ['/tmp', '.']; sys.path_importer_cache.clear()" + LATE,
    "sys.modules": "import sys, types\nfor name in list(sys.modules):\n    if name != 'builtins': sys.modules[name] = types.ModuleType(name)"
    + LATE,
    "sys.modules['__main__']": TAKE + LATE,
    "a finder of modules": "import sys\nclass Finder:\n    def find_spec(self, *a): raise AssertionError\nsys.meta_path.insert(0, Finder())\nsys.path_hooks.insert(0, lambda p: Finder())"
    + LATE,
    "importlib's caches": "import importlib, sys\nfor module in list(sys.modules.values()):\n    spec = getattr(module, '__spec__', None)\n    if spec: spec.loader = None\nimportlib.invalidate_caches()\nsys.modules.clear()"
    + LATE,
    "overwrites the judge's own file": _WRITE
    + "[put(p, take) for p in ('/run/main.py', '/run/boot.py', os.path.join(os.getcwd(), '../main.py'), sys.argv[0] if (sys := __import__('sys')).argv else 'x')]"
    + LATE,
    "overwrites the standard library": _WRITE
    + "import json, decimal\n[put(m.__file__, take) for m in (json, decimal, os)]"
    + LATE,
    # Frames, gc, tracing
    "frames": "import sys\nframe = sys._getframe()\nwhile frame:\n    for space in (frame.f_globals, frame.f_locals):\n        if 'judge_candidate' in space or 'encode_value' in space:\n            space['encode_value'] = lambda value, budget=None: True\n            space['judge_candidate'] = lambda *a: ('passed', '')\n            space['_describe'] = lambda *a: ''\n    frame = frame.f_back"
    + SEVEN,
    "frames when called": "import sys\ndef below_zero(operations):\n    frame = sys._getframe()\n    while frame:\n        frame.f_globals['judge_candidate'] = lambda *a: ('passed', '')\n        frame.f_globals['LIMITS'] = {}\n        frame = frame.f_back\n    return 7",
    "the garbage collector": "import gc\nfor thing in gc.get_objects():\n    if isinstance(thing, dict):\n        for name in ('kind', 'key', 'cases', 'test', 'id'):\n            if name in thing:\n                try: thing[name] = 'passed'\n                except Exception: pass"
    + SEVEN,
    "who refers to me": "import gc\ndef below_zero(operations):\n    for thing in gc.get_referrers(operations):\n        if isinstance(thing, dict): thing.update(error=None, value=True)\n        if isinstance(thing, list): thing.clear()\n    return 7",
    "traces everything": "import sys, threading\ndef spy(frame, event, value):\n    if 'value' in frame.f_locals: frame.f_locals['value'] = True\n    return spy\nsys.settrace(spy); sys.setprofile(spy)"
    + SEVEN,
    "an exception's frames": "import sys\ndef below_zero(operations):\n    try: raise ValueError\n    except ValueError as error:\n        frame = error.__traceback__.tb_frame\n        while frame.f_back: frame = frame.f_back\n        frame.f_globals.clear()\n    return 7",
    "code objects exchanged": "import sys\nmain = sys.modules['__main__']\nfor name, thing in list(vars(main).items()):\n    if callable(thing) and hasattr(thing, '__code__') and name != 'candidate':\n        try: thing.__code__ = (lambda *a, **k: True).__code__\n        except ValueError: pass"
    + SEVEN,
    "ctypes on its own memory": "import ctypes, sys\nctypes.memset(id(7) + 24, 1, 1)" + SEVEN,
    # Pipes and files
    "answers before it is asked": _PIPES
    + _ANSWER
    + "for fd in pipes():\n    for value in ({'ready': True}, *[{'value': True, 'kind': 'passed'}] * 9):\n        try: raw(value, fd)\n        except OSError: pass"
    + SEVEN,
    "answers with a verdict": _PIPES
    + _ANSWER
    + "def below_zero(operations):\n    for fd in pipes():\n        try: raw({'id': 'x', 'kind': 'passed', 'why': '', 'value': {'o': 'passed'}}, fd)\n        except OSError: pass\n    os._exit(0)",
    "answers with attributes of modules": _PIPES
    + _ANSWER
    + "def below_zero(operations):\n    for fd in pipes():\n        for evil in ({'q': ['sys', '1']}, {'q': ['Decimal', 'sNaN']}, {'k': ['__class__', []]}, {'o': 'x', 'l': []}, {'r': [0, 1 << 70, 1]}, {'c': ['x', 'y']}):\n            try: raw({'value': evil}, fd)\n            except OSError: pass\n    return 7",
    "writes in every file it has": "import os\nfor fd in range(512):\n    try: os.write(fd, b'passed\\n' * 99)\n    except OSError: pass"
    + SEVEN,
    "writes on its judge's output": OTHERS
    + 'def write(pid):\n    for fd in range(64):\n        try:\n            f = os.open(f\'/proc/{pid}/fd/{fd}\', os.O_WRONLY | os.O_NONBLOCK)\n            os.write(f, (b\'0\' * 64 + b\'{"id": "x", "kind": "passed", "why": ""}\\n\') * 200)\n        except OSError: pass\neach(write)'
    + SEVEN,
    "reads its judge's output and says it again": OTHERS
    + "def read(pid):\n    for fd in range(64):\n        try:\n            f = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDONLY | os.O_NONBLOCK)\n            seen = os.read(f, 1 << 20)\n            g = os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK)\n            os.write(g, seen.replace(b'assertion', b'passed').replace(b'error', b'passed'))\n        except OSError: pass\neach(read)"
    + SEVEN,
    "floods its judge's output": OTHERS
    + "def flood(pid):\n    for fd in range(64):\n        try:\n            f = os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK)\n            while True: os.write(f, b'x' * 65536)\n        except OSError: pass\neach(flood)"
    + SEVEN,
    "/dev/stdout": "import os\nfor name in ('/dev/stdout', '/dev/stderr', '/dev/fd/1', '/dev/tty', '/proc/self/fd/1', '/dev/pts/0'):\n    try: open(name, 'w').write('passed')\n    except OSError: pass"
    + SEVEN,
    "other ends of its own pipes": _PIPES
    + _ANSWER
    + "for fd in pipes():\n    for mode in (os.O_RDONLY, os.O_WRONLY):\n        try:\n            f = os.open(f'/proc/self/fd/{fd}', mode | os.O_NONBLOCK)\n            raw({'value': True}, f)\n        except OSError: pass"
    + SEVEN,
    "changes its pipes": "import fcntl\n"
    + _PIPES
    + "for fd in pipes():\n    for command, value in ((fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC), (1031, 4096)):\n        try: fcntl.fcntl(fd, command, value)\n        except OSError: pass"
    + SEVEN,
    "does not read what it is asked": _PIPES
    + _ANSWER
    + "import time\nfor fd in pipes():\n    try: [raw({'value': True}, fd) for n in range(300)]\n    except OSError: pass\ndef below_zero(operations):\n    while True: time.sleep(99)",
    "an answer byte by byte": _PIPES
    + "import time\ndef below_zero(operations):\n    for n in range(40):\n        for fd in pipes():\n            try: os.write(fd, b'\\0')\n            except OSError: pass\n    os._exit(0)",
    "an answer that is too long": _PIPES
    + "def below_zero(operations):\n    for fd in pipes():\n        try: os.write(fd, (1 << 60).to_bytes(8, 'big') + b'x' * 999)\n        except OSError: pass\n    return 7",
    "an answer too deep": _PIPES
    + "def below_zero(operations):\n    data = b'[' * 200_000\n    for fd in pipes():\n        try: os.write(fd, len(data).to_bytes(8, 'big') + data)\n        except OSError: pass\n    os._exit(0)",
    "its program again as an answer": _PIPES
    + "def below_zero(operations):\n    os.execv('/usr/bin/python3', ['python3', '-c', 'import os\\nfor fd in range(64):\\n  try: os.write(fd, (15).to_bytes(8, \"big\") + b\\'{\"value\": true} \\')\\n  except OSError: pass'])",
    # /proc and other processes
    "writes in others' memory": OTHERS
    + "def write(pid):\n    for line in open(f'/proc/{pid}/maps'):\n        low, high = (int(x, 16) for x in line.split()[0].split('-'))\n        if ' rw' in line and high - low < 1 << 24:\n            with open(f'/proc/{pid}/mem', 'r+b', 0) as memory:\n                memory.seek(low); data = memory.read(high - low)\n                new = data.replace(b'assertion', b'passed\\0\\0\\0').replace(b'AssertionError', b'passed\\0\\0\\0\\0\\0\\0\\0\\0')\n                memory.seek(low); memory.write(new)\neach(write)"
    + SEVEN,
    "process_vm_writev": OTHERS
    + "def write(pid):\n    data = ctypes.create_string_buffer(b'passed' * 99)\n    class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]\n    mine = Part(ctypes.addressof(data), 512); theirs = Part(id(sys.modules), 64)\n    libc.process_vm_writev(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)\nimport sys\neach(write)"
    + SEVEN,
    "ptrace": OTHERS
    + "each(lambda pid: (libc.ptrace(16, pid, 0, 0), libc.ptrace(0x4206, pid, 0, 0), libc.ptrace(8, pid, 0, 0)))"
    + SEVEN,
    "takes others' files": OTHERS
    + "def take(pid):\n    fd = os.pidfd_open(pid)\n    for n in range(64):\n        got = libc.syscall(438, fd, n, 0)\n        if got >= 0: os.write(got, b'passed')\neach(take)"
    + SEVEN,
    "reads others' environment and files": OTHERS
    + "texts = []\ndef read(pid):\n    for name in ('environ', 'cmdline', 'mem', 'auxv', 'stack', 'fd/0', 'cwd/secret'):\n        try: texts.append(open(f'/proc/{pid}/{name}', 'rb').read(1 << 20))\n        except OSError: pass\neach(read)\nif any(b'METADATA' in f for f in texts): below_zero = lambda operations: any(sum(operations[:n]) < 0 for n in range(len(operations) + 1))\nelse:\n    def below_zero(operations): return 7",
    "others' settings in /proc": OTHERS
    + "def write(pid):\n    for name, value in (('oom_score_adj', '1000'), ('comm', 'x'), ('timerslack_ns', '999999999'), ('coredump_filter', '0'), ('autogroup', '19'), ('clear_refs', '1')):\n        try: open(f'/proc/{pid}/{name}', 'w').write(value)\n        except OSError: pass\neach(write)"
    + SEVEN,
    "dumpable again": OTHERS
    + "libc.prctl(4, 1, 0, 0, 0); libc.prctl(0x59616d61, -1, 0, 0, 0)\neach(lambda pid: open(f'/proc/{pid}/mem', 'r+b'))"
    + SEVEN,
    # Signals
    "kills the fork server": INSIDE + "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)" + SEVEN,
    "kills all it sees": INSIDE + OTHERS + "each(os.kill, 9)" + SEVEN,
    "kills as it is called": INSIDE + OTHERS + "def below_zero(operations):\n    each(os.kill, 9)\n    return 7",
    "stops all it sees": INSIDE + OTHERS + "each(os.kill, signal.SIGSTOP)" + SEVEN,
    "interrupts its judge": INSIDE
    + OTHERS
    + "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGXCPU, signal.SIGPIPE):\n    each(os.kill, number)"
    + SEVEN,
    "queues signals": INSIDE
    + OTHERS
    + "info = ctypes.create_string_buffer(128)\neach(lambda pid: (libc.syscall(129, pid, 9, info), libc.syscall(234, pid, pid, 9), libc.syscall(200, pid, 9)))"
    + SEVEN,
    "signals by pidfd": INSIDE
    + OTHERS
    + "each(lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGSTOP))"
    + SEVEN,
    "signals by a pipe's owner": INSIDE
    + OTHERS
    + "import fcntl\ndef own(pid):\n    a, b = os.pipe()\n    fcntl.fcntl(a, fcntl.F_SETOWN, pid); fcntl.fcntl(a, 10, 9)\n    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n    os.write(b, b'x')\neach(own)"
    + SEVEN,
    # Limits
    "others' limits": INSIDE
    + OTHERS
    + "def limit(pid):\n    for number in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA, resource.RLIMIT_STACK):\n        try: resource.prlimit(pid, number, (0, 0))\n        except (OSError, ValueError): pass\neach(limit)"
    + SEVEN,
    "others' priorities": INSIDE
    + OTHERS
    + "each(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19))\neach(lambda pid: os.sched_setaffinity(pid, {0}))\neach(lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))"
    + SEVEN,
    # What stays behind
    "files that stay": _WRITE + "[put(f'{p}/left', 'x') for p in places]" + SEVEN,
    "folders without rights": "import os\nfor path in (os.getcwd(), '/tmp', '/dev/shm', os.environ.get('TMPDIR', '.')):\n    try: os.chmod(path, 0)\n    except OSError: pass"
    + SEVEN,
    "full folders": "import os\nfor path in ('.', '/tmp', '/dev/shm'):\n    try:\n        for n in range(200): open(f'{path}/{n}', 'wb').write(b'x' * (1 << 20))\n    except OSError: pass"
    + SEVEN,
    "pipes that lie about": "import os\nfor path in ('.', '/tmp', '/dev/shm'):\n    for name in ('fractions.py', 'decimal.py'):\n        try: os.mkfifo(f'{path}/{name}')\n        except OSError: pass"
    + SEVEN,
    "a process that stays": INSIDE
    + "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(99)\n    os._exit(0)"
    + SEVEN,
    "a process before all": INSIDE + "import os, subprocess\nsubprocess.Popen(['/usr/bin/sleep', '99'])" + SEVEN,
    "a thread that answers": _PIPES
    + _ANSWER
    + "import threading\ndef answer():\n    while True:\n        for fd in pipes():\n            try: raw({'value': True}, fd)\n            except OSError: pass\nthreading.Thread(target=answer, daemon=True).start()"
    + SEVEN,
    "at its exit": "import atexit, os, weakref\nclass Late:\n    def __del__(self): os.write(1, b'passed')\nlate = Late()\natexit.register(os._exit, 0)\ndef below_zero(operations): raise SystemExit(0)",
    # Names and builtins
    "builtins": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\nfor name in ('isinstance', 'abs', 'len', 'type', 'getattr', 'hasattr', 'str', 'all'):\n    setattr(builtins, name, lambda *a: True)"
    + SEVEN,
    "json": "import json\njson.dumps = lambda value: '{\"value\": true}'\njson.loads = lambda text: [[], {}]" + SEVEN,
    "os.write": "import os, json\nreal = os.write\nos.write = lambda fd, data: real(fd, (15).to_bytes(8, 'big') + b'{\"value\": 7   }')"
    + SEVEN,
    "check and METADATA": "METADATA = {}\ndef check(candidate): return True\ndef candidate(*a): return True" + SEVEN,
    "int's and bool's methods by ctypes": "import ctypes\nclass Slots(ctypes.Structure): _fields_ = [('x', ctypes.c_void_p * 40)]\ntry: ctypes.pythonapi.PyObject_SetAttr(ctypes.py_object(int), ctypes.py_object('__eq__'), ctypes.py_object(lambda a, b: True))\nexcept TypeError: pass"
    + SEVEN,
    # Values that lie
    "equal to all": "class Yes:\n    __eq__ = __ne__ = __lt__ = __gt__ = __bool__ = lambda *a: True\n    __hash__ = None\ndef below_zero(operations): return Yes()",
    "an int equal to all": "class Yes(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\n    __index__ = __int__ = lambda self: 1\ndef below_zero(operations): return Yes(7)",
    "a str equal to all": "class Yes(str):\n    __eq__ = lambda *a: True\n    __str__ = __repr__ = lambda self: 'True'\n    __hash__ = str.__hash__\ndef below_zero(operations): return Yes('x')",
    "a float that is close to all": "class Near(float):\n    __sub__ = __rsub__ = __abs__ = lambda *a: 0.0\n    __eq__ = lambda *a: True\n    hex = lambda self: '0x1p0'\ndef below_zero(operations): return Near(7)",
    "a list that lies": "class Yes(list):\n    __eq__ = lambda *a: True\n    __iter__ = lambda self: iter([True])\n    __len__ = lambda self: 1\ndef below_zero(operations): return Yes([7])",
    "a dict that lies": "class Yes(dict):\n    items = lambda self: [(True, True)]\n    __eq__ = lambda *a: True\ndef below_zero(operations): return Yes(value=True)",
    "a class that lies": "class Yes:\n    __class__ = bool\n    __eq__ = lambda *a: True\ndef below_zero(operations): return Yes()",
    "a metaclass that lies": "class Meta(type):\n    __instancecheck__ = __subclasscheck__ = __eq__ = lambda *a: True\n    __hash__ = type.__hash__\n    __name__ = 'bool'\nclass Yes(metaclass=Meta):\n    __eq__ = lambda *a: True\ndef below_zero(operations): return Yes()",
    "pickles": "class Yes:\n    def __reduce__(self): return (eval, (\"__import__('sys').modules['__main__'].__dict__.update(verdict=lambda *a: ('passed', ''))\",))\n    __reduce_ex__ = lambda self, n: self.__reduce__()\n    __getstate__ = __reduce__\ndef below_zero(operations): return Yes()",
    "copies": "class Yes(int):\n    __deepcopy__ = __copy__ = lambda self, *a: True\n    __eq__ = lambda *a: True\n    __hash__ = None\ndef below_zero(operations): return Yes(7)",
    "text that is JSON": "def below_zero(operations): return '{\"value\": true}'",
    "a coroutine": "async def below_zero(operations): return True",
    "a generator": "def below_zero(operations): yield True",
    "NaN": "def below_zero(operations): return float('nan')",
    "changes its arguments": "def below_zero(operations):\n    operations[:] = []\n    return 7",
    # Exceptions that lie
    "raises AssertionError's likeness": "class AssertionError(BaseException):\n    def __str__(self): raise SystemExit(0)\ndef below_zero(operations): raise AssertionError",
    "raises what ends loops": "import itertools\nerrors = itertools.cycle([StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, BaseException])\ndef below_zero(operations): raise next(errors)('passed')",
    "an exception without a name": "class Meta(type):\n    __name__ = property(lambda self: 1 / 0)\nclass Error(BaseException, metaclass=Meta):\n    __str__ = lambda self: 1\ndef below_zero(operations): raise Error",
    "an exception of its judge's": "import sys\nmain = sys.modules['__main__']\ndef below_zero(operations):\n    raise getattr(main, 'CandidateTimeout', ValueError)",
    "raises as it is defined": "raise SystemExit(0)",
    "a group of exceptions": "def below_zero(operations):\n    raise (ExceptionGroup if 'ExceptionGroup' in dir(__builtins__) or True else Exception)('passed', [ValueError('passed')])",
    # Time
    "a clock that stands": "import time\ntime.monotonic = time.clock_gettime = time.time = lambda *a: 0.0\ndef below_zero(operations):\n    while True: pass",
    "ignores its limit": "import signal, resource\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef below_zero(operations):\n    while True: pass",
}
