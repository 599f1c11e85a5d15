"""The keys that work now, made from the registry of verbs."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget

from gpubox.tui.actions import Verb, Where, bar_verbs


class KeyBar(Widget):
    """One row at the foot. On a narrow screen the less important keys give way; help lists them all."""

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    read_only: reactive[bool] = reactive(False)
    down: reactive[bool] = reactive(False)
    """Whether nothing runs that could be stopped."""
    enter_word: reactive[str] = reactive("switch")
    """What Enter does to the highlighted row."""

    def __init__(self, place: Where = Where.DASHBOARD) -> None:
        super().__init__()
        self.place = place

    def on_mount(self) -> None:
        self.auto_links = False  # keys look like keys, not like links; a click works all the same

    def render(self) -> RenderResult:
        hidden = {"stop"} if self.down else ()
        verbs = [v for v in bar_verbs(self.place) if v.id not in hidden and not (self.read_only and v.changes)]
        while _length(verbs, self.enter_word) > self.size.width:
            verbs.pop()
        order = [verb.id for verb in bar_verbs(self.place)]
        return Content("  ").join(
            [self._key(v) for v in sorted(verbs, key=lambda v: _PLACE.get(v.id, order.index(v.id)))]
        )

    def _key(self, verb: Verb) -> Content:
        click = Style.from_meta({"@click": f"app.verb('{verb.id}')"})
        text = Content.assemble((verb.shown, "bold $primary"), " ", (_word(verb, self.enter_word), "$quiet"))
        return text.stylize(click)


_PLACE = {"help": 90, "command_palette": 91, "quit": 92}


def _word(verb: Verb, enter_word: str) -> str:
    return enter_word if verb.id == "switch" else verb.word


def _length(verbs: list[Verb], enter_word: str) -> int:
    return sum(len(verb.shown) + 1 + len(_word(verb, enter_word)) for verb in verbs) + 2 * (len(verbs) - 1)
