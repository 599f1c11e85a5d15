"""The parts of a turn as lines: prompt, notes, thinking, answer, tool calls, errors and the time summary. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.agent.events import ChangedFile, PlanStep, RoundTiming, TurnTotals
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.diff_lines import FILE_TEXTS, change_rows, diff_rows, file_line
from gpubox.tui.chat.markdown import MarkdownStream, cut_long_line, highlight_code, output_lines
from gpubox.tui.styled_lines import (
    StyledLine,
    cell_width,
    fit_by_priority,
    join_lines,
    pad_line,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap,
    wrap_hard,
    wrap_parts,
)
from gpubox.views.changes import changed_sentence, count

if TYPE_CHECKING:
    from gpubox.sandbox.changes import Change

THINKING_TAIL_CHARS = 400
"""Characters at the end of running thinking that are searched for its last words."""
PROMPT_LINES = 30
"""Lines of a folded prompt."""
FOLDED_LINES = 10
"""Lines of code, a diff or output in a folded tool call."""
UNFOLDED_LINES = 2000
"""The same when unfolded; the rest is only counted."""
CHANGED_SHOWN = 60
"""Files in the list of what a turn changed."""
INDENT: StyledLine = (("  ", ""),)
BAR: StyledLine = (("│ ", "$line"),)


class TurnPart:
    """A part of a turn. Its lines are cached until ``changed`` is called, it is folded, or the width changes."""

    folds = False
    """Whether it can be folded and unfolded."""
    gap = True
    """Whether an empty line precedes it."""

    def __init__(self) -> None:
        self.open = False
        """Unfolded."""
        self._cache_key: tuple[int, bool] | None = None
        self._lines: list[StyledLine] = []

    def changed(self) -> None:
        self._cache_key = None

    def lines(self, width: int) -> list[StyledLine]:
        key = (width, self.open)
        if key != self._cache_key:
            self._lines, self._cache_key = self.make(width), key
        return self._lines

    def make(self, width: int) -> list[StyledLine]:
        raise NotImplementedError


class LinesPart(TurnPart):
    """Lines that do not change: a note of gpubox itself, an error, the figures of the turn."""

    def __init__(self, make: Callable[[int], list[StyledLine]], *, gap: bool = True) -> None:
        super().__init__()
        self._make, self.gap = make, gap

    def make(self, width: int) -> list[StyledLine]:
        return self._make(width)


def note_part(row: StyledLine, *, gap: bool = False) -> LinesPart:
    """A line of gpubox itself: which model answers, what was repaired, the figures of a round."""
    return LinesPart(lambda width: wrap(row, width, (), INDENT), gap=gap)


class PromptPart(TurnPart):
    """The user's prompt."""

    folds = True

    def __init__(self, text: str, attached: str = "", images: Sequence[str] = ()) -> None:
        super().__init__()
        self.text, self.attached, self.images = text, attached, images

    def make(self, width: int) -> list[StyledLine]:
        rows = _text_rows(self.text, "bold", width, (("❯ ", "bold $primary"),), INDENT)
        if len(rows) > PROMPT_LINES and not self.open:
            rows = [*rows[: PROMPT_LINES - 1], ((f"  … {len(rows) - PROMPT_LINES + 1:,} more lines", "$quiet"),)]
        rows += [(*INDENT, (sanitize_to_width(f"[image {name}]", width - 2), "$accent")) for name in self.images]
        if self.attached:
            names = sanitize_line(self.attached.partition("\n")[0])
            rows += wrap(
                styled_line((f"+ {len(self.attached):,} characters: {names}", "$quiet")), width, INDENT, INDENT
            )
            if self.open:
                rows += _text_rows(self.attached.partition("\n")[2], "$quiet", width, INDENT, INDENT)
        return rows


def _text_rows(text: str, style: str, width: int, first: StyledLine, rest: StyledLine) -> list[StyledLine]:
    """The lines of a text from outside, wrapped; ``first`` and ``rest`` are the prefixes of the rows."""
    rows: list[StyledLine] = []
    for line in text.strip("\n").split("\n"):
        rows += wrap(((sanitize_line(cut_long_line(line)), style),), width, rest if rows else first, rest)
    return rows


