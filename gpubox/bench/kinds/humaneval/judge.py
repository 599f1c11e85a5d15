"""Runs inside the sandbox: one judge, and candidate programs one at a time, each in its own process.

A candidate gets its program and the arguments of each call, never a test. It answers with plain data, which the judge
decodes and compares. A fork server creates the candidates. It is forked before the judge reads the signing key from
stdin, so that the key was never in a candidate's memory. Judge and fork server are undumpable: no other process can
open their memory or files. The judge signs each verdict. Everything they need is imported beforehand, from folders that
no candidate can write. A candidate that leaves anything behind ends its batch; the others get a fresh sandbox.

Stands alone: its text is sent into the sandbox, followed by a call of ``main``.
"""

from __future__ import annotations

import collections
import decimal
import fractions
import hashlib
import itertools
import json
import os
import resource
import select
import signal
import stat
import sys
import time
from types import TracebackType
from typing import Any, NoReturn

LIMITS = {"cpu": 3, "check": 2, "wall": 10, "most": 60, "memory": 1 << 29, "answer": 16 << 20, "items": 200_000}
"""cpu: CPU seconds of one candidate; lm-eval's timeout, but a busy box fails nobody. check: CPU seconds of the judge
for it. wall: seconds without an answer from a candidate that uses less than MIN_CPU_SHARE of a core. most: seconds
without an answer in any case. memory and answer: bytes. items: values in one answer."""
MIN_CPU_SHARE = 0.02
MAX_REASON_CHARACTERS = 600
"""Of a verdict's reason: a program can give an exception a name of any length."""
_PRELOADED_MODULES = (
    "typing math re itertools functools string copy random heapq bisect operator statistics datetime "
    "linecache tokenize traceback warnings encodings.ascii encodings.utf_8 encodings.latin_1"
)
"""Modules that prompts, tests and Python's own error messages import, and that programs import most."""
_COLLECTIONS = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "deque": collections.deque}


class CandidateExited(Exception):
    """The candidate's process has ended."""


class ForkServerLost(Exception):
    """The fork server has ended: nothing more can be judged here."""


class CandidateTimeout(Exception):
    """The candidate did not answer in time."""


class CandidateRaised(Exception):
    """The candidate raised an exception; the text describes it."""


class OpaqueValue:
    """Stands for a value that no test can expect. Equal to nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return "<" + self.name + ">"

    __hash__ = None  # type: ignore[assignment]


def encode_value(value: Any, budget: list[int] | None = None) -> Any:
    """``value`` as JSON: plain data by its content, whatever class it pretends to be; anything else by its type's name.

    ``budget`` holds one number, how many values may still follow.
    """
    budget = [LIMITS["items"]] if budget is None else budget
    budget[0] -= 1
    if budget[0] < 0:
        return {"o": "endless"}
    kind = type(value)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        value = int.__add__(value, 0)
        return value if abs(value) < 1 << 53 else {"n": hex(value)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return {"f": float.hex(value)}
    if isinstance(value, list):
        return {"l": [encode_value(element, budget) for element in list.__iter__(value)]}
    if isinstance(value, tuple):
        return {"t": [encode_value(element, budget) for element in tuple.__iter__(value)]}
    if isinstance(value, dict):
        pairs: list[Any] = [[encode_value(k, budget), encode_value(v, budget)] for k, v in dict.items(value)]
        return {"k": [kind.__name__, pairs]} if kind in _COLLECTIONS.values() else {"d": pairs}
    if kind is collections.deque:
        return {"k": ["deque", [encode_value(element, budget) for element in value]]}
    if isinstance(value, set) or kind in (type({}.keys()), type({}.items())):
        return {"s": [encode_value(element, budget) for element in value]}
    if kind is type({}.values()):
        return {"v": [encode_value(element, budget) for element in value]}
    if isinstance(value, frozenset):
        return {"z": [encode_value(element, budget) for element in frozenset.__iter__(value)]}
    if kind is complex:
        return {"c": [value.real.hex(), value.imag.hex()]}
    if kind in (bytes, bytearray):
        return {"b": value.hex()}
    if kind is range:
        return {"r": [value.start, value.stop, value.step]}
    if kind.__name__ in ("Decimal", "Fraction") and kind.__module__ in ("decimal", "fractions"):
        return {"q": [kind.__name__, str(value)]}
    if hasattr(kind, "__next__"):
        elements = itertools.takewhile(lambda _: budget[0] >= 0, value)
        return {"i": [encode_value(element, budget) for element in elements]}
    return {"o": kind.__name__}


def decode_value(value: Any) -> Any:
    """The value that ``encode_value`` encoded. Only data crosses: no code or class of the sender's."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in ("l", "t", "s", "z", "i"):
        types: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset, "i": iter}
        return types[kind]([decode_value(element) for element in content])
    if kind == "d":
        return {decode_value(k): decode_value(v) for k, v in content}
    if kind == "v":
        return dict(enumerate(decode_value(element) for element in content)).values()
    if kind == "k":
        name, elements = content
        return _COLLECTIONS[name](decode_value({"l" if name == "deque" else "d": elements}))
    if kind == "n":
        return int(content, 16)
    if kind == "f":
        return float.fromhex(content)
    if kind == "c":
        return complex(*(float.fromhex(part) for part in content))
    if kind == "b":
        return bytes.fromhex(content)
    if kind == "r":
        return range(*content)
    if kind == "q":
        if content[0] == "Fraction":  # which would calculate the power of ten in "1e30000000"
            return fractions.Fraction(*map(int, content[1].split("/")))
        return decimal.Decimal(content[1])
    return OpaqueValue(str(content))


