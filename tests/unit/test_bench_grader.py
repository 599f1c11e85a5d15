"""The grader: every canonical solution passes, and no wrong program does, whatever it tries."""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubox.bench.kinds.humaneval import judge
from gpubox.bench.kinds.humaneval.dataset import load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, Grade, grade
from gpubox.bench.kinds.humaneval.judge import decode_value, encode_value
from gpubox.bench.kinds.suite.programs import run_checks
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox

PROBLEM = load_problems()["HumanEval/3"]
"""below_zero: returns a bool for a list of ints."""
HEAD = "from typing import List\n"
# Put before harmful code: outside the sandbox (in this test's own process namespace) it exits at once.
HERE = str(Path("/proc/self/ns/pid").readlink())
HARMLESS = f"import os\nif os.readlink('/proc/self/ns/pid') == {HERE!r}: raise SystemExit(1)\n"
# Each is a whole program in place of below_zero; none may pass.
WRONG = {
    "wrong value": "def below_zero(operations): return False",
    "a number that would fill the memory": "import os\nclass Fraction:\n    __module__ = 'fractions'\n"
    "    def __str__(self): return '1e30000000'\ndef below_zero(operations): return Fraction()",
    "nothing": "def below_zero(operations): pass",
    "prompt alone": "",
    "no such function": "def above_zero(operations): return True\ndel below_zero",
    "no Python": "def below_zero(operations) return True",
    "unclosed string": "def below_zero(operations):\n    return '''",
    "raises": "def below_zero(operations): raise ValueError(operations)",
    "endless loop": "def below_zero(operations):\n    while True: pass",
    "ignores its limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    "def below_zero(operations):\n    while True: pass",
    "endless recursion": "def below_zero(operations): return below_zero(operations)",
    "memory": "def below_zero(operations): return len(bytearray(10 << 30)) > 0",
    "exits 0 at once": "import os\nos._exit(0)",
    "exits 0 when called": "import os\ndef below_zero(operations): os._exit(0)",
    "sys.exit": "import sys\ndef below_zero(operations): sys.exit(0)",
    "SystemExit at once": "raise SystemExit(0)",
    "equal to everything": "class Yes:\n    def __eq__(self, other): return True\n    __bool__ = __eq__\n"
    "    def __ne__(self, other): return False\ndef below_zero(operations): return Yes()",
    "an int that is equal to everything": "class Yes(int):\n    def __eq__(self, other): return True\n"
    "    def __abs__(self): return 0\n    __add__ = __radd__ = __sub__ = lambda self, other: 0\n"
    "def below_zero(operations): return Yes(7)",
    "asserts made harmless": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\n"
    "builtins.isinstance = lambda *a: True\ndef below_zero(operations): return 7",
    "check replaced": "def check(candidate): return True\ndef below_zero(operations): return 7",
    "prints what it likes": "import os, sys\nfor fd in range(3, 200):\n    try: os.write(fd, b'passed')\n"
    "    except OSError: pass\ndef below_zero(operations): return 7",
    "answers before it is asked": "import os, json\n"
    "for fd in range(3, 99):\n  for v in ({'ready': True}, {'value': 1}):\n"
    "    m = json.dumps(v).encode()\n    try: os.write(fd, len(m).to_bytes(8, 'big') + m)\n    except OSError: pass\n"
    "def below_zero(operations): return 7",
    "writes as the supervisor": "import os\nfor pid in range(1, 50):\n  for fd in range(20):\n    try:\n"
    "      f = os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK)\n"
    '      os.write(f, b\'{"id": "x", "kind": "passed", "why": ""}\\n\' * 9)\n'
    "    except OSError: pass\ndef below_zero(operations): return 7",
    "looks for the tests": "import gc, os, sys\nfound = []\nneedle = 'METADATA' + ' ='\n"
    "frame = sys._getframe()\nwhile frame:\n"
    "  found += [str(v) for v in {**frame.f_globals, **frame.f_locals}.values()]\n"
    "  frame = frame.f_back\nfound += [str(o) for o in gc.get_objects() if isinstance(o, (dict, list, str))]\n"
    "for root in ('/proc', '/run', '/workspace', '/tmp'):\n  for folder, _, names in os.walk(root):\n"
    "    for name in names + ['fd/0', 'mem', 'environ', 'cmdline']:\n"
    "      if not ('sys' in folder or 'task' in folder):\n"
    "        try:\n          d = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK)\n"
    "          found.append(os.read(d, 1 << 20).decode('utf-8', 'replace'))\n        except OSError: pass\n"
    "solution = '''\ndef below_zero(operations):\n  b = 0\n"
    "  for o in operations:\n    b += o\n    if b < 0: return True\n"
    "  return False\n'''\n"
    "if any(needle in text for text in found if len(text) > 40 and 'needle' not in text): exec(solution)\n"
    "else:\n  def below_zero(operations): return 7",
    "kills what it sees": HARMLESS + "for pid in range(os.getppid() + 1, os.getpid() + 60):\n"
    "  if pid != os.getpid():\n    try: os.kill(pid, 9)\n    except OSError: pass\n"
    "def below_zero(operations): return 7",
    "kills its judge": "import os\nos.kill(os.getppid(), 9)\ndef below_zero(operations): return 7",
    "kills everybody": HARMLESS + "os.kill(-1, 9)\ndef below_zero(operations): return 7",
    "forks": HARMLESS + "while True: os.fork()\ndef below_zero(operations): return 7",
    "leaves a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n",
    "closes everything": "import os\nos.closerange(0, 256)\ndef below_zero(operations): return True",
    "garbage for an answer": "import os\ndef below_zero(operations):\n  for fd in range(3, 200):\n"
    "    try: os.write(fd, b'\\xff' * 9)\n    except OSError: pass\n  return 7",
    "endless answer": "def below_zero(operations):\n    while True: yield 1",
    "a list that holds itself": "def below_zero(operations):\n    a = []\n    a.append(a)\n    return a",
}
RIGHT = {
    "canonical": PROBLEM.prompt + PROBLEM.canonical_solution,
    "prints, imports, ends as a script": PROBLEM.prompt
    + PROBLEM.canonical_solution
    + "\nprint('x' * 99999)\nimport sys\nif __name__ == '__main__':\n    sys.exit(1)\n",
    "redefined after the prompt": PROBLEM.prompt + "\n" + PROBLEM.prompt + PROBLEM.canonical_solution,
}


