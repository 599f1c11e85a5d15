"""What a rule is, and what the advisor says: frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpubox.advisor.evidence import Evidence
from gpubox.profiles.argv import argument_text
from gpubox.profiles.profile import FlagValue


@dataclass(frozen=True, slots=True)
class Advice:
    """One judgement and one suggested change."""

    rule: str
    """The id of the rule, which ``--dismiss`` takes: ``mmap``."""
    word: str
    sentence: str
    evidence: tuple[str, ...] = ()
    """The readings and sources that the judgement rests on, a short text each."""
    changes: Mapping[str, FlagValue | None] = field(default_factory=dict)
    """Key of the profile -> its new value, ``None`` to remove it; empty: no flag mends it."""
    before: Mapping[str, FlagValue | None] = field(default_factory=dict)
    """The present values of the same keys; ``None``: not set."""
    try_profile: str | None = None
    """The profile that the changes can be tried on; ``None``: nothing can be tried."""
    dismissed: bool = False

    @property
    def diff(self) -> tuple[str, ...]:
        """The change as ``- old`` and ``+ new`` lines."""
        lines: list[str] = []
        for name, value in self.changes.items():
            old = self.before.get(name)
            lines += [f"- {name} = {flag_text(old)}"] if old is not None else []
            lines += [f"+ {name} = {flag_text(value)}"] if value is not None else []
        return tuple(lines)

    @property
    def command(self) -> str:
        """The verb that tries the changes; empty if there is nothing to try."""
        if self.try_profile is None or not self.changes:
            return ""
        import shlex

        words = ["gpubox", "try", self.try_profile]
        for name, value in self.changes.items():
            words += ["--unset", name] if value is None else ["--set", f"{name}={flag_text(value)}"]
        return shlex.join(words)


def flag_text(value: FlagValue | None) -> str:
    """A value as the owner writes it after ``--set``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(flag_text, value)) + "]"
    return "" if value is None else argument_text(value)


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
    slowed_by: frozenset[str] = frozenset()
    """What the sentence says slows the server, as the panes name it; empty: it says nothing of that."""


def judge(rule: Rule, evidence: Evidence) -> Advice | None:
    """The advice of a rule, with the present values of what it changes; None: it is silent."""
    judgement = rule.read(evidence)
    if judgement is None or (judgement.slowed_by and evidence.bottlenecks - judgement.slowed_by):
        return None  # a pane names another part: an advice never contradicts it
    changes = dict(judgement.changes)
    before = {name: evidence.host if name == "host" else evidence.flag(name) for name in changes}
    tried = evidence.profile if changes and evidence.profile else None
    return Advice(rule.id, rule.word, judgement.sentence, judgement.evidence, changes, before, tried)
