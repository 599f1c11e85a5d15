"""3.2: what is said of CRDTs and what of operational transformation, each by its own name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpubox.bench.kinds.suite.claims import Sentence, claims, is_prose, sentences

_CRDT = r"\bcrdts?\b|conflict-free replicated|yjs|automerge|\brga\b|\bloro\b"
_OT = r"\bot\b|operational transform\w*|sharedb|google docs"
_BOTH = re.compile(
    r"\b(?:while|whereas|but|unlike|by contrast|in contrast|compared (?:to|with)|versus|vs\.?"
r"|on the other hand)\b|;|—|–|, (?=and (?:ot|crdt))"
    r"|, (?=(?:ot|crdts?)\b)",
    re.IGNORECASE,
)  # fmt: skip
_SERVER_NEEDED = (
    r"(?:need|requir|rel(?:y|ies)|depend|want|presuppos|assum|must have|has to have|uses?|insist"
    r"|built around|hinge|with|through|against|on)\b[^.;]{0,40}"
    r"(?:central|server|authorit|sequenc|single|coordinat|order)|(?:server|authority|sequencer"
    r"|coordinator)[^.;]{0,40}(?:order|sequenc|decid|transform|"
    r"serial|assign|authorit|requir|need|mandatory|essential)|central(?:ised|ized)?\b|single point"
    r"|source of truth|order\w* (?:all|every|the) op"
)
_SERVER_FREE = (
    r"peer|p2p|decentral|(?:without|no|any|not need|n't need)[^.;]{0,25}(?:server|coordinat"
    r"|authority|central)|server[^.;]{0,30}(?:optional|relay|dumb|stor|"
    r"forward|pass|not (?:need|requir))|(?:relay|broker|store|mailbox|pub/sub)\b|optional"
    r"|any order|any topology|just (?:relay|forward|stor|pass)"
)
# fact -> patterns of it, by subject; each is worth a point.
_FACTS: dict[str, dict[str, str]] = {
    "crdt": {
        "how it works": (r"commut|converg|conflict-free|associat|idempot|unique (?:id|identif)|(?:id|identif"
r"|identity)\w*|merge function|lattice|lamport|vector clock"),
        "offline": (r"offline|disconnect|reconnect|back online|com\w+ back|hours|later|days|weeks|local(?:ly"
r"|-first)?|partition|plane|train"),
        "server": _SERVER_FREE,
        "cost": (r"tombstone|metadata|memory|overhead|garbage|compact|bytes|larger|bigger|size|grow|bloat|heav"
r"|space|storage"),
    },
    "ot": {
        "how it works": r"transform|rebas|adjust|shift|rewrit|index|offset|position",
        "offline": (r"offline|disconnect|reconnect|back online|com\w+ back|hours|long (?:absence|gap|branch)|days"
r"|weeks|partition|away|missed"),
        "server": _SERVER_NEEDED,
        "cost": (r"complex|hard|difficult|edge case|error.prone|tp2|correct|prove|proof|subtle|tricky|pairs? of"
r"|quadratic|bugs?\b|notorious|expensive|costl|engineering"),
    },
}  # fmt: skip
_MERGES = (
    r"merg|converg|sync|replay|rebas|diverg|reconcil|transform|catch up|combin|union|apply|applied"
    r"|integrat|exchang|conflict"
)
# What is said of the one and true of the other only.
_FALSE: dict[str, tuple[str, ...]] = {
    "crdt": (
        (
            r"(?:need|requir|rel(?:y|ies) on|depend\w* on|must have|cannot work without"
            r"|impossible without)[^.;,]{0,30}(?:central|server|sequencer|authority)"
        ),
        (
            r"(?:server|sequencer)[^.;,]{0,25}(?:must|has to|is needed to|is required)[^.;,]{0,25}(?:order"
            r"|transform|sequence)"
        ),
        (
            r"(?:work|merge)\w* by transform|transform\w* (?:each|every|incoming|concurrent|the) (?:op|ind"
            r"|offset|pos)|transformation functions?"
        ),
        r"(?:bad|poor|weak|terrible|unsuitable|useless|cannot|can't|fails?|struggl)\w*[^.;,]{0,25}offline",
        r"no (?:metadata|memory|overhead|tombstone)|without (?:any )?(?:metadata|tombstone|overhead)",
    ),
    "ot": (
        (
            r"(?:need|requir)\w* no (?:central )?server|without (?:a|any) (?:central )?(?:server"
            r"|authority)|peer[- ]to[- ]peer|\bp2p\b|decentrali[sz]ed|server is (?:optional|not)"
        ),
        (
            r"commut\w*[^.;,]{0,20}(?:without|so no)|(?:ops|operations) (?:all )?commute|conflict-free"
            r"|unique (?:id|identif)\w*[^.;,]{0,20}(?:each|every|per) char"
        ),
        r"tombstones?|metadata (?:per|for (?:each|every)) char",
        r"(?:great|excellent|best|ideal|perfect|better|natural(?:ly)?|trivial(?:ly)?|strong|easily"
        r"|automatically|seamless\w*)[^.;,]{0,25}offline"
        r"|offline[^.;,]{0,25}(?:trivial|effortless|automatic|seamless|is its strength)",
        r"(?:simple|trivial|easy) to (?:implement|prove|get right)|no transform",
    ),
}
_RECOMMENDS = (
    r"recommend|i(?:'d| would| will|'ll)\b|\bchoose\b|go (?:with|for)|\bpick\b|best (?:choice|fit"
    r"|option)|my (?:choice|vote|pick|advice)|we should|better (?:choice|fit|suited)|verdict"
    r"|take (?:a |the )?(?:crdt|ot)\b|^use\b|: use\b|wins?\b|favou?r"
)
_REASON = (
    r"because|since|due to|reason|\bas (?:it|they|you|offline|the)|given|so that|for (?:its|the"
    r"|this)|:|—|offline|history|which|\bdecid|\bmatter"
)
MOST_WRONG = 3


def architecture_points(text: str) -> dict[str, int]:
    """3.2, ten points in five items of two; a text without sentences has none, one with claims of the one about the
    other MOST_WRONG at most."""
    found = sentences(text)
    told = [(subject, part) for one in found if one.whole for subject, part in _attributed(found, one)]
    points = dict.fromkeys(("how it works", "offline", "server", "cost"), 0)
    for subject, facts in _FACTS.items():
        own = [part for named, part in told if named == subject]
        for fact, pattern in facts.items():
            needs = (pattern, _MERGES) if fact == "offline" else (pattern,)
            points[fact] += any(_holds(part, needs) for part in own)
    points["recommendation"] = _recommended([one for one in found if one.whole])
    if not is_prose(found):
        return dict.fromkeys(points, 0)
    wrong = sum(
        any(claims(part, (pattern,)) for named, part in told if named == subject)
        for subject, patterns in _FALSE.items()
        for pattern in patterns
    )
    if wrong > 1:
        points["said of the other"] = min(0, MOST_WRONG - sum(points.values()))
    elif wrong:
        points["said of the other"] = -min(1, sum(points.values()))
    return points


def _holds(part: str, patterns: Sequence[str]) -> bool:
    return all(re.search(pattern, part, re.IGNORECASE) for pattern in patterns)


def _subjects(text: str) -> list[str]:
    return [name for name, pattern in (("crdt", _CRDT), ("ot", _OT)) if re.search(pattern, text, re.IGNORECASE)]


def _attributed(found: Sequence[Sentence], one: Sentence) -> Iterator[tuple[str, str]]:
    """(subject, clause): a clause belongs to whom it names, else to whom the clause, sentence or heading before did."""
    place = next(index for index, other in enumerate(found) if other is one)
    before = ""
    for other in reversed(found[max(0, place - 6) : place]):
        named = _subjects(other.text)
        if other.heading == one.heading and len(named) == 1:
            before = named[0]
            break
    heading = _subjects(one.heading)
    last = heading[0] if len(heading) == 1 else before
    label = f"{one.heading}: " if not heading else ""
    if len(_subjects(one.text)) < 2:
        named = _subjects(one.text)
        if named or last:
            yield named[0] if named else last, label + one.text
        return
    for clause in _BOTH.split(one.text):
        named = _subjects(clause or "")
        if len(named) == 1:
            last = named[0]
            yield last, label + clause
        elif len(named) == 2:
            for subject in named:
                yield subject, label + clause
        elif last and clause:
            yield last, label + clause


def _recommended(whole: Sequence[Sentence]) -> int:
    """2 with a reason, 1 without, 0 where none or both are recommended."""
    chosen: set[str] = set()
    reasons = False
    for place, one in enumerate(whole):
        text = (
            f"{one.heading}: {one.text}"
            if re.search(r"recommend|verdict|conclu", one.heading, re.IGNORECASE)
            else one.text
        )
        match = re.search(_RECOMMENDS, text, re.IGNORECASE)
        if not match:
            continue
        negated = re.search(
            r"\b(?:not|n't|never|neither)\b|n't\b", text[max(0, match.start() - 12) : match.end() + 12], re.IGNORECASE
        )
        named = _subjects(
            re.split(
                r"\b(?:over|than|instead of|rather than|not|unless|if|despite|although|because|since)\b",
                text[match.start() :],
            )[0]
        )
        if not named:
            named = _subjects(text[: match.start()])[:1]
        if negated or not named:
            continue
        chosen.add(named[0])
        after = whole[place + 1].text if place + 1 < len(whole) else ""
        reasons |= bool(re.search(_REASON, text[match.end() :] + " " + after, re.IGNORECASE))
    return (1 + reasons) if len(chosen) == 1 else 0
