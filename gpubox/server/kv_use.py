"""Whether restored states helped: what the next requests reused of them. Light: `status` imports it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpubox.clock import utc_now
from gpubox.server.log_events import CachedTokens, LogEvent, NewPrompt, SlotSelected
from gpubox.server.state import RestoredSlot

if TYPE_CHECKING:
    from gpubox.server.kv_store import KvStore

_LEAST_SHARE = 0.5
"""A request that reused less of a state continues another conversation."""
_MISSED_SHARE = 0.1


def reused_state(restored: Sequence[RestoredSlot], cached_tokens: int | None) -> RestoredSlot | None:
    """Which of the restored states a request reused, by the number of its cached tokens; None: none of them."""
    cached = cached_tokens or 0
    fitting = [each for each in restored if _LEAST_SHARE * each.tokens <= cached <= each.tokens]
    return min(fitting, key=lambda each: each.tokens - cached, default=None)


def note_reuse(store: KvStore, name: str) -> None:
    """Notes that a state helped, so that it stays. The caller holds the store's lock."""
    state = store.find(name)
    if state and state.unused:
        store.change(name, unused=0, used_at=utc_now())


def judge(events: Iterable[LogEvent | None], restored: Sequence[RestoredSlot]) -> tuple[set[str], set[str]]:
    """The states that helped, and those that did not although a request wanted them; from the log of the server.

    A request wants a state if the server chose its slot as the most similar one, and most of the state is in the
    prompt. If nothing of it was reused, nothing of it ever will be: a hybrid model, and a prompt that branches off.
    """
    left, helped, missed = list(restored), set[str](), set[str]()
    similarity: dict[int, float] = {}
    prompts: dict[int, tuple[int, int]] = {}
    for event in events:
        if isinstance(event, SlotSelected):
            similarity[event.slot] = (event.similarity or 0.0) if event.by == "lcp" else 0.0
        elif isinstance(event, NewPrompt):
            prompts[event.slot] = (event.task, event.tokens)
        elif isinstance(event, CachedTokens) and prompts.get(event.slot, (-1, 0))[0] == event.task:
            _, prompt = prompts.pop(event.slot)
            if state := reused_state(left, event.tokens):
                left.remove(state)
                helped.add(state.name)
                continue
            shared = similarity.get(event.slot, 0.0) * prompt
            for state in [each for each in left if each.slot == event.slot]:
                left.remove(state)  # whatever came, the slot holds another prompt now
                if shared >= _LEAST_SHARE * state.tokens and event.tokens < _MISSED_SHARE * state.tokens:
                    missed.add(state.name)
    return helped, missed
