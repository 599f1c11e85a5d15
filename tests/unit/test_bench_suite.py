"""``suite``: the article's leaderboard, none of its three scoring bugs, n/a is never 0, rescoring changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.code_answer import PYTHON, SCRIPT, code_blocks, code_in
from gpubox.bench.kinds.suite import functional
from gpubox.bench.kinds.suite.aggregate import TaskScore, standings
from gpubox.bench.kinds.suite.answer import SuiteAnswer, answer_of_reply, files_in
from gpubox.bench.kinds.suite.architecture import architecture_points
from gpubox.bench.kinds.suite.bayes import bayes_points, concludes_correctly
from gpubox.bench.kinds.suite.coding import lru_features, shortener_features, todo_features
from gpubox.bench.kinds.suite.debug_log import debug_log_points
from gpubox.bench.kinds.suite.editing import bugfix_points, changed_files, pagination_features
from gpubox.bench.kinds.suite.functional import check_express, check_todo
from gpubox.bench.kinds.suite.scoring import score_of_values, score_reply
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, outage_log, task_file
from gpubox.bench.kinds.suite.tasks import TASKS, parse_options
from gpubox.bench.kinds.suite.tool_use import sequencing_points, structured_points
from gpubox.bench.model import Plan, Target
from gpubox.bench.plan_runner import PlanRunner, rescore_run
from gpubox.bench.report.load import info_and_report
from gpubox.bench.report.model import Report, ReportTable
from gpubox.bench.report.report_rows import report_rows, row_texts
from gpubox.bench.run_store import Run, find_run
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.runner import Sandbox
from tests.bench_server import BenchServer
from tests.scripted_server import Play, ScriptedServer, says

# The article's tables: composites of 1.1 to 1.3, points of 3.1 to 3.3, 4.1 and 4.2, tok/s.
ARTICLE: dict[str, tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = {
    "Codestral": ((94.0, 52.5, 60.0), (5, 8, 3), (4, 5), (80.1, 78.9, 78.5)),
    "Devstral": ((94.0, 60.0, 60.0), (9, 10, 3), (4, 5), (78.6, 77.6, 77.3)),
    "Qwen": ((100.0, 60.0, 60.0), (8, 10, 3), (5, 5), (206.7, 206.3, 204.6)),
    "Gemma": ((100.0, 60.0, 60.0), (10, 10, 3), (5, 2), (180.2, 179.4, 177.7)),
    "DeepSeek": ((60.0, 60.0, 60.0), (10, 8, 3), (5, 5), (77.6, 77.3, 75.9)),
}


def scores_of(name: str) -> dict[str, TaskScore]:
    coding, reasoning, tools, _ = ARTICLE[name]
    scores = {f"1.{i}": TaskScore(value / 100) for i, value in enumerate(coding, 1)}
    scores |= {
        f"3.{i}": TaskScore(value / most) for i, (value, most) in enumerate(zip(reasoning, (10, 10, 5), strict=True), 1)
    }
    return scores | {f"4.{i}": TaskScore(value / 5) for i, value in enumerate(tools, 1)}


def test_the_articles_leaderboard() -> None:
    scores = {name: scores_of(name) for name in ARTICLE}
    rates = {name: row[3] for name, row in ARTICLE.items()}
    board = standings(scores, rates, compat=True)
    assert [(row.name, round(row.total or 0, 1)) for row in board] == [
        ("Qwen", 85.3), ("Gemma", 78.1), ("Devstral", 70.7), ("DeepSeek", 67.5), ("Codestral", 65.9),
    ]  # fmt: skip
    shown = {row.name: [round(value or 0, 1) for value in row.categories.values()] for row in board}
    assert shown["Gemma"] == [73.3, 86.7, 70.0, 87.0]
    assert shown["Codestral"] == [68.8, 63.3, 90.0, 38.5]
    assert board[0].agentic == pytest.approx(90.0)


def test_the_articles_composite() -> None:
    """60 of features and 40 of tests; two thirds where it does not parse; tests that did not run give nothing there."""
    assert TaskScore(0.9, 1.0, True).compat == pytest.approx(94.0)
    assert TaskScore(7 / 8, None, True).compat == pytest.approx(52.5)
    assert TaskScore(1.0, 0.0, True).compat == pytest.approx(60.0)
    assert TaskScore(0.9, 1.0, True, 2 / 3).compat == pytest.approx(94.0 * 2 / 3)


def test_na_is_never_0() -> None:
    assert TaskScore(7 / 8, None, True).value is None and TaskScore(7 / 8, None, True).keywords_only
    assert TaskScore(1.0, 0.25, True).value == pytest.approx(25.0)  # features of what does not work are worth nothing
    assert TaskScore(None).value is None
    scores = {"1.1": TaskScore(0.5, 0.5, True), "1.2": TaskScore(None), "1.3": TaskScore(1.0, None, True)}
    (alone,) = standings({"a": scores}, {"a": [50.0]})
    assert alone.categories == {"coding": 35.0, "reasoning": None, "tools": None, "speed": None}
    assert (alone.total, alone.missing) == (35.0, ("reasoning", "tools", "speed"))
    (with_reference,) = standings({}, {"a": [50.0]}, ref_tps=100.0)
    assert with_reference.categories["speed"] == 50.0 and with_reference.total == 50.0
    assert standings({"a": {}}, {})[0].total is None


def python_in(answer: SuiteAnswer) -> str:
    return code_in(answer.text, PYTHON, "")


BAD, GOOD = "```python\nBAD = 1\n```\n", "```python\nGOOD = 1\n```\n"


def test_bug_1_thinking_that_is_not_closed_is_no_code() -> None:
    cut = answer_of_reply(f"<think>plan\n{BAD}more", "", "length")
    assert (cut.source, python_in(cut)) == ("cut", "")
    assert python_in(answer_of_reply(f"<think>{BAD}</think>\n{GOOD}", "", "stop")) == "GOOD = 1\n"
    assert python_in(answer_of_reply(f"plan {BAD[:4]}\n</think>\n{GOOD}", "", "stop")) == "GOOD = 1\n"
    quoted = "```python\ntag = '<think>'\n```\n"
    assert python_in(answer_of_reply(f"<think>x</think>{quoted}", "", "stop")) == "tag = '<think>'\n"
    whole = f"<think>plan\n{BAD}</think>\nHere:\n{GOOD}"
    for end in range(len(whole)):
        assert "BAD" not in python_in(answer_of_reply(whole[:end], "", "length"))


def test_bug_2_an_answer_in_reasoning_content_counts() -> None:
    answer = answer_of_reply("", f"I think...\n{GOOD}", "stop")
    assert (answer.source, python_in(answer)) == ("reasoning", "GOOD = 1\n")
    both = answer_of_reply(GOOD, BAD, "stop")
    assert (both.source, python_in(both)) == ("content", "GOOD = 1\n")
    assert answer_of_reply("", "half a thou", "length").source == "cut"
    assert answer_of_reply(" ", "", "stop").source == "empty"


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


async def test_bug_3_buy_milk_is_one_argument(sandbox: Sandbox) -> None:
    """An app with one positional and one with ``nargs="+"`` both pass all eight; one that tells its argv proves it."""
    single, several = TODO.replace("%NARGS%", ""), TODO.replace("%NARGS%", ', nargs="+"')
    recorder = "import sys\nif sys.argv[1:2] == ['add']: open('said', 'a').write(sys.argv[2] + chr(10))\n"
    recorder += "if sys.argv[1:2] == ['list']: print(open('said').read())\nprint('add list done delete edit')\n"
    all_of = await asyncio.gather(*(check_todo(code, sandbox) for code in (single, several, recorder)))
    assert all(all_of[0].values()) and len(all_of[0]) == 8, all_of[0]
    assert all(all_of[1].values()), all_of[1]
    assert all_of[2]["add"] and all_of[2]["list"] and not all_of[2]["delete"]
    assert all(todo_features(single).values())


async def test_a_todo_app_that_lies_or_hangs_gets_nothing(sandbox: Sandbox) -> None:
    lies = "import json\nprint(json.dumps(dict.fromkeys(['help', 'add', 'list'], True)))\nraise SystemExit(1)"
    assert not any((await check_todo(lies, sandbox)).values())
    assert not any((await check_todo("import os\nos.kill(os.getppid(), 9)", sandbox)).values())
    assert not any((await check_todo("", sandbox)).values())
    assert not any((await check_todo("print('add list done delete edit Buy milk')", sandbox)).values())
    interactive = "while True:\n    if input('> ') == 'quit': break"
    assert not (await check_todo(interactive, sandbox))["add"]


def test_features_of_code() -> None:
    ugly = TODO.replace("%NARGS%", "").replace("{id_:3} [{'x' if done else ' '}]", "{id_} {done}")
    assert [name for name, present in todo_features(ugly).items() if not present] == ["pretty output"]
    unsafe = TODO.replace('"INSERT INTO t (text) VALUES (?)", (text,)', "f\"INSERT INTO t (text) VALUES ('{text}')\"")
    assert not todo_features(unsafe)["parameters in SQL"]
    assert not any(todo_features("").values()) and not any(lru_features("").values())
    lru = """
    class LRUCache<K, V> { // assert( assert( assert( assert( assert(
      private map = new Map<K, V>();
      constructor(private capacity: number) {}
      get(key: K): V | undefined {
        const v = this.map.get(key); if (v !== undefined) { this.map.delete(key); this.map.set(key, v); } return v;
      }
      put(key: K, value: V): void {
        this.map.delete(key);
        if (this.map.size >= this.capacity) this.map.delete(this.map.keys().next().value!);
        this.map.set(key, value);
      }
    }"""
    assert [name for name, present in lru_features(lru).items() if not present] == ["five assertions"]
    assert all(lru_features(lru + "\nconsole.assert(true);" * 5).values())
    app = """
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, HttpUrl
import secrets, sqlite3
app = FastAPI()
db = sqlite3.connect("x"); db.execute("CREATE TABLE IF NOT EXISTS urls (code TEXT PRIMARY KEY, url TEXT)")
class In(BaseModel): url: HttpUrl
@app.post("/shorten")
def shorten(item: In, request: Request):
    if too_many(request.client.host): raise HTTPException(429)
