"""Markdown as lines: for any split of the stream, any width and any content."""

from __future__ import annotations

import random

import pytest

from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.markdown import LINE_CHARS, MarkdownStream, fences, highlight_code, output_lines
from gpubox.tui.styled_lines import StyledLine, cell_width, wrap, wrap_hard

DOCUMENT = """# A title

Some **bold *and both*** with `code` and [a link](http://host/page), [/foo] and \x1b[31mred\x1b[0m.

1. Do this:
   ```python
   def f(x):
       return x + 1
   ```
2. Then that

   in two paragraphs
- a
- b
  - nested

| name | what |
|---|---|
| alpha | a long description that goes on and on and on and on |

> a quote
> of two lines

~~~~
```
not the end
~~~~
Behind the code.
***
<b>html</b> שלום 👩‍💻 日本語
"""


def texts(rows: list[StyledLine]) -> list[str]:
    return ["".join(text for text, _ in row).rstrip() for row in rows]


def split(text: str, sizes: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = sizes.randint(1, 9)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def laid_out(*pieces: str, width: int = 60) -> list[StyledLine]:
    """The lines of a text after each piece was drawn."""
    stream = MarkdownStream()
    for piece in pieces:
        stream.add(piece)
        stream.lines(width, over=False)
    return stream.lines(width, over=True)


@pytest.mark.parametrize("seed", range(8))
def test_lines_do_not_depend_on_how_the_text_is_split(seed: int) -> None:
    code = '```py\n"""\n' + "\n".join(f"x{i} = {i}" for i in range(120)) + '\n"""\n```\nend\n'
    text = DOCUMENT + code
    assert laid_out(*split(text, random.Random(seed))) == laid_out(text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("```py\nx = 1\n```", [" py", " x = 1"]),
        ("```py\nx = 1\n  ```  ", [" py", " x = 1"]),
        ("```py\nx = 1", [" py", " x = 1"]),
        ("```py\nx = 1\n", [" py", " x = 1"]),
        ("Look:\n```", ["Look:", "", " code", ""]),
    ],
)
def test_a_code_block_may_end_with_the_text(text: str, rows: list[str]) -> None:
    assert texts(laid_out(text)) == rows


LONG = [
    "word " * 4000,
    "x" * 20_000,
    "- item\n" * 3000,
    "```\n" + ("y" * 9000 + "\n") * 5,
    "```py\n" + "x = 1\n" * 7000,
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: repr(text[:9]))
def test_a_block_without_an_end_is_split_and_loses_nothing(text: str) -> None:
    stream, parsed = MarkdownStream(), list[int]()
    for at in range(0, len(text), 500):
        stream.add(text[at : at + 500])
        stream.lines(60, over=False)
        parsed.append(len(stream.text) - stream.kept_chars)
    assert max(parsed) <= 31_000 and parsed[-1] < len(text) / 2
    shown, whole = ("".join(texts(rows)) for rows in (stream.lines(60, over=True), laid_out(text)))
    assert shown.replace(" ", "") == whole.replace(" ", "")


def test_a_document_is_drawn() -> None:
    shown = texts(laid_out(DOCUMENT))
    for line in (
        "A title",
        "1. Do this:",
        "       return x + 1",
        "2. Then that",
        "   in two paragraphs",
        "• a",
        "  ◦ nested",
        "name  │ what",
        "▎ a quote of two lines",
        " ```",
        " not the end",
        "Behind the code.",
        "─" * 60,
        "<b>html</b> שלום 👩💻 日本語",
    ):
        assert any(line in row for row in shown), line
    text = " ".join(shown)
    assert "bold and both with code and a link (http://host/page), [/foo] and red." in text
    assert "\x1b" not in text and "**" not in text


@pytest.mark.parametrize("width", [18, 41, 80, 200])
def test_no_line_is_wider_than_it_may_be(width: int) -> None:
    rows = laid_out(DOCUMENT + "\n" + "日本語" * 200 + "\n\n" + "🙂" * 300, width=width)
    assert all(cell_width(row) <= width for row in rows)


def test_deep_nesting_and_odd_markup_break_nothing() -> None:
    for text in (
        ">" * 500 + " x",
        "- " * 300 + "x",
        "[" * 3000,
        "*" * 3000,
        "`" * 2999,
        "|" * 500 + "\n|-",
        "\0\x7f\x85",
    ):
        assert all(cell_width(row) <= 40 for row in laid_out(text, width=40))


def test_wrap_keeps_words_and_loses_none() -> None:
    sizes = random.Random(5)
    for _ in range(400):
        parts = ["a", "bc ", "  ", "日本", "x" * 9, ".", "🙂 ", "é"]
        line = tuple(("".join(sizes.choices(parts, k=4)), sizes.choice(["", "bold"])) for _ in range(5))
        width = sizes.randint(9, 30)
        whole = "".join(text for text, _ in line)
        rows = wrap(line, width)
        assert all(cell_width(row) <= width for row in rows + wrap_hard(line, width))
        assert "".join(texts(rows)).replace(" ", "") == whole.replace(" ", "")
        if all(cell_width(((word, ""),)) <= width for word in whole.split()):
            assert " ".join(texts(rows)).split() == whole.split()
        assert "".join("".join(text for text, _ in row) for row in wrap_hard(line, width)).rstrip() == whole.rstrip()


def test_output_lines_of_a_program() -> None:
    assert sanitize_line("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b(B") == "red x"
    assert sanitize_line("a\x07b\u202ec") == "a␇b�c"
    assert output_lines("10%\r50%\r100%\r\nnext\n\n") == ["100%", "next"]
    (huge,) = output_lines("x" * 1_000_000)
    assert len(huge) < LINE_CHARS + 100 and huge.endswith("980,000 more characters")


def test_code_has_colours_and_all_its_lines() -> None:
    code = 'def f(x):\n    """doc\n    more"""\n\n    return [/foo] + 1  # why\n'
    rows = highlight_code(code, "python")
    assert ["".join(text for text, _ in row) for row in rows] == code.split("\n")
    assert rows[2][0][1] == "$code-string" and ("# why", "italic $code-comment") in rows[4]
    assert highlight_code("x = 1", "no-such-language") == [(("x = 1", ""),)]


def test_all_fenced_code_blocks_are_found() -> None:
    assert fences(DOCUMENT) == [("python", "def f(x):\n    return x + 1\n"), ("", "```\nnot the end\n")]
