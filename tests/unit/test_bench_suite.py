"""``suite``: the grades of every task, what is no answer, n/a is never 0, rescoring changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.code_answer import PYTHON, SCRIPT, code_blocks, code_in
from gpubox.bench.kinds.suite.answers import GRADERS, final_answer
from gpubox.bench.kinds.suite.programs import CHECKS, changed_lines, files_in, run_checks
from gpubox.bench.kinds.suite.suite import answer_of_reply, parse_options, score_reply
from gpubox.bench.kinds.suite.suite_report import Standing, standings, verdict_of
from gpubox.bench.kinds.suite.tasks import EXPRESS_FILES, FLASK_FILES, TASKS, task_file
from gpubox.bench.model import Item, Plan, Result, Target
from gpubox.bench.plan_runner import PlanRunner, rescore_run
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Report, ReportTable
from gpubox.bench.run_store import Run, find_run
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.runner import Sandbox
from tests.bench_runs import report_lines
from tests.bench_server import BenchServer
from tests.scripted_server import Play, ScriptedServer, says

MORE = "`gpubox bench suite a b --repeats 9` tells more, in about an hour."


def fenced(code: str) -> str:
    return f"```python\n{code}```"


def share(task: str, text: str) -> float:
    """Of a task that is graded without running anything."""
    grader, most = GRADERS[task]
    return sum(grader(text).values()) / most


def test_na_is_never_0_and_counts_in_no_total() -> None:
    def rows(**shares: float | None) -> list[tuple[Item, Result]]:
        own = [(name[1:].replace("_", "."), value) for name, value in shares.items()]
        return [(Item(f"{task}/1", "a", {"task": task}), Result(task, {"share": value})) for task, value in own]

    speed = [(Item("5.1/1", "a", {"task": "5.1"}), Result("5.1", {"tg": 50.0}))]
    (alone,) = standings({"a": [*rows(t1_1=0.5, t1_2=0.2, t1_3=None), *speed]}, ["5.1"], None)
    assert alone.categories == {"coding": 35.0, "reasoning": None, "tools": None, "speed": None}
    assert (alone.total, alone.missing) == (35.0, ("reasoning", "tools", "speed"))
    (with_reference,) = standings({"a": speed}, ["5.1"], 100.0)
    assert with_reference.categories["speed"] == 50.0 and with_reference.total == 50.0
    assert standings({"a": []}, [], None)[0].total is None


def test_one_answer_ranks_nothing_and_three_tell_chance_from_better() -> None:
    def verdict(*answers: dict[str, list[float]]) -> str:
        names = "abcdefgh"
        return verdict_of([Standing(name, own, {}, {}) for name, own in zip(names, answers, strict=False)], MORE)

    tasks = [task.id for task in TASKS.values() if not task.max_tokens]
    good, bad = ({task: [value] * 3 for task in tasks} for value in (100.0, 20.0))
    assert verdict(good) == ""
    assert verdict({"1.1": [100.0]}, {"1.1": [0.0]}) == f"One sample of each task: no ranking. {MORE}"
    assert verdict(bad, good) == "b gave the best answers."
    assert verdict(bad, good, good).startswith("b gave better answers than a; ")
    dice = random.Random(1)
    equal = [
        verdict(*({task: dice.choices([0.0, 50.0, 100.0], k=3) for task in tasks} for _ in range(4))) for _ in range(12)
    ]
    assert sum(not text.startswith("Cannot tell") for text in equal) <= 2


BAD, GOOD = "```python\nBAD = 1\n```\n", "```python\nGOOD = 1\n```\n"


def python_in(content: str, reasoning: str = "", end: str = "stop") -> str:
    return code_in(answer_of_reply(content, reasoning, end)[0], PYTHON, "")


def test_bug_1_thinking_that_is_not_closed_is_no_code() -> None:
    assert answer_of_reply(f"<think>plan\n{BAD}more", "", "length") == ("", "cut")
    assert python_in(f"<think>{BAD}</think>\n{GOOD}") == "GOOD = 1\n"
    assert python_in(f"plan {BAD[:4]}\n</think>\n{GOOD}") == "GOOD = 1\n"
    quoted = "```python\ntag = '<think>'\n```\n"
    assert python_in(f"<think>x</think>{quoted}") == "tag = '<think>'\n"
    whole = f"<think>plan\n{BAD}</think>\nHere:\n{GOOD}"
    assert not any("BAD" in python_in(whole[:end], end="length") for end in range(len(whole)))


def test_bug_2_an_answer_in_reasoning_content_counts() -> None:
    assert python_in("", f"I think...\n{GOOD}") == python_in(GOOD, BAD) == "GOOD = 1\n"
    sources = [answer_of_reply(*reply)[1] for reply in (("", GOOD, "stop"), (GOOD, BAD, "stop"), (" ", "", "stop"))]
    assert sources == ["reasoning", "content", "empty"]
    assert answer_of_reply("", "half a thou", "length")[1] == "cut"


TODO = """
import argparse, os, sqlite3, sys
def main():
    db = sqlite3.connect(os.environ.get("TODO_DB", os.path.expanduser("~/.todo.db")))
    db.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, text TEXT, done INTEGER DEFAULT 0)")
    parser = argparse.ArgumentParser()
    sub = parser.add_subparsers(dest="verb", required=True)
    NEW = sub.add_parser("add"); NEW.add_argument("text"%NARGS%)
    EDIT = sub.add_parser("edit"); EDIT.add_argument("id", type=int); EDIT.add_argument("text")
    sub.add_parser("list")
    for name in ("done", "delete"):
        sub.add_parser(name).add_argument("id", type=int)
    args = parser.parse_args()
    if args.verb == "add":
        text = args.text if isinstance(args.text, str) else " ".join(args.text)
        db.execute("INSERT INTO t (text) VALUES (?)", (text,))
    elif args.verb == "list":
        for id_, text, done in db.execute("SELECT id, text, done FROM t"):
            print(f"{id_:3} [{'x' if done else ' '}] {text}")
    elif args.verb == "edit":
        db.execute("UPDATE t SET text = ? WHERE id = ?", (args.text, args.id))
    else:
        sql = "UPDATE t SET done = 1 WHERE id = ?" if args.verb == "done" else "DELETE FROM t WHERE id = ?"
        if not db.execute(sql, (args.id,)).rowcount:
            sys.exit(f"There is no todo {args.id}.")
    db.commit()
