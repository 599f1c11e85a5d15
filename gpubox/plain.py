"""Text that others wrote, made harmless: what a model said, log lines, names, error messages. Pure."""

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


_FLOWING = {code: picture for code, picture in _PICTURES.items() if code not in (0x09, 0x0A)} | {0x0D: None}
_JOINERS = "\u200c\u200d"


def flowing(text: str) -> str:
    """Text that goes on, a piece at a time: line breaks, tabs and joined emoji stay, all else is as in ``plain``."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.translate(_FLOWING)
    if shown.isascii():
        return shown
    hidden = (unicodedata.category(char) in _HIDDEN and char not in _JOINERS for char in shown)
    return "".join("\ufffd" if bad else char for bad, char in zip(hidden, shown, strict=True))
