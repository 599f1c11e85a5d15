"""Makes untrusted text harmless for a terminal: model output, log lines, names, error messages. Pure.

Afterwards the terminal obeys none of it and nothing in it is invisible. Escape sequences are removed (ECMA-48, xterm's
ctlseqs); other control characters become control pictures (``␇``), and each run of invisible characters one ``\ufffd``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TAB = "    "
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_UNTERMINATED = "␛"
"""Replaces an unterminated escape sequence with all the text that it would have swallowed."""
# Not compiled here: re compiles and caches a pattern at its first use, which the first paint does without.
_SEQUENCES = (
    # OSC ends with BEL or ST; DCS, SOS, PM and APC with ST. A line break or another escape ends any of them.
    r"(?:\x1b\]|\x9d)[^\n\x07\x1b\x9c]*(\x07|\x1b\\|\x9c)?|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\n\x1b\x9c]*(\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*([@-~])?|\x1b[ -/]*([0-~])?"
)
_LINE_END = r"\r+(?=\n|\Z)"
_INTRODUCERS = r"[\x1b\x90\x98\x9b\x9d-\x9f]"
# The categories Cf, Cs, Co, Zl and Zp, and all other default-ignorable code points.
_HIDDEN = (
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
)
# Joiners are allowed between letters of scripts that join and between emoji. Elsewhere they only hide something.
_JOINED = (
    r"\u0590-\u109f\u1700-\u1fff\u2190-\u23ff\u2440-\u2bff\u3040-\ud7ff\uf900-\ufaff\ufb50-\ufe0f\ufe70-\ufefc"
    r"\U0001f000-\U0001faff"
)
_ODD = rf"[\x00-\x08\x0b-\x1f\x7f]|(?:[\x80-\x9f{_HIDDEN}]|(?<![{_JOINED}])[\u200c\u200d])+"
_ACTING = rf"[\x00-\x1f\x7f-\x9f{_HIDDEN}]"
_UNSEEN = rf"[\x00-\x08\x0b-\x1f\x7f]|[\x80-\x9f\u200c\u200d{_HIDDEN}]"
_ONE_LINE = str.maketrans({"\n": " ", "\t": _TAB} | dict.fromkeys("\u200c\u200d\ufe0e\ufe0f"))
MAX_COMBINING_MARKS = 4
"""Combining marks that one character may have. Living scripts need no more."""
_MANY_MARKS = (
    r"[\u0300-\u1fff\u20d0-\u20ff\u2cef-\u2dff\u302a-\u309a\ua66f-\uabff\ufb1e\ufe00-\ufe2f\U00010000-\U0001efff]"
    rf"{{{MAX_COMBINING_MARKS + 1},}}"
)
_MAX_PENDING = 4096


def sanitize_line(text: str) -> str:
    """``text`` as one line. Joined emoji are separated, because terminals draw them with different widths."""
    if text.isascii() and text.isprintable():
        return text
    return sanitize_text(text).translate(_ONE_LINE)


def sanitize_text(text: str) -> str:
    """``text`` with its line breaks, tabs and joined emoji kept."""
    if _is_harmless(text):
        return text
    if "\r" in text:
        text = re.sub(_LINE_END, "", text)
    if re.search(_INTRODUCERS, text):
        text = re.sub(_SEQUENCES, lambda match: "" if match.lastindex else _UNTERMINATED, text)
    if re.search(_ODD, text):
        text = re.sub(_ODD, lambda match: _PICTURES.get(ord(match[0][0]), "\ufffd"), text)
    return _limit_marks(text)


def sanitize_paragraph(text: str) -> str:
    """As ``sanitize_text``, with spaces for tabs."""
    return sanitize_text(text).replace("\t", _TAB)


def reveal_hidden(text: str) -> str:
    """Lines that the owner approves: everything in them is visible, also the inside of escape sequences."""
    if text.isascii() and text.isprintable():
        return text
    shown = re.sub(_UNSEEN, lambda match: _PICTURES.get(ord(match[0]), "\ufffd"), text.replace("\r\n", "\n"))
    return _limit_marks(shown).replace("\t", _TAB)


def show_name(path: str) -> str:
    """A path in which nothing is hidden: blanks that begin or end a name, or follow another, are visible marks."""
    shown = re.sub(r"(?<![^/ ]) | (?![^/ ])", "␠", reveal_hidden(path).replace("\n", "␊"))
    return "".join(char if char.isprintable() else "\ufffd" for char in shown)


def blank_controls(text: str, cells: Callable[[str], int]) -> str:
    """``text`` with the same width and spaces for removed parts. ``cells`` returns the width of a text in columns."""
    if text.isprintable():
        return text
    text = re.sub(_SEQUENCES, lambda match: " " * cells(match[0]), text)
    return re.sub(_ACTING, lambda match: "\ufffd" * cells(match[0]), text)


class StreamSanitizer:
    """Sanitizes a text that comes in pieces, as ``sanitize_text`` does for a whole one."""

    def __init__(self, longest_line: int | None = None) -> None:
        """``longest_line``: after this many characters the rest of a line is only counted."""
        self._longest = longest_line
        self._pending = ""
        """An incomplete escape sequence, or a CR, that the next piece may continue."""
        self._tail = ""
        """The last character and its marks, which decide whether a joiner or another mark may follow."""
        self._column = 0

    def feed(self, text: str) -> str:
        """What can be shown of the pending text and ``text``."""
        if not self._pending and _is_harmless(text):
            self._tail = text[-1:] or self._tail
            return self._bounded(text)
        text = self._pending + text
        cut = _unfinished_at(text)
        text, self._pending = text[:cut], text[cut:]
        if len(self._pending) > _MAX_PENDING:  # the inside of a sequence is never shown
            sequence = self._pending.lstrip("\r")
            self._pending = self._pending[: len(self._pending) - len(sequence)][:1] + sequence[:2] + sequence[-1:]
        shown = sanitize_text(self._tail + text)[len(self._tail) :]
        self._tail = _last_with_marks(self._tail + shown)
        return self._bounded(shown)

    def end(self) -> str:
        """What can be shown of the pending text."""
        pending, self._pending, self._tail = self._pending, "", ""
        shown = self._bounded(sanitize_text(pending)) + self._left_out()
        self._column = 0
        return shown

    def _bounded(self, text: str) -> str:
        if self._longest is None:
            return text
        if self._column + len(text) <= self._longest:
            newline = text.rfind("\n")
            self._column = self._column + len(text) if newline < 0 else len(text) - newline - 1
            return text
        parts = []
        for index, part in enumerate(text.split("\n")):
            if index:
                parts.append(f"{self._left_out()}\n")
                self._column = 0
            parts.append(part[: max(0, self._longest - self._column)])
            self._column += len(part)
        return "".join(parts)

    def _left_out(self) -> str:
        if self._longest is None or self._column <= self._longest:
            return ""
        return f" … {self._column - self._longest:,} more characters"


def _unfinished_at(text: str) -> int:
    """The start of the incomplete escape sequence, or of the CRs, at the end of ``text``; else its length."""
    start = end = before = 0
    last = ""
    if re.search(_INTRODUCERS, text):
        for match in re.finditer(_SEQUENCES, text):
            # An ESC right after a string may be the first half of its terminator.
            half = match[0] == "\x1b" and match.start() == end and last not in ("", "\x1b")
            if match.lastindex is None and not half:
                start, before = match.start(), end
            last = "" if match.lastindex else match[0]
            end = match.end()
    if not last or end < len(text):
        start, before = len(text), end
    while start > before and text[start - 1] == "\r":
        start -= 1
    return start


def _is_harmless(text: str) -> bool:
    """Whether all characters are harmless at first sight. Faster than any pattern."""
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        return False
    return text.isascii() or all(
        char < "\u0300" or "\u2010" <= char < "\u20d0" or "\u2100" <= char < "\u2c00" or "\u4e00" <= char < "\ua000"
        for char in set(text)
    )


def _limit_marks(text: str) -> str:
    return re.sub(_MANY_MARKS, lambda match: _first_marks(match[0]), text) if re.search(_MANY_MARKS, text) else text


def _first_marks(run: str) -> str:
    kept, marks = [], 0
    for char in run:
        marks = marks + 1 if _is_mark(char) else 0
        if marks <= MAX_COMBINING_MARKS:
            kept.append(char)
        elif marks == MAX_COMBINING_MARKS + 1:
            kept.append("\ufffd")
    return "".join(kept)


def _is_mark(char: str) -> bool:
    import unicodedata  # most texts do not need this module

    return unicodedata.category(char) in ("Mn", "Me")


def _last_with_marks(text: str) -> str:
    start = len(text) - 1
    while (
        start > 0
        and len(text) - start <= MAX_COMBINING_MARKS + 1
        and (_is_mark(text[start]) or text[start] in "\u200c\u200d")
    ):
        start -= 1
    return text[max(0, start) :]
