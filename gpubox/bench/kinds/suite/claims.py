"""The claims in a text: its sentences, whether they are real sentences, and what they deny. Pure.

Keywords alone are no claim. A part of a text counts if it reads like a sentence (grammar words, a verb, no list of
terms), and it is a claim if the sentence does not deny it. This tells statements from word salad and from their
opposites, but not whether a well-formed statement makes sense.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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
"""Precedes what something else should replace: that is neither claimed nor denied."""
_MIN_GRAMMAR_OF_SENTENCE, _MIN_GRAMMAR_OF_TEXT = 0.14, 0.2
"""Shares of grammar words. Notes have few."""
_MAX_REPEATED_PAIRS = 4
"""A real sentence does not repeat the same two words so often."""
_LOG_LINE = re.compile(r"^\W*\d\d:\d\d:\d\d\s+(?:INFO|WARN|ERROR|DEBUG)\b")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, line of a list or cell of a table, under its last heading."""

    text: str
    heading: str = ""

    @property
    def is_real(self) -> bool:
        """Whether it reads like a sentence."""
        words = _words(self.text)
        if len(words) < 3 or not _VERB.search(self.text):
            return False
        grammar = sum(word in _GRAMMAR for word in words)
        repeats = max(Counter(pairwise(words)).values(), default=0)
        is_list = self.text.count(",") > max(3, len(words) / 3.2) and grammar < len(words) / 4
        return grammar / len(words) >= _MIN_GRAMMAR_OF_SENTENCE and repeats < _MAX_REPEATED_PAIRS and not is_list


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def sentences(text: str) -> list[Sentence]:
    """Every sentence, without quoted log lines."""
    result: list[Sentence] = []
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
                row = zip(columns[1:], cells[1:], strict=True)
                result += [Sentence(f"{cells[0]}: {cell}.", column) for column, cell in row]
            continue
        columns = []
        label = re.fullmatch(r"#+\s*(.+?)\s*#*|([^.!?]{2,60}):", plain)
        if (bold or label) and len(plain.split()) <= 9:
            title = (bold[1] if bold else "") or (label[1] or label[2] if label else "")
            heading = title.strip(" -*:0123456789.)")
            continue
        plain = re.sub(r"^(?:[-*+•→>]|\(?\d{1,2}[.)])\s+", "", plain)
        if len(plain.split()) <= 4 and re.fullmatch(r"[\w /-]{1,40}", plain):  # the heading of a list
            heading = plain
            continue
        parts = re.split(r"(?<=[.!?;])[\"')]?\s+(?=[\w(\"'])", plain)
        result += [Sentence(part.strip(), heading) for part in parts if part.strip()]
    return result


def is_prose(text: Sequence[Sentence]) -> bool:
    """Whether a text is written in sentences: half of it stands in real ones, and few are repeated."""
    words = [word for sentence in text for word in _words(sentence.text)]
    if not words:
        return False
    grammar = sum(word in _GRAMMAR for word in words) / len(words)
    real = sum(len(s.text) for s in text if s.is_real) / sum(len(s.text) for s in text)
    repeated = 1 - len({sentence.text.lower() for sentence in text}) / len(text)
    return grammar >= _MIN_GRAMMAR_OF_TEXT and real >= 0.5 and repeated <= 0.3


def claims(sentence: str, patterns: Sequence[str], replaced: bool = False) -> bool | None:
    """True if all ``patterns`` are in the sentence, False if it denies the last one, ``None`` if it claims nothing.

    ``replaced``: something that should be replaced ("instead of ...") counts as claimed, too.
    """
    match = None
    for pattern in patterns:
        match = re.search(pattern, sentence, re.IGNORECASE)
        if match is None:
            return None
    if match is None or (not replaced and _INSTEAD.search(sentence[: match.start()])):
        return None
    return not _NOT.search(sentence[: match.start()])
