"""Runs inside the sandbox: many candidates, each a process of its own, and one judge that calls them.

A candidate gets its own program and the arguments of each call, never a test: it can answer, and not more. The judge's
secrets come on stdin after every candidate has been forked, so that none of them ever had them in its memory, and
stdin is then empty. What the judge says is marked with one of those secrets. Stands alone: its text is sent there
with a call of ``main`` after it.
"""

from __future__ import annotations

import json
import os
import select
import time

MYPY = False
if MYPY:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

LIMITS = {"cpu": 3, "wall": 10, "most": 60, "memory": 1 << 29, "answer": 16 << 20, "items": 200_000}
"""cpu: seconds of one candidate: lm-eval's timeout, but as CPU time: a busy box fails nobody; wall: of a sleeper, who
takes less than AWAKE of a core; most: of one that goes on being slow."""
AWAKE = 0.02
WORDS = 600
"""Characters that a verdict's reason has at most: an exception's name can be as long as its program likes."""
_WARM = (
    "typing",
    "math",
    "re",
    "collections",
    "itertools",
    "functools",
    "string",
    "copy",
    "random",
    "hashlib",
    "heapq",
)


class Gone(Exception):
    """The candidate's process is over."""


class Slow(Exception):
    """The candidate's time is over."""


class Raised(Exception):
    """The candidate raised something; the text says what."""


class Opaque:
    """A value that is nothing a test can want; equal to nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return "<" + self.name + ">"

    __hash__ = None  # type: ignore[assignment]


def pack(value: Any, room: list[int] | None = None) -> Any:
    """``value`` as JSON values: plain data by content, whatever class it pretends to be; anything else by its name."""
    room = [LIMITS["items"]] if room is None else room
    room[0] -= 1
    if room[0] < 0:
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
        return {"l": [pack(one, room) for one in list.__iter__(value)]}
    if isinstance(value, tuple):
        return {"t": [pack(one, room) for one in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {"d": [[pack(k, room), pack(v, room)] for k, v in dict.items(value)]}
    if isinstance(value, (set, type({}.keys()))):
        return {"s": [pack(one, room) for one in value]}
    if isinstance(value, frozenset):
        return {"z": [pack(one, room) for one in frozenset.__iter__(value)]}
    if kind is complex:
        return {"c": [value.real.hex(), value.imag.hex()]}
    if kind in (bytes, bytearray):
        return {"b": value.hex()}
    if kind is range:
        return {"r": [value.start, value.stop, value.step]}
    if kind.__name__ in ("Decimal", "Fraction") and kind.__module__ in ("decimal", "fractions"):
        return {"q": [kind.__name__, str(value)]}
    if hasattr(kind, "__next__"):
        return {"i": [pack(one, room) for one in _first(value, room)]}
    return {"o": kind.__name__}


def _first(iterator: Iterator[Any], room: list[int]) -> Iterator[Any]:
    for one in iterator:
        if room[0] < 0:
            return
        yield one


def unpack(value: Any) -> Any:
    """What ``pack`` made, with nothing of the sender's in it but data."""
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind in ("l", "t", "s", "z", "i"):
        made = [unpack(one) for one in inside]
        makers: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset, "i": iter}
        return makers[kind](made)
    if kind == "d":
        return {unpack(k): unpack(v) for k, v in inside}
    if kind == "n":
        return int(inside, 16)
    if kind == "f":
        return float.fromhex(inside)
    if kind == "c":
        return complex(*(float.fromhex(part) for part in inside))
    if kind == "b":
        return bytes.fromhex(inside)
    if kind == "r":
        return range(*inside)
    if kind == "q":
        import decimal
        import fractions

        return getattr(decimal if inside[0] == "Decimal" else fractions, inside[0])(inside[1])
    return Opaque(str(inside))


def send(fd: int, value: Any) -> None:
    """One message: its length, then JSON."""
    data = json.dumps(value).encode("ascii")
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[os.write(fd, data) :]


class Patience:
    """How long a candidate is waited for: the kernel ends it by its CPU time, this only who sleeps."""

    def __init__(self, pid: int) -> None:
        self._pid, self._used = pid, cpu_of(pid)
        self._end = time.monotonic() + LIMITS["wall"]
        self._last = time.monotonic() + LIMITS["most"]

    def left(self) -> float:
        """Seconds to wait now. Raises Slow where it has waited enough."""
        now = time.monotonic()
        if now < self._end:
            return self._end - now
        used = cpu_of(self._pid)
        if used - self._used < AWAKE * LIMITS["wall"] or now >= self._last:
            raise Slow
        self._used, self._end = used, min(now + LIMITS["wall"], self._last)
        return self._end - now


