"""The tasks of the suite: what is asked (``fixtures/tasks.toml``), and the answers to what is no program.

Every answer is graded by what can be checked: programs are run, and the rest asks for JSON or for a last line that
begins with ``ANSWER:``. Prose is for the reader alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from gpubox.toml_table import parse_toml

Category = Literal["coding", "reasoning", "tools", "speed"]
SYSTEM_PROMPT = "You are a helpful assistant."
EXPRESS_FILES = ("app.js", "middleware/auth.js", "routes/items.js", "routes/session.js", "client/api.js")
FLASK_FILES = ("app.py", "test_app.py")


def task_file(name: str) -> str:
    """The prompts, the log of 3.1, a file of the small programs in 2.1 and 2.2, or of the shims that run them."""
    name += ".txt" if name.endswith(".py") else ""  # Python files are stored as text: they are not part of gpubox
    return files("gpubox.bench.kinds.suite").joinpath("fixtures", *name.split("/")).read_text(encoding="utf-8")


def _inline(folder: str, names: tuple[str, ...], language: str) -> str:
    return "\n\n".join(f"{name}\n```{language}\n{task_file(f'{folder}/{name}').rstrip()}\n```" for name in names)


DEBUG_LOG_ANSWER = {
    "immediate_cause": (2, "H"),
    "root_cause": (2, "D"),
    "contributing": (2, "BFG"),
    "consequence": (1, "E"),
    "not_involved": (1, "ACIJ"),
    "measures": (2, "124"),
}
"""Key -> its points, and the letters or digits that it asks for."""
ARCHITECTURE_ANSWER = {"position": "4", "text": "aXYbd", "elements": "6"}
STATEMENTS_ANSWER = ("crdt", "ot", "ot", "crdt", "crdt", "ot", "crdt", "ot")
BAYES_ANSWER = 5 / 17


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """One row of the suite."""

    id: str
    name: str
    category: Category
    prompt: str
    max_tokens: int | None = None
    """The exact length of a speed answer; ``None``: the run's limit."""


def _tasks() -> Iterator[SuiteTask]:
    files_in_prompts = {
        "@express@": _inline("express", EXPRESS_FILES, "javascript"),
        "@flask@": _inline("flask", FLASK_FILES, "python"),
        "@log@": task_file("outage.log").rstrip(),
    }
    for row in parse_toml(task_file("tasks.toml"))["task"]:
        for mark, text in files_in_prompts.items():
            row["prompt"] = row["prompt"].replace(mark, text)
        yield SuiteTask(**row)


TASKS: dict[str, SuiteTask] = {task.id: task for task in _tasks()}
SPEED_RUNS = 3
"""Of each speed task."""
