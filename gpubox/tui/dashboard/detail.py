"""The details pane: description, compatibility, command line and facts of the highlighted profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from gpubox import units
from gpubox.sanitize import sanitize_line, sanitize_paragraph
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.dashboard.profiles import MODEL_MISSING
from gpubox.tui.widgets.lines import ScrollKeys

if TYPE_CHECKING:
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import LaunchPreview
    from gpubox.tui.messages import ProfileEntry

LABEL_CELLS = 9
SHIPPED = "shipped with gpubox"


class DetailText(Static):
    """The text. Posts its new width, because hanging indents are wrapped for one width."""

    DEFAULT_CSS = "DetailText { height: auto; width: 1fr; }"

    class Widened(Message):
        """The width changed."""

    def __init__(self) -> None:
        super().__init__("", markup=False, id="detail-text")
        self.width = 0

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self.width:
            self.width = event.size.width
            self.post_message(self.Widened())


class DetailPane(ScrollKeys, VerticalScroll, can_focus=True):
    """Scrolls long text. ``one_line`` reduces it to the most important sentence, for small terminals."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    entry: reactive[ProfileEntry | None] = reactive(None)
    preview: reactive[LaunchPreview | None] = reactive(None)
    model_bytes: reactive[int | None] = reactive(None)
    one_line: reactive[bool] = reactive(False)

    def __init__(self) -> None:
        super().__init__()
        self.text = DetailText()

    def mount_content(self) -> None:
        """Mounts the content; called after the first paint."""
        self.mount(self.text)

    def watch_entry(self, old: ProfileEntry | None, new: ProfileEntry | None) -> None:
        self.border_title = Content(sanitize_line(new.name) if new else "Profile")  # a str would be parsed as markup
        if old is None or new is None or old.id != new.id:
            self.scroll_home(animate=False)
        self._draw()

    def watch_preview(self) -> None:
        self._draw()

    watch_model_bytes = watch_one_line = watch_preview

    @on(DetailText.Widened)
    def _draw(self) -> None:
        if not self.is_mounted:
            return
        entry = self.entry
        content = Content("") if entry is None else self._summary(entry) if self.one_line else self._details(entry)
        self.text.update(content)

    def _summary(self, entry: ProfileEntry) -> Content:
        """The most important sentence."""
        if entry.kind == "broken" and entry.error:
            return Content.assemble(("✗ ", "$error"), sanitize_line(str(entry.error)))
        if entry.kind in ("model", "choice"):
            return Content.assemble(("+ ", "$primary"), sanitize_line(str(entry.model or entry.text)))
        assert entry.profile is not None
        if entry.profile.elsewhere:
            return Content.assemble(("→ ", "$quiet"), sanitize_line(entry.profile.elsewhere))
        if refusal := self._refusal(entry):
            return Content.assemble(("! ", "$warning"), refusal)
        from gpubox.views.profile import profile_facts

        model, needs = model_state(entry, self.model_bytes), dict(profile_facts(entry.profile)).get("made for")
        parts = [
            sanitize_line(entry.profile.summary),
            model and f"model {model}",
            needs and f"made for {sanitize_line(needs)}",
        ]
        return Content("   ").join([Content(part) for part in parts if part])

    def _details(self, entry: ProfileEntry) -> Content:
        if entry.kind == "broken" and entry.error:
            message, hint = sanitize_line(entry.error.message), sanitize_line(entry.error.hint)
            return Content.assemble(
                "This file cannot be read:\n\n", (message, "$error"), "\n\n" if hint else "", (hint, "$accent")
            )
        if entry.kind in ("model", "choice"):
            enter = "makes a profile with the flags that make it fit, and starts it" if entry.model else "begins"
            return Content.assemble(
                sanitize_line(f"{entry.name}: {entry.summary}"), "\n\n", sanitize_line(str(entry.model or "")), "\n\n",
                ("⏎", "bold $primary"), f" {enter}",
            )  # fmt: skip
        assert entry.profile is not None
        profile = entry.profile
        heading = Content.styled(sanitize_line(profile.title), "bold")
        if profile.description:
            description = sanitize_paragraph(profile.description)
            heading = Content.assemble(heading, "\n" if profile.title else "", description)
        if not profile.model and not profile.elsewhere:  # on another box: only its name is known
            return heading
        command = Content.styled(sanitize_line(self.command_line), "$secondary")
        blocks = [heading, self._compatibility(entry), command, self._facts(entry, profile)]
        return Content("\n\n").join([block for block in blocks if block.plain])

    @property
    def command_line(self) -> str:
        """What starts the profile in a shell; empty as long as that is not known."""
        if not (self.entry and self.entry.profile and self.preview):
            return ""
        from gpubox.views.profile import launch_line

        return launch_line(self.entry.profile, self.preview)

    def _refusal(self, entry: ProfileEntry) -> str:
        """Why the engine does not accept the profile; empty if it does."""
        if self.preview and self.preview.refusal:
            return sanitize_line(str(self.preview.refusal).removeprefix(f"{entry.name}: "))
        state = entry.compatibility
        return sanitize_line(state.summary) if state and not state.ok else ""

    def _compatibility(self, entry: ProfileEntry) -> Content:
        if entry.profile and entry.profile.elsewhere:
            return Content.styled(f"→ {sanitize_line(entry.profile.elsewhere)}", "$quiet")
        if refusal := self._refusal(entry):
            return Content.styled(f"! {refusal}", "$warning")
        if self.preview:
            return Content.assemble(("✓ ", "$success"), f"{sanitize_line(self.preview.engine)} accepts every flag")
        return Content.styled("… checking the flags", "$quiet")

    def _facts(self, entry: ProfileEntry, profile: Profile) -> Content:
        from gpubox.views.profile import profile_facts

        address = f"{profile.host}:{profile.port}" if profile.port else f"{profile.host}, any free port"
        if not profile.loopback:
            address += "  (other machines can reach it)"
        model = f"{profile.model}  {model_state(entry, self.model_bytes)}"
        if profile.elsewhere:
            address, model = profile.upstream, profile.model
        facts = [
            ("model", model),
            ("address", address),
            ("runs", "beside the active profile" if profile.companion else ""),
            *(("file", SHIPPED) if profile.shipped and fact[0] == "file" else fact for fact in profile_facts(profile)),
        ]
        return Content("\n").join(
            [self._labelled(label, Content(sanitize_line(text).strip())) for label, text in facts if text]
        )

    def _labelled(self, label: str, text: Content) -> Content:
        """A label and its text, wrapped with a hanging indent."""
        lines = text.wrap(max(20, (self.text.width or 80) - LABEL_CELLS))
        first = Content.styled(label.ljust(LABEL_CELLS), "$quiet")
        indent = Content(" " * LABEL_CELLS)
        return Content("\n").join([(indent if index else first) + line for index, line in enumerate(lines)])


def model_state(entry: ProfileEntry, model_bytes: int | None) -> str:
    """Whether the profile's model is here, in a few words; ``model_bytes`` is its size if known."""
    state, profile = entry.compatibility, entry.profile
    size = units.file_size(model_bytes) if model_bytes else ""
    if state is None or profile is None:
        return ""
    if state.model_present:
        return f"here, {size}" if size else "here"
    if state.fetchable:
        return f"not here; Enter downloads {size or 'it'}"
    missing = state.missing.removeprefix(MODEL_MISSING)
    obvious = missing in ("", str(Path(profile.model).expanduser()))
    return "missing" if obvious else f"missing: {sanitize_line(missing)}"
