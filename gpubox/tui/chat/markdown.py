"""Streamed Markdown as styled lines: text is split into blocks, and each block is laid out for a width. Pure.

Only the last block of a stream can change, so only that one is laid out again. The Markdown parser and Pygments are
imported at first use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpubox.sanitize import reveal_hidden, sanitize_line
from gpubox.tui.chat.wrap import cut_long_line, wrap, wrap_hard
from gpubox.tui.styled_lines import StyledLine, StyledText, cell_width, pad_line, truncate_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode

CODE_LINES = 40
"""An open code block is split after this many lines, and joined again when it is closed."""
BLOCK_CHARS = 3000
"""A longer block is split, at a space if it has one."""
JOINED_CODE_CHARS = 60_000
"""A longer code block stays split when it is closed."""
HIGHLIGHTED_CHARS = 60_000
"""Longer code has no colours: highlighting it would take longer than a frame."""
MAX_DEPTH = 12
"""Deeper nesting is flattened: there is no width left, and hostile text must not exhaust the stack."""
QUOTE_MARK = "▎ "

_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"\s{0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING_STYLES = {"h1": "bold $heading", "h2": "bold $heading"}
_MARK_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}
_TOKEN_STYLES = (
    ("Token.Comment", "italic $code-comment"),
    ("Token.Keyword", "$code-keyword"),
    ("Token.Literal.String", "$code-string"),
    ("Token.Literal.Number", "$code-number"),
    ("Token.Operator.Word", "$code-keyword"),
    ("Token.Name.Function", "$code-name"),
    ("Token.Name.Class", "$code-name"),
    ("Token.Name.Decorator", "$code-name"),
    ("Token.Name.Builtin", "$code-builtin"),
    ("Token.Generic.Deleted", "$error"),
    ("Token.Generic.Inserted", "$success"),
    ("Token.Generic.Heading", "bold"),
)
_LANGUAGES = (
    " python py python3 bash sh shell console zsh c cpp c++ cuda rust go java javascript js typescript ts tsx jsx json "
    "yaml yml toml ini html css sql diff dockerfile makefile lua ruby rb php swift kotlin scala haskell r perl xml "
    "nim zig csharp c# cs elixir erlang clojure julia powershell cmake "
)
"""Languages that are highlighted."""


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A piece of Markdown that can be laid out alone."""

    text: str
    tight: bool = False
    """Whether it continues the block before it, without an empty line between them."""
    code: bool = False
    """Whether ``text`` is only lines of a code block in ``language``, without its fences."""
    language: str = ""


