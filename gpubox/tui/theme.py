"""gpubox's colours. Each has one meaning on every screen, and a glyph or a word always repeats that meaning."""

from __future__ import annotations

from textual.theme import Theme

MEMORY_COLOURS = {
    "mem-weights": "#5a9bd4",
    "mem-kv": "#a98bd6",
    "mem-recurrent": "#c58bc0",
    "mem-compute": "#4fb3a5",
    "mem-draft": "#d8a657",
    "mem-growth": "#d98bb0",
    "mem-other": "#8c95a1",
    "mem-unaccounted": "#c9736b",
    "mem-free": "#2b333d",
}
"""One colour per part of memory."""

TURN_COLOURS = {
    "turn-queue": "#8c95a1",
    "turn-prefill": "#5a9bd4",
    "turn-reread": "#c9736b",
    "turn-thinking": "#a98bd6",
    "turn-answer": "#86b970",
    "turn-tools": "#d8a657",
    "turn-approval": "#d98bb0",
    "turn-loop": "#5b6672",
}
"""One colour per part of a turn's time."""

CODE_COLOURS = {
    "heading": "#6db3c4",
    "code-inline": "#d8a657",
    "code-comment": "#7f8a97",
    "code-keyword": "#a98bd6",
    "code-string": "#86b970",
    "code-number": "#d8a657",
    "code-name": "#6db3c4",
    "code-builtin": "#8fa5b8",
}
"""Headings and code in the model's answers."""

QUIET_COLOURS = {
    "quiet": "#7f8a97",
    "line": "#2c3540",
    "line-focus": "#5f8f9e",
    "graph": "#3d7685",
    "graph-pp": "#5a629a",
    "cursor": "#1f2a34",
}
"""Quiet text, borders, the border of the focused pane, the graphs of tg and pp, and the highlighted row."""

DEFAULT_VARIABLES = {**MEMORY_COLOURS, **TURN_COLOURS, **CODE_COLOURS, **QUIET_COLOURS}
"""The values of gpubox's own variables for the other themes."""

_VARIABLES = {
    **DEFAULT_VARIABLES,
    "footer-background": "#0f1317",
    "input-cursor-background": "#c9d1d9",
    "input-selection-background": "#2f4a57",
    "scrollbar": "#2c3540",
    "scrollbar-hover": "#3a4653",
    "scrollbar-active": "#5f8f9e",
    "scrollbar-background": "#0f1317",
    "scrollbar-background-hover": "#0f1317",
    "scrollbar-background-active": "#0f1317",
    "scrollbar-corner-color": "#0f1317",
}

GPUBOX = Theme(
    name="gpubox",
    primary="#6db3c4",
    secondary="#8fa5b8",
    accent="#9da7f2",
    success="#86b970",
    warning="#dcae58",
    error="#e0736b",
    foreground="#c9d1d9",
    background="#0f1317",
    surface="#0f1317",
    panel="#171d23",
    dark=True,
    variables=_VARIABLES,
)
