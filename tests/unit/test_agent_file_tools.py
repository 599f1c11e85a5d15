"""The file tools as the loop calls them: only what was shown is written, and a cancel leaves no half-written file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent import edits
from gpubox.agent.file_tools import file_tools
from gpubox.agent.tools import Tool, ToolCall
from gpubox.agent.workspace import Workspace


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, Tool]:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    return {tool.name: tool for tool in file_tools(Workspace(tmp_path))}


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{len(arguments)}", name, arguments)


def shown(tool: Tool, tool_call: ToolCall) -> str:
    question = tool.question(tool_call)
    return question.text if question else ""


async def test_reading_tools(tools: dict[str, Tool]) -> None:
    for name, arguments, wanted in (
        ("list_files", {}, "a.txt  8 bytes"),
        ("list_files", {"path": ".", "recursive": "true"}, "a.txt  8 bytes"),
        ("read_file", {"path": "a.txt"}, "one\ntwo"),
        ("read_file", {"path": "a.txt", "first_line": "2", "lines": 1.0}, "two\n(lines 2 to 2 of 2)"),
        ("search_files", {"text": "TWO"}, "a.txt:2: two"),
    ):
        tool_call = ToolCall("c", name, arguments)
        assert shown(tools[name], tool_call) == ""
        output = await tools[name].run(tool_call)
        assert (output.ok, output.text, output.isolation) == (True, wanted, "")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}), ("read_file", {"path": 17}), ("read_file", {"path": "none"}),
        ("read_file", {"path": "a.txt", "first_line": True}), ("list_files", {"path": ["."]}),
        ("search_files", {"path": "."}), ("write_file", {"path": "b.txt"}),
        ("write_file", {"path": "../b", "content": ""}), ("edit_file", {"path": "a.txt", "old": "three", "new": "3"}),
        ("edit_file", {"path": "none", "old": "a", "new": "b"}),
    ],
)  # fmt: skip
async def test_a_mistake_of_the_model_is_an_output(
    tools: dict[str, Tool], name: str, arguments: dict[str, Any]
) -> None:
    tool_call = ToolCall("c", name, arguments)

    assert shown(tools[name], tool_call) == ""
    output = await tools[name].run(tool_call)

    assert (output.ok, output.ended_by) == (False, "refused")
    assert output.text


async def test_the_shown_change_is_written(tools: dict[str, Tool], tmp_path: Path) -> None:
    edit = call("edit_file", path="a.txt", old="two", new="2")
    assert "-two\n+2" in shown(tools["edit_file"], edit)

    output = await tools["edit_file"].run(edit)

    assert (output.ok, output.files_changed) == (True, ("a.txt",))
    assert (tmp_path / "a.txt").read_text() == "one\n2\n"


async def test_several_edits_are_one_change(tools: dict[str, Tool], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def a():\n    return 1\n\n\ndef b():\n    return 2\n")
    pairs = [{"old": "return 1", "new": "return 3"}, {"old": "def b():\nreturn 2", "new": "def b():\nreturn 4"}]
    first = call("edit_file", path="a.py", edits=pairs)
    assert shown(tools["edit_file"], first) == ""
    output = await tools["edit_file"].run(first)
    assert (
        not output.ok and "Edit 2 of 2: The old text is not in the file." in output.text and "5: def b" in output.text
    )

    pairs[1] = {"old": "def b():\n  return 2", "new": "def b():\n  return 4"}  # not a shift of the file's block
    assert "+    return 3" not in shown(tools["edit_file"], call("edit_file", path="a.py", edits=pairs))
    pairs[1] = {"old": "    return 2  ", "new": "    return 4"}
    edit = call("edit_file", path="a.py", edits=json.dumps(pairs))  # as some models write a list
    assert "+    return 3" in shown(tools["edit_file"], edit) and (await tools["edit_file"].run(edit)).ok
    assert (tmp_path / "a.py").read_text() == "def a():\n    return 3\n\n\ndef b():\n    return 4\n"


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("a.py", "a = 1\n", "a = (1\n"), ("a.json", '{"a": 1}', '{"a": 1,}'), ("a.toml", "a = 1\n", "a = \n"),
])  # fmt: skip
async def test_what_would_no_longer_parse_is_told_before_the_owner_is_asked(
    tools: dict[str, Tool], tmp_path: Path, name: str, good: str, bad: str
) -> None:
    (tmp_path / name).write_text(good)
    write = call("write_file", path=name, content=bad)
    assert shown(tools["write_file"], write) == ""
    output = await tools["write_file"].run(write)
    assert not output.ok and "would not parse" in output.text and (tmp_path / name).read_text() == good

    again = ToolCall("again", write.name, write.arguments)  # it is meant so: the owner decides
    assert shown(tools["write_file"], again) and (await tools["write_file"].run(again)).ok
    (tmp_path / name).write_text(bad)
    assert shown(tools["write_file"], call("write_file", path=name, content=bad + " "))  # it did not parse before


async def test_a_change_without_a_shown_diff_is_not_written(tools: dict[str, Tool], tmp_path: Path) -> None:
    edit = call("edit_file", path="a.txt", old="two", new="2")
    assert not (await tools["edit_file"].run(edit)).ok
    (tmp_path / "a.txt").unlink()
    assert shown(tools["edit_file"], edit) == ""  # nothing to approve, as it cannot be done ...
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    output = await tools["edit_file"].run(edit)  # ... and then it could

    assert not output.ok
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"


async def test_the_same_content_again_is_no_change(tools: dict[str, Tool]) -> None:
    write = call("write_file", path="a.txt", content="one\ntwo\n")

    assert shown(tools["write_file"], write) == ""
    assert (await tools["write_file"].run(write)).text == "The file already has exactly this content."


@pytest.mark.parametrize("patience", [10.0, 0.01])
async def test_a_cancelled_write_leaves_the_old_file(
    tools: dict[str, Tool], tmp_path: Path, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, let_go, over = threading.Event(), threading.Event(), threading.Event()
    real = edits.apply_change

    def sync(descriptor: int) -> None:
        slow.set()
        let_go.wait(30)

    def apply(*arguments: Any) -> None:
        try:
            real(*arguments)
        finally:
            over.set()

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(edits, "apply_change", apply)
    monkeypatch.setattr("gpubox.agent.file_tools.CANCEL_TIMEOUT_SECONDS", patience)
    write = call("write_file", path="a.txt", content="new\n")
    shown(tools["write_file"], write)
    task = asyncio.create_task(tools["write_file"].run(write))
    while not slow.is_set():
        await asyncio.sleep(0.005)

    task.cancel()
    if patience > 1:
        asyncio.get_running_loop().call_later(0.05, let_go.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    let_go.set()
    while not over.is_set():
        await asyncio.sleep(0.005)

    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_tool_descriptions_are_the_same_in_every_chat(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()

    texts = [
        [(tool.name, tool.description, tool.parameters, tool.parallel_safe) for tool in file_tools(Workspace(folder))]
        for folder in (first, second)
    ]

    assert texts[0] == texts[1]
    assert [(name, parallel_safe) for name, _, _, parallel_safe in texts[0]] == [
        ("list_files", True), ("read_file", True), ("search_files", True), ("write_file", False), ("edit_file", False),
    ]  # fmt: skip
    assert [parameters["required"] for _, _, parameters, _ in texts[0]] == [
        [], ["path"], ["text"], ["path", "content"], ["path", "edits"],
    ]  # fmt: skip
