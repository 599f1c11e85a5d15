"""Parsing what models write: thinking, fenced code, arguments, tool calls as text, repetition, terminal codes."""

from __future__ import annotations

import random

import pytest

from gpubox.agent.call_formats import text_tool_calls
from gpubox.agent.code_answer import ends_with_program, fenced_blocks, python_program
from gpubox.agent.reply_text import RepetitionDetector, ThinkingSplitter, split_thinking, without_repetition
from gpubox.agent.tool_calls import read_arguments
from gpubox.agent.tools import truncate_output

REPLY = "<think>plan\n```python\nBAD\n```\nso</think>\n\nHere:\n```python\nGOOD = '<think>'\n```\nThat is all."


@pytest.mark.parametrize(
    ("content", "thinking", "visible"),
    [
        ("<think>plan\n```python\nBAD\n```\n", "plan\n```python\nBAD\n```\n", ""),
        (REPLY, "plan\n```python\nBAD\n```\nso", "Here:\n```python\nGOOD = '<think>'\n```\nThat is all."),
        ("so I plan\n</think>\n\n42", "so I plan\n</think>", "42"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<think></think>\n\n42", "", "42"),
        ("<think>a</think><think>b</think>c", "ab", "c"),
        ("The tag `</think>` ends it.", "", "The tag `</think>` ends it."),
        ("Write <think> first.", "", "Write <think> first."),
        ("```python\nx = '</think>'\n```", "", "```python\nx = '</think>'\n```"),
        ("", "", ""),
    ],
)
def test_thinking_is_cut_off(content: str, thinking: str, visible: str) -> None:
    assert split_thinking(content) == (thinking, visible)


def test_no_prefix_of_a_reply_shows_code_from_its_thinking() -> None:
    for end in range(len(REPLY) + 1):
        visible = split_thinking(REPLY[:end])[1]
        assert "BAD" not in python_program(visible)[0] and "BAD" not in visible


def test_the_stream_splits_as_the_whole_reply_does() -> None:
    dice = random.Random(4)
    for content in (
        REPLY,
        "<think>a",
        "<thin",
        "< think",
        "  <think>x</think>y",
        "plain <think> text",
        "[THINK]a[/THINK]b",
    ):
        for _ in range(50):
            cuts = sorted(dice.randrange(len(content) + 1) for _ in range(dice.randrange(6)))
            splitter = ThinkingSplitter()
            pieces = [splitter.feed(content[a:b]) for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
            pieces.append(splitter.end())
            thinking, visible = ("".join(part) for part in zip(*pieces, strict=True))
            whole = split_thinking(content)
            assert (thinking, visible.strip()) == (whole[0], whole[1].strip())


def test_blocks_follow_commonmark() -> None:
    text = "a\n````md\n```python\nx\n```\n````\n  ~~~Python title=x\n  y\n  ~~~\n```python\nz"
    blocks = fenced_blocks(text)
    assert [(b.language, b.code, b.closed) for b in blocks] == [
        ("md", "```python\nx\n```\n", True),
        ("python", "y\n", True),
        ("python", "z", False),
    ]
    assert text[blocks[0].start : blocks[0].end] == "````md\n```python\nx\n```\n````\n"


def test_the_python_of_a_reply_is_one_program() -> None:
    assert python_program("```python\ndef f(): ...\n```\nand\n```py\nf()\n```\n```json\n{}\n```") == (
        "def f(): ...\nf()",
        True,
    )
    assert python_program("```python\nf(") == ("f(", False)
    assert python_program("no code, ```python inline```") == ("", True)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("```python\nx\n```\n", True),
        ("```python\nx\n```\n\nAnd", True),
        ("```python\nx\n```", False),
        ("```python\nx\n", False),
        ("```\nx\n```\n", False),
        ("```python\n\n```\n", False),
    ],
)
def test_the_end_of_a_program_is_detected(text: str, ended: bool) -> None:
    assert ends_with_program(text) is ended


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("{'code': 'print(1)'}", "print(1)"),
        ('{code: "print(1)",}', "print(1)"),
        ('Here: {"code": "a\n\tb"}', "a\n\tb"),
        ('{"code": "def f(:"}', "def f(:"),
        ('{"code": "if x:\\n  print(\\"a\\")', 'if x:\n  print("a")'),
        ('{"code": "if x:\\n  print(', None),
        ("only prose", None),
        ('{"a": ' * 5000, None),
    ],
)
def test_arguments_are_repaired_if_the_result_is_a_program(raw: str, code: str | None) -> None:
    arguments, _ = read_arguments(raw, "code")
    assert (arguments or {}).get("code") == code


def test_truncated_arguments_are_not_repaired() -> None:
    assert read_arguments('{"path": "a"}', truncated=True) == ({"path": "a"}, False)
    assert read_arguments('{"code": "print(1)', "code", truncated=True) == (None, False)