class ThinkingPart(TurnPart):
    """The model's thinking. Folded it is one line with the number of tokens."""

    folds = True

    def __init__(self) -> None:
        super().__init__()
        self.deltas: list[str] = []
        self.tokens = 0
        self.exact = False
        """Whether ``tokens`` is the agent's count; otherwise it counts deltas, which may hold several tokens."""
        self.seconds: float | None = None
        self.over = False

    def add(self, text: str) -> None:
        self.deltas.append(text)
        self.tokens += 1
        self.changed()

    def make(self, width: int) -> list[StyledLine]:
        mark = "▾" if self.open else "▸"
        tokens = f"{'' if self.exact else '~'}{count(self.tokens, 'token')}"
        duration = f", {units.duration(self.seconds)}" if self.seconds else ""
        title = f"{mark} thought for {tokens}{duration}" if self.over else f"{mark} thinking  {tokens}"
        row = styled_line((title, "$turn-thinking"))
        if not self.open:
            if self.over:
                return [row]
            return [truncate_line(styled_line(*row, (f"  {self._last_words()}", "$quiet italic")), width)]
        return [row, *_text_rows("".join(self.deltas), "$quiet", width, BAR, BAR)]

    def _last_words(self) -> str:
        text, index = "", len(self.deltas)
        while index and len(text) < THINKING_TAIL_CHARS:
            index -= 1
            text = self.deltas[index] + text
        tail = sanitize_line(" ".join(text[-THINKING_TAIL_CHARS:].split()))
        return f"… {tail[-60:].lstrip()}" if tail else ""


class SummaryPart(TurnPart):
    """What the model has of the conversation before: folded, its first line."""

    folds = True

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text.strip()

    def make(self, width: int) -> list[StyledLine]:
        title: StyledLine = ((f"{'▾' if self.open else '▸'} summary of what was said before", "$turn-thinking"),)
        if not self.open:
            return [truncate_line((*title, (f"  {sanitize_line(' '.join(self.text.split()))[:400]}", "$quiet")), width)]
        return [title, *_text_rows(self.text, "$quiet", width, BAR, BAR)]


class PlanPart(TurnPart):
    """A hosted agent's plan as it is now. Folded: the steps around the one it is at."""

    folds = True

    def __init__(self, steps: Sequence[PlanStep]) -> None:
        super().__init__()
        self.steps = steps

    def make(self, width: int) -> list[StyledLine]:
        done = sum(step.status == "completed" for step in self.steps)
        rows: list[StyledLine] = [(("plan ", "$quiet"), (f"{done} of {len(self.steps)} done", "bold"))]
        at = next((index for index, step in enumerate(self.steps) if step.status != "completed"), len(self.steps))
        limit = UNFOLDED_LINES if self.open else FOLDED_LINES
        first = max(0, min(at - 2, len(self.steps) - limit))
        if first:
            rows.append((*INDENT, (f"… {count(first, 'step')} before", "$quiet")))
        for step in self.steps[first : first + limit]:
            mark, colour, style = STEP_STYLES[step.status]
            text = sanitize_line(cut_long_line(" ".join(step.text.split())))
            lines = wrap(((text, style),), width, styled_line((f"{mark} ", colour)), INDENT)
            rows += _fold_rows(lines, UNFOLDED_LINES if self.open else 2)
        if (left := len(self.steps) - first - limit) > 0:
            rows.append((*INDENT, (f"… {count(left, 'more step')}", "$quiet")))
        return rows


