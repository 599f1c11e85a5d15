"""3.1: scores an explanation of the outage log by its claims: who did what to whom. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from gpubox.bench.kinds.suite.claims import Sentence, claims, is_prose, sentences

Alternatives = tuple[tuple[str, ...], ...]
_WORKER = r"report|nightly|\bworker\b|\bjob\b|\btransaction|\bbatch\b|\bjob's\b"
_POOL = r"\bpools?\b|connections?\b|queuepool"
_SPENT = (
    r"exhaust|\bfull\b|saturat|r[au]n out|deplet|starv|no free|drain|ran dry|run dry|used up"
    r"|use up|all (?:of )?(?:the )?(?:20|twenty)"
    r"|20/20|20 of 20|every (?:one|connection|slot)|\btaken\b|\boccupied\b|in use"
    r"|limit (?:of 20 )?(?:was |is |had been )?reached"
    r"|reached (?:its|the) limit|hit (?:its|the) limit|none (?:was|were|is|are|left)|nothing left"
    r"|empty|emptied|tied up|ate|eaten|consum|swallow"
)
_LONG = (
    r"\blong\b|long-|341|minutes|almost six|nearly six|5\.7|h[eo]ld|kept|keeps|open\b|opened|hours"
    r"|\bsingle\b|\bone (?:huge|big|giant|transaction)"
    r"|never committed|not commit|until (?:14:07|the end|it commit)|commit\w* (?:only|at the end"
    r"|after)|huge|giant|enormous|end-to-end|entire run"
)
_LOCKS = r"\block"
_ALL_ROWS = (
    r"unbounded|without (?:any |a |an )?(?:limit|where|filter|bound|predicate)|no (?:limit|where"
    r"|filter)|2[.,]4|2,413|2\.41|millions?"
    r"|(?:entire|whole|full|complete) (?:orders? )?(?:table|orders)|all (?:of )?(?:the )?(?:orders"
    r"|rows)|every (?:row|order|single row|single order)"
    r"|full.table|everything"
)
_ROW_BY_ROW = (
    r"row[- ]by[- ]row|(?:one|a single) (?:row|record|order|id) (?:at|per)|one at a time"
    r"|individual(?:ly)? .{0,20}update"
    r"|update\w*.{0,40}individual|single[- ]row|per[- ]row|(?:each|every) (?:row|order|one)\b|one[- ]by[- ]one|n\+1"
    r"|updat\w+ .{0,30}(?:1|one|single) row|(?:millions?|2[.,]4\w*|2,413,\d+)(?: (?:of|single"
    r"|separate|individual|tiny|small|one-row|different|million|M))* update"
    r"|updates? .{0,20}by id|one update (?:statement )?(?:per|for each|each)|separate update"
)
_LINK = (
    r"\bso\b|because|caus|led\b|leads|leading|result|therefore|thus|hence|until|while|which|→|->"
    r"|=>|behind|wait|block|stuck|queue|pil"
    r"|stall|kept|keep|held|hold|forc|due to|made|leaving|left|since|once|meant|means|starv|tied"
    r"|turned|then|as (?:each|they|these)"
)
_WAITERS = (
    r"api|request|put\b|puts\b|writes?\b|web|handlers?|shop|connection|pool|everyone|caller|customer|client|threads?"
)
_SHORTER = (
    r"batch|chunk|smaller|short\w* (?:.{0,20})?transactions?|commit\w* (?:.{0,25})?(?:every|after"
    r"|per|more|period|each|in\b|often|regular)|slices"
    r"|portions|pieces|several transactions|many (?:small|short)|split"
)
_TIMEOUT = r"(?:statement|transaction|lock|idle)\w*[ _-]?(?:in[ _-]transaction[ _-])?(?:wait[ _-])?time-?(?:out|limit)"
_BOUNDED = (
    r"\blimit\b|pagina|\bpages?\b|paging|stream|cursor|yield_per|keyset|where\b|only (?:the "
    r"|those )?(?:columns|rows|orders|needed|unreported|what)"
    r"|fetchmany|server.side|filter|bounded|incremental|not load|avoid (?:loading|reading"
    r"|fetching)|chunk|date range|reported = false|unreported|watermark"
)
_BULK = (
    r"bulk|set[- ]based|(?:single|one|a) (?:sql )?update|batch\w* (?:the )?update"
    r"|update\w* .{0,40}(?:where|batch|chunk|at once|one statement|together)"
    r"|executemany|in one statement|one statement|single statement|in batches|range update"
    r"|update \.\.\. where|id between"
)
_FIXES = (
    r"fix|should|must|need|use|add|split|commit|replac|set\b|run|mov|fetch|stream|pag|limit"
    r"|process|issue|keep|giv|cap|batch|rewrit|mak|break|short|select|read|do\b|updat|instead"
    r"|collapse|turn|introduc|chang|separat|lower|put|let|can\b|could|mark|one\b|bulk"
)
# name -> points, and alternatives: patterns that one sentence must contain; the last one is what it claims.
_CAUSES: dict[str, tuple[int, Alternatives]] = {
    "pool exhausted": (2, ((_POOL, _SPENT),)),
    "long transaction": (
        2,
        (
            (_WORKER, r"transaction|begin\b|commit|\block", _LONG),
            (_WORKER, _LOCKS, r"h[eo]ld|kept|keep|took|owned|blocked"),
        ),
    ),
    "unbounded query": (1, ((r"select|query|fetch|load|read|pull|drag|scan", _ALL_ROWS),)),
    "row by row": (1, ((r"updat|row[- ]by[- ]row|n\+1|one[- ]by[- ]one", _ROW_BY_ROW),)),
    "causal chain": (1, ((_WORKER + "|" + _LOCKS, _WAITERS, _LINK),)),
}
_REMEDIES: dict[str, tuple[int, Alternatives]] = {
    "fix: transaction or pool": (
        1,
        (
            (_FIXES, _SHORTER),
            (_TIMEOUT,),
            (r"separate|dedicated|own\b|different|its own", r"pool|replica|connection|database"),
            (r"replica|off-?peak|outside (?:of )?(?:peak|business)", r"report|job|nightly|read|run|worker"),
        ),
    ),
    "fix: query": (1, ((_FIXES, _BOUNDED),)),
    "fix: row by row": (1, ((_FIXES, _BULK),)),
}
_INNOCENT = (
    r"\bdns\b|resolver|\bgc\b|garbage|network|packet|router|firewall|ddos|attack|\bbots?\b"
    r"|traffic (?:spike|surge|peak)|(?:spike|surge) (?:in|of) (?:traffic|users|load|requests)"
    r"|memory leak|out of memory|\boom\b|disk|cpu|load balancer|health checks?|deploy|release of"
    r"|hardware|database (?:server )?(?:crash|went down|restart|fail)"
    r"|certificate|\btls\b|connection leak|leak(?:ed|s|ing)? connections?|undersized|too small"
    r"|misconfigur|deadlock|bug in the api"
)
_JOB = r"(?:report|nightly|worker|(?:background|batch) job)"
_ACQUITTED = re.compile(
    rf"{_JOB}[^.;]{{0,60}}(?:unrelated|harmless|innocent|coinciden|red herring|irrelevant|\bvictim"
    rf"|nothing to do|behaved normally|is normal"
    rf"|(?:is|was|are|were) (?:a )?(?:perfectly |completely )?(?:fine|normal)"
    rf"|not (?:the |a |to )?(?:root |real |actual )?(?:cause|problem|culprit|relat|involv|blame|respons))"
    rf"|{_JOB}(?: \w+){{0,2}} (?:(?:was|were|is) (?:itself |only |just )?(?:slowed|delayed|starved"
    rf"|blocked)|had to wait)"
    rf"|(?:unrelated|harmless|coincidence|red herrings?|ignore)\W+(?:\w+\W+){{0,3}}{_JOB}",
    re.IGNORECASE,
)
_BLAMES = (
    rf"(?:caused by|due to|because of|culprit (?:is|was|:)|root cause\W+(?:is|was)?|triggered by"
    rf"|blamed? (?:on|is)|result of|stems? from"
    rf"|originat\w* (?:in|from|with)|(?:real|true|actual|underlying|immediate)? ?(?:problem|cause"
    rf"|issue|reason)\W+(?:is|was|lies (?:in|with)))"
    rf"[^.;]{{0,45}}(?:{_INNOCENT})",
    rf"(?:{_INNOCENT})[^.;]{{0,45}}(?:(?:is|was|were|are) (?:clearly |obviously )?(?:the "
    rf"|an? )?(?:root |real |true |actual |immediate |main |underlying "
    rf"|primary )?(?:cause|culprit|reason|problem|trigger|issue)|caus(?:ed|ing)\b|brought (?:down"
    rf"|the)|took down|triggered|led to"
    rf"|resulted in|set off|to blame|made the|behind (?:it|this|the)|(?:which|that) (?:is|was) why"
    rf"|which (?:meant|made|left|caused))",
)
_NOT_BLAMED = r"\b(?:not|never|neither|nor|unrelated|no|hardly)\b|n't\b|symptom|consequence|herring|noise|coinciden"
_DEEPER = ("unbounded query", "row by row", *_REMEDIES)
"""An answer needs at least one of these: the worker's locks alone do not show that it understood the cause."""
MAX_POINTS_IF_WRONG = 3
"""For an answer that does not find the transaction, or blames something else."""


