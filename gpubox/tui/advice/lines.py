"""The advice as styled lines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import QUIET, StyledLine, cell_width, sanitize_to_width, styled_line, truncate_line

if TYPE_CHECKING:
    from gpubox.advisor.advice import Advice
    from gpubox.advisor.advisor import AdviceList

INDENT = "  "


def advice_line(judged: AdviceList, width: int) -> StyledLine:
    """The most urgent advice in one line, and how many more there are; empty if there is none."""
    shown = judged.shown
    if not shown:
        return ()
    first, more = shown[0], len(shown) - 1
    end = styled_line((f"  {f'+{more} more  ' if more else ''}", QUIET), ("A", "bold $primary"), (" advice", QUIET))
    head = styled_line(("→ ", "$accent"), (sanitize_line(first.word), "bold"), "  ")
    room = width - cell_width(head) - cell_width(end)
    if room < 12:
        return truncate_line(head, width)
    return (*head, (sanitize_to_width(first.sentence, room), QUIET), *end)


def advice_row(advice: Advice, width: int) -> StyledLine:
    """One row of the list."""
    style = QUIET if advice.dismissed else ""
    return truncate_line(
        styled_line(
            (f"{sanitize_line(advice.word):<11}", f"bold {style}".strip() if advice.dismissed else "bold $accent"),
            (sanitize_line(advice.sentence), style),
        ),
        width,
    )


def advice_details(advice: Advice | None, width: int) -> list[StyledLine]:
    """Sentence, evidence and change of one advice."""
    if advice is None:
        return []
    lines: list[StyledLine] = [styled_line((text, "")) for text in _wrapped(advice.sentence, width)]
    lines += [(), styled_line(("evidence", QUIET))]
    for text in advice.evidence:
        lines += [styled_line(INDENT, (part, "")) for part in _wrapped(text, width - len(INDENT))]
    lines += [(), styled_line((f"change of {sanitize_line(advice.try_profile or '')}".strip(), QUIET))]
    if not advice.changes:
        lines.append(styled_line(INDENT, ("no flag of the profile mends it", QUIET)))
    for text in advice.diff:
        style = "$success" if text.startswith("+") else "$error"
        lines += [styled_line(INDENT, (part, style)) for part in _wrapped(text, width - len(INDENT))]
    if advice.dismissed:
        lines += [(), styled_line(("dismissed: it is not shown on the dashboard; x shows it again", QUIET))]
    return [truncate_line(line, width) for line in lines]


def _wrapped(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(sanitize_line(text), max(10, width)) or [""]
