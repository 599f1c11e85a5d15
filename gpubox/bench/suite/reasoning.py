"""3.1 and 3.2: rubrics of synonyms within one sentence, deaf to negations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_NOT = (
    r"\b(?:not|isn't|wasn't|aren't|no (?:sign|evidence)|unlikely|unrelated|rather than|rules? out|ruled out"
    r"|nothing to do)\b"
)
_CAUSE = r"root cause|caused by|because of|due to|culprit|triggered by|reason (?:is|was)"
_ALL_ROWS = (
    r"unbounded|without (?:a )?(?:limit|where|filter)|no limit|2[.,]4|2,413|millions?|(?:entire|whole) (?:orders )?tab"
    r"|all (?:the )?(?:orders|rows)"
)
_ROW_BY_ROW = (
    r"row.by.row|one (?:row|record) at a time|individual(?:ly)? .{0,20}update|update.{0,30}individual|single.row update"
    r"|per.row|each row|one by one|n\+1|updat\w+ .{0,30}(?:1|one|single) row"
)
_SHORTER = r"batch|chunk|smaller transactions?|short\w* .{0,20}transactions?|commit\w* (?:every|after|per|more|period)"
_BOUNDED = (
    r"\blimit\b|pagina|stream|cursor|yield_per|keyset|index|where clause|only (?:the )?(?:columns|rows)|fetchmany"
    r"|server.side|filter"
)
_BULK = r"bulk|set.based|single update|one update|batch\w* update|update .{0,40}where|executemany|in one statement"
Alternatives = tuple[tuple[str, ...], ...]
# name -> points, and alternatives, each a set of patterns that one sentence has to hold.
_LOG: dict[str, tuple[int, Alternatives]] = {
    "pool exhausted": (
        2,
        ((r"pool", r"exhaust|limit|full|saturat|ran out|run out|deplet|starv|no free|all 20|20/20"),),
    ),
    "long transaction": (
        2,
        (
            (r"transaction", r"long|341|minutes|held|holding|open|hours|single|one (?:huge|big|giant)"),
            (r"locks?\b", r"report.?worker|held|holding"),
        ),
    ),
    "unbounded query": (1, ((r"select \*|select all|query|fetch\w*|load\w*|read\w*", _ALL_ROWS),)),
    "row by row": (1, ((_ROW_BY_ROW,),)),
    "fix: transaction or pool": (
        2,
        (
            (_SHORTER,),
            (r"(?:statement|transaction|lock|idle)\w*[ _-]?(?:in[ _-]transaction[ _-])?timeout",),
            (r"separate|dedicated|own", r"pool|replica|connection"),
            (r"increas|rais|larger|bigger|max_overflow", r"pool"),
        ),
    ),
    "fix: query": (1, ((_BOUNDED,),)),
    "fix: row by row": (1, ((_BULK,),)),
}


def debug_log_points(text: str) -> dict[str, int]:
    """3.1, ten points in seven items; one less where a red herring is named as the cause."""
    found = {}
    for name, (points, alternatives) in _LOG.items():
        fix = name.startswith("fix")
        found[name] = points * any(
            _holds(sentence, patterns, negatable=not fix) for sentence in _sentences(text) for patterns in alternatives
        )
    if any(_herring(sentence) for sentence in _sentences(text)):
        found["red herring"] = -1 if sum(found.values()) else 0
    return found


_WITHOUT_SERVER = (
    r"peer|p2p|decentral|without a (?:central )?server|no (?:central )?server|server.{0,20}(?:optional|relay)"
)
_RECOMMENDS = r"recommend|i(?:'d| would) (?:choose|use|go)|choose|go with|pick|best (?:choice|fit|option)"
# name -> two halves of one point each.
_ARCHITECTURE: dict[str, Alternatives] = {
    "explains both": (
        (r"crdt", r"commut|converg|merge|conflict.free|associativ"),
        (r"\bot\b|operational transform", r"transform|rebas|adjust|shift"),
    ),
    "offline": ((r"offline|disconnect|reconnect",), (r"merg|converg|sync|replay|rebas|diverg|reconcil",)),
    "server": (
        (r"\bot\b|operational", r"central|server|authorit|order"),
        (r"crdt", _WITHOUT_SERVER),
    ),
    "cost": (
        (r"tombstone|metadata|memory|overhead|garbage",),
        (r"complex|hard|difficult|edge case|error.prone|tp2|correct",),
    ),
    "recommendation": (
        (_RECOMMENDS,),
        (_RECOMMENDS, r"because|since|due to|reason|as it|given|so that|for (?:its|the)"),
    ),
}


def architecture_points(text: str) -> dict[str, int]:
    """3.2: five items of two points, one for each half."""
    sentences = list(_sentences(text))
    return {
        name: sum(any(_holds(s, half, negatable=False) for s in sentences) for half in halves)
        for name, halves in _ARCHITECTURE.items()
    }


def _holds(sentence: str, patterns: Sequence[str], *, negatable: bool) -> bool:
    for pattern in patterns:
        found = re.search(pattern, sentence, re.IGNORECASE)
        if not found:
            return False
        if negatable and re.search(_NOT + r"[^,;:]{0,30}$", sentence[: found.start()], re.IGNORECASE):
            return False
    return True


def _herring(sentence: str) -> bool:
    found = re.search(r"\b(dns|gc pause|garbage collect\w*)\b", sentence, re.IGNORECASE)
    return bool(found and re.search(_CAUSE, sentence, re.IGNORECASE) and not re.search(_NOT, sentence, re.IGNORECASE))


def _sentences(text: str) -> Iterator[str]:
    """One line of a list or a table, or one sentence."""
    return (part for part in re.split(r"\n+|(?<=[.!?;])\s+", text.replace("**", "").replace("`", "")) if part.strip())