async def test_every_canonical_solution_passes(sandbox: Sandbox) -> None:
    cases = [Candidate(p.task_id, p, p.prompt + p.canonical_solution) for p in load_problems().values()]
    verdicts = await grade(cases, sandbox)
    assert len(verdicts) == 164
    assert {name: verdict for name, verdict in verdicts.items() if not verdict.passed} == {}


async def test_nothing_else_passes_and_nobody_suffers_by_it(sandbox: Sandbox) -> None:
    """Right programs between hostile ones still pass; hostile ones never do."""
    cases = [Candidate(name, PROBLEM, HEAD + PROBLEM.prompt + "\n" + code) for name, code in WRONG.items()]
    right = [Candidate(name, PROBLEM, program) for name, program in RIGHT.items()]
    verdicts = await grade([right[0], *cases[:9], right[1], *cases[9:], right[2]], sandbox, cpu_seconds=1)
    assert len(WRONG) >= 20
    assert [name for name in WRONG if verdicts[name].passed] == []
    assert {name: verdicts[name] for name in RIGHT if not verdicts[name].passed} == {}
    assert verdicts["wrong value"] == Grade("assertion", "assert candidate([1, 2, -4, 5, 6]) == True")
    assert verdicts["no such function"].why == "it defines no below_zero"
    assert verdicts["no Python"].kind == "definition" and "SyntaxError" in verdicts["no Python"].why
    assert verdicts["endless loop"].kind == verdicts["ignores its limit"].kind == "timeout"
    assert verdicts["exits 0 when called"].kind == "died"
    assert verdicts["raises"].why.startswith("ValueError: []")


class Broken(Sandbox):
    """Starts but prints nothing, as bwrap does when the kernel has no namespaces left."""

    async def run(self, code: str, policy: Policy = Policy(), *, stdin: bytes = b"", shell: bool = False) -> Outcome:  # noqa: B008
        return Outcome(1, None, "bwrap: Creating new namespace failed", "", 0.1, "bubblewrap")


