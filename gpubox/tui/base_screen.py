"""The bases of the full screens, and the key bar in their last row.

The app creates one dashboard, chat and Bench screen and feeds it, also in the background. The screens of the workshop
are pushed on top of the dashboard, and fed while they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

from gpubox.errors import GpuboxError
from gpubox.tui.actions import Action, Scope, key_bar_actions, types_text
from gpubox.tui.compositor import ThriftyCompositor
from gpubox.tui.messages import ScreenDrawn, ScreenOpened
from gpubox.tui.widgets.header import StatusHeader

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.messages import GatewayView, ServerOverview

CLIPBOARD_HINT = "(Needs a terminal with OSC 52; tmux: set-clipboard on.)"
_POSITIONS = {
    **{f"bench_{action}": 80 for action in ("resume", "restore", "save", "compare", "live")},  # they come and go
    "menu": 89, "help": 90, "command_palette": 91, "quit": 92,
}  # fmt: skip
"""Actions that stand at the end of the bar, whatever their priority."""


class KeyBar(Widget):
    """One row. On a narrow terminal actions of low priority are dropped; the help screen lists them all.

    For some seconds a short message stands before the keys; longer ones above them, on as many rows as they need. They
    cover nothing.
    """

    DEFAULT_CSS = """
    KeyBar { height: auto; max-height: 40%; dock: bottom; }
    KeyBar.-notices { background: $panel; color: $foreground; }
    """

    read_only: reactive[bool] = reactive(False)
    hidden_actions: reactive[frozenset[str]] = reactive(frozenset[str]())
    """Ids of actions that do nothing now."""
    labels: reactive[Mapping[str, str]] = reactive({})
    """Labels by action id that replace those of the table."""
    typing: reactive[bool] = reactive(False)
    """Whether a text input has the focus, so that letters are typed."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        self.notices: Sequence[tuple[str, bool]] = ()

    def on_mount(self) -> None:
        self.auto_links = False  # the keys are clickable, but not styled as links
        self.watch(self.app, "notices", self._show_notices)

    def _show_notices(self, notices: Sequence[tuple[str, bool]]) -> None:
        self.notices = notices
        self.set_class(bool(notices), "-notices")
        self.refresh(layout=True)

    def on_click(self) -> None:
        if self.notices:
            self.app.clear_notifications()

    def render(self) -> RenderResult:
        columns = self.size.width or self.app.size.width  # before the first layout: then it is in the first paint
        if self.notices:
            marks = (("· ", "$accent"), ("! ", "$warning"))
            texts = [Content.assemble(marks[bad], text) for text, bad in self.notices]
            short = len(texts) == 1 and texts[0].cell_length <= columns // 2
            keys = self._actions(columns - texts[0].cell_length - 3 if short else columns)
            return Content("   " if short else "\n").join([*texts, keys])
        return self._actions(columns)

    def _actions(self, columns: int) -> Content:
        all_actions = key_bar_actions(self.scope)
        actions = [a for a in all_actions if self.offers(a) and not (self.typing and types_text(a))]
        actions.sort(key=lambda action: "escape" in action.keys, reverse=True)  # the way back is never dropped
        while sum(len(self._key(a)) + 1 + len(self._label(a)) + 2 for a in actions) - 2 > columns:
            actions.pop()
        actions.sort(key=lambda action: _POSITIONS.get(action.id, all_actions.index(action)))
        return Content("  ").join([self._entry(action) for action in actions])

    def offers(self, action: Action) -> bool:
        """Whether the action has something to do now."""
        return action.id not in self.hidden_actions and not (self.read_only and action.changes_server)

    def _entry(self, action: Action) -> Content:
        click = Style.from_meta({"@click": f"app.run_by_id('{action.id}')"})
        text = Content.assemble((self._key(action), "bold $primary"), " ", (self._label(action), "$quiet"))
        return text.stylize(click)

    def _key(self, action: Action) -> str:
        return action.label_typing or action.key_label if self.typing else action.key_label

    def _label(self, action: Action) -> str:
        return self.labels.get(action.id, action.bar_label)


class PersistentScreen(Screen[None]):
    """Has a header and a key bar."""

    def __init__(self, scope: Scope, *, note: str = "", classes: str = "") -> None:
        super().__init__(classes=classes)
        self._compositor = ThriftyCompositor()
        self.header, self.keys = StatusHeader(), KeyBar(scope)
        self.header.note = note

    def on_mount(self) -> None:
        self.post_message(ScreenOpened())

    def _compositor_refresh(self) -> None:
        """Draws nothing within a batch: Textual would render it all and throw it away, and then draw only a part."""
        if self.app._batch_count:
            self.header.refresh()  # afterwards all that is due is drawn with it
            return
        super()._compositor_refresh()
        app: Any = self.app
        if not app.painted:
            app.painted = True
            self.post_message(ScreenDrawn())

    def menu_panes(self) -> tuple[str, set[str]]:
        """The title of the menu, and the panes of the dashboard that it is about."""
        return "Menu", set()

    def say(self, text: str, *, bad: bool = False) -> None:
        """Shows a message for some seconds; as a warning if ``bad``."""
        app: Any = self.app
        app.say(text, bad=bad)

    def show_gateway(self, view: GatewayView | None) -> None:
        """What the gateway says now; ``None``: none runs. The header shows its summary already."""

    def copy(self, text: str, label: str) -> None:
        """Copies ``text`` to the terminal's clipboard and says that ``label`` was copied."""
        self.app.copy_to_clipboard(text)
        self.say(f"Copied {label}. {CLIPBOARD_HINT}")

    def work(self, work: Callable[[], Coroutine[Any, Any, None]], group: str, *, exclusive: bool = False) -> None:
        """Runs ``work`` in a worker, and shows a GpuboxError as a warning."""

        async def run() -> None:
            try:
                await work()
            except GpuboxError as error:
                self.say(str(error), bad=True)

        worker: Any = run
        self.run_worker(worker, group=group, exclusive=exclusive)


class OtherScreen(PersistentScreen):
    """A screen beside the dashboard: the app feeds those that are open."""

    DEFAULT_CSS = "OtherScreen { background: $background; color: $foreground; }"

    def show_overview(self, overview: ServerOverview | None) -> None:
        """What runs now. The header shows it already."""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """New readings. The header shows them already."""


class PushedScreen(OtherScreen):
    """A screen that is pushed on top of another, and ends."""
