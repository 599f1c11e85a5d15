"""One turn as it goes: events in, parts of the transcript and the state of the moment out. No widget, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from gpubox.agent import events as e
from gpubox.agent.thinking import split_thinking
from gpubox.agent.tools import ToolCall
from gpubox.tui.chat.card import STOP_REASONS
from gpubox.tui.chat.clean import clean
from gpubox.tui.chat.parts import AnswerPart, ErrorPart, NotePart, PromptPart, ThinkingPart, ToolCallPart, TurnPart
from gpubox.tui.chat.waterfall import round_line, waterfall
from gpubox.tui.styled_lines import StyledLine, join_lines, styled_line


@dataclass(slots=True)
class TurnProgress:
    """What a running turn does at this moment."""

    phase: str = "asks"
    """asks | reads | thinks | answers | runs | waits | over"""
    round: int = 0
    rounds: int = 0
    prefill: e.PrefillProgress | None = None
    generation: e.GenerationStats | None = None
    """The server's figures of this round so far."""
    pieces: int = 0
    """Deltas of this turn."""
    since: float | None = None
    """When the deltas of this stretch began, by the caller's clock."""
    stretch: int = 0
    """Deltas since then."""
    tool: str = ""

    def speed(self, at: float) -> float | None:
        """Deltas per second of this stretch: an estimate of tg, since a delta may hold more than one token."""
        if self.since is None or self.stretch < 5 or at - self.since < 0.25:
            return None
        return (self.stretch - 1) / (at - self.since)


class SummaryPart(TurnPart):
    """The waterfall of a finished turn."""

    def __init__(self, totals: e.TurnTotals, reason: str) -> None:
        super().__init__()
        self.totals, self.reason = totals, reason

    def make(self, width: int) -> list[StyledLine]:
        return waterfall(self.totals, self.reason, width)


