"""The two lines that are always there: what the chat may do, above it; what the turn does now, below it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.cells import Line, cells, fit, gauge, line, pad, safe, squeeze

if TYPE_CHECKING:
    from gpubox.agent.transcript.records import Choices
    from gpubox.telemetry.model import Throughput
    from gpubox.tui.chat.service import Confined
    from gpubox.tui.chat.turn import Live

TIERS = {
    "bubblewrap": ("▣ bubblewrap", "$success"),
    "landlock": ("▣ landlock, weaker", "$warning"),
    "none": ("▲ not confined", "bold $error"),
    "": ("✗ programs are not run", "$warning"),
}
"""What confines a program -> how that is shown, always."""
APPROVALS = {"ask": "asks before it writes", "workspace": "may write in it", "never": "must not write"}
PHASES = {
    "asks": ("◌", "$quiet", "waits for the server"),
    "reads": ("◐", "$turn-prefill", "reads"),
    "thinks": ("●", "$turn-thinking", "thinks"),
    "answers": ("●", "$turn-answer", "answers"),
    "runs": ("●", "$turn-tools", "runs"),
    "waits": ("?", "$turn-approval", "waits for you"),
    "over": ("○", "$quiet", ""),
}
"""Phase of a turn -> glyph, colour, word."""


def chat_line(name: str, choices: Choices, confined: Confined | None, problem: str, width: int) -> Line:
    """Name, tier, workspace and limits of the chat."""
    parts: list[tuple[int, Line]] = [(80, line((safe(name, 40) or "new chat", "bold")))]
    if not choices.tools or choices.protocol == "none":
        parts.append((90, line(("no tools", "$quiet"))))
    else:
        parts.append((90, line(TIERS[confined.tier] if confined else ("· trying the sandbox", "$quiet"))))
        if choices.workdir:
            words = f"  {APPROVALS[choices.approvals]}"
            parts.append((60, line((f"{_shorter(choices.workdir, 32)}", "$primary"), (words, "$quiet"))))
        else:
            parts.append((30, line(("no workspace", "$quiet"))))
        if choices.rounds:
            parts.append((20, line((f"{choices.rounds} rounds", "$quiet"))))
    if choices.thinking is not None:
        parts.append((40, line((f"thinking {'on' if choices.thinking else 'off'}", "$quiet"))))
    for key, value in list(choices.sampling.items())[:3]:
        parts.append((10, line((f"{key} {value:g}", "$quiet"))))
    if choices.system_prompt is not None:
        parts.append((15, line(("own system prompt", "$quiet"))))
    if problem:
        parts.append((95, line((problem, "$error"))))
    return squeeze(parts, width)


def live_line(live: Live, seconds: float, at: float, now: Throughput | None, width: int) -> Line:
    """What the running turn does at this moment."""
    glyph, colour, word = PHASES[live.phase]
    parts: list[tuple[int, Line]] = [(90, line((f"{glyph} {word}", colour)))]
    if live.phase == "reads" and (read := live.prefill):
        share = read.done / read.total if read.total else 0.0
        parts.append((80, line(*gauge(share, 16, colour), f" {share:.0%}")))
        parts.append((70, line(f"{units.tokens(read.done)} of {units.tokens(read.total)}")))
        if read.cached:
            parts.append((30, line((f"{units.tokens(read.cached)} reused", "$quiet"))))
        if now and now.pp_tokens_per_second:
            parts.append((60, line(("pp ", "$quiet"), f"{units.rate(now.pp_tokens_per_second)} tok/s")))
        if now and now.eta_seconds:
            parts.append((50, line(("ETA ", "$quiet"), units.seconds(now.eta_seconds))))
    elif live.phase in ("runs", "waits"):
        parts.append((80, line((safe(live.tool, 30), "bold"))))
    if live.phase in ("thinks", "answers"):
        parts += _speed(live, at, now)
    if live.rounds:
        parts.append((40, line((f"round {live.round}/{live.rounds}", "$quiet"))))
    parts.append((55, line((units.seconds(seconds), "$quiet"))))
    parts.append((85, line(("esc", "bold $primary"), (" stops", "$quiet"))))
    return squeeze(parts, width)


def _speed(live: Live, at: float, now: Throughput | None) -> list[tuple[int, Line]]:
    """tg and acceptance as the server has them; where it does not say, what comes in here, as an estimate."""
    found: list[tuple[int, Line]] = []
    told = live.generation
    speed = (told.tg_tokens_per_second if told else None) or (now.tg_tokens_per_second if now else None)
    if speed:
        found.append((80, line(("tg ", "$quiet"), (f"{units.rate(speed)} tok/s", "bold"))))
    elif speed := live.speed(at):
        found.append((80, line(("tg ", "$quiet"), f"~{units.rate(speed)} tok/s")))
    accepted = None
    if told and told.draft_tokens and told.draft_tokens_accepted is not None:
        accepted = told.draft_tokens_accepted / told.draft_tokens
    elif now:
        accepted = now.draft_acceptance
    if accepted is not None:
        found.append((60, line(("accepted ", "$quiet"), f"{accepted:.0%}")))
    if told:
        found.append((45, line((f"{told.generated_tokens:,} tok", "$quiet"))))
    elif live.pieces:
        found.append((45, line((f"~{live.pieces:,} tok", "$quiet"))))
    return found


def idle_line(said: Line, below: int, now: Throughput | None, width: int) -> Line:
    """Between turns: what gpubox has to say, the context in use, and how much stands below the screen."""
    right: Line = ()
    if below:
        right = line((f"↓ {below:,} more", "$accent"))
    elif now and now.context_size_tokens and now.context_used_tokens is not None:
        right = line(("context ", "$quiet"), (f"{units.tokens(now.context_used_tokens)} of "
                     f"{units.tokens(now.context_size_tokens)}", "$secondary"))  # fmt: skip
    left = fit(said, max(0, width - cells(right) - 2))
    return (*pad(left, width - cells(right)), *right)


def _shorter(path: str, width: int) -> str:
    """A path by its end."""
    shown = safe(path, 400)
    return shown if len(shown) <= width else "…" + shown[1 - width :]
