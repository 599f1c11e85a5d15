"""The texts around a transcript: chat settings above it, progress below it, and what an empty chat shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpubox import units
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import (
    StyledLine,
    cell_width,
    fit_by_priority,
    gauge,
    join_lines,
    pad_line,
    sanitize_to_width,
    styled_line,
    truncate_line,
)
from gpubox.views.changes import count

if TYPE_CHECKING:
    from gpubox.agent.chat_log import ChatSettings
    from gpubox.agent.events import AgentChoice
    from gpubox.sandbox.policy import Confinement
    from gpubox.telemetry.snapshot import Throughput
    from gpubox.tui.chat.turn import TurnProgress, TurnView
    from gpubox.tui.messages import ServerOverview

ISOLATION_LABELS = {
    "bubblewrap": ("▣ sandbox on", "$success"),
    "landlock": ("▣ weaker sandbox: landlock", "$warning"),
    "none": ("▲ not confined", "bold $error"),
    "": ("✗ programs are not run", "$warning"),
}
"""Isolation of the model's programs -> label and style. It is always on the screen."""
ISOLATION_SENTENCES = {
    "bubblewrap": ("Its programs run in bubblewrap: no network, none of your files.", "$quiet"),
    "landlock": ("Its programs run under Landlock, which is weaker: ", "$warning"),
    "none": ("Its programs run unconfined with your rights: config.toml allows it.", "$error"),
    "": ("Its programs are not run: ", "$warning"),
}
"""The same for an empty chat; after a colon comes the reason."""
APPLY_LABELS = {
    "ask": ("you take what it changes", "$quiet"),
    "turn": ("changes are taken at once", "$warning"),
    "plan": ("◇ plan only", "bold $accent"),
}
"""What becomes of a turn's changes."""
PHASE_LABELS = {
    "starts": ("◌", "$quiet", "starts"),
    "asks": ("◌", "$quiet", "waits for the server"),
    "reads": ("●", "$turn-prefill", "reading"),
    "thinks": ("●", "$turn-thinking", "thinks"),
    "answers": ("●", "$turn-answer", "answers"),
    "runs": ("●", "$turn-tools", "runs"),
    "waits": ("?", "$turn-approval", "waits for you"),
    "stops": ("■", "$warning", "stops"),
    "over": ("○", "$quiet", ""),
}
"""Phase of a turn -> glyph, colour, label."""
WELCOME_KEYS = (("/", "commands"), ("@", "files"), ("/agent", "who answers"))
SAMPLING_SHOWN = 3
WORKDIR_CELLS, WORKDIR_CELLS_MIN = 32, 12
APPLY_PRIORITY = 50
"""What is less important goes before the path of the workspace is shortened."""

Prioritized = tuple[int, StyledLine]
"""A part of a line and its priority: the lowest are left out first."""


def chat_line(
    name: str, settings: ChatSettings, sandbox: Confinement | None, problem: str, width: int,
    choices: Sequence[AgentChoice] = (),
) -> StyledLine:  # fmt: skip
    """Name, who answers, isolation, workspace and limits of the chat. ``choices``: of its hosted agent."""
    parts: list[Prioritized] = [
        (80, styled_line((sanitize_to_width(name, 40 if width >= 100 else 24) or "new chat", "bold")))
    ]
    if settings.agent:  # what is left is its own affair
        settings = msgspec.structs.replace(
            settings, tools=True, protocol=None, rounds=None, thinking=None, sampling={}, system_prompt=None
        )
        agent = sanitize_to_width(settings.agent, 24)
        parts.append((90, styled_line((f"▣ {agent}, confined", "$success"))))
        parts.append((45, styled_line(("through the gateway", "$quiet"))))
        parts += [(25, styled_line((chosen_name(choice, settings), "$secondary"))) for choice in choices[:2]]
    elif not settings.tools or settings.protocol == "none":
        parts.append((90, styled_line(("no tools", "$quiet"))))
    else:
        label = ISOLATION_LABELS[sandbox.isolation or ""] if sandbox else ("· checking the sandbox", "$quiet")
        parts.append((90, styled_line(label)))
    if settings.tools and settings.protocol != "none":
        if settings.workdir:
            parts.append((60, _workdir(settings.workdir, WORKDIR_CELLS)))
        else:
            parts.append((30, styled_line(("no folder of yours", "$quiet"))))
        if settings.workdir or settings.apply == "plan":
            parts.append(
                (85 if settings.apply == "plan" else APPLY_PRIORITY, styled_line(APPLY_LABELS[settings.apply]))
            )
        if settings.rounds:
            parts.append((20, styled_line((f"{settings.rounds} rounds", "$quiet"))))
    if settings.thinking is not None:
        parts.append((40, styled_line((f"thinking {'on' if settings.thinking else 'off'}", "$quiet"))))
    for key, value in list(settings.sampling.items())[:SAMPLING_SHOWN]:
        parts.append((10, styled_line((f"{key} {value:g}", "$quiet"))))
    if settings.system_prompt is not None:
        parts.append((15, styled_line(("own system prompt", "$quiet"))))
    if problem:
        parts.append((95, styled_line((problem, "$error"))))
    needed = join_lines([part for priority, part in parts if priority >= APPLY_PRIORITY], "  ")
    shown = min(WORKDIR_CELLS, len(settings.workdir))
    room = max(WORKDIR_CELLS_MIN, shown - max(0, cell_width(needed) - width))
    parts = [(60, _workdir(settings.workdir, room)) if priority == 60 else (priority, part) for priority, part in parts]
    return fit_by_priority(parts, width)


