"""How what an import leaves out is named: one line each, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SECRET = re.compile(
    r"(?:^|[-_.])(?:api)?(?:keys?|token|secrets?|passw\w*|pass|pwd|credentials?|hft)(?:$|[-_.])"
    r"|(?:key|secret|passw\w*|hf_?token|api_?token)$",
    re.I,
)
_NO_SECRET = re.compile(r"(?:file|path|dir|name|draft|max|n)$", re.I)
_NAMED = re.compile(
    r"""(?P<name>--?[A-Za-z][\w.-]*|\$?(?:env:)?[A-Za-z_][\w.-]*)(?P<between>["']?\s*[=:]\s*|\s+)"""
    r"""(?P<value>"[^"]*"?|'[^']*'?|[^\s"';&|<>,\]})]+)"""
)
_BEARER = re.compile(r"(Bearer|Basic)\s+[^\s\"']+", re.I)
_KNOWN_KEYS = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}")
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@]+@")
_LOGIN = re.compile(r"((?:^|\s)(?:-u|--user)(?:\s+|=)[^\s:]+):\S+")
_SSHPASS = re.compile(r"(sshpass\s+-p)\s*(?:\"[^\"]*\"|'[^']*'|\S+)")
_LONGEST = 400
MOST_LINES = 120
"""Lines of one file that are named; a longer rest is counted."""


def is_secret(name: str) -> bool:
    """Whether the value of an option or variable called ``name`` is shown to nobody."""
    bare = name.lstrip("-$").removeprefix("env:")
    return bool(_SECRET.search(bare)) and not _NO_SECRET.search(bare)


def shown(text: str) -> str:
    """``text`` as one line for people: secrets are ``***``, what is far too long is cut."""
    text = " ".join(text.split())
    text = _SSHPASS.sub(r"\1 ***", text)
    text = _NAMED.sub(_masked, text)
    text = _BEARER.sub(r"\1 ***", text)
    text = _LOGIN.sub(r"\1:***", _IN_ADDRESS.sub("***@", _KNOWN_KEYS.sub("***", text)))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"


def left_out(text: str, why: str = "") -> str:
    """The note for one line of a file that no profile has a place for."""
    return f"Left out: {shown(text)}" + (f" ({why})" if why else "")


def at_most(lines: Sequence[str]) -> list[str]:
    """The first MOST_LINES of ``lines``, and how many there are beside them."""
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"Left out: {more} more lines."] if more > 0 else [])]


def words_shown(words: Iterable[str]) -> str:
    """Words of a command as one readable line; the caller gives it to ``left_out``."""
    return " ".join(f'"{word}"' if not word or re.search(r"\s", word) else word for word in words)


def _masked(match: re.Match[str]) -> str:
    name, between = match["name"], match["between"]
    # "key value" is a secret only behind dashes; in running text it is two words
    if is_secret(name) and ("=" in between or ":" in between or name.startswith("-")):
        return f"{name}{between}***"
    return match[0]
