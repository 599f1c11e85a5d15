"""Context checkpoints that the slots hold in host memory, folded from log events. Pure."""

from __future__ import annotations

from gpubox.server.log_events import ContextCheckpoint


class ContextCheckpoints:
    """By slot, oldest first. One that came with a prompt out of the prompt cache is in no line, and not counted."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, int]] = {}

    def feed(self, event: ContextCheckpoint) -> None:
        """Takes in one that was made or dropped."""
        held = self._held.setdefault(event.slot, {})
        held.pop(event.tokens, None)
        if event.erased:
            return
        while len(held) >= max(1, event.number):  # it is the number-th: what more there was is gone
            del held[min(held)]
        held[event.tokens] = event.size_bytes

    def clear(self, slot: int | None = None) -> None:
        """The slot's prompt is gone and they with it; without ``slot``, those of all."""
        if slot is None:
            self._held.clear()
        else:
            self._held.pop(slot, None)

    @property
    def size_bytes(self) -> int:
        """All of them together."""
        return sum(size for held in self._held.values() for size in held.values())