def test_arguments_of_other_tools_are_repaired_too() -> None:
    assert read_arguments("{'path': 'a.py', 'content': 'x\ny'}") == ({"path": "a.py", "content": "x\ny"}, True)


D = "｜tool▁call"
"""DeepSeek's mark."""


@pytest.mark.parametrize(
    ("text", "prose", "calls"),
    [
        ('a <tool_call>{"name": "f", "arguments": {}}</tool_call>', "a", [("f", "{}")]),
        ('<tool_call>f\n{"x": 1}</tool_call>', "", [("f", '{"x": 1}')]),
        ("<tool_call>f</tool_call>", "", [("f", "{}")]),
        ("<function=f><parameter=x>\n1\n2\n</parameter></function>", "", [("f", '{"x": "1\\n2"}')]),
        ('[TOOL_CALLS]f{"x": 1}', "", [("f", '{"x": 1}')]),
        ('{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}', "", [("f", '{"x": 1}')]),
        ('{"function_call": {"name": "f", "arguments": "{}"}}', "", [("f", "{}")]),
        ('```json\n{"name": "g", "arguments": {}}\n```', None, []),
        ("Nothing to call.", None, []),
        ('x<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>',
         "x", [("f", '{"x": 1}')]),
        ('<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": "a}"}', "",
         [("f", '{"x": "a}"}')]),
        ("<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "", [("f", '{"x": "1"}')]),
        (f'a<{D}s▁begin｜><{D}▁begin｜>function<｜tool▁sep｜>f\n```json\n{{"x": {{"y": 1}}}}\n```<{D}▁end｜>',
         "a", [("f", '{"x": {"y": 1}}')]),
        (f'<{D}▁begin｜>f<｜tool▁sep｜>{{"x": 1}}<{D}▁end｜><{D}▁begin｜>f<｜tool▁sep｜>{{}}<{D}▁end｜>',
         "", [("f", '{"x": 1}'), ("f", "{}")]),
        ('<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
         "<|tool_call_end|>", "", [("f", '{"x": 1}')]),
        ('a\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n</invoke>\n'
         "</minimax:tool_call>", "a", [("f", '{"x": "1"}')]),
        ('<|tool_call>call:f{x:<|"|>a, "b": {c}<|"|>,n:1}<tool_call|>', "",
         [("f", '{"x":"a, \\"b\\": {c}","n":1}')]),
        ('```tool_code\nprint(default_api.f(x="1"))\n```', "", [("f", '{"x": "1"}')]),
        ("[f(x=[1, 'a']), f()]", "", [("f", '{"x": [1, "a"]}'), ("f", "{}")]),
        ("[f(x=1), g()]", None, []),
        ("f(x=1)", None, []),
        ("<|python_start|>[f(x=True)]<|python_end|>", "", [("f", '{"x": true}')]),
    ],
)  # fmt: skip
def test_tool_calls_as_text(text: str, prose: str | None, calls: list[tuple[str, str]]) -> None:
    assert text_tool_calls(text, ["f"], quoted=True) == (text if prose is None else prose, calls)


@pytest.mark.parametrize("text", [
    'Write `<tool_call>{"name": "f", "arguments": {}}</tool_call>` for it.',
    '```\n<invoke name="f"><parameter name="x">1</parameter></invoke>\n```',
    "```tool_code\nf(x=1)\n```", "It is `to=functions.f<|message|>{}<|call|>`.",
])  # fmt: skip
def test_a_quoted_call_is_none_where_calls_are_native(text: str) -> None:
    assert text_tool_calls(text, ["f"], quoted=False) == (text, [])


def test_repetition_is_detected_and_ordinary_text_is_not() -> None:
    def detected(text: str) -> bool:
        detector = RepetitionDetector()
        return any([detector.feed(text[i : i + 5]) for i in range(0, len(text), 5)])

    for repetitive in ("I will now check it again. " * 60, "ab" * 2000, "- item number one\n" * 30):
        assert detected(repetitive)
    assert not detected("".join(f"line {n}: the value is {n * n}\n" for n in range(400)))
    assert not detected("".join(f"    def test_{n}(self):\n        self.check({n})\n\n" for n in range(100)))
    assert not detected("\n" * 3000)


def test_the_kept_start_of_a_repetition_is_short() -> None:
    assert without_repetition("Start. " + "round and round. " * 100).count("round and round") < 30
    assert without_repetition("all is well") == "all is well"


def test_tool_output_is_truncated_and_without_control_codes() -> None:
    assert truncate_output("\x1b[1mok\x1b[0m\r\n\x1b]0;title\x07\x00x\u202ey", 100) == ("ok\nx\u202ey", 0)
    text, dropped = truncate_output("a" * 10_000 + "z" * 10_000, 1000)
    assert text.startswith("aaa") and text.endswith("zzz") and len(text) < 1100 and dropped == 19_000
    text, dropped = truncate_output("a" * 3_000_000, 1000)
    assert len(text) < 1100 and dropped == 2_999_000