class IdleTimeout:
    """How long a candidate may leave the judge waiting. It ends an idle candidate; the CPU limit ends a busy one."""

    def __init__(self, pid: int) -> None:
        self._pid, self._cpu_seconds = pid, cpu_seconds_of(pid)
        self._deadline = time.monotonic() + LIMITS["wall"]
        self._last_deadline = time.monotonic() + LIMITS["most"]

    def remaining(self) -> float:
        """Seconds to wait now. Raises CandidateTimeout after the deadline; a busy candidate's deadline moves on."""
        now = time.monotonic()
        if now < self._deadline:
            return self._deadline - now
        cpu_seconds = cpu_seconds_of(self._pid)
        if cpu_seconds - self._cpu_seconds < MIN_CPU_SHARE * LIMITS["wall"] or now >= self._last_deadline:
            raise CandidateTimeout
        self._cpu_seconds, self._deadline = cpu_seconds, min(now + LIMITS["wall"], self._last_deadline)
        return self._deadline - now


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds of a process; 0 if unknown. The number is Linux's clock id of a process."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError):
        return 0.0


def send(fd: int, value: Any, timeout: IdleTimeout | None = None) -> None:
    """Sends a message: its length, then JSON. Raises CandidateTimeout, or BrokenPipeError if the reader has ended."""
    data = json.dumps(value).encode("ascii")
    data = len(data).to_bytes(8, "big") + data
    while data:
        while timeout is not None and not select.select([], [fd], [], timeout.remaining())[1]:
            pass
        try:
            data = data[os.write(fd, data[: 1 << 20]) :]
        except BlockingIOError:
            continue


def receive(fd: int, timeout: IdleTimeout | None = None) -> Any:
    """The next message. Raises CandidateExited at the end of the pipe, CandidateTimeout, ValueError if malformed."""
    size = int.from_bytes(_read_exactly(fd, 8, timeout), "big")
    if size > LIMITS["answer"]:
        raise ValueError("the answer is too long")
    return json.loads(_read_exactly(fd, size, timeout))


