"""The tools that run programs: search, run, test, over a layer and in the real sandbox; and what describes all nine."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent import mcp, projects, run_tools, search_program
from gpubox.agent.file_tools import SKIPPED_FOLDERS
from gpubox.agent.projects import find_test_command, load_project, save_project
from gpubox.agent.run_tools import around_failures
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Tool, ToolCall, choose_protocol
from gpubox.agent.work import Work
from gpubox.agent.workspace import Workspace
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sandbox.runner import Sandbox


@pytest.fixture
def work(paths: Paths, tmp_path: Path) -> Work:
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "node_modules").mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "sub/b.py").write_text("print('Two')\n")
    (folder / "node_modules/c.js").write_text("two\n")
    (folder / "latin").write_bytes(b"caf\xe9 two\n")
    (folder / "image").write_bytes(b"two\0\0")
    (tmp_path / "secret").write_text("two sesame")
    (folder / "link").symlink_to(tmp_path / "secret")
    work = Work(paths, Workspace(folder), tmp_path / "layers", Sandbox(Config()), None, scratch=False)
    work.begin_turn("t", plan=False)
    return work


def tool(work: Work, name: str) -> Tool:
    return next(tool for tool in work.tools if tool.name == name)


async def output(work: Work, name: str, **arguments: Any) -> str:
    try:
        code = arguments.get("code") or arguments.get("command") or ""
        return (await tool(work, name).run(ToolCall("c", name, arguments, code))).text
    except GpuboxError as error:
        return error.message


async def test_searching(work: Work) -> None:
    assert await output(work, "search", pattern="two") == "a.txt:2: two\nlatin:1: café two\nsub/b.py:1: print('Two')"
    assert await output(work, "search", pattern="Two") == "sub/b.py:1: print('Two')", "capitals count"
    assert await output(work, "search", pattern=r"^t\w+o$") == "a.txt:2: two"
    assert await output(work, "search", pattern="two", path="sub") == "sub/b.py:1: print('Two')"
    assert await output(work, "search", pattern="two", path="/workspace/a.txt") == "a.txt:2: two"
    assert await output(work, "search", pattern="two", glob="*.py") == "sub/b.py:1: print('Two')"
    assert await output(work, "search", pattern="nothing") == "No line matches."
    assert "is no regular expression" in await output(work, "search", pattern="(")
    assert "must not contain '..'" in await output(work, "search", pattern="two", path="../")
    assert "does not exist" in await output(work, "search", pattern="two", path="nowhere")
    assert "needs 'pattern'" in await output(work, "search", pattern="")


@pytest.mark.skipif(not shutil.which("rg"), reason="ripgrep is not installed")
@pytest.mark.parametrize("pattern", ["two", "Two", "^t", "o$", r"\bt\w+\b", "x|e", "café", r"(?<=t)w"])
def test_ripgrep_and_python_find_the_same(work: Work, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work.workspace.root)
    want = {"pattern": pattern, "path": ".", "glob": "", "most": 100, "skipped": SKIPPED_FOLDERS}
    both = list(search_program.find(want))
    monkeypatch.setenv("PATH", "/nowhere")
    plain = [match for match in search_program.find(want) if match[0] != "latin"]
    assert [match for match in both if match[0] != "latin"] == plain


async def test_a_search_sees_the_layer_and_is_bounded(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    await output(work, "write", path="many", content="needle x\n" * 300)
    lines = (await output(work, "search", pattern="needle")).split("\n")
    assert len(lines) == run_tools.MAX_MATCHES + 1 and lines[-1] == "(only the first 100 are shown)"
    monkeypatch.setattr(run_tools, "SEARCH_SECONDS", 1.0)
    await output(work, "write", path="evil", content="a" * 60 + "!\n")
    assert "[ended: time: longer than 1 s]" in await output(work, "search", pattern="(a+)+$", path="evil")


async def test_running(work: Work) -> None:
    assert await output(work, "run", code="print(6 * 7)") == "42"
    ran = await output(work, "run", command="cat a.txt | wc -l; echo new > made; exit 3")
    assert ran == "3\n[exit code 3]\n[files changed: made]"
    assert "[ended: time: longer than 1 s]" in await output(work, "run", command="sleep 50", seconds=1)
    assert "made" not in [path.name for path in work.workspace.root.iterdir()]
    assert not tool(work, "run").parallel_safe


def test_the_descriptions_of_all_tools_fit_a_small_context(work: Work) -> None:
    caps = {"chat_template_caps": {"supports_tools": True, "supports_tool_calls": True}}
    protocol = choose_protocol(AgentSettings(), work.tools, caps)
    assert protocol.tool_names == ("list", "read", "search", "edit", "write", "run", "test", "ask", "done")
    text = json.dumps(protocol.tools, indent=4) + protocol.system_prompt + mcp.PROMPT
    # as the templates of Llama 3 write it: 1,198 tokens with their own words; blanks in front of a line are one token
    assert len(re.sub(r"(?m)^ +", " ", text)) <= 3270


PYTEST = """\
============================= test session starts ==============================
collected 300 items