class MarkdownBlocks:
    """Splits streamed text into blocks.

    A closed block does not change, with one exception: the pieces of a long code block are joined when it ends.
    """

    def __init__(self) -> None:
        self.closed: list[MarkdownBlock] = []
        self.joined_from: int | None = None
        """Index of the first closed block that the last ``add`` or ``end`` replaced; ``None``: it replaced none."""
        self._open = ""
        self._line = 0
        """Index in ``_open`` of the first line that has not been parsed yet."""
        self._fence: tuple[str, str] | None = None
        """Marker and language of the open code block; only for code blocks that start at the margin."""
        self._inner_marker = ""
        """Marker of an open code block inside a list."""
        self._code_from = 0
        """Index of the first closed block of the open code block."""
        self._blank = False
        self._tight = False

    @property
    def tail(self) -> MarkdownBlock | None:
        """The block that is still open."""
        if self._fence:
            return MarkdownBlock(self._open.removesuffix("\n"), self._tight, True, self._fence[1])
        return MarkdownBlock(self._open, self._tight) if self._open.strip() else None

    def add(self, text: str) -> None:
        """Appends ``text`` to the stream."""
        self.joined_from = None
        self._open += text
        while (end := self._open.find("\n", self._line)) >= 0:
            self._parse_line(self._open[self._line : end], end + 1)
        partial = self._open[self._line :]
        if self._blank and partial.strip() and not self._continues_list(partial):
            self._close(self._line)
        if len(self._open) > BLOCK_CHARS:
            self._split()

    def end(self) -> None:
        """Ends the stream and closes the open block."""
        self.joined_from = None
        if last := self._open[self._line :]:
            self._parse_line(last, len(self._open))
        if self._fence:
            self._end_code(len(self._open), len(self._open))
        elif self._open.strip():
            self._close(len(self._open))

    def _parse_line(self, line: str, after: int) -> None:
        """Parses one whole line, which starts at ``_line``; the next one starts at ``after``."""
        if self._fence:
            if line.strip().startswith(self._fence[0]) and not line.strip().strip(self._fence[0][0]):
                self._end_code(self._line, after)
            else:
                self._line = after
                if self._open.count("\n", 0, after) >= CODE_LINES:
                    self._close_code(after)
            return
        fence = _FENCE.fullmatch(line)
        if self._inner_marker:
            if fence and fence[2].startswith(self._inner_marker) and not fence[3].strip():
                self._inner_marker = ""
            self._line = after
            return
        if not line.strip():
            self._blank = self._blank or bool(self._open[: self._line].strip())
            self._line = after
            return
        if self._blank and not self._continues_list(line):
            after -= self._close(self._line)
        if fence and (not fence[1] or not self._in_list):
            if self._open[: self._line].strip():
                after -= self._close(self._line)
            self._fence = (fence[2], (fence[3].split() or [""])[0].strip("{}."))
            self._code_from, self._open, self._line = len(self.closed), self._open[after:], 0
            return
        if fence:
            self._inner_marker = fence[2]
        elif self._line > BLOCK_CHARS // 2 and _ITEM.match(line) and self._in_list and not line[0].isspace():
            after -= self._close(self._line)
            self._tight = True
        self._blank = False
        self._line = after

    @property
    def _in_list(self) -> bool:
        return bool(_ITEM.match(self._open.lstrip("\n")))

    def _continues_list(self, line: str) -> bool:
        """Whether a line after an empty line still belongs to the list before it."""
        return self._in_list and line.startswith(("  ", "\t"))

    def _close(self, end: int) -> int:
        """Closes the first ``end`` characters of the open text as a block; returns ``end``."""
        self.closed.append(MarkdownBlock(self._open[:end].strip("\n"), self._tight))
        self._open, self._line, self._blank, self._tight = self._open[end:], 0, False, False
        return end

    def _close_code(self, end: int) -> None:
        assert self._fence
        self.closed.append(MarkdownBlock(self._open[:end].removesuffix("\n"), self._tight, True, self._fence[1]))
        self._open, self._line, self._tight = self._open[end:], 0, True

    def _end_code(self, end: int, after: int) -> None:
        """Ends the code block at ``end`` and joins its pieces: a lexer needs the whole code for the right colours."""
        assert self._fence
        pieces = self.closed[self._code_from :]
        last = self._open[:end].removesuffix("\n")
        whole = "\n".join([*(piece.text for piece in pieces), *([last] if end or not pieces else [])])
        if len(whole) <= JOINED_CODE_CHARS:
            if pieces:
                self.joined_from = self._code_from
            self.closed[self._code_from :] = [MarkdownBlock(whole, False, True, self._fence[1])]
        elif last:
            self.closed.append(MarkdownBlock(last, True, True, self._fence[1]))
        self._fence, self._tight = None, False
        self._open, self._line = self._open[after:], 0

    def _split(self) -> None:
        """Closes most of a block that has become too long."""
        if self._fence:
            self._close_code(self._open.rfind("\n") + 1 or len(self._open))
            return
        if self._open.lstrip().startswith("|") and len(self._open) < 4 * BLOCK_CHARS:
            return  # the second half of a table has no header and would be plain text
        end = max(self._open.rfind(" "), self._open.rfind("\n")) + 1 or len(self._open)
        line = self._line
        self._close(end)
        self._tight, self._inner_marker = True, ""
        self._line = max(0, line - end)


# -- layout -------------------------------------------------------------------------------------------


def block_lines(block: MarkdownBlock, width: int, *, open_: bool = False) -> list[StyledLine]:
    """The lines of ``block``, at most ``width`` cells wide. ``open_``: the block is still streamed."""
    if block.code:
        return _code_lines(block.text, block.language, width, open_=open_, title=not block.tight)
    from markdown_it.tree import SyntaxTreeNode

    text = "\n".join(cut_long_line(line) for line in block.text.split("\n"))
    return _nodes_lines(SyntaxTreeNode(_parser().parse(text)).children, width, 0)


