"""The last row of every screen: the keys that do something now, from the table of actions."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from gpubox.tui.actions import Action, Scope, key_bar_actions, types_text

_POSITIONS = {
    **{f"bench_{action}": 80 for action in ("resume", "restore", "save", "compare", "live")},  # they come and go
    "help": 90, "command_palette": 91, "quit": 92,
}  # fmt: skip
"""Actions that stand at the end of the bar, whatever their priority."""


class KeyBar(Widget):
    """One row. On a narrow terminal actions of low priority are dropped; the help screen lists them all."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

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

    def on_mount(self) -> None:
        self.auto_links = False  # the keys are clickable, but not styled as links

    def render(self) -> RenderResult:
        all_actions = key_bar_actions(self.scope)
        actions = [
            action
            for action in all_actions
            if action.id not in self.hidden_actions
            and not (self.read_only and action.changes_server)
            and not (self.typing and types_text(action))
        ]
        while sum(len(self._key(a)) + 1 + len(self._label(a)) + 2 for a in actions) - 2 > self.size.width:
            actions.pop()
        actions.sort(key=lambda action: _POSITIONS.get(action.id, all_actions.index(action)))
        return Content("  ").join([self._entry(action) for action in actions])

    def _entry(self, action: Action) -> Content:
        click = Style.from_meta({"@click": f"app.run_by_id('{action.id}')"})
        text = Content.assemble((self._key(action), "bold $primary"), " ", (self._label(action), "$quiet"))
        return text.stylize(click)

    def _key(self, action: Action) -> str:
        return action.key_label_typing or action.key_label if self.typing else action.key_label

    def _label(self, action: Action) -> str:
        return self.labels.get(action.id, action.bar_label)