class AnswerPart(TurnPart):
    """Visible text, as Markdown."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        """As the model wrote it."""
        self.over = False
        self._stream = MarkdownStream()

    def add(self, text: str) -> None:
        self.text += text
        self._stream.add(text)
        self.changed()

    def drop_code(self, code: str) -> None:
        """Removes the last block from what is shown if it is ``code``: the tool call that runs it shows it."""
        self._stream.drop_code(code)
        self.changed()

    def make(self, width: int) -> list[StyledLine]:
        return self._stream.lines(width, over=self.over)


def error_lines(message: str, hint: str, width: int) -> list[StyledLine]:
    """Why a turn failed, and what to do about it."""
    rows: list[StyledLine] = []
    for text, style in ((message, ""), (hint, "$quiet")):
        for part in output_lines(text):
            first: StyledLine = INDENT if rows else (("✗ ", "$error"),)
            rows += wrap(((part, style),), width, first, INDENT)
    return rows


# -- tool calls ---------------------------------------------------------------------------------------

STOP_REASONS = {
    "wall": "out of time", "cpu": "out of CPU time", "memory": "out of memory", "output": "too much output",
    "cancelled": "stopped", "denied": "you refused", "refused": "refused",
}  # fmt: skip
"""``ToolOutput.ended_by`` -> its label."""
STEP_STYLES = {
    "completed": ("✓", "$success", "$quiet"), "in_progress": ("●", "$accent", "bold"), "pending": ("○", "$quiet", ""),
}  # fmt: skip
"""Status of a step of a plan -> mark, its colour, the style of the text."""


class ToolCallPart(TurnPart):
    """A tool call in a frame: its arguments or code, and its output."""

    folds = True

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self.call = call
        self.output: ToolOutput | None = None
        self.state = "runs"
        """In the title as long as there is no output."""

    def make(self, width: int) -> list[StyledLine]:
        output = self.output
        inner = max(8, width - 4)
        limit = UNFOLDED_LINES if self.open else FOLDED_LINES
        edge = "$line" if output is None or output.ok else "$error"
        rows = [_frame("╭", self._title(), "╮", width, edge)]
        rows += [_side(row, inner, edge) for row in _fold_rows(self._input_lines(inner), limit)]
        if output is not None and (result := _result_lines(output, inner)):
            rows.append(_frame("├", (), "┤", width, edge))
            rows += [_side(row, inner, edge) for row in _fold_rows(result, limit, tail=True)]
        rows.append(_frame("╰", (), "╯", width, edge))
        return rows

    def _title(self) -> StyledLine:
        """``code_execution · bubblewrap · 38 ms · exit 1``."""
        output = self.output
        parts: list[StyledLine] = [((sanitize_to_width(self.call.name, 40), "bold"),)]
        if output is None:
            return join_lines([*parts, ((self.state, "$accent"),)], " · ")
        if output.isolation:
            parts.append(((output.isolation, "$success" if output.isolation == "bubblewrap" else "$warning"),))
        parts.append(((units.duration(output.seconds), "$secondary"),))
        if output.ended_by:
            parts.append(((STOP_REASONS.get(output.ended_by, sanitize_line(output.ended_by)), "$error"),))
        elif output.exit_code is not None:
            parts.append(((f"exit {output.exit_code}", "$success" if output.exit_code == 0 else "$error"),))
        elif not output.ok:
            parts.append((("failed", "$error"),))
        return join_lines(parts, " · ")

    def _input_lines(self, width: int) -> list[StyledLine]:
        if self.call.code:
            code = "\n".join(cut_long_line(text.expandtabs(4)) for text in self.call.code.strip("\n").split("\n"))
            return [row for source in highlight_code(code, self.call.language) for row in wrap_hard(source, width)]
        title = sanitize_line(cut_long_line(" ".join(self.call.title.split())))
        rows = _fold_rows(wrap(((title, "bold"),), width), 3) if title else []
        diff = self.output.diff if self.output else ""
        for name, value in self.call.arguments.items():
            if not (diff and name in FILE_TEXTS) and (not title or (name == "command" and str(value) not in title)):
                shown = " · ".join(map(str, value)) if isinstance(value, list) else str(value)
                text = sanitize_line(cut_long_line(" ⏎ ".join(shown.split("\n"))))
                rows += _fold_rows(wrap_hard(((f"{sanitize_line(str(name))} ", "$quiet"), (text, "")), width), 3)
        path = str(self.call.arguments.get("path", ""))
        return rows + (diff_rows(diff.rstrip("\n").split("\n"), path, width) if diff else [])


def _result_lines(output: ToolOutput, width: int) -> list[StyledLine]:
    rows = [row for text in output_lines(output.text) for row in wrap_hard(((text, "$secondary"),), width)]
    if output.dropped_bytes:
        rows.append(((f"{output.dropped_bytes:,} bytes more were dropped", "$quiet"),))
    return rows


def _fold_rows(rows: list[StyledLine], limit: int, *, tail: bool = False) -> list[StyledLine]:
    """About ``limit`` rows and a count of the others; with ``tail`` half of the rows are from the end."""
    if len(rows) <= limit + 1:
        return rows
    note: StyledLine = ((f"… {len(rows) - limit:,} more lines", "$quiet"),)
    if not tail:
        return [*rows[:limit], note]
    return [*rows[: limit // 2], note, *rows[len(rows) - (limit - limit // 2) :]]


def _frame(left: str, title: StyledLine, right: str, width: int, edge: str) -> StyledLine:
    shown: StyledLine = ((" ", ""), *truncate_line(title, max(0, width - 6)), (" ", "")) if title else ()
    fill = max(0, width - 3 - cell_width(shown))
    return ((f"{left}─", edge), *shown, ("─" * fill + right, edge))


def _side(row: StyledLine, inner: int, edge: str) -> StyledLine:
    return (("│ ", edge), *pad_line(row, inner), (" │", edge))


class TestPart(ToolCallPart):
    """The project's tests: one line if they passed, until it is unfolded."""

    def make(self, width: int) -> list[StyledLine]:
        output = self.output
        if self.open or output is None or not output.ok:
            return super().make(width)
        last = next(iter(output_lines(output.text)[-1:]), "")
        command = sanitize_to_width(str(self.call.arguments.get("command", "")), 40)
        parts: list[tuple[int, StyledLine]] = [
            (9, styled_line(("✓ tests passed", "$success"))), (3, styled_line(command)),
            (7, styled_line((last, "$secondary"))), (5, styled_line((units.duration(output.seconds), "$quiet"))),
        ]  # fmt: skip
        return [fit_by_priority(parts, width)]


