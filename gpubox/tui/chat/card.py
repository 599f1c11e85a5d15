"""The frame around what a tool was given and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox import units
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.sanitize import reveal_hidden
from gpubox.tui.chat.clean import clean, clean_lines, cut
from gpubox.tui.chat.code import highlight_code
from gpubox.tui.chat.wrap import wrap_hard
from gpubox.tui.styled_lines import (
    StyledLine,
    StyledText,
    cell_width,
    join_lines,
    pad_line,
    sanitize_to_width,
    truncate_line,
)

FOLDED_LINES = 10
"""Of code, a diff or output, while the card is folded."""
UNFOLDED_LINES = 2000
"""Even unfolded: the rest is counted."""
EDGE = "$line"
STOP_REASONS = {
    "wall": "out of time", "cpu": "out of CPU time", "memory": "out of memory", "output": "too much output",
    "cancelled": "stopped", "denied": "you said no", "refused": "refused",
}  # fmt: skip
"""Why a run was ended -> how the card says it."""


def tool_call_lines(
    call: ToolCall, output: ToolOutput | None, state: str, width: int, *, diff: str = "", whole: bool = False
) -> list[StyledLine]:
    """A card of exactly ``width`` cells; ``state`` is what stands in its head while there is no output."""
    inner = max(8, width - 4)
    most = UNFOLDED_LINES if whole else FOLDED_LINES
    edge = EDGE if output is None or output.ok else "$error"
    rows = [_frame("╭", tool_call_title(call, output, state), "╮", width, edge)]
    given = _given(call, diff, inner)
    rows += [_side(row, inner, edge) for row in fold_rows(given, most)]
    if output is not None and (told := _told(output, inner)):
        rows.append(_frame("├", (), "┤", width, edge))
        rows += [_side(row, inner, edge) for row in fold_rows(told, most, tail=True)]
    rows.append(_frame("╰", (), "╯", width, edge))
    return rows


def tool_call_title(call: ToolCall, output: ToolOutput | None, state: str) -> StyledLine:
    """``code_execution · bubblewrap · 38 ms · exit 1``."""
    parts: list[StyledLine] = [((sanitize_to_width(call.name, 40), "bold"),)]
    if output is None:
        return join_lines([*parts, ((state, "$accent"),)], " · ")
    if output.isolation:
        parts.append(((output.isolation, "$success" if output.isolation == "bubblewrap" else "$warning"),))
    parts.append(((units.duration(output.seconds), "$secondary"),))
    if output.ended_by:
        parts.append(((STOP_REASONS.get(output.ended_by, clean(output.ended_by)), "$error"),))
    elif output.exit_code is not None:
        parts.append(((f"exit {output.exit_code}", "$success" if output.exit_code == 0 else "$error"),))
    elif not output.ok:
        parts.append((("failed", "$error"),))
    return join_lines(parts, " · ")


def fold_rows(rows: list[StyledLine], most: int, *, tail: bool = False) -> list[StyledLine]:
    """At most about ``most`` rows, with a count of what is left out; ``tail`` keeps the end too."""
    if len(rows) <= most + 1:
        return rows
    left_out = len(rows) - most
    note: StyledLine = ((f"… {left_out:,} more lines", "$quiet"),)
    if not tail:
        return [*rows[:most], note]
    return [*rows[: most // 2], note, *rows[len(rows) - (most - most // 2) :]]


def diff_lines(diff: str, width: int) -> list[StyledLine]:
    """A unified diff in its colours; a sentence as it is. Nothing is left out that would be written."""
    rows: list[StyledLine] = []
    for line in diff.split("\n"):
        style = next((style for mark, style in _DIFF if line.startswith(mark)), "")
        rows += wrap_hard(((reveal_hidden(cut(line.expandtabs(4))), style),), width)
    while rows and not rows[-1]:
        rows.pop()
    return rows


_DIFF = (("+++", "bold"), ("---", "bold"), ("@@", "$primary"), ("+", "$success"), ("-", "$error"))


def _given(call: ToolCall, diff: str, width: int) -> list[StyledLine]:
    if call.code:
        lines = [cut(line.expandtabs(4)) for line in call.code.strip("\n").split("\n")]
        return [row for line in highlight_code("\n".join(lines), "python") for row in wrap_hard(line, width)]
    rows = [
        row
        for name, value in call.arguments.items()
        if not (diff and name in ("content", "old", "new", "old_text", "new_text"))
        for row in fold_rows(
            wrap_hard(((f"{clean(str(name))} ", "$quiet"), (clean(cut(_one_line(value))), "")), width), 3
        )
    ]
    return rows + (diff_lines(diff, width) if diff else [])


def _told(output: ToolOutput, width: int) -> list[StyledLine]:
    rows = [row for line in clean_lines(output.text) for row in wrap_hard(((line, "$secondary"),), width)]
    extra: list[StyledText] = []
    if output.dropped_bytes:
        extra.append((f"{output.dropped_bytes:,} bytes more were dropped", "$quiet"))
    if output.files_changed:
        shown = ", ".join(sanitize_to_width(name, 30) for name in output.files_changed[:6])
        more = f" and {len(output.files_changed) - 6} more" if len(output.files_changed) > 6 else ""
        extra.append((f"files: {shown}{more}", "$primary"))
    return rows + [truncate_line((span,), width) for span in extra]


def _one_line(value: object) -> str:
    return " ⏎ ".join(str(value).split("\n"))


def _frame(left: str, words: StyledLine, right: str, width: int, edge: str) -> StyledLine:
    shown: Sequence[StyledText] = ((" ", ""), *truncate_line(words, max(0, width - 6)), (" ", "")) if words else ()
    fill = max(0, width - 3 - cell_width(tuple(shown)))
    return ((f"{left}─", edge), *shown, ("─" * fill + right, edge))


def _side(row: StyledLine, inner: int, edge: str) -> StyledLine:
    return (("│ ", edge), *pad_line(row, inner), (" │", edge))
