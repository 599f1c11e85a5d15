"""Streamed Markdown as styled lines for a width: only the last block of a stream is laid out again. Pure.

The Markdown parser and Pygments are imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpubox.sanitize import reveal_hidden, sanitize_line
from gpubox.tui.styled_lines import StyledLine, StyledText, cell_width, pad_line, truncate_line, wrap, wrap_hard

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode

LINE_CHARS = 20_000
"""Longer lines are cut: nobody reads a megabyte on one line, and wrapping it would block the screen."""
OPEN_BLOCK_CHARS = {"fence": 30_000, "table": 12_000, "bullet_list": 1500, "ordered_list": 1500}
"""A longer block is split while it is streamed. Half a table has no header, half a program may have wrong colours."""
OTHER_BLOCK_CHARS = 3000
HIGHLIGHTED_CHARS = 60_000
"""Longer code has no colours: highlighting it would take longer than a frame."""
MARKER_CHARS = 12
"""A line begins with at most so many characters that say what block it is in."""
MAX_DEPTH = 12
"""Deeper nesting is flattened: there is no width left, and hostile text must not exhaust the stack."""
QUOTE_MARK = "▎ "
MIN_COLUMN_CELLS = 3


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


class MarkdownStream:
    """The lines of a text that grows. Blocks that have ended keep theirs."""

    def __init__(self) -> None:
        self.text = ""
        self._width = 0
        self._lines: list[StyledLine] = []
        """Of the blocks that have ended."""
        self.kept_chars = 0
        """Of ``text``, in blocks that have ended."""
        self._continued = False
        """Whether the open block is the rest of one that was split."""
        self._fence = ""
        """The line that opened the program whose rest is the open block."""

    def add(self, text: str) -> None:
        self.text += text.replace("\r", "")  # the parser would count it as the end of a line

    def drop_code(self, code: str) -> None:
        """Removes the last block if it is ``code``."""
        blocks = _blocks(self.text)
        if blocks and blocks[-1].type == "fence" and blocks[-1].content.strip() == code.strip():
            self.text = self.text[: _start(self.text, blocks[-1])]
            self._width = 0

    def lines(self, width: int, *, over: bool) -> list[StyledLine]:
        """The lines, at most ``width`` cells wide. ``over``: nothing will be added."""
        if width != self._width:
            self._width, self._lines, self.kept_chars, self._continued, self._fence = width, [], 0, False, ""
        source = self._fence + self.text[self.kept_chars :]
        blocks = _blocks(source)
        if over:
            self._keep(blocks)
            self.kept_chars, self._fence = len(self.text), ""
        if over or not blocks:
            return list(self._lines)
        *ended, last = blocks
        if not ended and len(source) > OPEN_BLOCK_CHARS.get(last.type, OTHER_BLOCK_CHARS):
            self._split(last, source)
            return self.lines(width, over=False)
        kept, continued, start = len(self._lines), self._continued, _start(source, last)
        self._keep(ended)
        lines = self._lines + self._block_lines(last, open_=True)
        if "\n" in source[start:] or len(source) - start > MARKER_CHARS:
            self.kept_chars += start - len(self._fence) if ended else 0
            self._fence = "" if ended else self._fence
        else:  # "2" may become "2.", the next item of a list that has not ended then
            del self._lines[kept:]
            self._continued = continued
        return lines

    def _keep(self, blocks: Sequence[SyntaxTreeNode], *, open_: bool = False) -> None:
        for block in blocks:
            self._lines += self._block_lines(block, open_=open_)
            self._continued = False

    def _block_lines(self, block: SyntaxTreeNode, *, open_: bool) -> list[StyledLine]:
        gap: list[StyledLine] = [()] if self._lines and not self._continued else []
        if block.type != "fence":
            return gap + _node_lines(block, self._width, 0)
        code, language = block.content.removesuffix("\n"), _language(block)
        return gap + _code_lines(code, language, self._width, open_=open_, title=not self._continued)

    def _split(self, block: SyntaxTreeNode, source: str) -> None:
        """Ends most of a block that has become too long: all items of a list but the last, lines of code, or words."""
        end, fence = max(source.rfind(" "), source.rfind("\n")) + 1, ""
        if block.type == "fence":
            start = _start(source, block)
            fence = source[start : source.index("\n", start) + 1]
            end = source.rfind("\n") + 1
            end = end if end > start + len(fence) else 0
        elif block.type in ("bullet_list", "ordered_list") and len(block.children) > 1:
            end = _start(source, block.children[-1])
        end = end or len(source)
        self._keep(_blocks(source[:end]), open_=True)
        self.kept_chars += end - len(self._fence)
        self._fence, self._continued = fence, True


def _blocks(text: str) -> Sequence[SyntaxTreeNode]:
    from markdown_it.tree import SyntaxTreeNode

    return SyntaxTreeNode(_parser().parse("\n".join(map(cut_long_line, text.split("\n"))))).children


def _start(text: str, block: SyntaxTreeNode) -> int:
    """Where ``block`` of ``text`` begins."""
    assert block.map
    return sum(len(line) + 1 for line in text.split("\n", block.map[0])[: block.map[0]])


def fences(text: str) -> list[tuple[str, str]]:
    """Language and text of every fenced code block in ``text``."""
    tokens = _parser().parse(text)
    return [((token.info.split() or [""])[0], token.content) for token in tokens if token.type == "fence"]


def preload() -> None:
    """Imports the parser and the common lexers, which takes longer than a frame: call it in a thread."""
    stream = MarkdownStream()
    stream.add("*a* `b`\n\n- c")
    stream.lines(40, over=True)
    for language in ("python", "bash", "json"):
        highlight_code("x = 1", language)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"maxNesting": 40}).enable(["table", "strikethrough"])


# -- blocks -------------------------------------------------------------------------------------------


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
        return _code_lines(node.content.removesuffix("\n"), _language(node), width)
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


def _language(node: SyntaxTreeNode) -> str:
    return (node.info.split() or [""])[0].strip("{}.")


def _table_lines(node: SyntaxTreeNode, width: int) -> list[StyledLine]:
    """The table with columns as wide as their content; if that is too wide, the widest columns are cut."""
    table = [[_inline(cell) for cell in row.children] for part in node.children for row in part.children]
    count = max((len(row) for row in table), default=0)
    available = width - 3 * (count - 1)
    widths = [max([MIN_COLUMN_CELLS, *(cell_width(row[at]) for row in table if at < len(row))]) for at in range(count)]
    for limit in range(max(available, MIN_COLUMN_CELLS), MIN_COLUMN_CELLS - 1, -1):
        if sum(min(size, limit) for size in widths) <= available:
            break
    widths = [min(size, limit) for size in widths]
    rows: list[StyledLine] = []
    for number, row in enumerate(table):
        columns = [pad_line(row[at] if at < len(row) else (), widths[at]) for at in range(count)]
        if not number:
            columns = [tuple((text, f"bold {style}".strip()) for text, style in column) for column in columns]
        spans = [span for at, column in enumerate(columns) for span in (((" │ ", "$line"),) if at else ()) + column]
        rows.append(truncate_line(tuple(spans), width))
        if not number:
            rows.append(truncate_line((("─┼─".join("─" * size for size in widths), "$line"),), width))
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
    rows: list[StyledLine] = []
    if title:
        rows.append(_on_panel(((f" {sanitize_line(language) or 'code'}", "$quiet"),), width))
    if open_:
        return rows + [row for line in lines for row in _open_code_rows(line, language, width)]
    return rows + [row for line in highlight_code("\n".join(lines), language) for row in _code_rows(line, width)]


def _code_rows(line: StyledLine, width: int) -> list[StyledLine]:
    return [_on_panel(((" ", ""), *part), width) for part in wrap_hard(line, width - 2)]


def _on_panel(row: StyledLine, width: int) -> StyledLine:
    return tuple((text, f"{style} on $panel".strip()) for text, style in pad_line(row, width))


@lru_cache(maxsize=4096)
def _open_code_rows(line: str, language: str, width: int) -> list[StyledLine]:
    """One line of code that is still streamed, highlighted without the lines before it."""
    return _code_rows(highlight_code(line, language)[0], width)


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


# -- wrapping -----------------------------------------------------------------------------------------


def cut_long_line(line: str) -> str:
    """``line`` cut after ``LINE_CHARS`` characters, with a count of the rest."""
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS]} … {len(line) - LINE_CHARS:,} more characters"


def output_lines(text: str) -> list[str]:
    """The lines of a program's output. If a line was overwritten (``\\r``), only its last state is kept."""
    lines = [sanitize_line(cut_long_line(line.removesuffix("\r").rpartition("\r")[2])) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