def cpu_of(pid: int) -> float:
    """CPU seconds of a process; 0 where the kernel does not tell. The clock's number is Linux's for a process."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError):
        return 0.0


def receive(fd: int, patience: Patience | None = None) -> Any:
    """The next message. Raises Gone at the end of the pipe, Slow where patience ends, ValueError for what is none."""
    size = int.from_bytes(_exactly(fd, 8, patience), "big")
    if size > LIMITS["answer"]:
        raise ValueError("too long an answer")
    return json.loads(_exactly(fd, size, patience))


def _exactly(fd: int, count: int, patience: Patience | None) -> bytes:
    parts = []
    while count:
        while patience is not None and not select.select([fd], [], [], patience.left())[0]:
            pass
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise Gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def candidate(asked: int, answers: int) -> None:
    """The process of one candidate: reads its program, then calls, until the judge has enough."""
    import resource

    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # no process and no thread of its own: nothing outlives it
    resource.setrlimit(resource.RLIMIT_CPU, (LIMITS["cpu"], LIMITS["cpu"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LIMITS["memory"], LIMITS["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    program = receive(asked)
    namespace: dict[str, Any] = {}
    try:
        exec(compile(program["code"], "<solution>", "exec", dont_inherit=True), namespace)
        function = namespace[program["entry"]]
    except BaseException as error:
        send(answers, {"error": _said(error, program["entry"])})
        return
    send(answers, {"ready": True})
    while True:
        arguments, named = unpack(receive(asked))
        try:
            answer = {"value": pack(function(*arguments, **named))}
        except BaseException as error:
            answer = {"error": _said(error)}
        send(answers, answer)


def _said(error: BaseException, entry: str = "") -> str:
    if isinstance(error, KeyError) and entry and error.args == (entry,):
        return "it defines no " + entry
    try:
        text = str(error)[:300]
    except BaseException:
        text = ""
    where = getattr(error, "lineno", None)
    line = f" (line {where})" if isinstance(error, SyntaxError) and where and "(<solution>" not in text else ""
    return (type(error).__name__ + ": " + text if text else type(error).__name__) + line


class Child:
    """A candidate as the judge sees it."""

    def __init__(self, pid: int, asked: int, answers: int) -> None:
        self.pid, self.asked, self.answers = pid, asked, answers
        self.status: int | None = None
        self.cpu = 0.0
        self.patience: Patience | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            send(self.asked, pack((arguments, named)))
        except BrokenPipeError:
            raise Gone from None
        answer = receive(self.answers, self.patience)
        if "error" in answer:
            raise Raised(str(answer["error"]))
        return unpack(answer["value"])

    def reap(self, *, wait: bool) -> bool:
        """Whether the process is over."""
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, 0 if wait else os.WNOHANG)
            if pid:
                self.status, self.cpu = status, usage.ru_utime + usage.ru_stime
        return self.status is not None

    def end(self) -> None:
        try:
            os.kill(self.pid, 9)
        except OSError:
            return  # this kernel's Landlock knows no signals of one's own: it dies with the sandbox
        self.reap(wait=True)


def verdict(case: dict[str, str], child: Child) -> tuple[str, str]:
    """``(kind, why)`` of one case: passed | assertion | error | definition | timeout | died."""
    child.patience = Patience(child.pid)
    try:
        send(child.asked, {"code": case["program"], "entry": case["entry_point"]})
        ready = receive(child.answers, child.patience)
        if "error" in ready:
            return "definition", str(ready["error"])
        names: dict[str, Any] = {"__name__": "test"}
        exec(compile(case["prompt"], "<prompt>", "exec"), names)
        names[case["entry_point"]] = child
        exec(compile(case["test"], "<test>", "exec"), names)
        names["check"](child)
    except Slow:
        return "timeout", f"no answer within {LIMITS['wall']} s, and at rest"
    except (Gone, BrokenPipeError):
        child.reap(wait=True)
        status = child.status or 0
        if child.cpu >= LIMITS["cpu"] or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == 24):
            return "timeout", f"it used {LIMITS['cpu']} s of CPU time"
        if os.WIFSIGNALED(status):
            return "died", f"killed by signal {os.WTERMSIG(status)}"
        return "died", f"it ended its process (exit code {os.WEXITSTATUS(status)})"
    except AssertionError as error:
        return "assertion", _failed(error, case["test"])
    except Raised as error:
        return "error", str(error) + _at(error, case["test"])
    except Exception as error:  # an answer the test cannot work with, or no answer at all
        return "error", _said(error) + _at(error, case["test"])
    return "passed", ""


def _failed(error: BaseException, test: str) -> str:
    return (_at(error, test) or str(error)).removeprefix(" in ") or "a check failed"


def _at(error: BaseException, test: str) -> str:
    trace: TracebackType | None = error.__traceback__
    found = 0
    while trace:
        if trace.tb_frame.f_code.co_filename == "<test>":
            found = trace.tb_lineno
        trace = trace.tb_next
    lines = test.split("\n")
    return " in " + lines[found - 1].strip()[:300] if 0 < found <= len(lines) else ""


def fork(count: int) -> list[Child]:
    """So many candidates that wait for their program."""
    found: list[Child] = []
    for _ in range(count):
        asked, asks = os.pipe()
        answers, answered = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(asks)
                os.close(answers)
                for other in found:
                    os.close(other.asked)
                    os.close(other.answers)
                candidate(asked, answered)
                code = 0
            finally:
                os._exit(code)
        os.close(asked)
        os.close(answered)
        found.append(Child(pid, asks, answers))
    return found


def main(count: int, cpu_seconds: int) -> None:
    """Judges ``count`` cases."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/<judge>/mem and fd are closed to the candidates
    LIMITS["cpu"] = cpu_seconds
    for name in _WARM:
        __import__(name)
    children = fork(count)
    given = b""
    while part := os.read(0, 1 << 20):
        given += part
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    values = json.loads(given)
    for case, child in zip(values["cases"], children, strict=False):
        if child.reap(wait=False):
            continue  # somebody killed it before its turn: no verdict
        kind, why = verdict(case, child)
        child.end()
        line = json.dumps({"id": case["id"], "kind": kind, "why": why[:WORDS], "cpu_seconds": round(child.cpu, 3)})
        os.write(1, (values["mark"] + line + "\n").encode())
    for child in children:
        child.end()