main()
"""


async def todo_checks(code: str, sandbox: Sandbox) -> dict[str, bool]:
    return await run_checks("1.1", {"todo.py": code}, [code], sandbox, {}) or {}


async def test_bug_3_buy_milk_is_one_argument(sandbox: Sandbox) -> None:
    """An app with one positional and one with ``nargs="+"`` both pass all eight; one that tells its argv proves it."""
    single, several = TODO.replace("%NARGS%", ""), TODO.replace("%NARGS%", ', nargs="+"')
    recorder = "import sys\nif sys.argv[1:2] == ['add']: open('said', 'a').write(sys.argv[2] + chr(10))\n"
    recorder += "if sys.argv[1:2] == ['list']: print(open('said').read())\nprint('add list done delete edit')\n"
    all_of = await asyncio.gather(*(todo_checks(code, sandbox) for code in (single, several, recorder)))
    assert all(all_of[0].values()) and len(all_of[0]) == 8, all_of[0]
    assert all(all_of[1].values()), all_of[1]
    assert all_of[2]["add"] and all_of[2]["list"] and not all_of[2]["delete"]


@pytest.mark.parametrize(
    "code",
    [
        "import json\nprint(json.dumps(dict.fromkeys(['help', 'add', 'list'], True)))\nraise SystemExit(1)",
        "import os\nos.kill(os.getppid(), 9)",
        "",
        "print('add list done delete edit Buy milk')",
        "while True:\n    if input('> ') == 'quit': break",
    ],
)
async def test_a_todo_app_that_lies_or_hangs_gets_nothing(code: str, sandbox: Sandbox) -> None:
    assert not any((await todo_checks(code, sandbox)).values())


FIXED = task_file("express/middleware/auth.js").replace(
    "req.headers['x-auth-token'];", "(req.headers.authorization || '').replace(/^Bearer /, '');"
)


CLIENT = task_file("express/client/api.js").replace("Authorization: `Bearer ${token}`", "'x-auth-token': token")


async def test_the_bug_fix_is_run_where_there_is_node(sandbox: Sandbox) -> None:
    """A right fix gets all; a changed client, an open door and a forged verdict get nothing."""
    head = "module.exports = function auth(req, res, next) {"
    changes = {
        "fixed": {"middleware/auth.js": FIXED},
        "arrow": {"middleware/auth.js": FIXED.replace(head, "module.exports = async (req, res, next) => {")},
        "large": {"middleware/auth.js": FIXED + "// more\n" * 10},
        "client": {"client/api.js": CLIENT},
        "open": {"middleware/auth.js": "module.exports = (req, res, next) => { req.user = 'ada'; next(); };"},
        "broken": {"middleware/auth.js": "syntax error("},
        "forged": {"middleware/auth.js": "console.log(JSON.stringify({'login': true, 'items': true}));process.exit(0)"},
    }

    async def scored(files: dict[str, str]) -> float | None:
        text = "".join(f"{path}\n```js\n{code}```\n" for path, code in files.items())
        value = (await score_reply("2.1", text, "", "stop", lambda: sandbox))["share"]
        return None if value is None else float(value)

    shares = dict(zip(changes, await asyncio.gather(*map(scored, changes.values())), strict=True))
    if shares["fixed"] is None:
        pytest.skip("no Node.js in the sandbox")
    assert shares == {"fixed": 1, "arrow": 1, "large": 0.875, "client": 0, "open": 0, "broken": 0, "forged": 0}


def test_a_file_is_found_by_its_name_or_by_what_it_resembles() -> None:
    originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
    named = files_in(f"**middleware/auth.js**\n```javascript\n{FIXED}```\n", originals, SCRIPT)
    assert named == files_in(f"The fix:\n```\n{FIXED}```", originals, SCRIPT) == {"middleware/auth.js": FIXED}
    assert changed_lines(originals["middleware/auth.js"], FIXED) == 1


WORK = "By Bayes' theorem: 0.6 × 0.01 = 0.006, 0.3 × 0.02 = 0.006, 0.1 × 0.05 = 0.005, in all 0.017, so 5/17.\n\n"
RIGHT_PROBABILITIES = (
    "5/17", "0.294", "29.4%", "≈ 0.2941", "$\\frac{5}{17}$", "\\boxed{5/17}", "29,4 %", "5/17 ≈ 29.4%", ".294", "0,294",
    "about 29 percent", "29.41176 %", "5 in 17", "5 out of 17", "P(C|fail) = 5/17 ≈ 0.294", "0.005/0.017", "50/170",
    "$\\dfrac{5}{17} \\approx 0.294$", "five seventeenths", "29%", "\n\n5/17", "0.1*0.05/0.017 = 5/17", "⁵⁄₁₇", "29.4",
    "0.294 (29.4%)", "2.94 × 10^-1", "2.94e-1", "`5/17`", "$29.4\\%$", "\\(\\frac{5}{17}\\)",
    "0.29411764705882354", "5/17.",
    "P(C | failed) = \\frac{0.1 \\times 0.05}{0.017} = 0.294", "The probability is 5/17, or about 29.4%.",
    "\\frac5{17}", "~29.4%", "5/17\r\n", "29.4 per cent", "500/1700",
)  # fmt: skip
WRONG_PROBABILITIES = (
    "5%", "0.05", "6/17", "12/17", "0.353", "5/17 or 6/17", "0.294%", "17/5", "not 5/17", "", "unknown", "5/17%", "1/3",
    "0.706", "50%", "29.4% or 35.3%", "5/17\nANSWER: 6/17", "0.0294", "2.94", "33%", "0.005", "3/17", "it isn't 29.4%",
    "between 5% and 29.4%", "I do not know, perhaps 35%",
)  # fmt: skip


@pytest.mark.parametrize("value", RIGHT_PROBABILITIES)
def test_a_probability_is_read_however_it_is_written(value: str) -> None:
    assert share("3.3", f"{WORK}ANSWER: {value}") == 1


@pytest.mark.parametrize("value", WRONG_PROBABILITIES)
def test_another_probability_is_wrong(value: str) -> None:
    assert share("3.3", f"{WORK}ANSWER: {value}") == 0


@pytest.mark.parametrize(
    "mark",
    ["ANSWER:", "**ANSWER:**", "Answer:", "### ANSWER:", "Final ANSWER:", "_ANSWER:_", "> ANSWER:", "<b>ANSWER:</b>",
     "\\text{ANSWER: }", "$$\\text{ANSWER: }", "ANSWER =", "ANSWER: 1/2\nNo, ANSWER:"],
)  # fmt: skip
def test_the_last_answer_counts_however_it_is_marked(mark: str) -> None:
    assert share("3.3", f"{WORK}{mark} 5/17") == 1
    assert share("3.3", WORK) == 0 and final_answer("The answer is clear") == ""


OUTAGE = {
    "immediate_cause": "H", "root_cause": "D", "contributing": ["B", "F", "G"], "consequence": "E",
    "not_involved": ["A", "C", "I", "J"], "measures": [1, 2, 4],
}  # fmt: skip
STATEMENTS = ["CRDT", "OT", "OT", "CRDT", "CRDT", "OT", "CRDT", "OT"]
EDITOR = {"position": 4, "text": "aXYbd", "elements": 6, "statements": STATEMENTS}


def test_the_debug_log() -> None:
    assert task_file("outage.log") in TASKS["3.1"].prompt
    text = json.dumps(OUTAGE)
    loose = {**OUTAGE, "immediate_cause": "h: the pool", "contributing": "G, b, F", "measures": ["1", "2", "4"]}
    for right in (text, f"\n```json\n{json.dumps(OUTAGE, indent=2)}\n```", f"**{text}**", json.dumps(loose)):
        assert share("3.1", f"The DNS lookup is a red herring.\n\nANSWER: {right}") == 1
    herring = {**{key: ["A", "B"] for key in OUTAGE}, "immediate_cause": "A", "root_cause": "A"}
    for wrong in ("", "D", "[]", json.dumps(herring), '{"root_cause": null}', '{"measures": {"1": 2}}'):
        assert share("3.1", f"{text}\nANSWER: {wrong}") == 0
    assert share("3.1", f"ANSWER: {json.dumps({**OUTAGE, 'root_cause': 'C'})}") == 0.8


def test_the_architecture() -> None:
    numbered = dict(enumerate((f"{n} {name.lower()}" for n, name in enumerate(STATEMENTS, 1)), 1))
    for right in (EDITOR, {**EDITOR, "position": "4", "statements": numbered}):
        assert share("3.2", f"I recommend a CRDT.\nANSWER: {json.dumps(right)}") == 1
    for guess in ("CRDT", "OT", "both", ""):
        wrong = {"position": 2, "text": "aXYcd", "elements": 5, "statements": [guess] * 8}
        assert share("3.2", f"ANSWER: {json.dumps(wrong)}") == 0
    assert share("3.2", f"ANSWER: {json.dumps({**EDITOR, 'statements': STATEMENTS[:7]})}") == 0.6


USERS = [
    {"id": i, "name": f"N{i}", "email": f"n{i}@x.org", "role": "user", "active": True, "created_at": f"2026-01-0{i}"}
    for i in range(1, 6)
]
PLAN = [
    {"tool": "read_file", "args": {"path": "hosts.txt"}},
    {"tool": "ping_host", "args": {"host": "<host 1>"}},
    {"tool": "write_file", "args": {"path": "report.txt", "content": "<results>"}},
]


@pytest.mark.parametrize(
    ("task", "value", "wanted"),
    [
        ("4.1", [{}] * 5, 0), ("4.1", USERS, 5), ("4.1", USERS[:4], 4), ("4.1", [USERS[0]] * 5, 4),
        ("4.1", [{**USERS[0], "active": 1}, *USERS[1:]], 4), ("4.1", [{**USERS[0], "id": True}, *USERS[1:]], 4),
        ("4.2", PLAN, 5), ("4.2", PLAN[0], 2), ("4.2", PLAN[::-1], 1), 
        ("4.2", [*PLAN, {"tool": "mail", "args": {}}], 1),
        ("4.2", [{"tool": "read_file", "args": {"path": "/etc/passwd"}}, *PLAN[1:]], 1),
        ("4.2", [{**PLAN[0], "args": {"file": "hosts.txt"}}, *PLAN[1:]], 4),
    ],
)  # fmt: skip
def test_structured_output_and_tool_sequencing(task: str, value: object, wanted: int) -> None:
    assert share(task, json.dumps(value)) == wanted / 5


def test_text_around_json() -> None:
    assert share("4.1", f"```json\n{json.dumps(USERS)}\n```") == 0.8 and share("4.1", "I cannot.") == 0
    assert share("4.2", json.dumps(PLAN[:1]) + " Now I need the result.") == 0.4


async def ran(tmp_path: Path, options: dict[str, Any], *plays: Play) -> tuple[Run, Report, list[dict[str, Any]]]:
    paths = Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")

    def none(name: str) -> Any:
        raise UsageError(name)

    async with ScriptedServer(*plays, context=32768) as server:
        await PlanRunner(paths, Config(), none).run(Plan("suite", (Target("box", url=server.url),), options))
        run = find_run(paths, "last")
        return run, info_and_report(run)[1], server.bodies


def table(report: Report, title: str) -> ReportTable:
    return next(table for table in report.tables if table.title == title)


async def test_a_run_of_all_rows_is_scored_reported_and_scored_again_alike(tmp_path: Path, sandbox: Sandbox) -> None:
    code = TODO.replace("%NARGS%", "")
    plays = [
        says(f"```python\n{code}```"), says("```python\nimport fastapi\n```"), says("I would rather not."),
        says(f"auth\nmiddleware/auth.js\n```js\n{FIXED}```"), says("<think>never ends", finish="length"),
        says("The pool is exhausted."), says("CRDT"), says(reasoning="By Bayes:\nANSWER: 5/17"),
        says(json.dumps(USERS)), says(json.dumps(PLAN)), *[says("x " * 9) for _ in range(12)],
    ]  # fmt: skip
    run, report, bodies = await ran(tmp_path, {"speed_tokens": 8, "ref_tps": 200000.0, "repeats": 1}, *plays)
    results = run.results()
    assert len(results) == 10 + 12 and all(result.ok for result in results.values())
    assert results["1.1/1"].values["share"] == 1.0 and results["1.2/1"].values["share"] == 0.0
    assert results["2.2/1"].values["source"] == "cut"
    assert (results["3.3/1"].values["source"], results["3.3/1"].values["share"]) == ("reasoning", 1.0)
    assert [body["max_tokens"] for body in bodies[:10]] == [4096] * 10
    assert "temperature" not in bodies[0] and bodies[-1]["temperature"] == 0.0 and bodies[-1]["ignore_eos"]
    points = {m.group: m.estimate.value for m in report.metrics if m.name == "points"}
    assert points["tools"] == 100.0 and points["speed"] == pytest.approx(50.0)
    assert points["weighted total"] == pytest.approx(
        0.4 * points["coding"] + 0.2 * (points["reasoning"] + points["tools"] + points["speed"])
    )
    (row,) = table(report, "Leaderboard").rows
    assert row[0] == "box" and row[4] == "50.0"
    tasks = {str(line[0])[:3]: line for line in table(report, "Tasks").rows}
    assert "max_tokens ended the thinking" in str(tasks["2.2"][4])
    assert "max_tokens ended the thinking" in "\n".join(report_lines(run.info, report))
    assert await rescore_run(run, Config()) == (22, [])


async def test_a_row_that_was_refused_is_na(tmp_path: Path) -> None:
    refused = Play(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}})
    _, report, _ = await ran(tmp_path, {"tasks": ["3.3", "4.1"], "repeats": 1}, refused, says(json.dumps(USERS)))
    (row,) = table(report, "Leaderboard").rows
    assert row[1:5] == (None, None, "100.0", None) and row[5] == "100.0"
    assert any(note.startswith("Not measured: 3.3/1") for note in report.notes)
    assert any("no points for coding, reasoning, speed" in note for note in report.notes)


async def test_without_a_sandbox_programs_are_na() -> None:
    def nothing() -> Sandbox:
        return Sandbox(Config(), confinement=Confinement(None, problem="no user namespaces"))

    for task, text in (("1.1", fenced(TODO.replace("%NARGS%", ""))), ("2.1", f"middleware/auth.js\n```js\n{FIXED}```")):
        values = await score_reply(task, text, "", "stop", nothing)
        assert (values["share"], values["unavailable"]) == (None, "no sandbox works here")


async def test_speed_rows_are_cold_and_of_one_length_or_flagged(tmp_path: Path) -> None:
    async def flags(server: BenchServer) -> tuple[set[str], list[str]]:
        paths = Paths(tmp_path / "c", tmp_path / server.dialect / str(server.tokens), tmp_path / "k")
        plan = Plan("suite", (Target("box", url=server.url),), {"tasks": ["5.1"], "speed_tokens": 8})
        await PlanRunner(paths, Config(), lambda name: pytest.fail(name)).run(plan)
        asked = [body["messages"][-1]["content"] for body in server.asked]
        return {doubt.kind for doubt in info_and_report(find_run(paths, "last"))[1].doubts}, asked

    with BenchServer() as server:
        kinds, prompts = await flags(server)
        assert (kinds, len(set(prompts))) == (set(), 1)
    with BenchServer(tokens=5, cached=10) as server:
        assert (await flags(server))[0] == {"length", "cache"}
    with BenchServer("ollama", tokens=5) as server:
        kinds, prompts = await flags(server)
        assert (kinds, len(set(prompts))) == ({"length"}, 4)  # nothing of them can be in its cache


async def test_repeats_are_averaged_and_their_range_is_shown(tmp_path: Path) -> None:
    both = says(json.dumps(USERS)), says("no")
    _, report, _ = await ran(tmp_path, {"tasks": ["4.1"], "repeats": 2}, *both)
    ((*_, mean, span, _missed),) = table(report, "Tasks").rows
    assert (mean, span) == ("50.0", "0 – 100")


async def test_every_row_has_a_scorer_and_gives_nothing_for_nothing() -> None:
    def none() -> Sandbox:
        raise AssertionError("an empty answer needs no sandbox")

    assert len(TASKS) == 13
    for name, task in TASKS.items():
        if task.max_tokens:
            continue
        values = await score_reply(name, "", "", "stop", none)
        assert values["share"] == 0.0 and values["source"] == "empty"


@pytest.mark.parametrize(
    "options", [{"tasks": ["9.9"]}, {"repeats": 0}, {"ref_tps": 0.0}, {"tasks": []}, {"repeats": "x"}]
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse_options(options)


@pytest.mark.parametrize(
    "piece", ["a", "1", "1.", "a.", "[", "{", "-", "|a", "```\n", "<pre>", "crdt ot ", "not ", "1e-", "- a b\n"]
)
def test_an_answer_that_repeats_itself_for_ever_is_scored_at_once(piece: str) -> None:
    """No pattern takes more than linear time; where one did, this took minutes."""
    text = piece * (40_000 // len(piece))
    originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
    began = time.process_time()
    for task in GRADERS:
        share(task, text)
        share(task, f"ANSWER: {text}")
    files_in(text, originals, SCRIPT)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("```python:todo.py\nx = 1\n```", [("python", "todo.py")]),
        ("```tsx\nx\n```", [("script", "")]),
        ("~~~\nx\n~~~", [("", "")]),
        ("```{.python filename=\"app.py\"}\nx\n```", [("python", "app.py")]),
        ("```js middleware/auth.js\nx\n```", [("script", "middleware/auth.js")]),
        ("**1. `src/app.py`:**\n\n````py\nx\n````", [("python", "src/app.py")]),
        ("```\n# app.py\nx = 1\n```", [("python", "app.py")]),
        ("```bash\npython todo.py\n```", [("bash", "")]),
        ("app.py\n\nimport os\nx = 1\ny = 2\n", [("", "app.py")]),
        ("<pre><code>import os\nif 1 &lt; 2: pass\n</code></pre>", [("", "")]),
    ],
)  # fmt: skip
def test_code_is_extracted_however_it_is_fenced(text: str, pieces: list[tuple[str, str]]) -> None:
    assert [(block.language, block.path) for block in code_blocks(text)] == pieces


FORGED = {
    "prints a verdict": "import json\nprint('\\n' + json.dumps(dict.fromkeys(%r, True)))\nimport os\nos._exit(0)",
    "shadows what its judge imports": "import os\n"
    "for name in ('json', 'select', 'secrets', 'ctypes', 'random', 'subprocess'):\n"
    "    open(name + '.py', 'w').write('import os; os._exit(0)')\nopen('.shim/driver.py', 'w').write('print(1)')",
    "kills its judge": "import os\nos.kill(os.getppid(), 9)",
    "answers everything alike": "import fastapi\napp = fastapi.FastAPI()\n"
    "async def ask(*a): return fastapi.JSONResponse({'short_code': 'a', 'short_url': 'a', 'items': [], 'total': 45})\n"
    "app.ask = ask",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
async def test_an_app_that_forges_gets_nothing(name: str, sandbox: Sandbox) -> None:
    shortener, pages = (
        FORGED[name] % (CHECKS[task].names,) if "%r" in FORGED[name] else FORGED[name] for task in ("1.2", "2.2")
    )
    tests = task_file(f"flask/{FLASK_FILES[1]}")

    first, second = await asyncio.gather(
        score_reply("1.2", fenced(shortener), "", "stop", lambda: sandbox),
        score_reply("2.2", f"app.py\n{fenced(pages)}\ntest_app.py\n{fenced(tests)}", "", "stop", lambda: sandbox),
    )

    assert sum(first["points"].values()) <= 1 and second["share"] == 0
