"""The message of a commit, before it is made."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from gpubox.sanitize import show_name
from gpubox.tui.dialogs import NEW_LINE_KEYS, Dialog
from gpubox.tui.styled_lines import sanitize_to_width
from gpubox.views.changes import count

FILES_SHOWN = 8


class CommitScreen(Dialog[str | None]):
    """Returns the message, ``None`` for esc."""

    DEFAULT_CSS = """
    CommitScreen > Vertical { width: 84; max-width: 100%; height: auto; padding: 1 2; }
    CommitScreen TextArea { height: 8; border: none; background: $line; padding: 0 1; &:focus { border: none; } }
    CommitScreen Static { height: auto; margin-top: 1; color: $quiet; }
    CommitScreen Static.-hooks { color: $warning; }
    """
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "commit", "Commit", priority=True),
        Binding(",".join(NEW_LINE_KEYS), "new_line", "New line", priority=True),
    ]

    def __init__(self, message: str, paths: Sequence[str], hooks: Sequence[str] = ()) -> None:
        """``paths``: what is committed. ``hooks``: those that the chat changed and git runs."""
        super().__init__()
        names = [show_name(path) for path in paths[:FILES_SHOWN]]
        more = [f"and {len(paths) - FILES_SHOWN:,} more"] if len(paths) > FILES_SHOWN else []
        head = f"{count(len(paths), 'file')}, with your git and your name. Nothing is pushed."
        self.about = "\n  ".join([head, *names, *more])
        self.hooks = ", ".join(sanitize_to_width(show_name(path), 60) for path in hooks[:FILES_SHOWN])
        self.message = TextArea(message, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False)
        self.message.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "Commit", "⏎ commits, ^j new line, esc cancels"
            yield self.message
            yield Static(self.about, markup=False)
            if self.hooks:
                yield Static(f"! Git runs hooks that this chat changed: {self.hooks}", markup=False, classes="-hooks")

    def on_mount(self) -> None:
        self.set_focus(self.message)

    def action_new_line(self) -> None:
        self.message.insert("\n")

    def action_commit(self) -> None:
        self.dismiss(self.message.text.strip() or None)
