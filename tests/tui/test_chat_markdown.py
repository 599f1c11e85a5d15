"""Markdown as lines: for any split of the stream, any width and any content."""

from __future__ import annotations

import random

import pytest

from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.markdown import (
    BLOCK_CHARS,
    CODE_LINES,
    MarkdownBlock,
    MarkdownBlocks,
    block_lines,
    fences,
    highlight_code,
)
from gpubox.tui.chat.wrap import LINE_CHARS, output_lines, wrap, wrap_hard
from gpubox.tui.styled_lines import StyledLine, cell_width

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


def lines_of(blocks: MarkdownBlocks, width: int = 60) -> list[str]:
    """The lines of all closed blocks."""
    rows: list[StyledLine] = []
    for block in blocks.closed:
        if rows and not block.tight:
            rows.append(())
        rows += block_lines(block, width)
    return texts(rows)


def split(text: str, sizes: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = sizes.randint(1, 9)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def built(*pieces: str) -> MarkdownBlocks:
    blocks = MarkdownBlocks()
    for piece in pieces:
        blocks.add(piece)
    blocks.end()
    return blocks


@pytest.mark.parametrize("seed", range(8))
def test_blocks_do_not_depend_on_how_the_text_is_split(seed: int) -> None:
    long_code = "```py\n" + "\n".join(f"x{i} = {i}" for i in range(3 * CODE_LINES)) + "\n```\nend\n"
    text = DOCUMENT + long_code
    assert built(*split(text, random.Random(seed))).closed == built(text).closed


def test_closed_blocks_change_only_when_code_is_joined() -> None:
    blocks = MarkdownBlocks()
    seen: list[MarkdownBlock] = []
    for char in DOCUMENT:
        blocks.add(char)
        if blocks.joined_from is not None:
            del seen[blocks.joined_from :]
        assert blocks.closed[: len(seen)] == seen
        seen = list(blocks.closed)


def test_the_pieces_of_a_long_code_block_are_joined_at_its_end() -> None:
    blocks = MarkdownBlocks()
    blocks.add('```python\n"""\n' + "text\n" * CODE_LINES)
    assert blocks.closed and blocks.tail and blocks.tail.code
    blocks.add('"""\n```\n')
    assert [block.language for block in blocks.closed] == ["python"] and blocks.joined_from == 0
    assert blocks.closed[0].text.count("\n") == CODE_LINES + 1


def test_a_code_block_may_end_with_the_text() -> None:
    for text in ("```py\nx = 1\n```", "```py\nx = 1\n  ```  ", "```py\nx = 1", "```py\nx = 1\n"):
        (block,) = built(text).closed
        assert block.code and block.text == "x = 1"
    assert built("Look:\n```").closed[0].text == "Look:"


@pytest.mark.parametrize("text", ["word " * 4000, "x" * 20_000, "- item\n" * 3000, "```\n" + "y" * 20_000])
def test_a_block_without_an_end_is_split(text: str) -> None:
    blocks = MarkdownBlocks()
    for at in range(0, len(text), 50):
        blocks.add(text[at : at + 50])
        assert blocks.tail is None or len(blocks.tail.text) <= BLOCK_CHARS + 50


def test_a_document_is_drawn() -> None:
    shown = lines_of(built(DOCUMENT))
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
    for block in built(DOCUMENT + "\n" + "日本語" * 200 + "\n\n" + "🙂" * 300).closed:
        assert all(cell_width(row) <= width for row in block_lines(block, width))


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
        assert all(cell_width(row) <= 40 for block in built(text).closed for row in block_lines(block, 40))


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