class TurnView:
    """The parts of one turn; ``parts`` grows, and only the last ones change."""

    def __init__(self, prompt: str, answered_by: str = "") -> None:
        self.prompt = prompt
        self.parts: list[TurnPart] = [PromptPart(prompt)]
        self.id = ""
        """In the chat's file; empty until it is there."""
        self.live = TurnProgress()
        self.over = False
        self.failed = False
        self.answered_by = answered_by
        """The profile and the build, where they are known."""
        self._cards: dict[str, ToolCallPart] = {}
        self._rounds: list[NotePart] = []
        self._round_from = 1
        """The first part of this round."""

    @property
    def answer(self) -> str:
        """The visible text, whole."""
        return "\n\n".join(part.text.strip("\n") for part in self.parts if isinstance(part, AnswerPart))

    def take(self, event: e.AgentEvent, at: float = 0.0) -> None:
        """Goes on with ``event``, which came at ``at``."""
        match event:
            case e.ReasoningDelta(text):
                self._piece("thinks", at)
                self._last(ThinkingPart).add(text)
            case e.TextDelta(text):
                self._piece("answers", at)
                self._last(AnswerPart).add(text)
            case e.PrefillProgress():
                self.live.phase, self.live.prefill = "reads", event
            case e.TurnStarted():
                self._who(event)
            case e.GenerationStats():
                self.live.generation = event
            case e.RoundStarted(round_, rounds):
                self._close()
                self.live.phase, self.live.round, self.live.rounds = "asks", round_, rounds
                self._begin_round()
            case e.RoundRestarted(_, why):
                del self.parts[self._round_from :]
                self._remark(styled_line(("! ", "$warning"), (clean(why), "$secondary")))
                self.live.phase = "asks"
                self._begin_round()
            case e.MessageAdded(message) if message.partial:
                self._kept(message)
            case e.ToolRequested(call):
                self._close()
                if call.code and isinstance(last := self.parts[-1], AnswerPart):
                    last.hand_over(call.code)
                self._card(call).state = "runs"
                self.live.phase, self.live.tool, self.live.since = "runs", call.name, None
            case e.ApprovalRequested(call, diff):
                card = self._card(call)
                card.state, card.diff = "waits for you", diff
                card.changed()
                self.live.phase, self.live.tool = "waits", call.name
            case e.ToolFinished(call, output):
                card = self._card(call)
                card.output = output
                card.changed()
                self.live.phase = "asks"
            case e.RoundFinished():
                self._round(event)
            case e.Notice(_, text):
                self._remark(styled_line(("! ", "$warning"), (clean(text), "$secondary")))
            case e.TurnFinished(totals, reason):
                self._finish(totals, reason)
            case e.TurnFailed(message, hint, _, totals):
                self.failed = True
                self._close()
                self.parts.append(ErrorPart(message, hint))
                self._finish(totals, "")
            case _:
                pass

    def stop(self, why: str = "stopped") -> None:
        """Nothing more comes, and no event said why."""
        if not self.over:
            self._close()
            self._remark(styled_line((f"■ {why}", "$warning")))
            self.over, self.live.phase = True, "over"

    def _begin_round(self) -> None:
        self._round_from = len(self.parts)
        self.live.prefill = self.live.generation = self.live.since = None

    def _kept(self, message: e.Message) -> None:
        """What an attempt said that was given up stays where no other said more: it is in the conversation."""
        text = split_thinking(message.content)[1]
        if text.strip() and not any(isinstance(part, AnswerPart) for part in self.parts[self._round_from :]):
            self._last(AnswerPart).add(text)

    def _who(self, event: e.TurnStarted) -> None:
        how = {"native": "tools in its own format", "fenced": "tools as ```python blocks", "none": "no tools"}
        told = how.get(event.protocol, clean(event.protocol))
        who = clean(self.answered_by or event.model)
        rows = join_lines([styled_line((who, "$secondary")), styled_line((told, "$quiet"))]) if who or told else ()
        self.parts.append(NotePart([rows]))

    def _piece(self, phase: str, at: float) -> None:
        live = self.live
        if live.since is None:
            live.since, live.stretch = at, 0
        live.phase = phase
        live.pieces += 1
        live.stretch += 1

    def _last(self, kind: type[ThinkingPart] | type[AnswerPart]) -> ThinkingPart | AnswerPart:
        """The last part, where it is of that kind and still open; else a new one."""
        last = self.parts[-1]
        if isinstance(last, kind) and not last.over:
            return last
        self._close()
        made = kind()
        self.parts.append(made)
        return made

    def _close(self) -> None:
        last = self.parts[-1]
        if isinstance(last, AnswerPart):
            last.end()
        elif isinstance(last, ThinkingPart) and not last.over:
            last.over = True
            last.changed()

    def _card(self, call: ToolCall) -> ToolCallPart:
        card = self._cards.get(call.id)
        if card is None:
            card = self._cards[call.id] = ToolCallPart(call)
            self.parts.append(card)
        return card

    def _remark(self, row: StyledLine) -> None:
        self._close()
        self.parts.append(NotePart([row]))

    def _round(self, event: e.RoundFinished) -> None:
        self._close()
        timing = event.timing
        thoughts = [part for part in self.parts if isinstance(part, ThinkingPart) and part.seconds is None]
        if thoughts:
            for part in thoughts[:-1]:
                part.seconds = 0.0
            last = thoughts[-1]
            last.seconds = timing.thinking_seconds
            if timing.thinking_tokens is not None and len(thoughts) == 1:
                last.tokens = timing.thinking_tokens
                last.exact = not timing.draft_tokens  # with drafts a delta may hold several tokens
            last.changed()
        row = round_line(event.round, max(self.live.rounds, event.round), timing)
        made = NotePart([row], gap=isinstance(self.parts[-1], AnswerPart))
        self._rounds.append(made)
        self.parts.append(made)

    def _finish(self, totals: e.TurnTotals, reason: str) -> None:
        self._close()
        for card in self._cards.values():
            if card.output is None:
                card.state = STOP_REASONS["cancelled"]
                card.changed()
        if len(self._rounds) == 1:  # its figures are the turn's
            self.parts.remove(self._rounds[0])
        if totals.timing.wall_seconds:
            self.parts.append(SummaryPart(totals, reason))
        self.over, self.live.phase = True, "over"
