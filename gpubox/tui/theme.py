"""gpubox's colours. Each has one meaning on every screen, and a glyph or a word always repeats that meaning."""

from __future__ import annotations

from textual.theme import Theme

COLOURS = {
    # parts of memory
    "mem-weights": ("#5a9bd4", "#2f6fb0"),
    "mem-kv": ("#a98bd6", "#7a55b8"),
    "mem-recurrent": ("#c58bc0", "#9c4f94"),
    "mem-compute": ("#4fb3a5", "#1f7d70"),
    "mem-draft": ("#d8a657", "#9a6a12"),
    "mem-growth": ("#d98bb0", "#b0487c"),
    "mem-other": ("#8c95a1", "#68727e"),
    "mem-unaccounted": ("#c9736b", "#b0443c"),
    "mem-free": ("#2b333d", "#d5dae0"),
    # parts of a turn's time
    "turn-queue": ("#8c95a1", "#68727e"),
    "turn-prefill": ("#5a9bd4", "#2f6fb0"),
    "turn-reread": ("#c9736b", "#b0443c"),
    "turn-thinking": ("#a98bd6", "#7a55b8"),
    "turn-answer": ("#86b970", "#4d7f36"),
    "turn-tools": ("#d8a657", "#9a6a12"),
    "turn-approval": ("#d98bb0", "#b0487c"),
    "turn-loop": ("#5b6672", "#8a949f"),
    # headings and code in the model's answers
    "heading": ("#6db3c4", "#1f6f84"),
    "code-inline": ("#d8a657", "#8a5c0a"),
    "code-comment": ("#7f8a97", "#68727e"),
    "code-keyword": ("#a98bd6", "#7a55b8"),
    "code-string": ("#86b970", "#3f7229"),
    "code-number": ("#d8a657", "#8a5c0a"),
    "code-name": ("#6db3c4", "#1f6f84"),
    "code-builtin": ("#8fa5b8", "#4a657d"),
    # what lies under the lines of a diff
    "diff-added": ("#15251b", "#e2f3e0"),
    "diff-removed": ("#2a1a1c", "#fae5e2"),
    # quiet text, borders, the border of the focused pane, the graphs of tg and pp, the highlighted row
    "quiet": ("#7f8a97", "#66707b"),
    "line": ("#2c3540", "#d5dae0"),
    "line-focus": ("#5f8f9e", "#4f8b9d"),
    "graph": ("#3d7685", "#3f8da1"),
    "graph-pp": ("#5a629a", "#7b83bd"),
    "cursor": ("#1f2a34", "#dfe9ee"),
}
"""gpubox's own variables: on a dark and on a light background."""
_DARK, _LIGHT = ({name: pair[side] for name, pair in COLOURS.items()} for side in (0, 1))


def variables(*, dark: bool) -> dict[str, str]:
    """The values of gpubox's own variables for the themes of others."""
    return _DARK if dark else _LIGHT


def _own(*, dark: bool, background: str, selection: str, cursor: str) -> dict[str, str]:
    """gpubox's variables, and those of Textual that follow from them."""
    own = variables(dark=dark)
    parts = ("background", "background-hover", "background-active", "corner-color")
    return {
        **own, **{f"scrollbar-{part}": background for part in parts}, "footer-background": background,
        "scrollbar": own["line"], "scrollbar-hover": selection, "scrollbar-active": own["line-focus"],
        "input-cursor-background": cursor, "input-selection-background": selection,
    }  # fmt: skip


GPUBOX = Theme(
    "gpubox", dark=True, background="#0f1317", surface="#0f1317", panel="#171d23", foreground="#c9d1d9",
    primary="#6db3c4", secondary="#8fa5b8", accent="#9da7f2", success="#86b970", warning="#dcae58", error="#e0736b",
    variables=_own(dark=True, background="#0f1317", selection="#2f4a57", cursor="#c9d1d9"),
)  # fmt: skip
GPUBOX_LIGHT = Theme(
    "gpubox-light", dark=False, background="#fbfbf9", surface="#fbfbf9", panel="#eef0f1", foreground="#22282f",
    primary="#1f6f84", secondary="#4a657d", accent="#5157b8", success="#3f7229", warning="#8a5c0a", error="#b0392f",
    variables=_own(dark=False, background="#fbfbf9", selection="#b9d3dc", cursor="#22282f"),
)  # fmt: skip
AUTO = "auto"
"""The setting that takes one of the two."""
