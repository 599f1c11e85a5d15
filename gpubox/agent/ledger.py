"""The times of one turn: each round's Timing as it ends, and their sum."""

from __future__ import annotations

from collections.abc import Callable

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import RoundTiming, TurnTotals
from gpubox.agent.timing import RequestMeasurements, cache_tokens_after, round_timing, turn_totals
from gpubox.agent.tool_round import ToolRunner


class TurnTimings:
    """Knows when the running round began, and its tools; nothing of a turn is left out of its rounds."""

    def __init__(self, conversation: Conversation, runner: ToolRunner, clock: Callable[[], float]) -> None:
        self._conversation, self._runner, self._clock = conversation, runner, clock
        self._timings: list[RoundTiming] = []
        self._acting: tuple[float, float] | None = None
        """When the round's tools began, and the owner's seconds until then."""
        self.began = clock()
        """When the round began, which is when the one before ended."""

    @property
    def generated_tokens(self) -> int:
        """Of all rounds so far, those that were asked again among them."""
        return sum(timing.generated_tokens for timing in self._timings)

    def tools_begin(self) -> None:
        """From here to the end of the round is the tools' time."""
        self._acting = self._clock(), self._runner.approval_seconds

    def end(self, marks: RequestMeasurements) -> RoundTiming:
        """Ends a round, or an attempt that is given up."""
        now = self._clock()
        began, owner = self._acting or (now, self._runner.approval_seconds)
        approval = self._runner.approval_seconds - owner
        held, tool = self._conversation.server_cache_tokens, max(now - began - approval, 0.0)
        timing = round_timing(marks, now, server_cache_tokens=held, tool=tool, approval=approval)
        self._conversation.server_cache_tokens = cache_tokens_after(marks) or held
        self._timings.append(timing)
        self.began, self._acting = now, None
        return timing

    def totals(self, rounds: int) -> TurnTotals:
        """The sums so far."""
        return turn_totals(self._timings, rounds, self._runner.made, self._runner.failed)
