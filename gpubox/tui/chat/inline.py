"""The inside of a Markdown paragraph as spans: emphasis, code, links. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.tui.chat.clean import clean
from gpubox.tui.styled_lines import StyledLine, StyledText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

CODE = "$code-inline"
LINK = "underline"
_MARKS = {"strong": "bold", "em": "italic", "s": "strike", "link": LINK}


def inline_spans(tokens: Sequence[Token], style: str = "") -> StyledLine:
    """The spans of an inline token's children; ``style`` is under all of them."""
    found: list[StyledText] = []
    open_: list[tuple[str, str]] = []
    """Marks that are open, each with what follows at its end."""
    for token in tokens:
        words = " ".join([style, *(mark for mark, _ in open_)]).strip()
        name = token.type.removesuffix("_open").removesuffix("_close")
        if token.type in ("text", "text_special", "html_inline"):
            found.append((clean(token.content), words))
        elif token.type == "code_inline":
            found.append((clean(token.content), f"{words} {CODE}".strip()))
        elif token.type == "softbreak":
            found.append((" ", words))
        elif token.type == "hardbreak":
            found.append(("\n", words))
        elif token.type == "image":
            found.append(
                (f"[image: {clean(token.content or str(token.attrs.get('src', '')))}]", f"{words} $quiet".strip())
            )
        elif token.nesting > 0 and name in _MARKS:
            open_.append((_MARKS[name], clean(str(token.attrs.get("href", ""))) if name == "link" else ""))
        elif token.nesting < 0 and open_:
            _, address = open_.pop()
            if address and not any(address.endswith(text) or text == address for text, _ in found[-1:]):
                found.append((f" ({address})", "$quiet"))
    return tuple(span for span in found if span[0])