@pytest.mark.nightly
async def test_an_answer_that_takes_for_ever_to_compare_costs_seconds(sandbox: Sandbox) -> None:
    code = (
        "import os, json\ndef below_zero(operations):\n"
        "    numbers = [{'n': hex(n * (2**61 - 1))} for n in range(1, 190_000)]\n"  # one hash for all of them
        "    data = json.dumps({'value': {'s': numbers}}).encode()\n    data = len(data).to_bytes(8, 'big') + data\n"
        "    for fd in range(3, 99):\n        try:\n            while data: data = data[os.write(fd, data) :]\n"
        "        except OSError: pass\n"
    )
    began = time.monotonic()
    grades = await grade([Candidate("slow", PROBLEM, HEAD + code)], sandbox)

    assert not grades["slow"].passed
    assert time.monotonic() - began < 60


async def test_a_box_that_cannot_grade_fails_nobody() -> None:
    with pytest.raises(GpuboxError, match="cannot be graded here"):
        await grade([Candidate("x", PROBLEM, RIGHT["canonical"])], Broken())
    with pytest.raises(GpuboxError, match="No program runs"):
        await run_checks("1.1", {"todo.py": ""}, [""], Broken(), {})


class Busy(Sandbox):
    """Has no process left for its first runs, as where other programs of the same user start many."""

    refused = 0

    async def run(self, code: str, policy: Policy = Policy(), *, stdin: bytes = b"", shell: bool = False) -> Outcome:  # noqa: B008
        self.refused += 1
        refused = self.refused <= 2
        return await (Broken().run(code, policy) if refused else super().run(code, policy, stdin=stdin))


async def test_a_busy_box_grades_once_more_before_it_gives_up(sandbox: Sandbox) -> None:
    busy = Busy(confinement=await sandbox.confinement())

    assert (await grade([Candidate("x", PROBLEM, RIGHT["canonical"])], busy))["x"].passed
    assert busy.refused == 3


async def test_a_program_that_says_too_much_costs_only_itself(sandbox: Sandbox) -> None:
    long = "def below_zero(operations): raise type('A' * 50_000, (Exception,), {})('\U0001f600' * 900)"
    cases = [Candidate(str(n), PROBLEM, HEAD + PROBLEM.prompt + "\n" + long) for n in range(3)]
    cases.append(Candidate("right", PROBLEM, RIGHT["canonical"]))

    verdicts = await grade(cases, sandbox, jobs=1)

    assert verdicts["right"].passed
    assert {(verdict.kind, len(verdict.why)) for name, verdict in verdicts.items() if name != "right"} == {
        ("error", judge.MAX_REASON_CHARACTERS)
    }