tests/test_a.py ..................F............................................

=================================== FAILURES ===================================
___________________________________ test_sum ___________________________________

    def test_sum():
>       assert add(1, 1) == 3
E       assert 2 == 3
E        +  where 2 = add(1, 1)

tests/test_a.py:7: AssertionError
{noise}
=========================== short test summary info ============================
FAILED tests/test_a.py::test_sum - assert 2 == 3
1 failed, 299 passed in 1.20s
"""
CARGO = """\
   Compiling demo v0.1.0
test tests::good ... ok
{noise}
---- tests::bad stdout ----
thread 'tests::bad' panicked at src/lib.rs:12:9:
assertion `left == right` failed
{noise}
test result: FAILED. 1 passed; 1 failed
"""
GO = """\
{noise}
--- FAIL: TestSum (0.00s)
    sum_test.go:9: got 2, want 3
{noise}
FAIL
FAIL\texample.com/sum\t0.002s
"""
JEST = """\
{noise}
  \u25cf adds

    expect(received).toBe(expected)
    Expected: 3
    Received: 2
{noise}
Tests: 1 failed, 40 passed
"""
NODE = "ok 1 - good\n{noise}\nnot ok 2 - adds\n  ---\n  error: '2 == 3'\n  ...\n{noise}\n# fail 1\n"
MAKE = """\
cc -c a.c
{noise}
a.c:3:5: error: 'x' undeclared
    3 |     x = 1;
{noise}
make: *** [Makefile:2: a.o] Error 1
"""


@pytest.mark.parametrize(("text", "wanted"), [
    (PYTEST, ["test_sum", "assert 2 == 3", "1 failed, 299 passed"]),
    (CARGO, ["tests::bad", "left == right", "test result: FAILED"]),
    (GO, ["--- FAIL: TestSum", "got 2, want 3", "FAIL\texample.com/sum"]),
    (JEST, ["adds", "Expected: 3", "Received: 2", "1 failed, 40 passed"]),
    (NODE, ["not ok 2 - adds", "2 == 3", "# fail 1"]),
    (MAKE, ["error: 'x' undeclared", "x = 1;", "make: ***"]),
])  # fmt: skip
def test_a_long_output_of_tests_is_cut_around_the_failures(text: str, wanted: list[str]) -> None:
    noise = "\n".join(f"line {number} of a log that nobody needs" for number in range(3000))
    for limit in (1500, 4000, 8000):
        cut = around_failures(text.replace("{noise}", noise), limit)
        assert [part for part in wanted if part not in cut] == []
        assert len(cut) <= limit and "lines]" in cut
    assert around_failures("short", 100) == "short"
    assert len(around_failures("E   x\n" * 5000 + "y" * 9000, 1000)) < 3000


@pytest.mark.parametrize(("files", "command"), [
    ({}, ""),
    ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python3 -m pytest -q -p no:cacheprovider"),
    ({"pytest.ini": "", ".venv/bin/python": ""}, ".venv/bin/python -m pytest -q -p no:cacheprovider"),
    ({"tests/test_x.py": "def test_x(): ...\n"}, "python3 -m pytest -q -p no:cacheprovider"),
    ({"test_x.py": "import unittest\n"}, "python3 -m unittest"),
    ({"tests/test_x.py": "import unittest\n"}, "python3 -m unittest discover -s tests"),
    ({"tests/test_x.py": "import unittest\n", "tests/__init__.py": ""}, "python3 -m unittest"),
    ({"tests/test_x.py": "import unittest\n", ".venv/bin/pytest": ""},
     ".venv/bin/python -m pytest -q -p no:cacheprovider"),
    ({"package.json": '{"scripts": {"test": "node --test"}}'}, "npm test --silent"),
    ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'}, ""),
    ({"package.json": "[", "Makefile": "all:\n\ntest: all\n\t./t\n"}, "make test"),
    ({"Cargo.toml": ""}, "cargo test --offline"), ({"go.mod": ""}, "go test ./..."),
    ({"Makefile": "test := 1\ncheck:\n\t./t\n"}, "make check"),
])  # fmt: skip
def test_the_test_command_is_told_from_the_project(
    tmp_path: Path, files: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)  # this box may have a pytest
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_test_command(Workspace(tmp_path)) == command


def test_what_the_owner_said_of_a_project_is_remembered(paths: Paths, tmp_path: Path) -> None:
    root, other = tmp_path / "a", tmp_path / "b"
    assert load_project(paths, root) == projects.Project()
    save_project(paths, root, projects.Project(True, "make test"))
    save_project(paths, other, projects.Project(False))
    assert load_project(paths, root) == projects.Project(True, "make test")
    assert load_project(paths, other).allowed is False
    paths.projects.write_text("{")
    assert load_project(paths, root) == projects.Project()
