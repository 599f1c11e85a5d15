"""Notes about what a profile cannot hold: one line each, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SECRET = re.compile(
    r"(?:^|[-_.])(?:api)?(?:keys?|token|secrets?|passw\w*|pass|pwd|credentials?|hft)(?:$|[-_.])"
    r"|(?:key|secret|passw\w*|hf_?token|api_?token)$",
    re.I,
)
_NO_SECRET = re.compile(r"(?:^|[-_.])(?:file|path|dir|name|max|n)$|^keys?$", re.I)
_NAMED = re.compile(
    r"""(?<![\w.-])(?:(?P<dashed>--?[A-Za-z][\w.-]*+)(?P<blank>\s*[=:]\s*|\s+)"""
    r"""|(?P<name>\$?(?:env:)?[A-Za-z_][\w.-]*+)(?P<equals>["']?\s*[=:]\s*))(?P<value>"[^"]*"?|'[^']*'?|[^\s"';&|<>,\]})]+)"""
)
_BEARER = re.compile(r"(Bearer|Basic)\s+[^\s\"']+", re.I)
_KNOWN_KEYS = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}")
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@]+@")
_LOGIN = re.compile(r"((?:^|\s)(?:-u|--user)(?:\s+|=)[^\s:]+):\S+")
_SSHPASS = re.compile(r"(sshpass\s+-p)\s*(?:\"[^\"]*\"|'[^']*'|\S+)")
_LEFT_OUT = "Left out: "
_MAX_NOTE_CHARS = 400
MAX_OMITTED_LINES = 120
"""Omitted lines of one file that are listed; the rest is counted."""


def is_secret(name: str) -> bool:
    """Whether the option or variable ``name`` holds a secret, by its name."""
    bare = name.lstrip("-$").removeprefix("env:")
    return bool(_SECRET.search(bare)) and not _NO_SECRET.search(bare)


def redacted_line(text: str) -> str:
    """``text`` as one line: secrets become ``***``, and a long text is cut."""
    size = len(text)
    text = " ".join(text[: 4 * _MAX_NOTE_CHARS].split())
    text = _SSHPASS.sub(r"\1 ***", text)
    text = _NAMED.sub(_masked, text)
    text = _BEARER.sub(r"\1 ***", text)
    text = _LOGIN.sub(r"\1:***", _IN_ADDRESS.sub("***@", _KNOWN_KEYS.sub("***", text)))
    return (
        text if len(text) <= _MAX_NOTE_CHARS and size <= 4 * _MAX_NOTE_CHARS else f"{text[:_MAX_NOTE_CHARS]}… (cut off)"
    )


def omitted(text: str, reason: str = "") -> str:
    """The note for one line of a file that no profile can hold."""
    return f"{_LEFT_OUT}{redacted_line(text)}" + (f" ({reason})" if reason else "")


def limit_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Each note once, with at most MAX_OMITTED_LINES notes about omitted lines; the rest is counted."""
    distinct = list(dict.fromkeys(notes))
    dropped = set([note for note in distinct if note.startswith(_LEFT_OUT)][MAX_OMITTED_LINES:])
    kept = [note for note in distinct if note not in dropped]
    return (*kept, *([f"{_LEFT_OUT}{len(dropped)} more lines."] if dropped else []))


def join_words(words: Iterable[str]) -> str:
    """Words of a command as one line, quoted where needed."""
    return " ".join(f'"{word}"' if not word or re.search(r"\s", word) else word for word in words)


def _masked(match: re.Match[str]) -> str:
    name = match["dashed"] or match["name"]
    return f"{name}{match['blank'] or match['equals']}***" if is_secret(name) else match[0]
