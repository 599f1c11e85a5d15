"""Connect a client: its settings with the live address, a model and a key; Enter writes or copies them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.gateway.offers import choose_model, gateway_models, gateway_snippet
from gpubox.interchange.client_settings import CLIENTS, KEY_PLACEHOLDER, ClientModel, Snippet, usable_models
from gpubox.interchange.settings_file import SettingsChange, settings_change, undo_settings, write_settings
from gpubox.profiles.loader import visible_profiles
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.dialogs import PromptScreen
from gpubox.tui.messages import ClientConnected, GatewayView
from gpubox.tui.styled_lines import (
    StyledLine,
    join_lines,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap_hard,
    wrap_text,
)
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import FittedLines, TitledPane

if TYPE_CHECKING:
    from gpubox.profiles.profile import Profile
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.clients.gateway_calls import GatewayService

KEY_NAMES = {"openai": "python", "anthropic": "python"}
FIRST_KEY = "It is the first key: from then on every client needs one."
SHOWN_ONCE = "gpubox keeps only its hash: the key is shown once."


class ClientNames(CursorRows[str]):
    """The clients that gpubox knows."""

    DEFAULT_CSS = """
    ClientNames { width: 22; height: 1fr; border: round $line; padding: 0 1; &:focus { border: round $line-focus; } }
    """
    CURSOR_STYLES = ("on $cursor", "on $line")

    def make_row(self, value: str, width: int) -> StyledLine:
        return styled_line((CLIENTS[value], ""))


DIFF_STYLES = {"+": "$success", "-": "$error"}


def _wrapped(text: str, width: int) -> list[StyledLine]:
    return [row for line in text.splitlines() for row in wrap_hard(((sanitize_line(line), ""),), width)]


def _diff_lines(diff: Sequence[str], width: int) -> list[StyledLine]:
    styled = (((sanitize_line(line), DIFF_STYLES.get(line[:1], "$quiet")),) for line in diff)
    return [row for line in styled for row in wrap_hard(line, width)]


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _shown(view: GatewayView) -> object:
    status = view.status
    return status and (status.has_keys, status.profiles, status.base_url)


class ConnectScreen(PushedScreen):
    """One client at a time."""

    AUTO_FOCUS = "ClientNames"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CONNECT)]
    DEFAULT_CSS = """
    ConnectScreen FittedLines { min-height: 3; padding: 0 2; }
    ConnectScreen #connect-body { height: 1fr; }
    """

    def __init__(
        self, bridge: ServiceBridge, profiles: Mapping[str, Profile], service: GatewayService,
        start: Callable[[], Awaitable[object]],
    ) -> None:  # fmt: skip
        """``start``: starts a gateway and reads its view."""
        super().__init__(Scope.CONNECT)
        self.bridge, self.profiles, self.service, self.start_gateway = bridge, profiles, service, start
        self.view = bridge.gateway.view or GatewayView("http://{}:{}".format(*service.address()))
        self.names, self.text, self.lines = ClientNames(), TitledPane(), FittedLines()
        self.names.values = tuple(CLIENTS)
        self.model = (bridge.overview.status.profile if bridge.overview else "") or ""
        """The model that the settings name; if there is no such one, the first."""
        self.change: SettingsChange | GpuboxError | None = None
        """What Enter writes into the client's own file, or why it cannot."""
        self._written: SettingsChange | None = None
        self._outcome = ""
        self._secrets: dict[str, tuple[str, str]] = {}
        """By the name that a client's key gets: the name and the key that were made here. Nowhere else."""

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.lines
        with Horizontal(id="connect-body"):
            yield self.names
            yield self.text
        yield self.keys

    def on_mount(self) -> None:
        self.names.border_title = "Client"
        self._draw()

    def show_gateway(self, view: GatewayView | None) -> None:
        """Shows the gateway as it is now."""
        old, self.view = self.view, view or self.view
        if _shown(old) != _shown(self.view):
            self._draw()

    @on(ClientNames.RowHighlighted)
    def _highlighted(self) -> None:
        self._outcome = ""
        self._draw()

    @on(ClientNames.RowOpened)
    def _opened(self) -> None:
        self.bridge.run(self._connect, "connect-client", exclusive=True)

    async def _connect(self) -> None:
        """Starts a gateway if none runs, and writes the settings, or copies those that gpubox cannot write."""
        seen = self.change
        try:
            if self.bridge.gateway.view is None:
                await self.start_gateway()
                self.show_gateway(self.bridge.gateway.view)
            if needs_key := bool((snippet := self.snippet()) and snippet.needs_key):
                await self._make_key()
            snippet = self.snippet()
            if snippet is None or snippet.needs_key:
                return
            change = await run_in_thread(settings_change, snippet)
            if change is None:
                self.action_connect_copy()
                return
            if change != seen and not needs_key:  # never what the owner has not seen
                self._draw()
                self.say("What is to be written has changed. Look at it, then press Enter again.")
                return
            backup = await run_in_thread(write_settings, change)
        except GpuboxError as error:
            self._outcome = f"! {error}"
            self.lines.put(self._head_lines)
            return
        kept = f"; the file as it was is {backup.name}" if backup else ""
        self._outcome = f"✓ {snippet.title} has the settings: start it."
        if change.before != change.after:
            self._written = change
            self._outcome += f" u, on this screen, undoes this{kept}."
        self.app.post_message(ClientConnected())
        self._draw()

    def action_connect_undo(self) -> None:
        self.work(self._undo, "connect-undo")

    async def _undo(self) -> None:
        change, self._written = self._written, None
        if change is None:
            self.say("Nothing was written here.")
            return
        await run_in_thread(undo_settings, change)
        self._outcome = f"✓ {change.path} is as it was."
        self._draw()

    # -- drawing --------------------------------------------------------------------------------------

    @property
    def client(self) -> str:
        return self.names.value or next(iter(CLIENTS))

    @property
    def _key_name(self) -> str:
        """The name that is proposed for the client's key: both Python clients are one."""
        return KEY_NAMES.get(self.client, self.client)

    @property
    def _needs_key(self) -> bool:
        return bool(self.view.status and self.view.status.has_keys)

    def models(self) -> tuple[ClientModel, ...]:
        """The models that this client can use."""
        listed = self.profiles
        if self.view.status is None:  # what a gateway would list
            shown = visible_profiles([*listed.values()], {self.model})
            listed = {profile.name: profile for profile in shown}
        return usable_models(self.client, gateway_models(self.view.status, listed))

    def snippet(self) -> Snippet | None:
        """The settings as shown; ``None`` if there is no model to name."""
        models = self.models()
        if not models:
            return None
        known = self.model if any(model.name == self.model for model in models) else None
        chosen = choose_model(models, known)
        secret = self._secrets.get(self._key_name, ("", ""))[1]
        return gateway_snippet(self.client, chosen, self.view.base_url, self.view.status, secret)

    def _draw(self) -> None:
        if self.is_attached:
            self.work(self._read_file, "connect-file", exclusive=True)

    async def _read_file(self) -> None:
        """Shows what Enter changes in the client's file; without such a file the settings."""
        snippet, change = self.snippet(), None  # type: Snippet | None, SettingsChange | GpuboxError | None
        try:
            change = await run_in_thread(settings_change, snippet) if snippet else None
        except GpuboxError as error:
            change = error
        self.change = change
        if snippet is None:
            text = "There is no profile that this client could use: esc, then start one."
            self.text.put("no model", lambda width: _wrapped(text, width))
        elif isinstance(change, SettingsChange) and change.before is not None:
            rows = [*change.diff()] or ["It has these settings already."]
            self.text.put(f"changes in {_short(change.path)}", lambda width: _diff_lines(rows, width))
        else:
            where = f"{_short(change.path)}, new" if isinstance(change, SettingsChange) else snippet.where
            self.text.put(where, lambda width: _wrapped(snippet.text, width))
        self.lines.put(self._head_lines)
        self._update_keys(change, snippet)

    def _update_keys(self, change: SettingsChange | GpuboxError | None, snippet: Snippet | None) -> None:
        start = "" if self.bridge.gateway.view else "start the gateway, "
        does = f"write {change.path.name}" if isinstance(change, SettingsChange) else "copy"
        self.keys.labels = {"connect_write": f"{start}{does}"}
        done = isinstance(change, SettingsChange) and change.before == change.after
        hidden = {"connect_write"} if snippet is None or isinstance(change, GpuboxError) or done else set()
        self.keys.hidden_actions = frozenset(hidden if self._written else {*hidden, "connect_undo"})

    def _head_lines(self, width: int) -> list[StyledLine]:
        """The address with its model, and what to know of the key."""
        models = self.models()
        chosen = next((model for model in models if model.name == self.model), models[0] if models else None)
        address = styled_line(("address ", "$quiet"), (sanitize_line(self.view.base_url), "bold"))
        model = styled_line(
            ("model ", "$quiet"), (sanitize_to_width(chosen.name if chosen else "none", 40), "bold $primary"),
            (f"  → next of {len(models)}" if len(models) > 1 else "", "$quiet"),
        )  # fmt: skip
        said, style = self._note()
        return [truncate_line(join_lines([address, model]), width), *wrap_text(said, width, style)]

    def _note(self) -> tuple[str, str]:
        """The outcome, else what stands in the way, else what to know of the key; and its style."""
        name, secret = self._secrets.get(self._key_name, ("", ""))
        if self._outcome:
            return self._outcome, "$success" if self._outcome.startswith("✓") else "$warning"
        if isinstance(self.change, GpuboxError):
            return f"! {self.change} y copies the settings.", "$warning"
        if self.bridge.gateway.view is None:
            writes = f" and writes {self.change.path.name}" if isinstance(self.change, SettingsChange) else ""
            return f"No gateway runs yet: Enter starts it here (it keeps running){writes}.", "$quiet"
        if secret:
            return f"key {secret} of {name}, shown here once; the text below has it. y copies it.", "bold $warning"
        if self._needs_key:
            text = f"key {KEY_PLACEHOLDER}: put the client's key there, or n makes one and writes it into the text"
            return text, "$warning"
        return "key none is needed; n makes one", "$quiet"

    # -- actions --------------------------------------------------------------------------------------

    def action_connect_model(self) -> None:
        self._next_model(1)

    def action_connect_previous(self) -> None:
        self._next_model(-1)

    def _next_model(self, step: int) -> None:
        names = [model.name for model in self.models()]
        if names:
            at = names.index(self.model) if self.model in names else 0
            self.model = names[(at + step) % len(names)]
            self._draw()

    def action_connect_copy(self) -> None:
        snippet = self.snippet()
        if snippet is None:
            self.say("There is nothing to copy.")
            return
        self.copy(snippet.text, f"the settings of {snippet.title}")
        self.app.post_message(ClientConnected())

    def action_connect_key(self) -> None:
        # the app's: it must outlive this screen
        self.bridge.run(self._make_key, "connect-key", exclusive=True)

    async def _make_key(self) -> None:
        proposed = self._key_name
        first = "" if self._needs_key else f"{FIRST_KEY} "
        body = f"The name of the client, as the ledger shows it. {first}{SHOWN_ONCE}"
        name = await self.app.push_screen_wait(PromptScreen("A key for a client", proposed, body))
        if name is None:
            return
        secret = await run_in_thread(self.service.add_key, name)
        if not self.is_attached:  # closed meanwhile: nobody has seen the key
            await run_in_thread(self.service.remove_key, name)
            return
        self._secrets[proposed] = (name, secret)
        await self.bridge.gateway.poll()
        self._draw()

    def action_connect_back(self) -> None:
        self.dismiss(None)
