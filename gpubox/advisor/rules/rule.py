"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubox.advisor.advice import Advice
from gpubox.advisor.evidence import Evidence
from gpubox.profiles.profile import FlagValue


@dataclass(frozen=True, slots=True)
class Rule:
    """One judgement. ``read`` is pure and cheap: it runs every few seconds."""

    id: str
    word: str
    read: Callable[[Evidence], Judgement | None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a rule says if it fires."""

    sentence: str
    evidence: tuple[str, ...]
    changes: tuple[tuple[str, FlagValue | None], ...] = ()


def judge(rule: Rule, evidence: Evidence) -> Advice | None:
    """The advice of a rule, with the present values of what it changes; None: it is silent."""
    judgement = rule.read(evidence)
    if judgement is None:
        return None
    changes = dict(judgement.changes)
    before = {name: evidence.host if name == "host" else evidence.flag(name) for name in changes}
    tried = evidence.profile if changes and evidence.profile else None
    return Advice(rule.id, rule.word, judgement.sentence, judgement.evidence, changes, before, tried)
