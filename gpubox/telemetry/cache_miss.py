"""Why a prompt was read from its start: told from the server's own lines, and from nothing else. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from gpubox.server.log_events import (
    BetterPromptFound,
    FullReprocessing,
    PromptCleared,
    PromptSaved,
    SlotEvent,
    SlotPurged,
    SlotSelected,
    SwaCache,
)

LEAST_TOKENS = 64
"""Of a shorter prompt nobody misses the cache."""
REUSED = 0.05
"""Less than this share reused is the start that every chat template has in common."""
GROWN = 1.1
"""A prompt that is shorter than an evicted one, by more than this, is another conversation."""
NO_CHECKPOINT = "no checkpoint before the change (hybrid or SWA model)"
PREFIX_CHANGED = "prefix changed, or a new prompt: no slot held one like it"
NAMED_SLOT_CHANGED = "prefix changed: the slot that the client named held another prompt"
AFTER_RESTART = "restart: the first prompt since the server started"
AFTER_SLEEP = "restart: the first prompt since the server slept, which empties its cache"


class EvictedPrompt(NamedTuple):
    """A prompt that is in no slot and no cache any more. ``by``: the task that took its slot; ``None``: for room."""

    slot: int
    tokens: int
    by: int | None

    def __str__(self) -> str:
        if self.by is None:
            return f"no slot held its like: slot {self.slot}'s {self.tokens:,} tokens were evicted to make room"
        return f"no slot held its like: task {self.by} evicted slot {self.slot}'s {self.tokens:,} tokens"


@dataclass(slots=True)
class SlotSelection:
    """How one request came to its slot, and what it found there."""

    chosen: SlotSelected
    held: int = 0
    """Tokens that the slot held for another request, as far as known."""
    saved: bool = False
    """Whether those went to the prompt cache."""
    from_cache: bool = False
    """Whether the prompt cache had a better one."""
    alike: float | None = None
    """The share of the request's prompt that the slot held, or the prompt cache."""
    forced: bool = False
    """Whether the server said that it reads everything again for want of a checkpoint."""


class PromptCacheState:
    """What the slots hold, as far as the log has told. ``restarted``: another server ran here before this one."""

    def __init__(self, *, restarted: bool = False) -> None:
        self.needs_checkpoints = False
        """Whether the model is hybrid or has a window: the log of its load told of such a cache."""
        self._held: dict[int, int] = {}
        self._evicted: deque[EvictedPrompt] = deque(maxlen=32)
        self._choices: dict[int, SlotSelection] = {}
        self._last: SlotSelection | None = None
        self._empty = AFTER_RESTART if restarted else ""

    def forget(self, *, slept: bool = False) -> None:
        """A part of the log was lost, or (``slept``) the server let go of everything."""
        self._held.clear()
        self._evicted.clear()
        self._choices.clear()
        self._last = None
        self._empty = AFTER_SLEEP if slept else ""

    def feed(self, event: SlotEvent) -> None:
        """Takes in one event, in order."""
        match event:
            case SlotSelected():
                held = self._held.get(event.slot, 0)
                self._last = self._choices[event.slot] = SlotSelection(event, held, alike=event.similarity)
            case BetterPromptFound() if self._last:
                self._last.from_cache, self._last.alike = True, event.similarity
            case PromptSaved() if self._last and event.tokens == self._last.held:
                self._last.saved = True
            case SwaCache():
                self.needs_checkpoints = True
            case SlotPurged():
                self._lose(EvictedPrompt(event.slot, event.tokens, None))
            case PromptCleared() if event.tokens:
                self._held.pop(event.slot, None)
            case FullReprocessing() if choice := self._choices.get(event.slot):
                choice.forced = True
            case _:
                pass

    def taken(self, slot: int, task: int) -> None:
        """The chosen slot begins with its request."""
        self._last = None
        choice = self._choices.get(slot)
        if choice and choice.chosen.by == "lru" and not choice.chosen.fresh and not choice.saved:
            self._lose(EvictedPrompt(slot, choice.held, task))

    def released(self, slot: int, tokens: int) -> None:
        """A slot is done, and holds the request's ``tokens``."""
        self._held[slot] = tokens
        self._choices.pop(slot, None)

    def why(self, slot: int, task: int, prompt: int | None, cached: int | None, forced: bool) -> str | None:
        """Why nothing of a prompt was reused; ``None`` where it was, or where no line tells. Ask before ``released``.

        ``forced``: the server has said so itself. It says the same, with the same cause, of a dense model where only
        the first token is alike.
        """
        choice = self._choices.get(slot)
        by_likeness = choice is None or choice.chosen.by != "lru" or choice.from_cache
        if forced and self.needs_checkpoints and choice and prompt:
            if (choice.alike or 0) * prompt >= LEAST_TOKENS:
                return NO_CHECKPOINT
            if choice.chosen.by == "id":
                return None  # how much of it is alike is in no line
        if choice is None or prompt is None or prompt < LEAST_TOKENS or cached is None or cached > REUSED * prompt:
            return None
        empty, self._empty = self._empty, ""
        if choice.chosen.by == "id" and choice.held:
            return NAMED_SLOT_CHANGED
        if by_likeness:
            return None  # the client wants no cache, or a line is missing
        # a conversation only grows, but for a thought that its client leaves out
        for lost in self._evicted:
            if lost.by != task and lost.tokens <= GROWN * prompt:
                self._evicted.remove(lost)
                return str(lost)
        # one that is shorter than what its slot held is another conversation
        return empty or (PREFIX_CHANGED if LEAST_TOKENS <= choice.held <= GROWN * prompt else None)

    def _lose(self, lost: EvictedPrompt) -> None:
        self._held.pop(lost.slot, None)
        if lost.tokens >= LEAST_TOKENS:
            self._evicted.append(lost)
