"""What a chat is made of on the screen: prompts, thinking, answers, cards, remarks. Each makes its own lines."""

from __future__ import annotations

from gpubox import units
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.tui.chat.blocks import MarkdownBlocks
from gpubox.tui.chat.card import tool_call_lines
from gpubox.tui.chat.clean import clean, clean_lines, cut
from gpubox.tui.chat.markdown import block_lines
from gpubox.tui.chat.wrap import wrap
from gpubox.tui.styled_lines import StyledLine, styled_line, truncate_line

THINKING_TAIL_CHARS = 400
"""Of the end of running thoughts, that is looked at to show their last words."""
PROMPT_LINES = 30


class TurnPart:
    """A piece of the transcript. Its lines are made anew where ``changed`` was called or the width is another."""

    folds = False
    """Whether it can be folded and unfolded."""
    gap = True
    """Whether an empty line stands before it."""

    def __init__(self) -> None:
        self.version = 0
        self.open = False
        """Unfolded."""
        self._made: tuple[int, int, bool] | None = None
        self._lines: list[StyledLine] = []

    def changed(self) -> None:
        """Its content is another now."""
        self.version += 1

    def lines(self, width: int) -> list[StyledLine]:
        """What stands on the screen."""
        key = (self.version, width, self.open)
        if key != self._made:
            self._lines, self._made = self.make(width), key
        return self._lines

    def make(self, width: int) -> list[StyledLine]:
        """Makes the lines."""
        raise NotImplementedError


class PromptPart(TurnPart):
    """What the owner asked."""

    folds = True

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def make(self, width: int) -> list[StyledLine]:
        mark: StyledLine = (("❯ ", "bold $primary"),)
        rows: list[StyledLine] = []
        for text in self.text.strip("\n").split("\n"):
            rows += wrap(((clean(cut(text)), "bold"),), width, mark if not rows else (("  ", ""),), (("  ", ""),))
        if len(rows) > PROMPT_LINES and not self.open:
            rows = [*rows[: PROMPT_LINES - 1], ((f"  … {len(rows) - PROMPT_LINES + 1:,} more lines", "$quiet"),)]
        return rows


class NotePart(TurnPart):
    """Lines of gpubox's own about the turn: who answers, what was repaired, a round's figures."""

    gap = False

    def __init__(self, rows: list[StyledLine], *, gap: bool = False) -> None:
        super().__init__()
        self.rows, self.gap = rows, gap

    def make(self, width: int) -> list[StyledLine]:
        return [part for row in self.rows for part in wrap(row, width, (), (("  ", ""),))]


class ThinkingPart(TurnPart):
    """The model's thinking: one line with its tokens, folded; all of it, quiet, unfolded."""

    folds = True

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.tokens = 0
        self.exact = False
        """Whether the tokens were counted by the loop; else the pieces were, of one token or more each."""
        self.seconds: float | None = None
        self.over = False

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.tokens += 1
        self.changed()

    def make(self, width: int) -> list[StyledLine]:
        mark = "▾" if self.open else "▸"
        count = f"{'' if self.exact else '~'}{self.tokens:,} token{'s' * (self.tokens != 1)}"
        took = f", {units.duration(self.seconds)}" if self.seconds else ""
        words = f"{mark} thought for {count}{took}" if self.over else f"{mark} thinking  {count}"
        row = styled_line((words, "$turn-thinking"))
        if not self.open:
            return (
                [row]
                if self.over
                else [truncate_line(styled_line(*row, (f"  {self._peek()}", "$quiet italic")), width)]
            )
        texts = "".join(self.pieces).strip("\n").split("\n")
        bar: StyledLine = (("│ ", "$line"),)
        return [row, *(part for text in texts for part in wrap(((clean(cut(text)), "$quiet"),), width, bar, bar))]

    def _peek(self) -> str:
        """The last words of what is being thought."""
        text, at = "", len(self.pieces)
        while at and len(text) < THINKING_TAIL_CHARS:
            at -= 1
            text = self.pieces[at] + text
        words = clean(" ".join(text[-THINKING_TAIL_CHARS:].split()))
        return f"… {words[-60:].lstrip()}" if words else ""


class AnswerPart(TurnPart):
    """Visible text, as Markdown. While it comes only its last block is drawn again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = MarkdownBlocks()
        self.pieces: list[str] = []
        self.over = False
        self._done: list[StyledLine] = []
        self._drawn = 0
        """So many blocks stand in ``_done``."""
        self._starts: list[int] = []
        """Where in ``_done`` each of them begins."""
        self._width = 0

    @property
    def text(self) -> str:
        """All of it, as the model wrote it."""
        return "".join(self.pieces)

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.blocks.add(text)
        self._rejoin()
        self.changed()

    def end(self) -> None:
        """No more comes."""
        if not self.over:
            self.over = True
            self.blocks.end()
            self._rejoin()
            self.changed()

    def hand_over(self, code: str) -> None:
        """Its last block became a tool's card: it is not shown twice."""
        closed = self.blocks.closed
        if closed and closed[-1].code and closed[-1].text.strip() == code.strip():
            self.blocks.joined_from = len(closed) - 1
            self._rejoin()
            closed.pop()
            self.changed()

    def _rejoin(self) -> None:
        at = self.blocks.joined_from
        if at is not None and at < self._drawn:
            del self._done[self._starts[at] :]
            del self._starts[at:]
            self._drawn = at

    def make(self, width: int) -> list[StyledLine]:
        if width != self._width:
            self._width, self._done, self._starts, self._drawn = width, [], [], 0
        for block in self.blocks.closed[self._drawn :]:
            self._starts.append(len(self._done))
            if self._done and not block.tight:
                self._done.append(())
            self._done += block_lines(block, width)
        self._drawn = len(self.blocks.closed)
        tail = self.blocks.tail
        if tail is None:
            return list(self._done)
        space: list[StyledLine] = [()] if self._done and not tail.tight else []
        return self._done + space + block_lines(tail, width, open_=True)


class ToolCallPart(TurnPart):
    """One tool call."""

    folds = True

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self.call = call
        self.output: ToolOutput | None = None
        self.state = "runs"
        self.diff = ""

    def make(self, width: int) -> list[StyledLine]:
        return tool_call_lines(self.call, self.output, self.state, width, diff=self.diff, whole=self.open)


class ErrorPart(TurnPart):
    """Why a turn broke, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__()
        self.message, self.hint = message, hint

    def make(self, width: int) -> list[StyledLine]:
        texts = [(text, "") for text in clean_lines(self.message)] + [
            (text, "$quiet") for text in clean_lines(self.hint)
        ]
        first: StyledLine = (("✗ ", "$error"),)
        rows: list[StyledLine] = []
        for span in texts:
            rows += wrap((span,), width, first if not rows else (("  ", ""),), (("  ", ""),))
        return rows