@pytest.mark.parametrize(
    ("core", "waits"),
    [(1.0, 60.0), (0.05, 60.0), (0.01, 10.0), (0.0, 10.0)],
    ids=["works", "busy box", "naps", "sleeps"],
)
def test_who_works_on_a_busy_box_is_waited_for_and_who_sleeps_is_not(
    monkeypatch: pytest.MonkeyPatch, core: float, waits: float
) -> None:
    """The kernel would end a busy candidate by its CPU limit; here nothing does, so every wait ends at its limit."""
    now = [0.0]
    monkeypatch.setattr(judge, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(judge, "cpu_seconds_of", lambda pid: core * now[0])
    timeout = judge.IdleTimeout(1)

    with pytest.raises(judge.CandidateTimeout):
        while True:
            now[0] += timeout.remaining()

    assert now[0] == waits


def test_the_kernel_tells_the_cpu_time_of_a_process() -> None:
    before = judge.cpu_seconds_of(os.getpid())
    sum(range(2_000_000))
    assert judge.cpu_seconds_of(os.getpid()) > before > 0
    assert judge.cpu_seconds_of(2**22 + 1) == 0.0


@pytest.mark.parametrize(
    "value",
    [1, -(10**400), 0.1, float("inf"), True, None, "ä\ud800", [1, (2.5, "x")], {"a": {1, 2}}, {(1, 2): [None]}, b"\0",
     1 + 2j, range(3), frozenset({1}), Counter("aba"), OrderedDict(a=1), deque([1]), Decimal("0.1"), Fraction(1, 3)],
)  # fmt: skip
def test_answers_arrive_as_they_were(value: object) -> None:
    assert decode_value(encode_value(value)) == value and type(decode_value(encode_value(value))) is type(value)


# Honest programs whose answers are no plain lists and numbers, or that change what they are given.
ODD = {
    ("HumanEval/3", "1 for True"): "def below_zero(operations):\n    b = 0\n    for o in operations:\n        b += o\n"
    "        if b < 0: return 1\n    return 0.0",
    ("HumanEval/4", "a fraction"): "from fractions import Fraction\ndef mean_absolute_deviation(numbers):\n"
    "    n = [Fraction(x) for x in numbers]\n    m = sum(n) / len(n)\n    return sum(abs(x - m) for x in n) / len(n)",
    ("HumanEval/4", "a decimal"): "from decimal import Decimal\ndef mean_absolute_deviation(numbers):\n"
    "    n = [Decimal(x) for x in numbers]\n    m = sum(n) / len(n)\n    return sum(abs(x - m) for x in n) / len(n)",
    ("HumanEval/5", "in place"): "def intersperse(numbers, delimeter):\n    for i in range(len(numbers) - 1, 0, -1):\n"
    "        numbers.insert(i, delimeter)\n    return numbers",
    ("HumanEval/9", "a generator"): "def rolling_max(numbers):\n    import itertools\n"
    "    return itertools.accumulate(numbers, max)",
    ("HumanEval/9", "a deque"): "def rolling_max(numbers):\n    import itertools, collections\n"
    "    return collections.deque(itertools.accumulate(numbers, max))",
    ("HumanEval/8", "a list for a tuple"): "def sum_product(numbers):\n    import math\n"
    "    return [sum(numbers), math.prod(numbers)]",
    ("HumanEval/8", "a named tuple"): "import collections\nPair = collections.namedtuple('Pair', 'a b')\n"
    "def sum_product(numbers):\n    import math\n    return Pair(sum(numbers), math.prod(numbers))",
    ("HumanEval/22", "a subclass of list"): "class Found(list): pass\ndef filter_integers(values):\n"
    "    return Found(v for v in values if isinstance(v, int))",
    ("HumanEval/34", "a set"): "def unique(l):\n    return set(l)",
    ("HumanEval/34", "sorted in place"): "def unique(l):\n    l[:] = sorted(set(l))\n    return l",
    ("HumanEval/111", "a Counter"): "from collections import Counter\ndef histogram(test):\n"
    "    c = Counter(test.split())\n    m = max(c.values(), default=0)\n"
    "    return Counter({k: v for k, v in c.items() if v == m})",
    ("HumanEval/111", "a defaultdict"): "from collections import defaultdict\ndef histogram(test):\n"
    "    c = defaultdict(int)\n    for w in test.split(): c[w] += 1\n    m = max(c.values(), default=0)\n"
    "    for w in [w for w in c if c[w] < m]: del c[w]\n    return c",
    ("HumanEval/67", "numbers of its own"): "class Count(int): pass\ndef fruit_distribution(s, n):\n"
    "    return Count(n - sum(int(w) for w in s.split() if w.isdigit()))",
    ("HumanEval/45", "a string"): "def triangle_area(a, h):\n    return str(a * h / 2)",
}  # fmt: skip


async def test_honest_answers_of_odd_kinds_are_judged_as_lm_eval_does(sandbox: Sandbox) -> None:
    """lm-eval runs program and test in one process; so does this test, with known programs."""
    cases, wanted = [], {}
    for (task, name), code in ODD.items():
        problem = load_problems()[task]
        program = problem.prompt + "\n" + code
        try:
            exec(f"{program}\n{problem.test}\ncheck({problem.entry_point})", {})
            wanted[name] = True
        except Exception:
            wanted[name] = False
        cases.append(Candidate(name, problem, program))

    verdicts = await grade(cases, sandbox)

    assert {name: verdict.passed for name, verdict in verdicts.items()} == wanted
    assert 5 < sum(wanted.values()) < len(wanted) - 3


def test_what_is_no_data_is_equal_to_nothing() -> None:
    class Sly(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    assert decode_value(encode_value(Sly("a"))) != "b"
    assert decode_value(encode_value(object())) != object()
    assert list(decode_value(encode_value(iter([1, 2])))) == [1, 2]
    assert decode_value(encode_value(map(str, [1]))) != ["1"]
