"""The first screen: what runs, the profiles, the one that is highlighted, and the log."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.screen import Screen

from gpubox.tui.entries import Entry
from gpubox.tui.messages import Now
from gpubox.tui.story import Story, pieces
from gpubox.tui.text import plain
from gpubox.tui.widgets.detail import Detail
from gpubox.tui.widgets.header import Header
from gpubox.tui.widgets.key_bar import KeyBar
from gpubox.tui.widgets.lines import Lines
from gpubox.tui.widgets.log_pane import LogPane
from gpubox.tui.widgets.profile_list import ProfilePane

if TYPE_CHECKING:
    from gpubox.server.launch import Preview

NO_LOG = "No log yet. Enter starts the highlighted profile."
NO_FOREIGN_LOG = "gpubox did not start this server and cannot see its log."


class DashboardScreen(Screen[None]):
    """Draws what the app knows; the app's reactives feed it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-roomy")]  # noqa: RUF012
    AUTO_FOCUS = ""

    def __init__(self, *, read_only: bool, url: str | None) -> None:
        # The class of the width from the start: the first paint need not be done twice.
        width = shutil.get_terminal_size().columns
        super().__init__(classes=[name for least, name in self.HORIZONTAL_BREAKPOINTS if width >= least][-1])
        self.read_only = read_only
        self.header, self.lines, self.keys = Header(), Lines("now"), KeyBar()
        self.profiles, self.detail, self.log_pane = ProfilePane(), Detail(), LogPane()
        self.header.url = url
        self.keys.read_only = read_only
        self.lines.display = False
        self.log_pane.say(NO_FOREIGN_LOG if url else NO_LOG)
        self._now: Now | None = None
        self._story: Story | None = None

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.lines
        with Container(id="panes"):
            yield self.profiles
            with Vertical(id="side"):
                yield self.detail
                yield self.log_pane
        yield self.keys

    def fill(self) -> None:
        """Mounts the insides of the panes; called after the first paint."""
        with self.app.batch_update():
            self.profiles.fill()
            self.detail.fill()
            self.log_pane.fill()
        self._fit_detail()

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit_detail)

    def _fit_detail(self) -> None:
        self.detail.one_line = self.has_class("-narrow") and not self.has_class("-only-detail")

    # -- what the app tells -------------------------------------------------------------------------

    def show_now(self, now: Now) -> None:
        """What runs changed."""
        self._now = now
        self.header.now = now
        self.profiles.running = now.running
        self._tell()

    def show_story(self, story: Story | None) -> None:
        """The operation moved on; ``None``: there is none to tell of."""
        self._story = story
        busy = story is not None and not story.over
        self.profiles.working = (story.profile, story.word) if story and busy else ("", "")
        self._tell()

    def show_entries(self, entries: tuple[Entry, ...]) -> None:
        """The profiles changed."""
        self.profiles.entries = entries

    def show_preview(self, entry: Entry, preview: Preview | None, size: int | None) -> None:
        """What the engine says to the highlighted profile."""
        if self.profiles.entry and self.profiles.entry.id == entry.id:
            self.detail.size_bytes = size
            self.detail.shown = preview

    @on(ProfilePane.Highlighted)
    def _highlighted(self, event: ProfilePane.Highlighted) -> None:
        self.detail.entry = event.entry
        self.keys.enter_word = self._enter_word(event.entry)

    def _enter_word(self, entry: Entry | None) -> str:
        if entry and entry.kind == "model":
            return "make a profile"
        return "switch" if self._now and self._now.running else "start"

    def _tell(self) -> None:
        """The story of the last operation; else why nothing runs. A crash after the story says more than it."""
        now, story = self._now, self._story
        self.keys.enter_word = self._enter_word(self.profiles.entry)
        if story and not (story.over and now and _overtaken(story, now)):
            self.lines.show(pieces(story))
            return
        said: list[Content] = []
        if now and now.status.operation:
            said.append(Content.assemble(("◌ ", "$accent"), "another gpubox: ", plain(now.status.operation)))
        if now and now.status.message:
            bad = now.status.state in ("crashed", "error", "unreachable")
            glyph = ("✗ ", "$error") if bad else ("○ ", "$quiet")
            said.append(Content.assemble(glyph, plain(now.status.message)))
            if now.status.state == "crashed" and now.last and not self.read_only:
                said.append(Content.styled(f"r starts {plain(now.last)} again", "$accent"))
        self.lines.show(said)

    # -- panes alone --------------------------------------------------------------------------------

    def alone(self, pane: str) -> None:
        """Shows ``log`` or ``detail`` alone, or all panes again."""
        on = not self.has_class(f"-only-{pane}")
        self.remove_class("-only-log", "-only-detail")
        self.set_class(on, f"-only-{pane}")
        self._fit_detail()
        if not on:
            self.set_focus(self.profiles.rows)
        elif pane == "log":
            self.set_focus(self.log_pane.view)
        else:
            self.set_focus(self.detail)

    def back(self) -> bool:
        """One level back: filter, search, a pane alone, the keys of another pane. Whether there was one."""
        if self.log_pane.filter.has_focus or (self.log_pane.view.has_focus and self.log_pane.filter.value):
            self.log_pane.close_filter()
        elif self.has_class("-only-log"):
            self.alone("log")
        elif self.has_class("-only-detail"):
            self.alone("detail")
        elif not self.profiles.unfind() and not self.log_pane.close_filter():
            if self.profiles.rows.has_focus:
                return False
            self.set_focus(self.profiles.rows)
        return True


def _overtaken(story: Story, now: Now) -> bool:
    """Whether what runs now is not what the finished story ended with."""
    answering = story.finished.answering if story.finished else None
    if now.status.state == "crashed" or now.status.operation:
        return True
    return story.ok and answering is not None and now.status.state == "stopped" and bool(now.status.message)