# -- what the turn changed ----------------------------------------------------------------------------


class ChangesPart(TurnPart):
    """A line for each file that the turn changed; unfolded, their diffs. Below them what became of them."""

    folds = True

    def __init__(self, files: Sequence[ChangedFile]) -> None:
        super().__init__()
        self.files = files
        self.diffs: dict[str, Change] = {}
        """By path, as they were when they were shown first: a decision changes what waits, not what the turn did."""
        self.waiting: Collection[str] = ()
        self.fate: StyledLine = ()

    def decide(self, changes: Sequence[Change], fate: StyledLine) -> None:
        """``changes``: those that wait now; ``fate``: what was done with them last."""
        self.waiting = {change.path for change in changes}
        self.diffs = {change.path: change for change in changes} | self.diffs
        self.fate = fate
        self.changed()

    def make(self, width: int) -> list[StyledLine]:
        cells = max((len(each.path) for each in self.files), default=0)
        mark = ("▾ " if self.open else "▸ ") if self.diffs else "● "
        left = f"   {len(self.waiting)} left" if self.fate and self.waiting else ""
        rows: list[StyledLine] = [((mark, "$primary"), (changed_sentence(self.files), "bold"), (left, "$primary"))]
        for each in self.files[:CHANGED_SHOWN]:
            change = self.diffs.get(each.path)
            row = file_line(change or each, width, INDENT, cells=cells)
            decided = self.diffs and each.path not in self.waiting
            rows.append(tuple((text, "$quiet") for text, _ in row) if decided else row)
            if self.open and change:
                rows += [(*INDENT, *line) for line in change_rows(change, width - 2)]
        if len(self.files) > CHANGED_SHOWN:
            rows.append((*INDENT, (f"… {len(self.files) - CHANGED_SHOWN:,} more files", "$quiet")))
        return rows + (wrap(self.fate, width, INDENT, INDENT) if self.fate else [])


# -- where the time of a turn went --------------------------------------------------------------------

TIME_PARTS = (
    ("queue", "$turn-queue", "queue_seconds"),
    ("reading", "$turn-prefill", "prefill_new_seconds"),
    ("read again", "$turn-reread", "prefill_reprocessed_seconds"),
    ("thinking", "$turn-thinking", "thinking_seconds"),
    ("answer", "$turn-answer", "answer_seconds"),
    ("tools", "$turn-tools", "tool_seconds"),
    ("waited for you", "$turn-approval", "approval_seconds"),
    ("gpubox", "$turn-loop", "loop_seconds"),
)
"""Label, colour and field of ``RoundTiming``, in the order of the bar."""
MIN_PART_SECONDS = 0.0005
"""Shorter parts are left out of the bar."""
END_REASONS = {
    "rounds": "all rounds used",
    "tokens": "token limit of the turn",
    "wall": "time limit of the turn",
    "stopped": "you stopped it",
    "repetition": "the model repeated itself",
    "length": "cut at max_tokens",
}
"""Why a turn ended without a complete answer -> its label."""