@app.get("/stats/{code}")
def stats(code: str): raise HTTPException(404)
@app.get("/{code}")
def go(code: str): return RedirectResponse("x", 307)
"""
    assert all(shortener_features(app).values()), shortener_features(app)


FIXED = task_file("express/middleware/auth.js").replace(
    "req.headers['x-auth-token'];", "(req.headers.authorization || '').replace(/^Bearer /, '');"
)


WHY = "The client sends Authorization: Bearer, but the middleware reads x-auth-token: always undefined, hence 401."
CLIENT = task_file("express/client/api.js").replace("Authorization: `Bearer ${token}`", "'x-auth-token': token")


def test_the_bug_fix_is_read() -> None:
    originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
    good = answer_of_reply(f"{WHY}\n\n**middleware/auth.js**\n```javascript\n{FIXED}```\n", "", "stop")
    changed = changed_files(files_in(good, originals, SCRIPT))
    assert bugfix_points(good.prose, changed) == {"found": 20, "fixed": 50, "minimal": 20, "explained": 10}
    assert bugfix_points(good.prose, changed, False) == {"found": 20, "fixed": 0, "minimal": 0, "explained": 10}
    other = answer_of_reply(f"{WHY}\n`client/api.js`:\n```js\n{CLIENT}```", "", "stop")
    points = bugfix_points(other.prose, changed_files(files_in(other, originals, SCRIPT)))
    assert points == {"found": 20, "fixed": 0, "minimal": 0, "explained": 10}
    assert changed_files({"middleware/auth.js": task_file("express/middleware/auth.js")}) == {}
    assert sum(bugfix_points("Looks fine to me.", {}).values()) == 0


async def test_the_bug_fix_is_run_where_there_is_node(sandbox: Sandbox) -> None:
    """The original and a changed client let nobody in; a right fix passes all; one that lets everybody in fails."""
    before = await check_express({}, sandbox)
    if before is None:
        pytest.skip("no Node.js in the sandbox")
    assert [name for name, ok in before.items() if not ok] == ["accepts Bearer", "items"]
    open_door = "module.exports = (req, res, next) => { req.user = 'ada'; next(); };"
    arrow = FIXED.replace(
        "module.exports = function auth(req, res, next) {", "module.exports = async (req, res, next) => {"
    )
    several = ({"middleware/auth.js": FIXED}, {"client/api.js": CLIENT}, {"middleware/auth.js": open_door},
               {"middleware/auth.js": "syntax error("}, {"middleware/auth.js": arrow})  # fmt: skip
    fixed, client, opened, broken, other = await asyncio.gather(*(check_express(files, sandbox) for files in several))
    forged = (
        "console.log(JSON.stringify({'login': true, 'accepts Bearer': true, 'items': true, 'no token: 401': true}));"
    )
    assert not any((await check_express({"middleware/auth.js": forged + "process.exit(0)"}, sandbox) or {}).values())
    assert fixed and all(fixed.values()) and other == fixed
    assert client == before
    assert opened and not opened["no token: 401"] and not opened["wrong token: 401"]
    assert broken and not any(broken.values())


def test_pagination_is_read() -> None:
    original = {name: task_file(f"flask/{name}") for name in ("app.py", "test_app.py")}
    assert not any(pagination_features(original).values())
    app = original["app.py"].replace(
        "        return jsonify(books)\n",
        "        page = request.args.get('page', 1, type=int)\n"
        "        per_page = request.args.get('per_page', 10, type=int)\n"
        "        if page < 1 or not 1 <= per_page <= 100:\n            abort(400)\n"
        "        part = books[(page - 1) * per_page:page * per_page]\n"
        "        return jsonify(items=part, total=45, page=page, per_page=per_page, pages=5)\n",
    )
    assert all(pagination_features({"app.py": app}).values())


@pytest.mark.parametrize(
    "answer",
    [
        "The answer is 5/17.", "P(C|error) = 0.005/0.017 = 5/17", "$$P(C|E) = \\frac{5}{17}$$",
        "\\boxed{\\frac{5}{17}}", "Therefore the probability is about 29.4%.", "Die Antwort: 29,4 %",
        "**Answer: ≈ 0.294**", "= .294 / 1, so ≈ 0.2941",
        "P(C | fail) ≈ 0.29", "So there is roughly a 29% chance.", "\\boxed{0.294}", "\\boxed{29.4\\%}",
        "**P(C|F) = 0.005 / 0.017 ≈ 0.294 (29.4%)**",
        "The probability that server C handled it is approximately 29.41 percent.",
        "= 5/17 ≈ 0.294, so about 29% of failures come from C even though it only handles 10% of the traffic.",
        "Final answer:\n\n$$\\boxed{P(C \\mid E) = \\dfrac{5}{17} \\approx 0.294}$$",
    ],
)  # fmt: skip
def test_the_bayes_answer_is_known_however_it_is_written(answer: str) -> None:
    work = "By Bayes' theorem: 0.6 × 0.01 = 0.006, 0.3 × 0.02 = 0.006, 0.1 × 0.05 = 0.005, in all 0.017.\n\n"
    assert concludes_correctly(work + answer)
    assert sum(bayes_points(work + answer).values()) == 5


@pytest.mark.parametrize(
    "answer",
    ["The answer is 5%.", "P(C|E) = 0.05", "Therefore it is 35.3%.", "0.294 would be wrong; the answer is 0.5.",
     "It cannot be known.", "\\boxed{\\frac{6}{17}}", "So the answer is 0.005."],
)  # fmt: skip
def test_another_bayes_answer_is_wrong(answer: str) -> None:
    assert not concludes_correctly(f"A: 60%, 1%. B: 30%, 2%. C: 10%, 5%.\n\nThe work is done.\n\n{answer}")


def test_the_debug_log_rubric() -> None:
    log = outage_log()
    assert outage_log() == log and 45 <= len(log.splitlines()) <= 65
    good = """