def _read_exactly(fd: int, count: int, timeout: IdleTimeout | None) -> bytes:
    parts = []
    while count:
        while timeout is not None and not select.select([fd], [], [], timeout.remaining())[0]:
            pass
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise CandidateExited
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def run_candidate(requests: int, replies: int, filter_: bytes) -> None:
    """The process of one candidate: reads its program from ``requests``, then serves calls until the pipe closes."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # no other process or thread: nothing outlives it
    resource.setrlimit(resource.RLIMIT_CPU, (LIMITS["cpu"], LIMITS["cpu"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LIMITS["memory"], LIMITS["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    install_seccomp_filter(filter_)
    program = receive(requests)
    namespace: dict[str, Any] = {}
    try:
        exec(compile(program["code"], "<solution>", "exec", dont_inherit=True), namespace)
        function = namespace[program["entry"]]
    except BaseException as error:
        send(replies, {"error": _describe(error, program["entry"])})
        return
    send(replies, {"ready": True})
    while True:
        arguments, named = decode_value(receive(requests))
        try:
            reply = {"value": encode_value(function(*arguments, **named))}
        except BaseException as error:
            reply = {"error": _describe(error)}
        send(replies, reply)


def install_seccomp_filter(filter_: bytes) -> None:
    """Forbids the system calls that the BPF program ``filter_`` refuses. Raises OSError if the kernel rejects it."""
    if filter_:
        import ctypes

        program = ctypes.create_string_buffer(filter_, len(filter_))
        packed = (len(filter_) // 8).to_bytes(8, sys.byteorder) + ctypes.addressof(program).to_bytes(8, sys.byteorder)
        if ctypes.CDLL(None).prctl(22, 2, packed, 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            raise OSError("this kernel takes no filter")  # a candidate that could stop the judge does not run


def _describe(error: BaseException, entry: str = "") -> str:
    if isinstance(error, KeyError) and entry and error.args == (entry,):
        return "it defines no " + entry
    try:
        text = str(error)[:300]
    except BaseException:
        text = ""
    number = getattr(error, "lineno", None)
    line = f" (line {number})" if isinstance(error, SyntaxError) and number and "(<solution>" not in text else ""
    return (type(error).__name__ + ": " + text if text else type(error).__name__) + line


class ForkServer:
    """A process that forks the candidates, one at a time, and ends them. It never learns the key."""

    def __init__(self, count: int, filter_: bytes) -> None:
        """Forks the server. ``count``: how many candidates at most."""
        self._pipes = [(*os.pipe(), *os.pipe()) for _ in range(count)]
        """Of each candidate: requests (read end, write end), replies (read end, write end)."""
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            code = 1
            try:
                os.close(self._orders)
                os.close(self._reports)
                for _, requests, replies, _ in self._pipes:
                    os.close(requests)
                    os.close(replies)
                null = os.open("/dev/null", os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                self._serve(orders, reports, filter_)
                code = 0
            finally:
                os._exit(code)
        os.close(orders)
        os.close(reports)
        for requests, _, _, replies in self._pipes:
            os.close(requests)
            os.close(replies)
        self._next = 0

    def _serve(self, orders: int, reports: int, filter_: bytes) -> None:
        """In the server's process: one byte starts a candidate, the next one ends it."""
        before = process_settings()
        for requests, _, _, replies in self._pipes:
            if not os.read(orders, 1) or process_settings() != before:
                return  # a candidate has changed what the next one would inherit
            pid = os.fork()
            if not pid:
                _become_candidate(requests, replies, filter_)
            os.close(requests)
            os.close(replies)
            send(reports, pid)
            os.read(orders, 1)  # also returns when the judge has ended
            send(reports, _reap(pid))

    def start(self) -> CandidateProxy:
        """Starts the next candidate, which then waits for its program. Raises ForkServerLost."""
        _, requests, replies, _ = self._pipes[self._next]
        self._next += 1
        os.set_blocking(requests, False)
        return CandidateProxy(self._order(), requests, replies)

    def end(self, candidate: CandidateProxy) -> None:
        """Ends ``candidate`` and stores its exit status in it. Raises ForkServerLost."""
        os.close(candidate.requests)
        os.close(candidate.replies)
        report = self._order()
        if report is None:
            raise ForkServerLost
        candidate.status, candidate.cpu = report

    def _order(self) -> Any:
        try:
            os.write(self._orders, b".")
            return receive(self._reports, IdleTimeout(self._pid))
        except (CandidateExited, CandidateTimeout, BrokenPipeError, ValueError):
            raise ForkServerLost from None


def _become_candidate(requests: int, replies: int, filter_: bytes) -> NoReturn:
    """Closes every file but the two pipes and runs the candidate."""
    code = 1
    try:
        low, high = sorted((requests, replies))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 4096)
        run_candidate(requests, replies, filter_)
        code = 0
    finally:
        os._exit(code)


def _reap(pid: int) -> tuple[int, float] | None:
    """Ends a candidate: its exit status and CPU seconds. ``None`` if it, or a child of it, is still alive."""
    deadline = time.monotonic() + 5
    try:
        os.kill(pid, 9)
        flags = 0
    except OSError:
        flags = os.WNOHANG  # a sandbox without signal scoping forbids every signal; the closed pipes end it
    while True:
        reaped, status, usage = os.wait4(pid, flags)
        if reaped or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    try:
        os.waitpid(-1, os.WNOHANG)
        return None
    except ChildProcessError:
        return (status, usage.ru_utime + usage.ru_stime) if reaped else None


def process_settings() -> Any:
    """Everything that another process of this user could change about this one."""
    # The sandbox's own seccomp filter refuses questions about RLIMIT_CORE.
    limits = [resource.getrlimit(number) for number in range(16) if number != resource.RLIMIT_CORE]
    return limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)


def sandbox_contents() -> list[Any]:
    """The files in the folders that candidates can write, and the processes that this sandbox has alone."""
    contents: list[Any] = []
    private = os.getcwd() == "/workspace"  # noqa: PTH109 - bubblewrap: /tmp and /proc belong to this batch
    folders = [os.getcwd(), os.environ.get("TMPDIR", "/")]  # noqa: PTH109
    for folder in [*folders, *(["/tmp", "/dev/shm"] if private else [])]:
        try:
            mode = stat.S_IMODE(os.stat(folder).st_mode)  # noqa: PTH116
            contents.append((folder, mode, sorted(os.listdir(folder))))  # noqa: PTH208
        except OSError as error:
            contents.append((folder, error.errno))
    if private:
        contents.append(sorted(name for name in os.listdir("/proc") if name.isdigit()))  # noqa: PTH208
    return contents


