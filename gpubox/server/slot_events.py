"""What a server says of the slot it gives to a request, and of the prompts that it keeps or lets go. Pure.

printf formats of build 11434 (tools/server/server-context.cpp, server-task.cpp), older wordings beside them:
  selected slot by LCP similarity, f_sim_best = 0.506 (> 0.100 thold), f_keep = 0.357     (older: sim_best)
  selected slot by LRU, t_last = 669932189      -1: a slot that nobody had yet
  selected slot by id (1)                       the client named it
  clearing prompt with 304 tokens; purging slot 2 with 304 tokens
  llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
  forcing full prompt re-processing due to lack of cache data (likely due to SWA or hybrid/recurrent memory, ...)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from gpubox.server.log_numbers import NUM, count, share

TASK = r"id +(\d+) \| task +(-?\d+) \| +"


class SlotSelected(NamedTuple):
    """The slot for the next request. ``by``: its prompt is like that (lcp), it rested longest (lru), or by its number.

    ``similarity`` is the share of the request's prompt that the slot has; ``fresh``: nobody had that slot before.
    """

    slot: int
    by: Literal["lcp", "lru", "id"]
    similarity: float | None = None
    fresh: bool = False


class BetterPromptFound(NamedTuple):
    """The prompt cache in host RAM has a prompt that is more like the request's than the slot's own."""

    similarity: float | None


class PromptCleared(NamedTuple):
    """A slot's prompt was dropped: to make room, or after it went to the prompt cache."""

    slot: int
    tokens: int


class SlotPurged(NamedTuple):
    """The KV cache is full: an idle slot's prompt is dropped for another request."""

    slot: int
    tokens: int


class PromptSaved(NamedTuple):
    """A prompt went to the prompt cache in host RAM."""

    tokens: int


class FullReprocessing(NamedTuple):
    """The server reads a whole prompt again, and says why."""

    slot: int
    task: int
    reason: str


class SwaCache(NamedTuple):
    """The model has sliding-window attention, and keeps no more ``cells`` of those layers than the window needs."""

    cells: int


class RequestArrived(NamedTuple):
    """An HTTP request for tokens arrived. ``named``: whether the client named its conversation."""

    named: bool


class SlotBusy(NamedTuple):
    """A slot that was looked at for a task works on another one."""

    slot: int


class AllSlotsIdle(NamedTuple):
    """No slot works and no request waits. ``all_slots``: always."""

    all_slots: bool = True


class TaskFailed(NamedTuple):
    """A request ended in an error."""

    task: int


SlotEvent = (
    SlotSelected
    | BetterPromptFound
    | PromptCleared
    | SlotPurged
    | PromptSaved
    | FullReprocessing
    | SwaCache
    | RequestArrived
    | SlotBusy
    | AllSlotsIdle
    | TaskFailed
)


TABLE: tuple[tuple[str, str, Callable[[re.Match[str]], SlotEvent]], ...] = (
    # as in logevents: a needle, a pattern, a builder
    ("conv_id=", r"server_strea\w*: conv_id=.*\(empty=([01])\)$", lambda m: RequestArrived(m[1] == "0")),
    ("skipping, is_processing", rf"{TASK}- skipping, is_processing = 1", lambda m: SlotBusy(int(m[1]))),
    (
        "selected slot by",
        rf"{TASK}selected slot by (?i:lcp) similarity, (?:f_)?sim_best = {NUM}",
        lambda m: SlotSelected(int(m[1]), "lcp", share(m[3])),
    ),
    (
        "selected slot by",
        rf"{TASK}selected slot by (?i:lru), t_last = (-?\d+)",
        lambda m: SlotSelected(int(m[1]), "lru", fresh=m[3].startswith("-")),
    ),
    ("selected slot by", rf"{TASK}selected slot by id \(", lambda m: SlotSelected(int(m[1]), "id")),
    (
        "found better prompt",
        rf"found better prompt with f_keep = {NUM}, (?:f_)?sim = {NUM}",
        lambda m: BetterPromptFound(share(m[2])),
    ),
    ("purging slot", r"purging slot (\d+) with (\d+) tokens", lambda m: SlotPurged(int(m[1]), count(m[2]))),
    (
        "clearing prompt with",
        rf"{TASK}clearing prompt with (\d+) tokens",
        lambda m: PromptCleared(int(m[1]), count(m[3])),
    ),
    ("saving prompt with length", r"saving prompt with length (\d+),", lambda m: PromptSaved(count(m[1]))),
    (
        "full prompt re-processing",
        rf"{TASK}(forcing full prompt re-processing.*)",
        lambda m: FullReprocessing(int(m[1]), int(m[2]), m[3]),
    ),
    ("SWA KV cache", r"creating +SWA KV cache, size = (\d+) cells", lambda m: SwaCache(count(m[1]))),
    ("send_error: task id", r"send_error: task id = (\d+), error:", lambda m: TaskFailed(int(m[1]))),
)
