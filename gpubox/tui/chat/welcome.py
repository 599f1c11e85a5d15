"""What stands in a chat without turns: what it can do, or why nobody can answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox.tui.cells import Line, line
from gpubox.tui.text import plain

if TYPE_CHECKING:
    from gpubox.tui.chat.service import Confined
    from gpubox.tui.messages import Now


def no_server(now: Now | None) -> list[Line]:
    """Why no model can answer now, and how to get one; empty where one can."""
    if now is None:
        return [line(("· looking for the server", "$quiet"))]
    status = now.status
    if status.up:
        return []
    name = plain(status.profile or now.last or "")
    if status.state == "loading":
        return [line(("◌ ", "$accent"), f"{name or 'A model'} is loading: it answers as soon as it is up.")]
    if status.pid is not None or status.state in ("unreachable", "error"):
        told = plain(status.message) or f"The server is {plain(status.state)}."
        return [line(("✗ ", "$error"), told), *_help("l on the dashboard shows its log.", "1", "dashboard")]
    again = f"r on the dashboard starts {name} again; Enter starts another profile." if name else ""
    return [
        line(("○ ", "$quiet"), ("No model runs, so nobody can answer.", "bold")),
        *_help(again or "On the dashboard, Enter starts the highlighted profile.", "esc", "dashboard"),
        line(("  In a shell: ", "$quiet"), (f"gpubox start {name or 'NAME'}", "$code-inline")),
        line(("  Without any model: ", "$quiet"), ("gpubox demo", "$code-inline")),
    ]


def welcome(confined: Confined | None) -> list[Line]:
    """An empty chat that can be begun."""
    rows = [
        line(("Ask something.", "bold")),
        line(("The model writes Python, runs it, looks at what came out, and goes on.", "$quiet")),
    ]
    if confined is None:
        return rows
    if confined.tier == "bubblewrap":
        rows.append(line(("Its programs run in bubblewrap: no network, none of your files.", "$quiet")))
    elif confined.tier == "landlock":
        rows.append(line(("Its programs run under Landlock, which holds less: ", "$warning"), (confined.why, "$quiet")))
    elif confined.tier == "none":
        rows.append(line(("Its programs run as you, unconfined, as your config.toml says.", "$error")))
    else:
        rows.append(line(("Its programs are not run: ", "$warning"), (plain(confined.why), "$quiet")))
    return rows


def _help(text: str, key: str, word: str) -> list[Line]:
    return [line((f"  {text}  ", "$quiet"), (key, "bold $primary"), (f" {word}", "$quiet"))]
