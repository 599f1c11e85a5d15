"""Connect a client: its settings with the live address, a model and a key, copied with one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from rich.cells import chop_cells
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.interchange.client_settings import CLIENTS, KEY_PLACEHOLDER, ClientModel, Snippet, usable_models
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import PushedScreen
from gpubox.tui.dialogs import PromptScreen
from gpubox.tui.styled_lines import StyledLine, join_lines, sanitize_to_width, styled_line, truncate_line
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import StyledLines, TitledPane
from gpubox.views.connect import choose_model, gateway_models, gateway_snippet

if TYPE_CHECKING:
    from gpubox.profiles.profile import Profile
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.clients.gateway_calls import GatewayService
    from gpubox.tui.messages import GatewayView

KEY_NAMES = {"openai": "python", "anthropic": "python"}
FIRST_KEY = "It is the first key: from then on every client needs one."
SHOWN_ONCE = "gpubox keeps only its hash: the key is shown once."


class ClientNames(CursorRows[str]):
    """The clients that gpubox knows."""

    DEFAULT_CSS = """
    ClientNames { width: 22; height: 1fr; border: round $line; padding: 0 1; &:focus { border: round $line-focus; } }
    """
    CURSOR_RETURNS_TO_TOP = False
    CURSOR_STYLES = ("on $cursor", "on $line")

    def make_row(self, value: str, width: int) -> StyledLine:
        return styled_line((CLIENTS[value], ""))

    def move_cursor(self, index: int) -> None:
        super().move_cursor(index)
        self.post_message(self.RowOpened(self.value))


class ConnectLines(StyledLines):
    """The address with its model, and what to know of the key."""

    DEFAULT_CSS = "ConnectLines { height: 3; padding: 0 2; }"


def _wrapped(text: str, width: int) -> list[StyledLine]:
    lines: list[StyledLine] = []
    for line in text.splitlines():
        shown = sanitize_line(line)
        lines += [styled_line((part, "")) for part in chop_cells(shown, max(10, width))] or [()]
    return lines


class ConnectScreen(PushedScreen):
    """One client at a time."""

    AUTO_FOCUS = "ClientNames"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CONNECT)]
    DEFAULT_CSS = """
    ConnectScreen { layout: vertical; background: $background; color: $foreground; }
    ConnectScreen #connect-body { height: 1fr; }
    """

    def __init__(
        self, bridge: ServiceBridge, view: GatewayView, profiles: Mapping[str, Profile], service: GatewayService
    ) -> None:
        super().__init__(Scope.CONNECT)
        self.bridge, self.view, self.profiles, self.service = bridge, view, profiles, service
        self.names, self.text, self.lines = ClientNames(), TitledPane(), ConnectLines()
        self.names.values = tuple(CLIENTS)
        self.model = ""
        """The model that the settings name; empty: the first one."""
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

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_lines)

    def show_gateway(self, view: GatewayView | None) -> None:
        """Shows the gateway as it is now."""
        if view is None or view.status is None or self.view.status is None:
            self.view = view or self.view
            return
        old, self.view = self.view.status, view
        if (old.has_keys, old.profiles, old.base_url) != (
            view.status.has_keys, view.status.profiles, view.status.base_url,
        ):  # fmt: skip
            self._draw()

    def on_cursor_rows_row_opened(self) -> None:
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
        return usable_models(self.client, gateway_models(self.view.status, self.profiles))

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
        if not self.is_attached:
            return
        snippet = self.snippet()
        if snippet is None:
            text = "There is no profile that this client could use. x on the dashboard has New profile."
            self.text.put("no model", lambda width: _wrapped(text, width))
        else:
            self.text.put(snippet.where, lambda width: _wrapped(snippet.text, width))
        self._draw_lines()

    def _draw_lines(self) -> None:
        width = self.lines.content_size.width
        if width <= 0:
            self.call_after_refresh(self._draw_lines)
            return
        models = self.models()
        chosen = next((model for model in models if model.name == self.model), models[0] if models else None)
        address = styled_line(("address ", "$quiet"), (sanitize_line(self.view.base_url), "bold"))
        model = styled_line(
            ("model ", "$quiet"), (sanitize_to_width(chosen.name if chosen else "none", 40), "bold $primary"),
            (f"  →: one of {len(models)}" if len(models) > 1 else "", "$quiet"),
        )  # fmt: skip
        self.lines.show([truncate_line(join_lines([address, model]), width), *self._key_lines(width)])

    def _key_lines(self, width: int) -> list[StyledLine]:
        name, secret = self._secrets.get(self._key_name, ("", ""))
        if secret:
            made = styled_line(("key ", "$quiet"), (secret, "bold $warning"))
            about = f"of {sanitize_line(name)}, shown here once; the text below has it. y copies it."
            return [truncate_line(made, width), truncate_line(styled_line((about, "$warning")), width)]
        if self._needs_key:
            text = f"key {KEY_PLACEHOLDER}: put the client's key there, or n makes one and writes it into the text"
            return [truncate_line(styled_line((text, "$warning")), width), ()]
        return [truncate_line(styled_line(("key none is needed; n makes one", "$quiet")), width), ()]

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
        try:
            secret = await run_in_thread(self.service.add_key, name)
            if not self.is_attached:  # closed meanwhile: nobody has seen the key
                await run_in_thread(self.service.remove_key, name)
                return
        except GpuboxError as error:
            self.say(str(error), bad=True)
            return
        self._secrets[proposed] = (name, secret)
        await self.bridge.gateway.poll()
        self._draw()

    def action_connect_back(self) -> None:
        self.dismiss(None)