def waterfall(totals: TurnTotals, reason: str, width: int, rest: str = "gpubox") -> list[StyledLine]:
    """The figures of the turn, the bar of its time, and the bar's legend. ``rest``: who took the rest of the time."""
    parts = time_shares(totals.timing, width)
    if not parts:
        return []
    bar: StyledLine = tuple(("█" * size, colour) for _, colour, _, size in parts)
    legend = [
        styled_line(
            ("■ ", colour),
            (f"{rest if label == 'gpubox' else label} ", "$quiet"),
            f"{s:.1f} s" if 0.0995 <= s < 1 else units.duration(s),
        )
        for label, colour, s, _ in parts
    ]
    return [*wrap_parts(_summary_spans(totals, reason), width), bar, *wrap_parts(legend, width, "  ")]


def time_shares(timing: RoundTiming, width: int) -> list[tuple[str, str, float, int]]:
    """Label, colour, seconds and cells of each part that took time; the cells add up to ``width``."""
    parts = [(label, colour, getattr(timing, field)) for label, colour, field in TIME_PARTS]
    parts = [part for part in parts if part[2] >= MIN_PART_SECONDS]
    if not parts:
        return []
    total = sum(seconds for _, _, seconds in parts)
    sizes = [max(1, round(seconds / total * width)) for _, _, seconds in parts]
    while sum(sizes) != width:
        sizes[sizes.index(max(sizes))] += 1 if sum(sizes) < width else -1
    return [(*part, size) for part, size in zip(parts, sizes, strict=True)]


def _summary_spans(totals: TurnTotals, reason: str) -> list[StyledLine]:
    timing = totals.timing
    spans: list[StyledLine] = [
        styled_line(("turn ", "$quiet"), (units.duration(timing.wall_seconds), "bold")),
        styled_line(f"{_estimate(timing)}{timing.generated_tokens:,} tok"),
        *_speed_spans(timing, with_waiting=totals.effective_tokens_per_second),
    ]
    if totals.rounds > 1 or totals.tool_calls:
        spans.append(styled_line(count(totals.rounds, "round")))
    if totals.tool_calls:
        failed = (f", {totals.failed_tool_calls} failed", "$warning") if totals.failed_tool_calls else ""
        spans.append(styled_line(count(totals.tool_calls, "tool call"), failed))
    if label := END_REASONS.get(reason):
        spans.append(styled_line((label, "$warning")))
    return spans


def _estimate(timing: RoundTiming) -> str:
    return "" if timing.from_server else "~"


def _speed_spans(timing: RoundTiming, with_waiting: float | None = None) -> list[StyledLine]:
    """Speed, draft acceptance and prompt tokens of a round or a turn."""
    mark = _estimate(timing) if timing.tg_tokens_per_second else ""
    tg = f"{mark}{units.rate(timing.tg_tokens_per_second)} tok/s"
    spans = [styled_line(tg, (" while writing", "$quiet"))]
    if with_waiting is not None:
        spans.append(styled_line(f"{units.rate(with_waiting)}", (" with waiting", "$quiet")))
    if timing.draft_tokens:
        accepted = timing.draft_tokens_accepted
        share = f"{accepted / timing.draft_tokens:.0%}" if accepted is not None else units.UNKNOWN
        spans.append(styled_line(("draft ", "$quiet"), share))
    new, cached = units.tokens(timing.prefill_new_tokens), units.tokens(timing.cached_tokens)
    spans.append(styled_line(("prompt ", "$quiet"), f"{new} read, {cached} reused"))
    if timing.prefill_reprocessed_tokens:
        where = f" from {sanitize_to_width(timing.reread_from, 40)}" if timing.reread_from else ""
        spans.append(styled_line((f"{units.tokens(timing.prefill_reprocessed_tokens)} read again{where}", "$warning")))
    return spans


def round_spans(number: int, rounds: int, timing: RoundTiming) -> list[StyledLine]:
    """One round of several: ``round 2/5   70.4 tok/s   prompt 73 read, 566 reused``; no ``rounds``: without a limit."""
    limit = f"/{max(rounds, number)}" if rounds else ""
    return [styled_line((f"round {number}{limit}", "$quiet")), *_speed_spans(timing)]