def fences(text: str) -> list[tuple[str, str]]:
    """Language and text of every fenced code block in ``text``."""
    tokens = _parser().parse(text)
    return [((token.info.split() or [""])[0], token.content) for token in tokens if token.type == "fence"]


def preload() -> None:
    """Imports the parser and the common lexers, which takes longer than a frame: call it in a thread."""
    block_lines(MarkdownBlock("*a* `b`\n\n- c"), 40)
    for language in ("python", "bash", "json"):
        highlight_code("x = 1", language)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"maxNesting": 40}).enable(["table", "strikethrough"])


def _nodes_lines(nodes: Sequence[SyntaxTreeNode], width: int, depth: int, *, tight: bool = False) -> list[StyledLine]:
    rows: list[StyledLine] = []
    for node in nodes:
        if rows and not tight and not node.hidden:
            rows.append(())
        rows += _node_lines(node, max(8, width), depth)
    return rows


def _node_lines(node: SyntaxTreeNode, width: int, depth: int) -> list[StyledLine]:
    kind = node.type
    if kind in ("paragraph", "inline"):
        return wrap(_inline(node), width)
    if kind == "heading":
        return wrap(_inline(node, _HEADING_STYLES.get(node.tag, "bold")), width)
    if kind in ("fence", "code_block"):
        language = (node.info.split() or [""])[0] if node.info else ""
        return _code_lines(node.content.removesuffix("\n"), language, width)
    if kind in ("bullet_list", "ordered_list") and depth < MAX_DEPTH:
        return _list_lines(node, width, depth)
    if kind == "blockquote" and depth < MAX_DEPTH:
        rows = _nodes_lines(node.children, width - len(QUOTE_MARK), depth + 1)
        return [((QUOTE_MARK, "$quiet"), *row) for row in rows]
    if kind == "hr":
        return [(("─" * width, "$line"),)]
    if kind == "table":
        return _table_lines(node, width)
    if kind != "html_block" and node.children:
        return _nodes_lines(node.children, width, depth + 1)
    text = node.content.rstrip("\n") if kind == "html_block" else node.content
    return [row for line in text.split("\n") for row in wrap(((sanitize_line(line), ""),), width)]


def _list_lines(node: SyntaxTreeNode, width: int, depth: int) -> list[StyledLine]:
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    rows: list[StyledLine] = []
    for index, item in enumerate(node.children):
        mark = f"{number + index}. " if number is not None else ("• ", "◦ ", "▪ ")[depth % 3]
        tight = all(child.hidden for child in item.children if child.type == "paragraph")
        item_rows = _nodes_lines(item.children, width - len(mark), depth + 1, tight=tight) or [()]
        if rows and not tight:
            rows.append(())
        rows += [
            ((mark if not i else " " * len(mark), "$quiet"), *row) if row or not i else ()
            for i, row in enumerate(item_rows)
        ]
    return rows


