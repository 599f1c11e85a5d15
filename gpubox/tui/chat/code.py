"""Code with its colours, one line of spans for each line of it. Pure; Pygments is imported at the first use."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpubox.sanitize import reveal_hidden
from gpubox.tui.styled_lines import StyledLine, StyledText

HIGHLIGHTED_CHARS = 60_000
"""More than this is shown without colours: they would take longer than a frame."""
_STYLES = (
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
_MAY_COLOUR = (
    " python py python3 bash sh shell console zsh c cpp c++ cuda rust go java javascript js typescript ts tsx jsx json "
    "yaml yml toml ini html css sql diff dockerfile makefile lua ruby rb php swift kotlin scala haskell r perl xml "
    "nim zig csharp c# cs elixir erlang clojure julia powershell cmake "
)


def highlight_code(code: str, language: str) -> list[StyledLine]:
    """The lines of ``code`` as spans; without colours where the language is not known or the code is very long."""
    lines = code.split("\n")
    if len(code) > HIGHLIGHTED_CHARS or not (lexer := _lexer(language)):
        return [_plain(line) for line in lines]
    # The lexer sees clean lines: what it splits must be what is drawn.
    text = "\n".join(reveal_hidden(line) for line in lines)
    rows: list[list[StyledText]] = [[]]
    for kind, value in lexer.get_tokens(text):
        style = _style(str(kind))
        for at, piece in enumerate(value.split("\n")):
            if at:
                rows.append([])
            if piece:
                rows[-1].append((piece, style))
    return [tuple(rows[at]) if at < len(rows) else () for at in range(len(lines))]


@lru_cache(maxsize=4096)
def highlight_line(line: str, language: str) -> StyledLine:
    """One line of code that is still being written; what a line before it began is not known."""
    return highlight_code(line, language)[0]


def _plain(line: str) -> StyledLine:
    return ((reveal_hidden(line), ""),) if line else ()


@lru_cache(maxsize=64)
def _style(kind: str) -> str:
    return next((style for name, style in _STYLES if kind.startswith(name)), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Any:
    name = language.lower()
    if f" {name} " not in _MAY_COLOUR:
        return None
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
