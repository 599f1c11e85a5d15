"""The tasks of the suite: what is asked, in which category, and for how much. Pure; the log of 3.1 has a fixed seed.

Every answer is graded by what can be checked: programs are run, and the rest asks for JSON or for a last line that
begins with ``ANSWER:``. Prose is for the reader alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

Category = Literal["coding", "reasoning", "tools", "speed"]
SYSTEM_PROMPT = "You are a helpful assistant."
EXPRESS_FILES = ("app.js", "middleware/auth.js", "routes/items.js", "routes/session.js", "client/api.js")
FLASK_FILES = ("app.py", "test_app.py")


def task_file(name: str) -> str:
    """A file of the small programs in 2.1 and 2.2, or of the shims that run them."""
    name += ".txt" if name.endswith(".py") else ""  # Python files are stored as text: they are not part of gpubox
    return files("gpubox.bench.kinds.suite").joinpath("fixtures", *name.split("/")).read_text(encoding="utf-8")


def _inline(folder: str, names: tuple[str, ...], language: str) -> str:
    return "\n\n".join(f"{name}\n```{language}\n{task_file(f'{folder}/{name}').rstrip()}\n```" for name in names)


_ANSWER_AS_JSON = "End with one line that begins with ANSWER: and holds this JSON object, filled in: "
TODO = (
    "Write a complete Python CLI todo app in one file, todo.py, with the standard library only: SQLite storage, "
    "argparse subcommands `add <text>`, `list`, `done <id>`, `delete <id>`, `edit <id> <text>`. The path of the "
    "database comes from the environment variable TODO_DB (default ~/.todo.db). Return only the code, in one fenced "
    "block."
)
SHORTENER = (
    'Write a URL shortener in one Python file, app.py, with FastAPI and sqlite3: `POST /shorten` takes {"url": ...} '
    'and returns {"short_code": ..., "short_url": ...}; `GET /{code}` redirects (307 or 302); `GET /stats/{code}` '
    "returns the number of visits; invalid URLs get 422 or 400, unknown codes 404; at most 10 requests of `/shorten` "
    "per minute and IP, then 429. Return only the code, in one fenced block."
)
LRU = (
    "Write a generic LRU cache in one TypeScript file without dependencies: `class LRUCache<K, V>` with a capacity, "
    "`get` and `put` in O(1), eviction of the least recently used entry, and a test suite with assertions in the same "
    "file. Return only the code, in one fenced block."
)
BUGFIX = (
    f"This is an Express app:\n\n{_inline('express', EXPRESS_FILES, 'javascript')}\n\n"
    "Logged-in clients always get 401 from GET /items. Other services call this API in the same way as client/api.js "
    "does. Find the bug and fix it with the smallest change. Return each changed file complete, in a fenced block "
    "headed by its path."
)
PAGINATION = (
    f"This is a Flask app:\n\n{_inline('flask', FLASK_FILES, 'python')}\n\n"
    "Add pagination to GET /books: query parameters `page` and `per_page` (default 10, at most 100), and an answer "
    "with `items`, `total`, `page`, `per_page` and `pages`; invalid values get 400. Keep the other endpoints as they "
    "are, and update the tests. Return both files complete, each in a fenced block headed by its path."
)
DEBUG_LOG = (
    "This is the log of a web shop's API from the time it went down:\n\n```\n{log}\n```\n\n"
    "Events:\n"
    "A  a DNS lookup was slow\n"
    "B  report-worker read all orders with one SELECT without a limit\n"
    "C  the garbage collector paused the API\n"
    "D  report-worker kept one transaction open for almost six minutes\n"
    "E  the load balancer removed the API\n"
    "F  requests of the API waited for row locks of report-worker\n"
    "G  report-worker sent one UPDATE for each row\n"
    "H  all connections of the API's pool were taken\n"
    "I  a transaction of the API was never committed\n"
    "J  the disk was full\n\n"
    "Measures:\n"
    "1  commit after every thousand rows\n"
    "2  one UPDATE with a WHERE instead of one for each row\n"
    "3  a second DNS server\n"
    "4  read the orders in pages, each in a transaction of its own\n"
    "5  a pool of 21 connections\n"
    "6  more memory for the garbage collector\n\n"
    "What happened? Explain it. immediate_cause is the event by which requests got 503; root_cause is the event that "
    "made the locks last so long; contributing: the other events that led to the outage; consequence: the event that "
    "only followed from it; not_involved: all other events; measures: the numbers of all that would have prevented it. "
    + _ANSWER_AS_JSON
    + '{"immediate_cause": "?", "root_cause": "?", "contributing": ["?"], "consequence": "?", "not_involved": ["?"], '
    '"measures": [0]}'
)
DEBUG_LOG_ANSWER = {
    "immediate_cause": (2, "H"),
    "root_cause": (2, "D"),
    "contributing": (2, "BFG"),
    "consequence": (1, "E"),
    "not_involved": (1, "ACIJ"),
    "measures": (2, "124"),
}
"""Key -> its points, and the letters or digits that it asks for."""
ARCHITECTURE = (
    "We build a collaborative text editor with operational transformation (OT) or with a CRDT.\n\n"
    'A document is "abcd"; positions count from 0. At the same time Alice inserts "XY" before position 1, and Bob '
    "deletes the character at position 2. Alice's operation is applied first.\n"
    "position: where Bob's deletion is applied after OT has transformed it\n"
    "text: the document after both\n"
    "elements: how many elements, deleted ones included, a CRDT then stores that keeps a tombstone for each\n\n"
    "Which of both, CRDT or OT, does each statement describe?\n"
    "1  Every character has an identity of its own that never changes.\n"
    "2  The index of an operation is adjusted to the operations that came before it.\n"
    "3  Most implementations need one server that puts all operations into one order.\n"
    "4  Replicas may apply concurrent operations in any order.\n"
    "5  Metadata grows with everything that was ever deleted.\n"
    "6  It is hard to prove right, because each pair of kinds of operations needs a function.\n"
    "7  Two peers can merge without any server.\n"
    "8  After a long time offline, each own operation must be rebased over all that were missed.\n\n"
    "Explain it, and recommend one for 50 people who also edit offline. "
    + _ANSWER_AS_JSON
    + '{"position": 0, "text": "?", "elements": 0, "statements": ["CRDT or OT", ...]}'
)
ARCHITECTURE_ANSWER = {"position": "4", "text": "aXYbd", "elements": "6"}
STATEMENTS_ANSWER = ("crdt", "ot", "ot", "crdt", "crdt", "ot", "crdt", "ot")
BAYES = (
    "Three servers handle all requests. Server A handles 60% of the traffic and 1% of its requests fail; server B "
    "handles 30% and 2% fail; server C handles 10% and 5% fail. A request has just failed. What is the probability "
    "that server C handled it? Show your work. End with one line that begins with ANSWER: and holds only the "
    "probability, as a fraction, a decimal or a percentage."
)
BAYES_ANSWER = 5 / 17
STRUCTURED = (
    "Return only a JSON array, no other text, of exactly 5 user objects. Each has exactly these keys: `id` (integer, "
    '1 to 5, each once), `name` (string), `email` (string, a valid address, each different), `role` (one of "admin", '
    '"user", "guest"), `active` (boolean), `created_at` (string, ISO 8601 date).'
)
SEQUENCING = (
    "You have three tools:\n"
    "- read_file(path): returns the text of a file\n"
    "- ping_host(host): returns the latency in ms\n"
    "- write_file(path, content): writes a file\n\n"
    "Task: read hosts.txt (one host per line), ping each host, and write the results to report.txt. Output the whole "
    'plan as one JSON array of tool calls, each {"tool": ..., "args": {...}}, in the order of execution. You will '
    "not see results in between, so do not wait for them; use placeholders for what you do not know yet. Output only "
    "the JSON array."
)
SPEED = {
    "short": "Write a Python function that validates an IPv4 address, with a docstring and three examples.",
    "medium": "Implement a binary search tree in Python with insert, delete, search and in-order traversal. Explain "
    "each method.",
    "long": "Write a complete Markdown to HTML converter in Python without dependencies: headings, paragraphs, "
    "emphasis, lists, links, images, code blocks, quotes and tables, with a test suite. Explain the design first.",
}


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """One row of the suite."""

    id: str
    name: str
    category: Category
    prompt: str
    max_tokens: int | None = None
    """The exact length of a speed answer; ``None``: the run's limit."""


