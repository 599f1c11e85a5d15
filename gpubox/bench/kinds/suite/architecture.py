"""3.2: scores a comparison by what it says of CRDTs and what of operational transformation. Pure."""

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
)
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
# subject -> fact -> its pattern; each fact is worth a point.
_FACTS: dict[str, dict[str, str]] = {
    "crdt": {
        "how it works": (
            r"commut|converg|conflict-free|associat|idempot|unique (?:id|identif)|(?:id|identif"
            r"|identity)\w*|merge function|lattice|lamport|vector clock"
        ),
        "offline": (
            r"offline|disconnect|reconnect|back online|com\w+ back|hours|later|days|weeks|local(?:ly"
            r"|-first)?|partition|plane|train"
        ),
        "server": _SERVER_FREE,
        "cost": (
            r"tombstone|metadata|memory|overhead|garbage|compact|bytes|larger|bigger|size|grow|bloat|heav"
            r"|space|storage"
        ),
    },
    "ot": {
        "how it works": r"transform|rebas|adjust|shift|rewrit|index|offset|position",
        "offline": (
            r"offline|disconnect|reconnect|back online|com\w+ back|hours|long (?:absence|gap|branch)|days"
            r"|weeks|partition|away|missed"
        ),
        "server": _SERVER_NEEDED,
        "cost": (
            r"complex|hard|difficult|edge case|error.prone|tp2|correct|prove|proof|subtle|tricky|pairs? of"
            r"|quadratic|bugs?\b|notorious|expensive|costl|engineering"
        ),
    },
}
_MERGES = (
    r"merg|converg|sync|replay|rebas|diverg|reconcil|transform|catch up|combin|union|apply|applied"
    r"|integrat|exchang|conflict"
)
# subject -> statements that are true of the other one only.
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
MAX_POINTS_IF_WRONG = 3


def architecture_points(text: str) -> dict[str, int]:
    """3.2, ten points: five criteria of two points each.

    A text without sentences gets none; one that confuses the two approaches gets MAX_POINTS_IF_WRONG at most.
    """
    all_sentences = sentences(text)
    points = dict.fromkeys((*_FACTS["crdt"], "recommendation"), 0)
    if not is_prose(all_sentences):
        return points
    places = [place for place, sentence in enumerate(all_sentences) if sentence.is_real]
    clauses = [clause for place in places for clause in _attributed(all_sentences, place)]
    for subject, facts in _FACTS.items():
        own = [clause for named, clause in clauses if named == subject]
        for fact, pattern in facts.items():
            patterns = (pattern, _MERGES) if fact == "offline" else (pattern,)
            points[fact] += any(all(re.search(p, clause, re.IGNORECASE) for p in patterns) for clause in own)
    points["recommendation"] = _recommendation_points([all_sentences[place] for place in places])
    confused = sum(
        any(claims(clause, (pattern,)) for named, clause in clauses if named == subject)
        for subject, patterns in _FALSE.items()
        for pattern in patterns
    )
    if confused > 1:
        points["confuses the two"] = min(0, MAX_POINTS_IF_WRONG - sum(points.values()))
    elif confused:
        points["confuses the two"] = -min(1, sum(points.values()))
    return points


def _subjects(text: str) -> list[str]:
    return [name for name, pattern in (("crdt", _CRDT), ("ot", _OT)) if re.search(pattern, text, re.IGNORECASE)]


def _attributed(all_sentences: Sequence[Sentence], place: int) -> Iterator[tuple[str, str]]:
    """(subject, clause): a clause is about the subject it names, else about the last one named before it."""
    sentence = all_sentences[place]
    heading_subjects = _subjects(sentence.heading)
    last = heading_subjects[0] if len(heading_subjects) == 1 else ""
    if not last:
        for other in reversed(all_sentences[max(0, place - 6) : place]):
            subjects = _subjects(other.text)
            if other.heading == sentence.heading and len(subjects) == 1:
                last = subjects[0]
                break
    label = "" if heading_subjects else f"{sentence.heading}: "
    subjects = _subjects(sentence.text)
    if len(subjects) < 2:
        if subjects or last:
            yield subjects[0] if subjects else last, label + sentence.text
        return
    for clause in _BOTH.split(sentence.text):
        subjects = _subjects(clause or "")
        if len(subjects) == 1:
            last = subjects[0]
        for subject in subjects or ([last] if last and clause else []):
            yield subject, label + clause


def _recommendation_points(real: Sequence[Sentence]) -> int:
    """2 with a reason, 1 without, 0 if none or both are recommended."""
    recommended: set[str] = set()
    reasons = False
    for place, sentence in enumerate(real):
        text = sentence.text
        if re.search(r"recommend|verdict|conclu", sentence.heading, re.IGNORECASE):
            text = f"{sentence.heading}: {text}"
        match = re.search(_RECOMMENDS, text, re.IGNORECASE)
        if not match:
            continue
        around = text[max(0, match.start() - 12) : match.end() + 12]
        negated = re.search(r"\b(?:not|n't|never|neither)\b|n't\b", around, re.IGNORECASE)
        rejects = r"\b(?:over|than|instead of|rather than|not|unless|if|despite|although|because|since)\b"
        subjects = _subjects(re.split(rejects, text[match.start() :])[0]) or _subjects(text[: match.start()])[:1]
        if negated or not subjects:
            continue
        recommended.add(subjects[0])
        next_text = real[place + 1].text if place + 1 < len(real) else ""
        reasons |= bool(re.search(_REASON, text[match.end() :] + " " + next_text, re.IGNORECASE))
    return (1 + reasons) if len(recommended) == 1 else 0
