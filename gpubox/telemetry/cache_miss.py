"""Why a prompt was processed from its start, from the server's own log lines and nothing else. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from gpubox.server.log_events import (
    BetterPromptFound,
    PromptCleared,
    PromptSaved,
    SlotEvent,
    SlotPurged,
    SlotSelected,
    SwaCache,
)

MIN_TOKENS = 64
"""A cache miss of a shorter prompt is not worth reporting."""
MIN_REUSED = 0.05
"""Less than this share is only the beginning that all prompts of a chat template have in common."""
MAX_SHRINKAGE = 1.1
"""A conversation only grows. A prompt that is shorter by this factor belongs to another conversation."""
NO_CHECKPOINT = "no checkpoint before the change (hybrid or SWA model)"
PREFIX_CHANGED = "prefix changed, or a new prompt: no slot held a similar one"
NAMED_SLOT_CHANGED = "prefix changed: the slot that the client named held another prompt"
AFTER_RESTART = "restart: the first prompt since the server started"
AFTER_SLEEP = "restart: the first prompt since the server slept, which empties its cache"


class EvictedPrompt(NamedTuple):
    """A prompt that is no longer in any slot or cache. ``by`` is the task that took its slot; None: to make room."""

    slot: int
    tokens: int
    by: int | None

    def __str__(self) -> str:
        if self.by is None:
            return f"the similar prompt of slot {self.slot} ({self.tokens:,} tokens) was evicted to make room"
        return f"the similar prompt of slot {self.slot} ({self.tokens:,} tokens) was evicted by task {self.by}"


@dataclass(slots=True)
class SlotSelection:
    """How one request got its slot, and what the slot held."""

    event: SlotSelected
    held_tokens: int = 0
    """Tokens of another request that the slot held, if known."""
    saved: bool = False
    """Those tokens went to the prompt cache."""
    from_cache: bool = False
    """The prompt cache held a better match."""
    similarity: float | None = None
    """Share of the request's prompt that the slot, or the prompt cache, held."""


class PromptCacheState:
    """What the slots hold, as far as the log shows. ``restarted``: another server ran here before this one."""

    def __init__(self, *, restarted: bool = False) -> None:
        self.needs_checkpoints = False
        """The model is hybrid or has a sliding window: the log of its load reported such a cache."""
        self._held_tokens: dict[int, int] = {}
        self._evicted: deque[EvictedPrompt] = deque(maxlen=32)
        self._selections: dict[int, SlotSelection] = {}
        self._latest: SlotSelection | None = None
        self._reason_if_empty = AFTER_RESTART if restarted else ""

    def forget(self, *, slept: bool = False) -> None:
        """A part of the log was lost, or (``slept``) the server emptied everything."""
        self._held_tokens.clear()
        self._evicted.clear()
        self._selections.clear()
        self._latest = None
        self._reason_if_empty = AFTER_SLEEP if slept else ""

    def feed(self, event: SlotEvent) -> None:
        """Processes one event, in order."""
        match event:
            case SlotSelected():
                held = self._held_tokens.get(event.slot, 0)
                self._latest = self._selections[event.slot] = SlotSelection(event, held, similarity=event.similarity)
            case BetterPromptFound() if self._latest:
                self._latest.from_cache, self._latest.similarity = True, event.similarity
            case PromptSaved() if self._latest and event.tokens == self._latest.held_tokens:
                self._latest.saved = True
            case SwaCache():
                self.needs_checkpoints = True
            case SlotPurged():
                self._evict(EvictedPrompt(event.slot, event.tokens, None))
            case PromptCleared() if event.tokens:
                self._held_tokens.pop(event.slot, None)
            case _:
                pass

    def launched(self, slot: int, task: int) -> None:
        """The selected slot begins with its request."""
        self._latest = None
        selection = self._selections.get(slot)
        if selection and selection.event.by == "lru" and not selection.event.fresh and not selection.saved:
            self._evict(EvictedPrompt(slot, selection.held_tokens, task))

    def released(self, slot: int, tokens: int) -> None:
        """A slot finished its request and holds its ``tokens``."""
        self._held_tokens[slot] = tokens
        self._selections.pop(slot, None)

    def miss_reason(
        self, slot: int, task: int, prompt: int | None, cached: int | None, reprocessing: bool
    ) -> str | None:
        """Why no part of a prompt was reused; None if some was, or if the log does not show why.

        Call it before ``released``. ``reprocessing``: the server reported a full reprocessing. It does so, with the
        same reason, for a dense model if only the first token matches.
        """
        selection = self._selections.get(slot)
        by_similarity = selection is None or selection.event.by != "lru" or selection.from_cache
        if reprocessing and self.needs_checkpoints and selection and prompt:
            if (selection.similarity or 0) * prompt >= MIN_TOKENS:
                return NO_CHECKPOINT
            if selection.event.by == "id":
                return None  # the log does not show how much of the slot's prompt matches
        if selection is None or prompt is None or prompt < MIN_TOKENS:
            return None
        if cached is None or cached > MIN_REUSED * prompt:
            return None
        reason_if_empty, self._reason_if_empty = self._reason_if_empty, ""
        if selection.event.by == "id" and selection.held_tokens:
            return NAMED_SLOT_CHANGED
        if by_similarity:
            return None  # the client disabled the cache, or a line is missing
        for evicted in self._evicted:
            if evicted.by != task and evicted.tokens <= MAX_SHRINKAGE * prompt:
                self._evicted.remove(evicted)
                return str(evicted)
        comparable = MIN_TOKENS <= selection.held_tokens <= MAX_SHRINKAGE * prompt
        return reason_if_empty or (PREFIX_CHANGED if comparable else None)

    def reread_tokens(self, slot: int, prompt: int | None, cached: int | None) -> int | None:
        """Tokens that the slot held but that were processed again, for want of a checkpoint; None if unknown.

        Call it before ``released``. The log rounds the similarity to a thousandth.
        """
        selection = self._selections.get(slot)
        if not self.needs_checkpoints or selection is None or selection.similarity is None:
            return None
        if prompt is None or cached is None:
            return None
        return max(0, round(selection.similarity * prompt) - cached)

    def _evict(self, prompt: EvictedPrompt) -> None:
        self._held_tokens.pop(prompt.slot, None)
        if prompt.tokens >= MIN_TOKENS:
            self._evicted.append(prompt)