def outage_log() -> str:
    """54 lines: a long transaction, an unbounded query, row-by-row updates, a full pool, and two red herrings."""
    dice = random.Random(34)
    lines = ["14:01:02 INFO  api          started, QueuePool size=20 max_overflow=0 timeout=30s"]
    for second in range(8, 56, 6):
        path, milliseconds = dice.choice(("/cart", "/orders/41", "/login", "/search")), dice.randint(9, 48)
        lines.append(
            f"14:01:{second:02d} INFO  api          GET {path} 200 {milliseconds}ms pool={dice.randint(2, 6)}/20"
        )
    lines += [
        "14:01:57 WARN  resolver     DNS lookup of metrics.internal took 1204ms, retried, ok",
        "14:02:00 INFO  report-worker nightly report started, BEGIN",
        "14:02:00 INFO  report-worker SELECT * FROM orders",
        "14:02:41 INFO  report-worker fetched 2,413,877 rows",
    ]
    for step in range(12):
        update = f"UPDATE orders SET reported = true WHERE id = {881204 + step} (1 row)"
        lines.append(f"14:03:{step * 4:02d} DEBUG report-worker {update}")
    lines.append("14:03:48 DEBUG report-worker ... 2,413,865 more UPDATEs of 1 row each, same transaction")
    for i in range(14):
        pool = min(20, 7 + i)
        lines.append(
            f"14:04:{i * 4:02d} WARN  api          PUT /orders/{881200 + i} waits for a row lock held by report-worker "
            f"pool={pool}/20"
        )
    lines.append("14:05:02 INFO  api          GC pause 87ms")
    for i in range(8):
        error = "QueuePool limit of size 20 overflow 0 reached, connection timed out, timeout 30"
        request = dice.choice(("GET /cart", "POST /login", "GET /search"))
        lines.append(f"14:05:{31 + i * 3:02d} ERROR api          {error}; {request} 503")
    lines += [
        "14:06:02 WARN  lb           health check of api failed, removed from rotation",
        "14:06:31 WARN  lb           health check of api ok, added",
        "14:06:58 WARN  lb           health check of api failed, removed from rotation",
        "14:07:41 INFO  report-worker COMMIT, transaction held 341s",
        "14:07:44 INFO  api          GET /cart 200 31ms pool=4/20",
    ]
    return "\n".join(lines)


TASKS: dict[str, SuiteTask] = {
    task.id: task
    for task in (
        SuiteTask("1.1", "todo app", "coding", TODO),
        SuiteTask("1.2", "URL shortener", "coding", SHORTENER),
        SuiteTask("1.3", "LRU cache", "coding", LRU),
        SuiteTask("2.1", "bug fix", "coding", BUGFIX),
        SuiteTask("2.2", "pagination", "coding", PAGINATION),
        SuiteTask("3.1", "debug log", "reasoning", DEBUG_LOG.replace("{log}", outage_log())),
        SuiteTask("3.2", "architecture", "reasoning", ARCHITECTURE),
        SuiteTask("3.3", "Bayes", "reasoning", BAYES),
        SuiteTask("4.1", "structured output", "tools", STRUCTURED),
        SuiteTask("4.2", "tool sequencing", "tools", SEQUENCING),
        SuiteTask("5.1", "short", "speed", SPEED["short"], 128),
        SuiteTask("5.2", "medium", "speed", SPEED["medium"], 512),
        SuiteTask("5.3", "long", "speed", SPEED["long"], 2048),
    )
}
SPEED_RUNS = 3
"""Of each speed task."""
