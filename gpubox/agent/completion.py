"""The requests of one turn: what does not work at once is asked again where that helps, from the same prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpubox.agent.asking import Emit, ask
from gpubox.agent.conversation import Conversation, rendered
from gpubox.agent.events import Notice, RoundRestarted
from gpubox.agent.ledger import TurnTimings
from gpubox.agent.protocol import ToolProtocol
from gpubox.agent.reply import ModelReply, request_body
from gpubox.agent.settings import AgentSettings
from gpubox.agent.timing import RequestMeasurements
from gpubox.errors import GpuboxError
from gpubox.server.client import LlamaClient
from gpubox.server.stream import ContextOverflow, StreamError

THINKING_TOKENS = 256
"""Of a reply that is asked again because the one before only thought; templates without a switch obey this."""
CHARACTERS_PER_TOKEN = 3
FULL = 0.6
"""How full of the context the conversation is after folding: each folding costs a prefill, so there are few."""


class CompletionRequester:
    """Asks for the reply of one round after the other."""

    def __init__(
        self,
        client: LlamaClient,
        conversation: Conversation,
        settings: AgentSettings,
        chosen: ToolProtocol,
        context_tokens: int | None,
        emit: Emit,
        clock: Callable[[], float],
        ledger: TurnTimings,
        retry_seconds: float,
    ) -> None:
        self._client, self._conversation, self._settings, self._chosen = client, conversation, settings, chosen
        self._context, self._emit, self._clock, self._ledger = context_tokens, emit, clock, ledger
        self._retry_seconds = retry_seconds
        self._sent = 0
        """Messages that the server has seen."""
        self._roomy = 0
        """The cache's tokens for which room was made already."""
        self.reply: ModelReply | None = None
        """The newest, also while it comes."""

    async def ask(self, number: int, max_tokens: int) -> ModelReply:
        """The reply of round ``number``, which is never empty. Raises GpuboxError where asking again did not help."""
        broken: ModelReply | None = None
        empty = False
        while True:
            self._make_room(max_tokens)
            reply = self.reply = ModelReply(RequestMeasurements(self._ledger.began, self._clock()))
            try:
                await self._ask(reply, max_tokens, without_thinking=empty)
            except ContextOverflow as error:
                over = self._characters_over(error)
                if not (self._fold(over) or self._shorten(over)):
                    raise
                continue
            except StreamError as error:
                if broken and not reply.content:  # what the first attempt said stays
                    reply.content, reply.reasoning = broken.content, reply.reasoning or broken.reasoning
                if broken or not error.transient:
                    raise
                broken = reply
                self._again(number, f"{error.message} Asking again.", reply)
                await asyncio.sleep(self._retry_seconds)
                continue
            why, failure = _nothing(reply)
            if not why:
                return reply
            if empty:
                raise failure
            empty = True
            self._again(number, why, reply)

    async def _ask(self, reply: ModelReply, max_tokens: int, *, without_thinking: bool) -> None:
        chosen, settings = self._chosen, self._settings
        body = request_body(
            rendered(self._conversation, chosen.system, native=chosen.native, system_role=chosen.system_role),
            chosen,
            settings,
            max_tokens=max_tokens,
            thinking=False if without_thinking else settings.thinking,
            thinking_budget_tokens=THINKING_TOKENS if without_thinking else settings.thinking_budget_tokens,
        )
        self._sent = len(self._conversation.messages)
        await ask(
            self._client,
            body,
            reply,
            self._emit,
            silence_seconds=settings.silence_seconds,
            until_program=chosen.name == "fenced",
            clock=self._clock,
        )

    def _again(self, number: int, why: str, reply: ModelReply) -> None:
        self._emit(RoundRestarted(number, why, self._ledger.end(reply.marks)))

    def _make_room(self, max_tokens: int) -> None:
        """Folds before the server has to refuse, as far as the sizes are known."""
        held = self._conversation.server_cache_tokens
        if not self._context or held == self._roomy:
            return
        new = sum(len(message.content) for message in self._conversation.messages[self._sent :] if self._sent)
        over = held + new / CHARACTERS_PER_TOKEN + min(max_tokens, self._context // 4) - self._context
        if over > 0 and self._fold(int((over + (1 - FULL) * self._context) * CHARACTERS_PER_TOKEN)):
            self._roomy = held

    def _characters_over(self, error: ContextOverflow) -> int:
        prompt, context = error.prompt_tokens or 0, error.context_tokens or self._context or 0
        return int(max(prompt - FULL * context, context * (1 - FULL)) * CHARACTERS_PER_TOKEN)

    def _fold(self, characters: int) -> bool:
        folded = self._conversation.fold(characters)
        for event in folded:
            self._emit(event)
        if folded:
            self._emit(Notice("folded", f"The context is nearly full: {len(folded)} old tool outputs were folded."))
        return bool(folded)

    def _shorten(self, characters: int) -> bool:
        """What one output alone is too long for: digits are a token each."""
        shortened = self._conversation.shorten_newest(characters)
        for event in shortened:
            self._emit(event)
            self._emit(Notice("folded", "The newest output does not fit the context: its middle was left out."))
        return bool(shortened)


def _nothing(reply: ModelReply) -> tuple[str, GpuboxError]:
    """Why the reply is none, as a sentence (empty: it is one), and the error when it stays so."""
    failure = GpuboxError("The model gives an empty answer.", "Ask in other words, or try another model.")
    if reply.visible.strip() or reply.calls:
        return "", failure
    if reply.thought:
        failure = GpuboxError(
            "The model only thinks and does not answer.", "Give the chat more max-tokens, or turn thinking off."
        )
        if reply.circles:
            return "The model turned in circles while thinking; asked again without thinking.", failure
        if reply.finish_reason == "length":
            return "max_tokens ended while the model was thinking; asked again without thinking.", failure
        return "The model thought and said nothing; asked again without thinking.", failure
    return "The model said nothing; asked again.", failure