class CandidateProxy:
    """The judge's side of a candidate: what a test calls as the function."""

    def __init__(self, pid: int, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.status = 0
        self.cpu = 0.0
        self.timeout = IdleTimeout(pid)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            send(self.requests, encode_value((arguments, named)), self.timeout)
        except BrokenPipeError:
            raise CandidateExited from None
        reply = receive(self.replies, self.timeout)
        if "error" in reply:
            raise CandidateRaised(str(reply["error"]))
        return decode_value(reply["value"])


def judge_candidate(case: dict[str, str], candidate: CandidateProxy) -> tuple[str, str]:
    """``(kind, why)``: passed | assertion | error | definition | timeout | died. Why it died is not known yet."""
    test = case["test"]
    try:
        send(candidate.requests, {"code": case["program"], "entry": case["entry_point"]}, candidate.timeout)
        ready = receive(candidate.replies, candidate.timeout)
        if "error" in ready:
            return "definition", str(ready["error"])
        names: dict[str, Any] = {"__name__": "test"}
        exec(compile(case["prompt"], "<prompt>", "exec"), names)
        names[case["entry_point"]] = candidate
        exec(compile(test, "<test>", "exec"), names)
        names["check"](candidate)
    except CandidateTimeout:
        return "timeout", f"idle: no answer within {LIMITS['wall']} s"
    except (CandidateExited, BrokenPipeError):
        return "died", ""
    except AssertionError as error:
        return "assertion", _failing_line(error, test) or str(error) or "a check failed"
    except Exception as error:  # the candidate's own, or the test cannot work with the answer
        text = str(error) if isinstance(error, CandidateRaised) else _describe(error)
        line = _failing_line(error, test)
        return "error", f"{text} in {line}" if line else text
    return "passed", ""


def _failing_line(error: BaseException, test: str) -> str:
    """The innermost line of the test in the traceback."""
    trace: TracebackType | None = error.__traceback__
    number = 0
    while trace:
        if trace.tb_frame.f_code.co_filename == "<test>":
            number = trace.tb_lineno
        trace = trace.tb_next
    return test.split("\n")[number - 1].strip()[:300] if number else ""


def _death(candidate: CandidateProxy) -> tuple[str, str]:
    """The verdict on a candidate whose process ended too early, from its exit status."""
    signal_number = os.WTERMSIG(candidate.status) if os.WIFSIGNALED(candidate.status) else 0
    if candidate.cpu >= LIMITS["cpu"] or signal_number == signal.SIGXCPU:
        return "timeout", f"it used {LIMITS['cpu']} s of CPU time"
    if signal_number:
        return "died", f"killed by signal {signal_number}"
    return "died", f"it ended its process (exit code {os.WEXITSTATUS(candidate.status)})"


def harden() -> None:
    """Before any candidate exists: imports everything needed, and only from folders that no candidate can write."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: candidates cannot open /proc/<judge>/mem and fd
    here = os.path.realpath(os.getcwd())  # noqa: PTH109
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != here]
    sys.path_importer_cache.clear()
    for name in _PRELOADED_MODULES.split():
        __import__(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as an exception it could end a test half-way
    sys.excepthook = lambda *_: None  # its text would be output that candidates control


def main(count: int, cpu_seconds: int, filter_: bytes = b"") -> None:
    """Judges up to ``count`` cases, until a candidate leaves something behind."""
    LIMITS["cpu"] = cpu_seconds
    harden()
    fork_server = ForkServer(count, filter_)
    text = b""
    while part := os.read(0, 1 << 20):
        text += part
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    values = json.loads(text)
    key = bytes.fromhex(values["key"])

    def write_signed(message: dict[str, Any]) -> None:
        line = json.dumps(message).encode("ascii")
        os.write(1, hashlib.blake2b(line, key=key, digest_size=32).hexdigest().encode("ascii") + line + b"\n")

    contents, settings = sandbox_contents(), process_settings()
    for case in values["cases"]:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMITS["check"])  # the default of its signal ends the judge
        candidate = fork_server.start()
        kind, why = judge_candidate(case, candidate)
        fork_server.end(candidate)
        if (kind, why) == ("died", ""):
            kind, why = _death(candidate)
        write_signed({"id": case["id"], "kind": kind, "why": why[:MAX_REASON_CHARACTERS]})
        if process_settings() != settings or sandbox_contents() != contents:
            write_signed({"stopped": case["id"]})
            return
