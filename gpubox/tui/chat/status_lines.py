"""The two lines that are always there: what the chat may do, above it; what the turn does now, below it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.styled_lines import (
    StyledLine,
    cell_width,
    fit_by_priority,
    gauge,
    pad_line,
    sanitize_to_width,
    styled_line,
    truncate_line,
)

if TYPE_CHECKING:
    from gpubox.agent.transcript.records import ChatSettings
    from gpubox.telemetry.snapshot import Throughput
    from gpubox.tui.chat.service import SandboxStatus
    from gpubox.tui.chat.turn import TurnProgress

CONFINEMENT_LABELS = {
    "bubblewrap": ("▣ bubblewrap", "$success"),
    "landlock": ("▣ landlock, weaker", "$warning"),
    "none": ("▲ not confined", "bold $error"),
    "": ("✗ programs are not run", "$warning"),
}
"""What confines a program -> how that is shown, always."""
APPROVAL_LABELS = {"ask": "asks before it writes", "workspace": "may write in it", "never": "must not write"}
PHASE_LABELS = {
    "asks": ("◌", "$quiet", "waits for the server"),
    "reads": ("◐", "$turn-prefill", "reads"),
    "thinks": ("●", "$turn-thinking", "thinks"),
    "answers": ("●", "$turn-answer", "answers"),
    "runs": ("●", "$turn-tools", "runs"),
    "waits": ("?", "$turn-approval", "waits for you"),
    "over": ("○", "$quiet", ""),
}
"""Phase of a turn -> glyph, colour, word."""


def chat_line(
    name: str, settings: ChatSettings, confined: SandboxStatus | None, problem: str, width: int
) -> StyledLine:
    """Name, isolation, workspace and limits of the chat."""
    parts: list[tuple[int, StyledLine]] = [(80, styled_line((sanitize_to_width(name, 40) or "new chat", "bold")))]
    if not settings.tools or settings.protocol == "none":
        parts.append((90, styled_line(("no tools", "$quiet"))))
    else:
        parts.append(
            (
                90,
                styled_line(CONFINEMENT_LABELS[confined.isolation] if confined else ("· trying the sandbox", "$quiet")),
            )
        )
        if settings.workdir:
            words = f"  {APPROVAL_LABELS[settings.approvals]}"
            parts.append((60, styled_line((f"{_shorter(settings.workdir, 32)}", "$primary"), (words, "$quiet"))))
        else:
            parts.append((30, styled_line(("no workspace", "$quiet"))))
        if settings.rounds:
            parts.append((20, styled_line((f"{settings.rounds} rounds", "$quiet"))))
    if settings.thinking is not None:
        parts.append((40, styled_line((f"thinking {'on' if settings.thinking else 'off'}", "$quiet"))))
    for key, value in list(settings.sampling.items())[:3]:
        parts.append((10, styled_line((f"{key} {value:g}", "$quiet"))))
    if settings.system_prompt is not None:
        parts.append((15, styled_line(("own system prompt", "$quiet"))))
    if problem:
        parts.append((95, styled_line((problem, "$error"))))
    return fit_by_priority(parts, width)


def running_turn_line(live: TurnProgress, seconds: float, at: float, now: Throughput | None, width: int) -> StyledLine:
    """What the running turn does at this moment."""
    glyph, colour, word = PHASE_LABELS[live.phase]
    parts: list[tuple[int, StyledLine]] = [(90, styled_line((f"{glyph} {word}", colour)))]
    if live.phase == "reads" and (read := live.prefill):
        share = read.processed / read.total if read.total else 0.0
        parts.append((80, styled_line(*gauge(share, 16, colour), f" {share:.0%}")))
        parts.append((70, styled_line(f"{units.tokens(read.processed)} of {units.tokens(read.total)}")))
        if read.cached:
            parts.append((30, styled_line((f"{units.tokens(read.cached)} reused", "$quiet"))))
        if now and now.pp_tokens_per_second:
            parts.append((60, styled_line(("pp ", "$quiet"), f"{units.rate(now.pp_tokens_per_second)} tok/s")))
        if now and now.eta_seconds:
            parts.append((50, styled_line(("ETA ", "$quiet"), units.duration(now.eta_seconds))))
    elif live.phase in ("runs", "waits"):
        parts.append((80, styled_line((sanitize_to_width(live.tool, 30), "bold"))))
    if live.phase in ("thinks", "answers"):
        parts += _speed(live, at, now)
    if live.rounds:
        parts.append((40, styled_line((f"round {live.round}/{live.rounds}", "$quiet"))))
    parts.append((55, styled_line((units.duration(seconds), "$quiet"))))
    parts.append((85, styled_line(("esc", "bold $primary"), (" stops", "$quiet"))))
    return fit_by_priority(parts, width)


def _speed(live: TurnProgress, at: float, now: Throughput | None) -> list[tuple[int, StyledLine]]:
    """tg and acceptance as the server has them; where it does not say, what comes in here, as an estimate."""
    found: list[tuple[int, StyledLine]] = []
    told = live.generation
    speed = (told.tg_tokens_per_second if told else None) or (now.tg_tokens_per_second if now else None)
    if speed:
        found.append((80, styled_line(("tg ", "$quiet"), (f"{units.rate(speed)} tok/s", "bold"))))
    elif speed := live.speed(at):
        found.append((80, styled_line(("tg ", "$quiet"), f"~{units.rate(speed)} tok/s")))
    accepted = None
    if told and told.draft_tokens and told.draft_tokens_accepted is not None:
        accepted = told.draft_tokens_accepted / told.draft_tokens
    elif now:
        accepted = now.draft_acceptance
    if accepted is not None:
        found.append((60, styled_line(("accepted ", "$quiet"), f"{accepted:.0%}")))
    if told:
        found.append((45, styled_line((f"{told.generated_tokens:,} tok", "$quiet"))))
    elif live.pieces:
        found.append((45, styled_line((f"~{live.pieces:,} tok", "$quiet"))))
    return found


def idle_line(said: StyledLine, below: int, now: Throughput | None, width: int) -> StyledLine:
    """Between turns: what gpubox has to say, the context in use, and how much stands below the screen."""
    right: StyledLine = ()
    if below:
        right = styled_line((f"↓ {below:,} more", "$accent"))
    elif now and now.context_size_tokens and now.context_used_tokens is not None:
        right = styled_line(("context ", "$quiet"), (f"{units.tokens(now.context_used_tokens)} of "
                     f"{units.tokens(now.context_size_tokens)}", "$secondary"))  # fmt: skip
    left = truncate_line(said, max(0, width - cell_width(right) - 2))
    return (*pad_line(left, width - cell_width(right)), *right)


def _shorter(path: str, width: int) -> str:
    """A path by its end."""
    shown = sanitize_to_width(path, 400)
    return shown if len(shown) <= width else "…" + shown[1 - width :]