def _table_lines(node: SyntaxTreeNode, width: int) -> list[StyledLine]:
    """The table with columns as wide as their content; if that is too wide, the widest columns are cut."""
    table = [[_inline(cell) for cell in row.children] for part in node.children for row in part.children]
    count = max((len(row) for row in table), default=0)
    if not count:
        return []
    widths = [max([3, *(cell_width(row[at]) for row in table if at < len(row))]) for at in range(count)]
    available = max(3 * count, width - 3 * (count - 1))
    while sum(widths) > available:
        widest = max(range(count), key=lambda at: widths[at])
        others = [w for at, w in enumerate(widths) if at != widest]
        widths[widest] = max(3, max([w for w in others if w < widths[widest]], default=3), available - sum(others))
        if widths[widest] == 3 or max(widths) == min(widths):
            widths = [max(3, min(w, available // count)) for w in widths]
            break
    bar = (" │ ", "$line")
    rows: list[StyledLine] = []
    for number, row in enumerate(table):
        columns = [pad_line(row[at] if at < len(row) else (), widths[at]) for at in range(count)]
        if not number:
            columns = [tuple((text, f"bold {style}".strip()) for text, style in column) for column in columns]
        spans = [span for at, column in enumerate(columns) for span in ((bar, *column) if at else column)]
        rows.append(truncate_line(tuple(spans), width))
        if not number:
            rows.append(truncate_line((("─┼─".join("─" * w for w in widths), "$line"),), width))
    return rows


def _inline(node: SyntaxTreeNode, style: str = "") -> StyledLine:
    inline = node if node.type == "inline" else next((child for child in node.children if child.type == "inline"), None)
    token = inline.token if inline else None
    return _inline_spans(token.children or (), style) if token else ()


def _inline_spans(tokens: Sequence[Token], style: str) -> StyledLine:
    """The spans of an inline token's children: emphasis, code and links on top of ``style``."""
    spans: list[StyledText] = []
    marks: list[tuple[str, str]] = []
    """The open marks: style, and for a link its address, which follows the link's text."""
    for token in tokens:
        marked = " ".join([style, *(mark for mark, _ in marks)]).strip()
        name = token.type.removesuffix("_open").removesuffix("_close")
        if token.type in ("text", "text_special", "html_inline"):
            spans.append((sanitize_line(token.content), marked))
        elif token.type == "code_inline":
            spans.append((sanitize_line(token.content), f"{marked} $code-inline".strip()))
        elif token.type in ("softbreak", "hardbreak"):
            spans.append((" " if token.type == "softbreak" else "\n", marked))
        elif token.type == "image":
            label = sanitize_line(token.content or str(token.attrs.get("src", "")))
            spans.append((f"[image: {label}]", f"{marked} $quiet".strip()))
        elif token.nesting > 0 and name in _MARK_STYLES:
            marks.append(
                (_MARK_STYLES[name], sanitize_line(str(token.attrs.get("href", ""))) if name == "link" else "")
            )
        elif token.nesting < 0 and marks:
            _, address = marks.pop()
            if address and not any(address.endswith(text) or text == address for text, _ in spans[-1:]):
                spans.append((f" ({address})", "$quiet"))
    return tuple(span for span in spans if span[0])


# -- code ---------------------------------------------------------------------------------------------


def _code_lines(text: str, language: str, width: int, *, open_: bool = False, title: bool = True) -> list[StyledLine]:
    """Code on its own background, under its language."""
    lines = [cut_long_line(line.expandtabs(4)) for line in text.split("\n")]
    if open_:
        highlighted = [_highlight_line(line, language) for line in lines]
    else:
        highlighted = highlight_code("\n".join(lines), language)
    rows: list[StyledLine] = [((f" {sanitize_line(language) or 'code'}", "$quiet"),)] if title else []
    for line in highlighted:
        rows += [((" ", ""), *part) for part in wrap_hard(line, width - 2)]
    return [tuple((text, f"{style} on $panel".strip()) for text, style in pad_line(row, width)) for row in rows]


def highlight_code(code: str, language: str) -> list[StyledLine]:
    """One line of spans for each line of ``code``; without colours if the language is unknown or the code too long."""
    lines = code.split("\n")
    if len(code) > HIGHLIGHTED_CHARS or not (lexer := _lexer(language)):
        return [((reveal_hidden(line), ""),) if line else () for line in lines]
    # The lexer must see the text that is drawn, or its tokens would not match the lines.
    text = "\n".join(reveal_hidden(line) for line in lines)
    rows: list[list[StyledText]] = [[]]
    for token, value in lexer.get_tokens(text):
        style = _token_style(str(token))
        for index, part in enumerate(value.split("\n")):
            if index:
                rows.append([])
            if part:
                rows[-1].append((part, style))
    return [tuple(rows[index]) if index < len(rows) else () for index in range(len(lines))]


@lru_cache(maxsize=4096)
def _highlight_line(line: str, language: str) -> StyledLine:
    """One line of code that is still streamed, highlighted without the lines before it."""
    return highlight_code(line, language)[0]


@lru_cache(maxsize=64)
def _token_style(token: str) -> str:
    return next((style for name, style in _TOKEN_STYLES if token.startswith(name)), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Any:
    if f" {language.lower()} " not in _LANGUAGES:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
