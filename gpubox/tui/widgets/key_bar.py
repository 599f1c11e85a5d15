"""The keys that work now, made from the registry of verbs."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from gpubox.tui.actions import Action, Scope, key_bar_actions, types_text


class KeyBar(Widget):
    """One row at the foot. On a narrow screen the less important keys give way; help lists them all."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    read_only: reactive[bool] = reactive(False)
    down: reactive[bool] = reactive(False)
    """Whether nothing runs that could be stopped."""
    enter_label: reactive[str] = reactive("switch")
    """What Enter does to the highlighted row."""

    hidden_actions: reactive[frozenset[str]] = reactive(frozenset[str]())
    """Verbs that have nothing to do now. Their keys say why."""

    words: reactive[Mapping[str, str]] = reactive({})
    """What a verb is called now, where that is not its word."""

    typing: reactive[bool] = reactive(False)
    """Whether letters are written instead of doing something."""

    def __init__(self, place: Scope = Scope.DASHBOARD) -> None:
        super().__init__()
        self.place = place

    def on_mount(self) -> None:
        self.auto_links = False  # keys look like keys, not like links; a click works all the same

    def render(self) -> RenderResult:
        hidden = self.hidden_actions | ({"stop"} if self.down else set())
        verbs = [v for v in key_bar_actions(self.place) if v.id not in hidden and not (self.read_only and v.changes)]
        verbs = [v for v in verbs if not (self.typing and types_text(v))]
        while self._length(verbs) > self.size.width:
            verbs.pop()
        order = [verb.id for verb in key_bar_actions(self.place)]
        return Content("  ").join(
            [self._key(v) for v in sorted(verbs, key=lambda v: _PLACE.get(v.id, order.index(v.id)))]
        )

    def _key(self, verb: Action) -> Content:
        click = Style.from_meta({"@click": f"app.verb('{verb.id}')"})
        text = Content.assemble((self._shown(verb), "bold $primary"), " ", (self._word(verb), "$quiet"))
        return text.stylize(click)

    def _shown(self, verb: Action) -> str:
        return verb.typed or verb.shown if self.typing else verb.shown

    def _word(self, verb: Action) -> str:
        return self.enter_label if verb.id == "switch" else self.words.get(verb.id, verb.word)

    def _length(self, verbs: list[Action]) -> int:
        return sum(len(self._shown(verb)) + 1 + len(self._word(verb)) for verb in verbs) + 2 * (len(verbs) - 1)


_PLACE = {
    **{f"bench_{verb}": 80 for verb in ("resume", "restore", "save", "compare", "live")},  # they come and go
    "help": 90, "command_palette": 91, "quit": 92,
}  # fmt: skip
"""Keys at the end of the bar, whatever their importance."""
