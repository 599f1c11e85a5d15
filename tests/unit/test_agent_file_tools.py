"""The file tools as the loop calls them: they write into the layer, and the owner's folder stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.file_tools import file_tools
from gpubox.agent.tools import Tool, ToolCall
from gpubox.agent.workspace import Workspace
from tests.unit.hand_layers import layer_of, layered


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\n")
    return layered(folder, tmp_path / "layers")


@pytest.fixture
def tools(work: Workspace) -> dict[str, Tool]:
    return {tool.name: tool for tool in file_tools(work)}


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{len(arguments)}", name, arguments)


def seen(work: Workspace, path: str) -> bytes:
    return work.read(work.parts(path))


async def test_reading_tools(tools: dict[str, Tool]) -> None:
    for name, arguments, wanted in (
        ("list", {}, "a.txt  8 bytes"),
        ("list", {"path": ".", "recursive": "true"}, "a.txt  8 bytes"),
        ("read", {"path": "a.txt"}, "one\ntwo"),
        ("read", {"path": "a.txt", "first_line": "2", "lines": 1.0}, "two\n(lines 2 to 2 of 2)"),
        ("read", {"path": "a.txt", "numbers": True}, "1: one\n2: two"),
    ):
        tool_call = ToolCall("c", name, arguments)
        assert tools[name].question(tool_call) is None
        output = await tools[name].run(tool_call)
        assert (output.ok, output.text, output.isolation) == (True, wanted, "")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {}), ("read", {"path": 17}), ("read", {"path": "none"}),
        ("read", {"path": "a.txt", "first_line": True}), ("list", {"path": ["."]}),
        ("write", {"path": "b.txt"}), ("write", {"path": "../b", "content": ""}),
        ("edit", {"path": "a.txt", "old": "three", "new": "3"}), ("edit", {"path": "none", "old": "a", "new": "b"}),
        ("write", {"path": ".", "content": ""}), ("write", {"path": "sub/", "content": ""}),
    ],
)  # fmt: skip
async def test_a_mistake_of_the_model_is_an_output(
    tools: dict[str, Tool], name: str, arguments: dict[str, Any]
) -> None:
    output = await tools[name].run(ToolCall("c", name, arguments))

    assert (output.ok, output.ended_by) == (False, "refused")
    assert output.text


async def test_an_edit_lies_in_the_layer(tools: dict[str, Tool], work: Workspace) -> None:
    output = await tools["edit"].run(call("edit", path="a.txt", old="two", new="2"))

    assert (output.ok, output.files_changed) == (True, ("a.txt",))
    assert "-two\n+2" in output.diff
    assert seen(work, "a.txt") == b"one\n2\n"
    assert (work.root / "a.txt").read_text() == "one\ntwo\n"
    await tools["edit"].run(call("edit", path="a.txt", old="one", new="1"))
    assert seen(work, "a.txt") == b"1\n2\n", "the next edit sees the one before"


async def test_a_new_file_in_a_new_folder(tools: dict[str, Tool], work: Workspace) -> None:
    output = await tools["write"].run(call("write", path="src/new.py", content="x = 1\n"))

    assert output.ok and output.text == "src/new.py was created: 6 bytes."
    assert (await tools["list"].run(call("list", recursive=True))).text.split("\n")[1:] == [
        "src/",
        "src/new.py  6 bytes",
    ]
    assert [path.name for path in work.root.iterdir()] == ["a.txt"]


async def test_several_edits_are_one_change(tools: dict[str, Tool], work: Workspace) -> None:
    (work.root / "a.py").write_text("def a():\n    return 1\n\n\ndef b():\n    return 2\n")
    pairs = [{"old": "return 1", "new": "return 3"}, {"old": "def b():\nreturn 2", "new": "def b():\nreturn 4"}]
    output = await tools["edit"].run(call("edit", path="a.py", edits=pairs))
    assert not output.ok and "Edit 2 of 2: The old text is not in the file." in output.text
    assert "5: def b" in output.text and not (layer_of(work) / "a.py").exists()

    pairs[1] = {"old": "    return 2  ", "new": "    return 4"}
    output = await tools["edit"].run(call("edit", path="a.py", edits=json.dumps(pairs)))  # as some models write a list
    assert output.ok and "+    return 3" in output.diff
    assert seen(work, "a.py") == b"def a():\n    return 3\n\n\ndef b():\n    return 4\n"


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("a.py", "a = 1\n", "a = (1\n"), ("a.json", '{"a": 1}', '{"a": 1,}'), ("a.toml", "a = 1\n", "a = \n"),
])  # fmt: skip
async def test_what_would_no_longer_parse_is_told_first(
    tools: dict[str, Tool], work: Workspace, name: str, good: str, bad: str
) -> None:
    (work.root / name).write_text(good)
    write = call("write", path=name, content=bad)
    output = await tools["write"].run(write)
    assert not output.ok and "would not parse" in output.text and seen(work, name) == good.encode()

    assert (await tools["write"].run(ToolCall("again", write.name, write.arguments))).ok  # it is meant so
    assert seen(work, name) == bad.encode()
    assert (await tools["write"].run(call("write", path=name, content=bad + " "))).ok  # it did not parse before


async def test_the_same_content_again_is_no_change(tools: dict[str, Tool], work: Workspace) -> None:
    output = await tools["write"].run(call("write", path="a.txt", content="one\ntwo\n"))
    assert (output.text, output.files_changed) == ("The file already has exactly this content.", ())
    assert not list(layer_of(work).iterdir())


@pytest.mark.parametrize(("data", "edit", "wanted"), [
    (b"one\r\ntwo\r\nthree\r\n", ("one\ntwo", "1\n2"), b"1\r\n2\r\nthree\r\n"),
    ("café\nbar\n".encode("latin-1"), ("café", "thé"), "thé\nbar\n".encode("latin-1")),  # read as Latin-1, kept so
    (b"na\xc3\xafve \xff\nx\n", ("x", "ï"), b"na\xc3\xafve \xff\n\xc3\xaf\n"),  # UTF-8 with one byte that is not
    (b"a\x0cb\nx\n", ("x", "y"), b"a\x0cb\ny\n"),
])  # fmt: skip
async def test_all_other_bytes_survive_an_edit(
    tools: dict[str, Tool], work: Workspace, data: bytes, edit: tuple[str, str], wanted: bytes
) -> None:
    (work.root / "odd").write_bytes(data)
    assert (await tools["edit"].run(call("edit", path="odd", edits=[{"old": edit[0], "new": edit[1]}]))).ok
    assert seen(work, "odd") == wanted


async def test_a_whole_write_keeps_line_ends_and_encoding(tools: dict[str, Tool], work: Workspace) -> None:
    (work.root / "dos").write_bytes(b"a\r\nb\r\n")
    (work.root / "latin").write_bytes(b"caf\xe9\n")
    for name, content, wanted in (
        ("dos", "a\nc\n", b"a\r\nc\r\n"), ("latin", "th\xe9\n", b"th\xe9\n"),
        ("latin", "\u20ac\n", "\u20ac\n".encode()),
        ("new", "a\ud800b", b"a?b"),
    ):  # fmt: skip
        assert (await tools["write"].run(call("write", path=name, content=content))).ok
        assert seen(work, name) == wanted
    output = await tools["edit"].run(call("edit", path="none-yet", edits=[{"old": "a", "new": "b"}]))
    assert "does not exist" in output.text
    (work.root / "latin2").write_bytes(b"caf\xe9 x\n")
    output = await tools["edit"].run(call("edit", path="latin2", edits=[{"old": "x", "new": "\u20ac"}]))
    assert not output.ok and "Latin-1" in output.text


async def test_a_hard_link_to_a_file_outside_and_a_mode_stay(
    tools: dict[str, Tool], work: Workspace, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("old\n")
    outside.chmod(0o750)
    os.link(outside, work.root / "linked")
    assert (await tools["write"].run(call("write", path="linked", content="new\n"))).ok
    assert outside.read_text() == "old\n" and seen(work, "linked") == b"new\n"
    assert (layer_of(work) / "linked").stat().st_mode & 0o777 == 0o750
    (work.root / "a.txt").chmod(0o444)
    assert "read-only" in (await tools["write"].run(call("write", path="a.txt", content="new\n"))).text


async def test_plan_mode_writes_nothing(tools: dict[str, Tool], work: Workspace) -> None:
    with work.throwing_away():
        for name, arguments in (("write", {"content": "x"}), ("edit", {"old": "two", "new": "2"})):
            output = await tools[name].run(call(name, path="a.txt", **arguments))
            assert output.text.startswith("Plan mode: nothing is written.") and not output.ok
        (work.layers()[0] / "made-by-a-program").write_text("x")
        assert "made-by-a-program" in (await tools["list"].run(call("list"))).text
    assert "made-by-a-program" not in (await tools["list"].run(call("list"))).text
    assert not list(layer_of(work).iterdir())


async def test_a_cancelled_write_is_waited_for_and_whole(
    tools: dict[str, Tool], work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, let_go, real = threading.Event(), threading.Event(), os.rename

    def rename(*arguments: Any, **more: Any) -> None:
        slow.set()
        let_go.wait(30)
        real(*arguments, **more)

    monkeypatch.setattr(os, "rename", rename)
    task = asyncio.create_task(tools["write"].run(call("write", path="a.txt", content="new\n")))
    while not slow.is_set():
        await asyncio.sleep(0.005)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, let_go.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(layer_of(work)) == ["a.txt"] and seen(work, "a.txt") == b"new\n"  # noqa: PTH208


def test_tool_descriptions_are_the_same_in_every_chat(tmp_path: Path) -> None:
    texts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        tools = file_tools(Workspace(tmp_path / name))
        texts.append([(tool.name, tool.description, tool.parameters, tool.parallel_safe) for tool in tools])

    assert texts[0] == texts[1]
    assert [(name, safe, parameters.get("required", [])) for name, _, parameters, safe in texts[0]] == [
        ("list", True, []), ("read", True, ["path"]), ("edit", False, ["path", "edits"]),
        ("write", False, ["path", "content"]),
    ]  # fmt: skip