def debug_log_points(text: str) -> dict[str, int]:
    """3.1, ten points by eight criteria. A text without sentences gets none, a wrong cause MAX_POINTS_IF_WRONG."""
    all_sentences = sentences(text)
    real = [sentence for sentence in all_sentences if sentence.is_real]
    points: dict[str, int] = {}
    for name, (worth, alternatives) in {**_CAUSES, **_REMEDIES}.items():
        is_remedy = name in _REMEDIES  # "replace the loop by one UPDATE" names a remedy
        verdicts = [claims(part, patterns, is_remedy) for part in _parts(name, real) for patterns in alternatives]
        claimed, denied = verdicts.count(True), verdicts.count(False)
        points[name] = worth * (claimed > 0 and (is_remedy or not denied or claimed > denied))
    if not is_prose(all_sentences):
        points = dict.fromkeys(points, 0)
    total = sum(points.values())
    understood = any(points[name] for name in _DEEPER)
    wrong, right = _count_blame(real)
    acquitted = any(_ACQUITTED.search(sentence.text) for sentence in real)
    if acquitted or (wrong and (right < 2 or not points["causal chain"])):
        points["another cause"] = min(0, MAX_POINTS_IF_WRONG - total)
    elif wrong:
        points["red herring"] = -min(total, 2)
    elif not points["long transaction"] or not understood:
        points["no root cause"] = min(0, MAX_POINTS_IF_WRONG - total)
    return {name: value for name, value in points.items() if name in _CAUSES or name in _REMEDIES or value}


def _parts(name: str, real: Sequence[Sentence]) -> list[str]:
    """Where one claim may stand: in one sentence; some causes in two consecutive ones; remedies with their heading."""
    if name in _REMEDIES:
        return [f"{sentence.heading}: {sentence.text}" for sentence in real]
    single = [sentence.text for sentence in real]
    if name in ("long transaction", "causal chain"):
        return [*single, *(f"{first} {second}" for first, second in pairwise(single))]
    return single


def _count_blame(real: Sequence[Sentence]) -> tuple[int, int]:
    """How many sentences blame something innocent, and how many blame the transaction."""
    wrong = right = 0
    for sentence in real:
        text = sentence.text
        if re.search(r"cause|culprit", sentence.heading, re.IGNORECASE):
            text = f"{sentence.heading}: {text}"
        guilty = re.search(_WORKER + "|" + _LOCKS, text, re.IGNORECASE)
        right += bool(guilty and re.search(_LINK, text, re.IGNORECASE))
        if any(re.search(pattern, text, re.IGNORECASE) for pattern in _BLAMES):
            wrong += not guilty and not re.search(_NOT_BLAMED, text, re.IGNORECASE)
    return wrong, right