def _workdir(path: str, cells: int) -> StyledLine:
    path = sanitize_to_width(path, 400)
    return styled_line((path if len(path) <= cells else f"…{path[1 - cells :]}", "$primary"))


def running_turn_line(
    progress: TurnProgress, seconds: float, now: float, throughput: Throughput | None, width: int
) -> StyledLine:
    """What the running turn is doing. ``seconds``: since it started; ``now``: the clock of its deltas."""
    if throughput and (throughput.busy_slots or 0) > 1:
        throughput = None  # these are the figures of other clients, too
    glyph, colour, label = PHASE_LABELS[progress.phase]
    parts: list[Prioritized] = [(90, styled_line((f"{glyph} {label}", colour)))]
    if progress.phase == "reads" and (prefill := progress.prefill):
        share = prefill.processed / prefill.total if prefill.total else 0.0
        parts.append((80, styled_line(*gauge(share, 16, colour), f" {share:.0%}")))
        parts.append((70, styled_line(f"{units.tokens(prefill.processed)} of {units.tokens(prefill.total)}")))
        if prefill.cached:
            parts.append((30, styled_line((f"{units.tokens(prefill.cached)} reused", "$quiet"))))
        if throughput and throughput.pp_tokens_per_second:
            parts.append((60, styled_line(f"{units.rate(throughput.pp_tokens_per_second)} tok/s")))
        if throughput and throughput.eta_seconds:
            parts.append((50, styled_line(("ETA ", "$quiet"), units.duration(throughput.eta_seconds))))
    elif progress.phase in ("starts", "runs", "waits"):
        parts.append((80, styled_line((sanitize_to_width(progress.tool, 30), "bold"))))
    elif progress.phase in ("thinks", "answers"):
        parts += _generation_parts(progress, now, throughput)
    if progress.plan:
        parts.append((36, styled_line(("plan ", "$quiet"), progress.plan)))
    if usage := progress.usage:
        size = f" of {units.tokens(usage.size_tokens)}" if usage.size_tokens else ""
        parts.append(
            (38, styled_line(("context ", "$quiet"), (f"{units.tokens(usage.used_tokens)}{size}", "$secondary")))
        )
    parts += _budgets(progress, seconds)
    parts.append((85, styled_line(("esc", "bold $primary"), (" stops", "$quiet"))))
    return fit_by_priority(parts, width)


def _budgets(progress: TurnProgress, seconds: float) -> list[Prioritized]:
    """``round 4/30``, ``12.1k of 64k tokens``, ``3 of 30 min``: a budget is named once a tenth of it is used."""
    parts: list[Prioritized] = []
    budgets, generation = progress.budgets, progress.generation
    if progress.rounds:
        parts.append((40, styled_line((f"round {progress.round}/{progress.rounds}", "$quiet"))))
    used = (budgets.generated_tokens if budgets else 0) + (generation.generated_tokens if generation else 0)
    if budgets and used * 10 >= budgets.max_generated_tokens > 0:
        of_tokens = f"{units.tokens(used)} of {units.tokens(budgets.max_generated_tokens)} tokens"
        parts.append((35, styled_line((of_tokens, "$quiet"))))
    timed = budgets is not None and seconds * 10 >= budgets.max_seconds > 0
    spent = (
        f"{seconds / 60:.0f} of {budgets.max_seconds / 60:.0f} min" if budgets and timed else units.duration(seconds)
    )
    return [*parts, (55, styled_line((spent, "$quiet")))]


def chosen_name(choice: AgentChoice, settings: ChatSettings) -> str:
    """The option of a hosted agent that holds."""
    value = settings.agent_choices.get(choice.id, choice.value)
    return sanitize_to_width(next((name for option, name in choice.options if option == value), value), 24)


def waiting_line(files: int) -> StyledLine:
    """Changes wait for the owner."""
    verb = "waits" if files == 1 else "wait"
    return styled_line(("● ", "$primary"), f"{count(files, 'changed file')} {verb} for you   ", ("⏎", "bold $primary"),
                       (" shows the diff", "$quiet"))  # fmt: skip


def queued_line(queued: Sequence[str], width: int) -> StyledLine:
    """What is sent when the turn is over."""
    more = f" and {len(queued) - 1} more" if len(queued) > 1 else ""
    hint = styled_line((more, "$quiet"), ("   ↑", "bold $primary"), (" takes it back", "$quiet"))
    text = " ".join(queued[-1 if not more else 0].split())
    head = styled_line(("queued: ", "$accent"), sanitize_to_width(text, max(10, width - cell_width(hint) - 8)))
    return (*head, *hint)


