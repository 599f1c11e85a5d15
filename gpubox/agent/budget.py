"""What a turn may use before the owner is asked to go on. The clock stops while the owner thinks."""

from __future__ import annotations

import asyncio

from gpubox.agent.events import Emit, EndReason, QuestionAsked
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Answer, AskOwner, OwnerQuestion, nobody


class Budget:
    """Rounds, generated tokens and seconds of one turn. A yes to ``may_go_on`` adds as much of each again."""

    def __init__(self, settings: AgentSettings, ask: AskOwner) -> None:
        self._settings, self._ask = settings, ask
        self.rounds, self.tokens, self.seconds = settings.rounds, settings.max_turn_tokens, settings.max_turn_seconds
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._open_questions = 0
        self._opened = self._thought_before = 0.0
        self._asking, self._refused = asyncio.Lock(), False

    def thought_seconds(self) -> float:
        """How long at least one question was open."""
        return self._thought_before + (self._clock() - self._opened if self._open_questions else 0.0)

    def used_seconds(self) -> float:
        """Of the turn, without the time in which the owner thinks."""
        return self._clock() - self._started - self.thought_seconds()

    def used_up(self, rounds: int, tokens: int) -> EndReason | None:
        """Which budget is used up between two rounds; the minutes are watched apart."""
        return "rounds" if rounds >= self.rounds else "tokens" if tokens >= self.tokens else None

    async def ask_owner(self, question: OwnerQuestion) -> Answer:
        """The owner's answer."""
        if not self._open_questions:
            self._opened = self._clock()
        self._open_questions += 1
        try:
            return await self._ask(question)
        finally:
            self._open_questions -= 1
            if not self._open_questions:
                self._thought_before += self._clock() - self._opened

    async def may_go_on(self, emit: Emit, rounds: int, tokens: int) -> bool:
        """Asks for as much again, unless the owner has just said yes or no to it."""
        if self._ask is nobody:
            return False
        async with self._asking:
            used = self.used_seconds()
            if not self._refused and (self.used_up(rounds, tokens) or used >= self.seconds):
                text = f"{rounds} rounds are used, {tokens:,} tokens, {used / 60:.0f} minutes. Go on for as many again?"
                question = OwnerQuestion("go_on", text)
                emit(QuestionAsked(question))
                self._refused = not (await self.ask_owner(question)).yes
                if not self._refused:
                    settings = self._settings
                    self.rounds, self.tokens = rounds + settings.rounds, tokens + settings.max_turn_tokens
                    self.seconds = used + settings.max_turn_seconds
            return not self._refused
