"""What a text claims: its sentences, whether they are sentences, and what they deny. Pure.

Words alone are no claim. A part of a text counts where it reads like a sentence (words of grammar among the words of
the matter, a verb, no list of terms), and a claim where its sentence does not deny it. This tells statements from
salad and from their opposites; whether a well-formed statement makes sense is beyond it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_GRAMMAR_WORDS = (
    "a about after against all also although always an and any are as at away back be because been before being "
    "between both but by can cannot could did do does done down during each either else enough even ever every "
    "few for from had has have he hence her here him his how however i if in instead into is it its itself just "
    "least less like made make many may means might more most much must my need needs never no nor not now of off "
    "on once one only onto or other our out over own per rather same shall she should since so some still such "
    "than that the their them then there therefore these they this those though through thus to together too "
    "toward two under until up upon us very was we well were what when where whereas which while who whole whose "
    "why will with within without would yet you your"
)
_GRAMMAR = frozenset(_GRAMMAR_WORDS.split())
_VERB = re.compile(
    r"^\W*\w[\w /-]{0,24}:|\b(?:is|are|was|were|be|been|being|has|have|had|do|does|did|can|could"
    r"|will|would|should|must|may|might|\w+ed|held|kept"
    r"|ran|read|took|made|left|led|hit|ate|went|got|became|began|put|set|cut|let|meant|grew|built"
    r"|sent|gave|came|fell|\w+ing"
    r"|\w{2,}(?:s|es)|use|add|split|commit|replace|run|move|fetch|stream|page|limit|process|issue"
    r"|keep|give|cap|batch|make"
    r"|break|select|update|turn|choose|pick|go|need|require|merge|transform|work|cost|carry|converge|recommend)\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"(?:\b(?:not|never|no|neither|nor|hardly|cannot|wasn'?t|isn'?t|aren'?t|weren'?t|didn'?t|doesn'?t|don'?t)\b"
    r"|\bfar from\b)(?!\s+(?:\w+\s+){0,2}(?:only|just|merely|commit|releas|clos|return"
    r"|finish|end|until|free|limit|because))[^,;:.()]{0,28}$",
    re.IGNORECASE,
)
_INSTEAD = re.compile(
    r"\b(?:rather than|instead of|in place of|avoid\w*|replac\w*|no longer|stop)\b[^,;:.()]{0,40}$", re.IGNORECASE
)
"""Names what something else is to take the place of: neither said nor denied."""
_ENOUGH_GRAMMAR, _ENOUGH_TEXT = 0.14, 0.2
"""Shares of grammar words: of one sentence (notes have few), and of a whole text."""
_MOST_JOINED = 4
_LOG_LINE = re.compile(r"^\W*\d\d:\d\d:\d\d\s+(?:INFO|WARN|ERROR|DEBUG)\b")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, line of a list or cell of a table, under its last heading."""

    text: str
    heading: str = ""

    @property
    def whole(self) -> bool:
        """Whether it reads like a sentence."""
        words = re.findall(r"[a-z']+", self.text.lower())
        if len(words) < 3 or not _VERB.search(self.text):
            return False
        grammar = sum(word in _GRAMMAR for word in words)
        pairs = Counter(pairwise(words))
        joined = max(pairs.values(), default=0) >= _MOST_JOINED
        listed = self.text.count(",") > max(3, len(words) / 3.2) and grammar < len(words) / 4
        return grammar / len(words) >= _ENOUGH_GRAMMAR and not joined and not listed


def sentences(text: str) -> list[Sentence]:
    """All of them, log lines that are quoted left aside."""
    found: list[Sentence] = []
    heading = ""
    columns: list[str] = []
    for line in re.sub(r"__|`", "", text).splitlines():
        bold = re.fullmatch(r"[\W\d]*\*\*([^*.!?]{2,60})\*\*:?\s*", line)
        plain = re.sub(r"\*\*|(?<!\w)\*(?=\w)|(?<=[\w:.])\*(?!\w)", "", line).strip()
        if not plain or _LOG_LINE.match(plain) or set(plain) <= set("|-: ="):
            continue
        if plain.startswith("|"):
            cells = [cell.strip() for cell in plain.strip("|").split("|")]
            if not columns or len(cells) != len(columns):
                columns = cells
            else:
                found += [
                    Sentence(f"{cells[0]}: {cell}.", name) for name, cell in zip(columns[1:], cells[1:], strict=True)
                ]
            continue
        columns = []
        label = re.fullmatch(r"#+\s*(.+?)\s*#*|([^.!?]{2,60}):", plain)
        if (bold or label) and len(plain.split()) <= 9:
            named = (bold[1] if bold else "") or (label[1] or label[2] if label else "")
            heading = named.strip(" -*:0123456789.)")
            continue
        plain = re.sub(r"^(?:[-*+•→>]|\(?\d{1,2}[.)])\s+", "", plain)
        if len(plain.split()) <= 4 and re.fullmatch(r"[\w /-]{1,40}", plain):  # a list's own heading
            heading = plain
            continue
        found += [Sentence(part, heading) for part in _parts(plain)]
    return found


def _parts(line: str) -> Iterator[str]:
    return (part.strip() for part in re.split(r"(?<=[.!?;])[\"')]?\s+(?=[\w(\"'])", line) if part.strip())


def is_prose(found: Sequence[Sentence]) -> bool:
    """Whether a text is written in sentences: most of its words stand in some, and no sentence comes twice."""
    words = [word for one in found for word in re.findall(r"[a-z']+", one.text.lower())]
    if not words:
        return False
    grammar = sum(word in _GRAMMAR for word in words) / len(words)
    inside = sum(len(one.text) for one in found if one.whole) / sum(len(one.text) for one in found)
    again = 1 - len({one.text.lower() for one in found}) / len(found)
    return grammar >= _ENOUGH_TEXT and inside >= 0.5 and again <= 0.3


def claims(sentence: str, patterns: Sequence[str], instead: bool = False) -> bool | None:
    """True where all ``patterns`` stand in it, False where it denies the last, ``None`` where it claims nothing.

    ``instead``: what is to take the place of something is claimed, too.
    """
    match = None
    for pattern in patterns:
        match = re.search(pattern, sentence, re.IGNORECASE)
        if match is None:
            return None
    if match is None or (not instead and _INSTEAD.search(sentence[: match.start()])):
        return None
    return not is_negated(sentence, match.start())


def is_negated(sentence: str, place: int) -> bool:
    """Whether what begins at ``place`` is negated in its clause."""
    return bool(_NOT.search(sentence[:place]))
