"""Everything about the highlighted row: what it is, what it needs, and the exact command line it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from gpubox.sanitize import sanitize_line, sanitize_paragraph
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.glyphs import model_words, needs
from gpubox.tui.profile_entries import ProfileEntry
from gpubox.tui.widgets.scroll_keys import ScrollKeys

if TYPE_CHECKING:
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import LaunchPreview

LABEL_CELLS = 9


def shell_line(profile: Profile, argv: tuple[str, ...]) -> str:
    """The command line to paste, with secrets of the profile's env blanked out."""
    from gpubox.profiles.argv import command_line, redacted_env

    env = redacted_env(profile.env)
    return command_line(argv, env)


class DetailText(Static):
    """The text; says when its width changed, because its hanging lines are broken for one width."""

    DEFAULT_CSS = "DetailText { height: auto; width: 1fr; }"

    class Widened(Message):
        """It has another width."""

    def __init__(self) -> None:
        super().__init__("", markup=False, id="detail-text")
        self.width = 0

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self.width:
            self.width = event.size.width
            self.post_message(self.Widened())


class DetailPane(ScrollKeys, VerticalScroll, can_focus=True):
    """Scrolls where it does not fit. ``one_line`` for a screen that has no room: the sentence that matters most."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    entry: reactive[ProfileEntry | None] = reactive(None)
    shown: reactive[LaunchPreview | None] = reactive(None)
    size_bytes: reactive[int | None] = reactive(None)
    one_line: reactive[bool] = reactive(False)

    def __init__(self) -> None:
        super().__init__()
        self.border_title = "Profile"
        self.text = DetailText()

    def fill(self) -> None:
        """Mounts what is inside; after the first paint, as the other panes."""
        self.mount(self.text)

    def watch_entry(self, old: ProfileEntry | None, new: ProfileEntry | None) -> None:
        self.border_title = Content(sanitize_line(new.name) if new else "Profile")  # a plain text would be markup
        if old is None or new is None or old.id != new.id:
            self.scroll_home(animate=False)
        self._draw()

    def watch_shown(self) -> None:
        self._draw()

    def watch_size_bytes(self) -> None:
        self._draw()

    def watch_one_line(self) -> None:
        self._draw()

    @on(DetailText.Widened)
    def _widened(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        entry = self.entry
        content = Content("") if entry is None else self._short(entry) if self.one_line else self._long(entry)
        self.text.update(content)

    def _short(self, entry: ProfileEntry) -> Content:
        if entry.kind == "broken" and entry.error:
            return Content.assemble(("✗ ", "$error"), sanitize_line(str(entry.error)))
        if entry.kind == "model":
            return Content.assemble(("+ ", "$primary"), sanitize_line(str(entry.model)))
        assert entry.profile is not None
        if refusal := self._refusal(entry):
            return Content.assemble(("! ", "$warning"), refusal)
        model = self._model(entry)
        words = [
            sanitize_line(entry.profile.summary),
            model and f"model {model}",
            needs(entry) and f"needs {needs(entry)}",
        ]
        return Content("   ").join([Content(word) for word in words if word])

    def _long(self, entry: ProfileEntry) -> Content:
        if entry.kind == "broken" and entry.error:
            parts = [("This file cannot be read:\n\n", ""), (sanitize_line(entry.error.message), "$error")]
            return Content.assemble(
                *parts, "\n\n" if entry.error.hint else "", (sanitize_line(entry.error.hint), "$accent")
            )
        if entry.kind == "model":
            return Content.assemble(
                ("This model has no profile yet.\n\n", ""), sanitize_line(str(entry.model)), "\n\n",
                ("⏎", "bold $primary"), f" makes a profile of {sanitize_line(entry.name)}",
            )  # fmt: skip
        assert entry.profile is not None
        return Content("\n\n").join([block for block in self._blocks(entry, entry.profile) if block.plain])

    def _blocks(self, entry: ProfileEntry, profile: Profile) -> list[Content]:
        head = Content.styled(sanitize_line(profile.title), "bold")
        if profile.description:
            head = Content.assemble(head, "\n" if profile.title else "", sanitize_paragraph(profile.description))
        return [head, self._verdict(entry), self._command(profile), self._facts(entry, profile), self._figures(profile)]

    def _refusal(self, entry: ProfileEntry) -> str:
        if self.shown and self.shown.refusal:
            return sanitize_line(str(self.shown.refusal).removeprefix(f"{entry.name}: "))
        return sanitize_line(entry.fit.summary) if entry.fit and not entry.fit.ok else ""

    def _verdict(self, entry: ProfileEntry) -> Content:
        if refusal := self._refusal(entry):
            return Content.assemble(("! ", "$warning"), (refusal, "$warning"))
        if self.shown:
            from gpubox.engines.capabilities import display_version

            return Content.assemble(
                ("✓ ", "$success"), f"{sanitize_line(display_version(self.shown.engine))} takes every flag"
            )
        return Content.styled("… asking the engine", "$quiet")

    def _command(self, profile: Profile) -> Content:
        if not self.shown:
            return Content("")
        return Content.styled(sanitize_line(shell_line(profile, self.shown.argv)), "$secondary")

    def _model(self, entry: ProfileEntry) -> str:
        return model_words(entry, self.size_bytes)

    def _facts(self, entry: ProfileEntry, profile: Profile) -> Content:
        address = f"{profile.host}:{profile.port}" if profile.port else f"{profile.host}, any free port"
        if not profile.loopback:
            address += "  (other machines can reach it)"
        rows = (
            ("needs", needs(entry)),
            ("model", f"{sanitize_line(profile.model)}  {self._model(entry)}"),
            ("address", sanitize_line(address)),
            ("runs", "beside the active profile" if profile.companion else ""),
            ("source", sanitize_line(profile.source)),
            (
                "file",
                sanitize_line(str(profile.path)) if profile.path and not profile.shipped else "shipped with gpubox",
            ),
        )
        return Content("\n").join([self._hanging(name, Content(text.strip())) for name, text in rows if text])

    def _hanging(self, name: str, text: Content) -> Content:
        """A name and its text, the text's further lines under its first."""
        parts = text.wrap(max(20, (self.text.width or 80) - LABEL_CELLS))
        label = Content.styled(name.ljust(LABEL_CELLS), "$quiet")
        return Content("\n").join([(Content(" " * LABEL_CELLS) if at else label) + p for at, p in enumerate(parts)])

    def _figures(self, profile: Profile) -> Content:
        """What others measured with this configuration."""
        lines = []
        for reference in profile.references:
            value = f"{reference.value:g} {sanitize_line(reference.unit)}".strip()
            more = f"  ({sanitize_line(reference.note)})" if reference.note else ""
            where = (f"  {sanitize_line(reference.hardware)}{more}", "$quiet")
            text = Content.assemble(f"{sanitize_line(reference.what)}: ", (value, "bold"), where)
            lines.append(self._hanging("measured", text))
        return Content("\n").join(lines)
