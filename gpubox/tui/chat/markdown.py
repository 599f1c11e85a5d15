"""One block of Markdown as lines of a width. Pure; the parser is imported at the first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpubox.tui.chat.blocks import MarkdownBlock
from gpubox.tui.chat.clean import clean, cut
from gpubox.tui.chat.code import highlight_code, highlight_line
from gpubox.tui.chat.inline import inline_spans
from gpubox.tui.chat.wrap import wrap, wrap_hard
from gpubox.tui.styled_lines import StyledLine, cell_width, pad_line, truncate_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

HEADINGS = {"h1": "bold $heading", "h2": "bold $heading"}
QUOTE_MARK = "▎ "
MAX_DEPTH = 12
"""Deeper nesting is shown flat: no width is left, and no text may exhaust the stack."""
ON_CODE = "on $panel"


def block_lines(block: MarkdownBlock, width: int, *, open_: bool = False) -> list[StyledLine]:
    """The lines of ``block``, ``width`` cells wide at most; an ``open_`` one is still being written."""
    if block.code:
        return code_lines(block.text, block.language, width, open_=open_, head=not block.tight)
    from markdown_it.tree import SyntaxTreeNode

    text = "\n".join(cut(line) for line in block.text.split("\n"))
    return _blocks(SyntaxTreeNode(_parser().parse(text)).children, width, 0)


def code_lines(text: str, language: str, width: int, *, open_: bool = False, head: bool = True) -> list[StyledLine]:
    """Code on its own ground, with the language above it."""
    lines = [cut(line.expandtabs(4)) for line in text.split("\n")]
    found = [highlight_line(line, language) for line in lines] if open_ else highlight_code("\n".join(lines), language)
    rows: list[StyledLine] = [((f" {clean(language) or 'code'}", "$quiet"),)] if head else []
    for line in found:
        rows += [((" ", ""), *part) for part in wrap_hard(line, width - 2)]
    return [with_background(row, width, ON_CODE) for row in rows]


def with_background(row: StyledLine, width: int, ground: str) -> StyledLine:
    """``row`` as wide as ``width``, all of it on ``ground``."""
    return tuple((text, f"{style} {ground}".strip()) for text, style in pad_line(row, width))


def preload() -> None:
    """Imports what the first answer needs: it takes longer than a frame, so a thread does it before."""
    block_lines(MarkdownBlock("*a* `b`\n\n- c"), 40)
    for language in ("python", "bash", "json"):
        highlight_code("x = 1", language)


def fences(text: str) -> list[tuple[str, str]]:
    """Language and text of every code block in ``text``."""
    tokens = _parser().parse(text)
    return [((token.info.split() or [""])[0], token.content) for token in tokens if token.type == "fence"]


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"maxNesting": 40}).enable(["table", "strikethrough"])


def _blocks(nodes: Sequence[SyntaxTreeNode], width: int, depth: int, *, tight: bool = False) -> list[StyledLine]:
    rows: list[StyledLine] = []
    for node in nodes:
        if rows and not tight and not node.hidden:
            rows.append(())
        rows += _block(node, max(8, width), depth)
    return rows


def _block(node: SyntaxTreeNode, width: int, depth: int) -> list[StyledLine]:
    kind = node.type
    if kind in ("paragraph", "inline"):
        return wrap(_inline(node), width)
    if kind == "heading":
        return wrap(_inline(node, HEADINGS.get(node.tag, "bold")), width)
    if kind in ("fence", "code_block"):
        return code_lines(node.content.removesuffix("\n"), (node.info.split() or [""])[0] if node.info else "", width)
    if kind in ("bullet_list", "ordered_list") and depth < MAX_DEPTH:
        return _list(node, width, depth)
    if kind == "blockquote" and depth < MAX_DEPTH:
        inner = _blocks(node.children, width - len(QUOTE_MARK), depth + 1)
        return [((QUOTE_MARK, "$quiet"), *row) for row in inner]
    if kind == "hr":
        return [(("─" * width, "$line"),)]
    if kind == "table":
        return _table(node, width)
    if kind == "html_block":
        return [row for line in node.content.rstrip("\n").split("\n") for row in wrap(((clean(line), ""),), width)]
    if node.children:
        return _blocks(node.children, width, depth + 1)
    return [row for line in node.content.split("\n") for row in wrap(((clean(line), ""),), width)]


def _inline(node: SyntaxTreeNode, style: str = "") -> StyledLine:
    inline = node if node.type == "inline" else next((child for child in node.children if child.type == "inline"), None)
    token = inline.token if inline else None
    return inline_spans(token.children or (), style) if token else ()


def _list(node: SyntaxTreeNode, width: int, depth: int) -> list[StyledLine]:
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    rows: list[StyledLine] = []
    for at, item in enumerate(node.children):
        mark = f"{number + at}. " if number is not None else ("• ", "◦ ", "▪ ")[depth % 3]
        tight = all(child.hidden for child in item.children if child.type == "paragraph")
        inner = _blocks(item.children, width - len(mark), depth + 1, tight=tight) or [()]
        if rows and not tight:
            rows.append(())
        rows += [
            ((mark if not i else " " * len(mark), "$quiet"), *row) if row or not i else ()
            for i, row in enumerate(inner)
        ]
    return rows


def _table(node: SyntaxTreeNode, width: int) -> list[StyledLine]:
    """Columns as wide as they need; where that is too much the widest give way, and their cells are cut."""
    table = [[_inline(cell) for cell in row.children] for part in node.children for row in part.children]
    count = max((len(row) for row in table), default=0)
    if not count:
        return []
    widths = [max([3, *(cell_width(row[at]) for row in table if at < len(row))]) for at in range(count)]
    room = max(3 * count, width - 3 * (count - 1))
    while sum(widths) > room:
        widest = max(range(count), key=lambda at: widths[at])
        others = [w for at, w in enumerate(widths) if at != widest]
        widths[widest] = max(3, max([w for w in others if w < widths[widest]], default=3), room - sum(others))
        if widths[widest] == 3 or max(widths) == min(widths):
            widths = [max(3, min(w, room // count)) for w in widths]
            break
    bar = (" │ ", "$line")
    rows: list[StyledLine] = []
    for number, row in enumerate(table):
        shown = [pad_line(row[at] if at < len(row) else (), widths[at]) for at in range(count)]
        if not number:
            shown = [tuple((text, f"bold {style}".strip()) for text, style in cell) for cell in shown]
        rows.append(
            truncate_line(
                tuple(span for at, cell in enumerate(shown) for span in ((bar, *cell) if at else cell)), width
            )
        )
        if not number:
            rows.append(truncate_line((("─┼─".join("─" * w for w in widths), "$line"),), width))
    return rows


def longest(rows: Sequence[StyledLine]) -> int:
    """The cells that the widest row takes."""
    return max((sum(cell_len(text) for text, _ in row) for row in rows), default=0)
