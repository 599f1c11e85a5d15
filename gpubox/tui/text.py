"""Text that others wrote, made harmless: profile titles, log lines, model names and error messages. Pure."""

from __future__ import annotations

import unicodedata

_TAB = "    "
# Characters that change where or how later text is drawn: they are shown as themselves, not obeyed.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)}
_PICTURES |= {0x7F: "\u2421", 0x09: _TAB}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_TO_SPACE = _PICTURES | {0x0A: " ", 0x0D: " "}
_HIDDEN = ("Cf", "Cs", "Zl", "Zp", "Co")


def plain(text: str) -> str:
    """``text`` as one line that a terminal cannot act on: control codes become their pictures (``␛``)."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.translate(_TO_SPACE)
    if shown.isascii():
        return shown
    return "".join("\ufffd" if unicodedata.category(char) in _HIDDEN else char for char in shown)


def paragraph(text: str) -> str:
    """As ``plain``, with the line breaks kept."""
    return "\n".join(plain(line) for line in text.splitlines())


def short(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters, at a word where there is one, with an ellipsis."""
    if len(text) <= width:
        return text
    cut = text[: max(0, width - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > width // 2 else cut).rstrip(" ,:;.") + "…"


def bar(share: float, width: int) -> str:
    """A bar of ``width`` cells, ``share`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "▓" * filled + "░" * (width - filled)