def _generation_parts(progress: TurnProgress, now: float, throughput: Throughput | None) -> list[Prioritized]:
    """tg, draft acceptance and tokens as the server reports them; otherwise estimates from the deltas."""
    parts: list[Prioritized] = []
    stats = progress.generation
    tg = stats.tg_tokens_per_second if stats else None
    if tg := tg or (throughput.tg_tokens_per_second if throughput else None):
        parts.append((80, styled_line((f"{units.rate(tg)} tok/s", "bold"))))
    elif estimate := progress.deltas_per_second(now):
        parts.append((80, styled_line(f"about {units.rate(estimate)} tok/s")))
    acceptance = throughput.draft_acceptance if throughput else None
    if stats and stats.draft_tokens and stats.draft_tokens_accepted is not None:
        acceptance = stats.draft_tokens_accepted / stats.draft_tokens
    if acceptance is not None:
        parts.append((60, styled_line(("draft ", "$quiet"), f"{acceptance:.0%}")))
    if stats:
        parts.append((45, styled_line((f"{stats.generated_tokens:,} tok", "$quiet"))))
    elif progress.deltas:
        parts.append((45, styled_line((f"~{progress.deltas:,} tok", "$quiet"))))
    return parts


def idle_line(note: StyledLine, lines_below: int, turn: TurnView | None, width: int) -> StyledLine:
    """Between turns: ``note``, and at the right the lines below the screen or the context that this chat uses."""
    right: StyledLine = ()
    if lines_below:
        right = styled_line((f"↓ {lines_below:,} more", "$accent"))
    elif turn and turn.context_size_tokens:
        used, size = units.tokens(turn.context_used_tokens), units.tokens(turn.context_size_tokens)
        right = styled_line(("context ", "$quiet"), (f"{used} of {size}", "$secondary"))
    left = truncate_line(note, max(0, width - cell_width(right) - 2))
    return (*pad_line(left, width - cell_width(right)), *right)


def no_server_lines(overview: ServerOverview | None) -> list[StyledLine]:
    """Why no model can answer, and how to start one; empty if one can."""
    if overview is None:
        return [styled_line(("· looking for the server", "$quiet"))]
    status = overview.status
    if status.up:
        return []
    name = sanitize_line(status.profile or overview.last_profile or "")
    if status.state == "loading":
        return [styled_line(("◌ ", "$accent"), f"{name or 'A model'} is loading; it answers when it is ready.")]
    if status.pid is not None or status.state in ("unreachable", "error"):
        message = sanitize_line(status.message) or f"The server is {sanitize_line(status.state)}."
        return [styled_line(("✗ ", "$error"), message), _key_hint("l on the dashboard shows its log.", "1")]
    first = styled_line(("○ ", "$quiet"), ("No model runs, so nothing can answer.", "bold"))
    if restarts(overview):
        died = status.state == "crashed"
        words = "The server died; " if died else "No model runs; "
        does = " restarts it." if died else f" starts {name} again."
        first = styled_line(("✗ " if died else "○ ", "$error" if died else "$quiet"), (words, "bold"),
                            ("^r", "bold $primary"), (does, "bold"))  # fmt: skip
    return [
        first,
        *([styled_line((f"  {sanitize_line(status.message)}", "$quiet"))] if status.message else []),
        _key_hint("On the dashboard, Enter starts the highlighted profile.", "esc"),
        styled_line(("  In a shell: ", "$quiet"), (f"gpubox start {name or 'NAME'}", "$code-inline")),
        styled_line(("  If you have no model: ", "$quiet"), ("gpubox demo", "$code-inline")),
    ]


def restarts(overview: ServerOverview | None) -> bool:
    """Whether nothing can answer until the profile that ran is started again."""
    if overview is None or overview.status.up or overview.status.pid is not None:
        return False
    status = overview.status
    return status.state in ("crashed", "stopped") and bool(status.profile or overview.last_profile)


def welcome_lines(sandbox: Confinement | None, agent: str = "") -> list[StyledLine]:
    """What an empty chat shows while a model, or the hosted ``agent``, can answer."""
    who = sanitize_to_width(agent, 24) or "The model"
    rows = [
        styled_line(("Ask something.", "bold")),
        styled_line((f"{who} reads, writes and runs code; you take what you like of its changes.", "$quiet")),
        join_lines([styled_line((key, "bold $accent"), (f" {what}", "$quiet")) for key, what in WELCOME_KEYS]),
    ]
    if agent:
        text = "It runs in bubblewrap on a copy of the workspace, and asks the model through the gateway."
        rows.append(styled_line((text, "$quiet")))
    elif sandbox:
        sentence, style = ISOLATION_SENTENCES[sandbox.isolation or ""]
        why = " ".join(filter(None, (sandbox.problem, sandbox.weakness, sandbox.hint)))
        rows.append(styled_line((sentence, style), (sanitize_line(why) if sentence.endswith(": ") else "", "$quiet")))
    return rows


def _key_hint(text: str, key: str) -> StyledLine:
    return styled_line((f"  {text}  ", "$quiet"), (key, "bold $primary"), (" dashboard", "$quiet"))
