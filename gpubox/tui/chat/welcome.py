"""What stands in a chat without turns: what it can do, or why nobody can answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import StyledLine, styled_line

if TYPE_CHECKING:
    from gpubox.tui.chat.service import SandboxStatus
    from gpubox.tui.messages import ServerOverview


def no_server(now: ServerOverview | None) -> list[StyledLine]:
    """Why no model can answer now, and how to get one; empty where one can."""
    if now is None:
        return [styled_line(("· looking for the server", "$quiet"))]
    status = now.status
    if status.up:
        return []
    name = sanitize_line(status.profile or now.last_profile or "")
    if status.state == "loading":
        return [styled_line(("◌ ", "$accent"), f"{name or 'A model'} is loading: it answers as soon as it is up.")]
    if status.pid is not None or status.state in ("unreachable", "error"):
        told = sanitize_line(status.message) or f"The server is {sanitize_line(status.state)}."
        return [styled_line(("✗ ", "$error"), told), *_help("l on the dashboard shows its log.", "1", "dashboard")]
    again = f"r on the dashboard starts {name} again; Enter starts another profile." if name else ""
    return [
        styled_line(("○ ", "$quiet"), ("No model runs, so nobody can answer.", "bold")),
        *_help(again or "On the dashboard, Enter starts the highlighted profile.", "esc", "dashboard"),
        styled_line(("  In a shell: ", "$quiet"), (f"gpubox start {name or 'NAME'}", "$code-inline")),
        styled_line(("  Without any model: ", "$quiet"), ("gpubox demo", "$code-inline")),
    ]


def welcome(confined: SandboxStatus | None) -> list[StyledLine]:
    """An empty chat that can be begun."""
    rows = [
        styled_line(("Ask something.", "bold")),
        styled_line(("The model writes Python, runs it, looks at what came out, and goes on.", "$quiet")),
    ]
    if confined is None:
        return rows
    if confined.isolation == "bubblewrap":
        rows.append(styled_line(("Its programs run in bubblewrap: no network, none of your files.", "$quiet")))
    elif confined.isolation == "landlock":
        rows.append(
            styled_line(("Its programs run under Landlock, which holds less: ", "$warning"), (confined.why, "$quiet"))
        )
    elif confined.isolation == "none":
        rows.append(styled_line(("Its programs run as you, unconfined, as your config.toml says.", "$error")))
    else:
        rows.append(styled_line(("Its programs are not run: ", "$warning"), (sanitize_line(confined.why), "$quiet")))
    return rows


def _help(text: str, key: str, word: str) -> list[StyledLine]:
    return [styled_line((f"  {text}  ", "$quiet"), (key, "bold $primary"), (f" {word}", "$quiet"))]
