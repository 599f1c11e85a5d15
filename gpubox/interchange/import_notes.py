"""How what an import leaves out is named: one line each, without secrets."""

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
_LONGEST = 400
MAX_OMITTED_LINES = 120
"""Lines of one file that are named; a longer rest is counted."""


def is_secret(name: str) -> bool:
    """Whether the value of an option or variable called ``name`` is shown to nobody."""
    bare = name.lstrip("-$").removeprefix("env:")
    return bool(_SECRET.search(bare)) and not _NO_SECRET.search(bare)


def redacted_line(text: str) -> str:
    """``text`` as one line for people: secrets are ``***``, what is far too long is cut."""
    size = len(text)
    text = " ".join(text[: 4 * _LONGEST].split())
    text = _SSHPASS.sub(r"\1 ***", text)
    text = _NAMED.sub(_masked, text)
    text = _BEARER.sub(r"\1 ***", text)
    text = _LOGIN.sub(r"\1:***", _IN_ADDRESS.sub("***@", _KNOWN_KEYS.sub("***", text)))
    return text if len(text) <= _LONGEST and size <= 4 * _LONGEST else f"{text[:_LONGEST]}… (cut off)"


def omitted(text: str, why: str = "") -> str:
    """The note for one line of a file that no profile has a place for."""
    return f"{_LEFT_OUT}{redacted_line(text)}" + (f" ({why})" if why else "")


def limit_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Each note once: the first MOST_LINES of what was left out, how many more there are, and all other notes."""
    distinct = list(dict.fromkeys(notes))
    named = [note for note in distinct if note.startswith(_LEFT_OUT)]
    dropped = set(named[MAX_OMITTED_LINES:])
    kept = [note for note in distinct if note not in dropped]
    return (*kept, *([f"{_LEFT_OUT}{len(dropped)} more lines."] if dropped else []))


def join_words(words: Iterable[str]) -> str:
    """Words of a command as one readable line; the caller gives it to ``omitted``."""
    return " ".join(f'"{word}"' if not word or re.search(r"\s", word) else word for word in words)


def _masked(match: re.Match[str]) -> str:
    name = match["dashed"] or match["name"]
    return f"{name}{match['blank'] or match['equals']}***" if is_secret(name) else match[0]