1. The immediate cause: the connection pool of 20 was exhausted, so requests timed out with 503.
2. The nightly report-worker held one transaction open for 341 s.
3. It ran SELECT * FROM orders without a LIMIT and loaded 2.4 million rows.
4. It then updated row by row. The DNS warning is not related, and the GC pause is not the root cause.
Fixes: commit in batches; stream the query with a cursor; use one bulk UPDATE ... WHERE.
"""
    assert sum(debug_log_points(good).values()) == 10
    herring = debug_log_points("The root cause is the slow DNS lookup. The pool was not exhausted.")
    assert sum(herring.values()) == 0
    assert sum(debug_log_points("The pool was full. It was caused by a GC pause.").values()) == 2
    assert sum(debug_log_points("").values()) == 0


def test_the_architecture_rubric() -> None:
    good = """
CRDTs: operations commute, so replicas converge. OT transforms concurrent operations against each other.
Offline: a CRDT merges edits when a client reconnects, while OT has to rebase them on reconnect.
OT needs a central server for ordering; CRDTs work peer to peer.
CRDTs cost memory for tombstones; OT is complex to get right.
I recommend a CRDT, because offline edits are required.
"""
    assert architecture_points(good) == dict.fromkeys(
        ("how it works", "offline", "server", "cost", "recommendation"), 2
    )
    assert sum(architecture_points("I recommend OT.").values()) < 3


USERS = [
    {"id": i, "name": f"N{i}", "email": f"n{i}@x.org", "role": "user", "active": True, "created_at": f"2026-01-0{i}"}
    for i in range(1, 6)
]
PLAN = [
    {"tool": "read_file", "args": {"path": "hosts.txt"}},
    {"tool": "ping_host", "args": {"host": "<host 1>"}},
    {"tool": "write_file", "args": {"path": "report.txt", "content": "<results>"}},
]


def test_structured_output() -> None:
    assert sum(structured_points(json.dumps([{}] * 5)).values()) == 0
    assert sum(structured_points(json.dumps(USERS)).values()) == 5
    assert sum(structured_points(f"```json\n{json.dumps(USERS)}\n```").values()) == 4
    assert structured_points(json.dumps([{**USERS[0], "active": 1}, *USERS[1:]]))["the types"] == 0
    assert structured_points(json.dumps([{**USERS[0], "id": True}, *USERS[1:]]))["the types"] == 0
    assert structured_points(json.dumps([USERS[0]] * 5))["values"] == 0
    assert structured_points(json.dumps(USERS[:4]))["five objects"] == 0
    assert sum(structured_points("I cannot.").values()) == 0


def test_tool_sequencing() -> None:
    other = [{"tool": "read_file", "args": {"path": "/etc/passwd"}}, *PLAN[1:]]
    assert sum(sequencing_points(json.dumps(other)).values()) == 1
    assert sum(sequencing_points(json.dumps(PLAN)).values()) == 5
    assert sum(sequencing_points(json.dumps(PLAN[:1]) + " Now I need the result.").values()) == 2  # the article's Gemma
    assert sum(sequencing_points(json.dumps(PLAN[:1][0])).values()) == 2
    assert sequencing_points(json.dumps(PLAN[::-1]))["order"] == 0
    assert sequencing_points(json.dumps([*PLAN, {"tool": "send_mail", "args": {}}]))["known tools"] == 0
    assert sequencing_points(json.dumps([{**PLAN[0], "args": {"file": "x"}}, *PLAN[1:]]))["arguments"] == 0


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
        says("The pool is exhausted."), says("CRDT"), says(reasoning="By Bayes the answer is 5/17."),
        says(json.dumps(USERS)), says(json.dumps(PLAN)), *[says("x " * 9) for _ in range(12)],
    ]  # fmt: skip
    run, report, bodies = await ran(tmp_path, {"speed_tokens": 8, "ref_tps": 200000.0}, *plays)
    results = run.results()
    assert len(results) == 10 + 12 and all(result.ok for result in results.values())
    assert results["1.1/1"].values["functional"] == results["1.1/1"].values["features"] == 1.0
    assert results["1.2/1"].values["functional"] == 0.0 and "away" not in results["1.2/1"].values
    assert results["2.2/1"].values["source"] == "cut"
    assert (results["3.3/1"].values["source"], results["3.3/1"].values["features"]) == ("reasoning", 0.6)
    assert [body["max_tokens"] for body in bodies[:10]] == [4096] * 10
    assert "temperature" not in bodies[0] and bodies[-1]["temperature"] == 0.0 and bodies[-1]["ignore_eos"]
    points = {m.group: m.estimate.value for m in report.metrics if m.name == "points"}
    assert points["tools"] == 100.0 and points["speed"] == pytest.approx(50.0)
    assert points["weighted total"] == pytest.approx(
        0.4 * points["coding"] + 0.2 * (points["reasoning"] + points["tools"] + points["speed"])
    )
    (row,) = table(report, "Leaderboard").rows
    assert row[1] == "box" and row[5] == "50.0"
    assert table(report, "Leaderboard as the article counts").rows
    tasks = {str(line[0])[:3]: line for line in table(report, "Tasks").rows}
    assert "max_tokens ended the thinking" in str(tasks["2.2"][4])
    assert "max_tokens ended the thinking" in "\n".join(row_texts(report_rows(run.info, report)))
    assert await rescore_run(run, Config()) == (22, [])


async def test_a_row_that_was_refused_is_na(tmp_path: Path) -> None:
    refused = Play(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}})
    _, report, _ = await ran(tmp_path, {"tasks": ["3.3", "4.1"]}, refused, says(json.dumps(USERS)))
    (row,) = table(report, "Leaderboard").rows
    assert row[2:6] == (None, None, "100.0", None) and row[6] == "100.0"
    assert any(note.startswith("Not measured: 3.3/1") for note in report.notes)
    assert any("no points for coding, reasoning, speed" in note for note in report.notes)


async def test_without_a_sandbox_functional_tests_are_na() -> None:
    code = TODO.replace("%NARGS%", "")

    def nothing() -> Sandbox:
        return Sandbox(Config(), confinement=Confinement(None, problem="no user namespaces"))

    todo = await score_reply("1.1", f"```python\n{code}```", "", "stop", nothing)
    fixed = await score_reply("2.1", f"auth\nmiddleware/auth.js\n```js\n{FIXED}```", "", "stop", nothing)

    assert (todo["features"], todo["functional"], score_of_values(todo).value) == (1.0, None, None)
    assert score_of_values(todo).keywords_only and score_of_values(fixed).keywords_only
    assert todo["unavailable"] == fixed["unavailable"] == "no sandbox works here"
    assert fixed["items"]["fixed"] == 50  # read off the middleware


async def test_speed_rows_are_cold_and_of_one_length_or_flagged(tmp_path: Path) -> None:
    async def flags(server: BenchServer) -> tuple[set[str], list[str]]:
        paths = Paths(tmp_path / "c", tmp_path / server.dialect / str(server.tokens), tmp_path / "k")
        plan = Plan("suite", (Target("box", url=server.url),), {"tasks": ["5.1"], "speed_tokens": 8})
        await PlanRunner(paths, Config(), lambda name: pytest.fail(name)).run(plan)
        asked = [body["messages"][-1]["content"] for body in server.asked]
        return {flag.kind for flag in info_and_report(find_run(paths, "last"))[1].flags}, asked

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
        assert score_of_values(values).value == 0.0 and values["source"] == "empty"


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
    for points in (debug_log_points, architecture_points, bayes_points, structured_points, sequencing_points):
        points(text)
    files_in(SuiteAnswer(text, "content"), originals, SCRIPT)
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
    code = FORGED[name]
    shortener = code % (functional.SHORTENER_CHECKS,) if "%r" in code else code
    pages = code % (functional.PAGINATION_CHECKS,) if "%r" in code else code
    files = {"app.py": pages, "test_app.py": task_file("flask/test_app.py")}

    checks = await asyncio.gather(
        functional.check_shortener(shortener, sandbox), functional.check_pagination(files, sandbox)
    )

    assert sum(checks[0].values()) <= 1 and not any(checks[1].values())
