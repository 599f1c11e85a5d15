"""What the screen asks of the gateway: its only calls into ``gpubox.gateway`` beside the lines. All of it may block.

The imports are inside: most screens never need the gateway's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.server.state import load_gateway
from gpubox.tui.messages import GatewayView

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import LiveRequest
    from gpubox.profiles.profile import Profile


CONNECT_HINT = "connect"
"""Its name among the advice that is dismissed for all profiles."""


class GatewayService:
    """The gateway of this machine. All methods raise GpuboxError."""

    def __init__(self, paths: Paths, config: Callable[[], Config]) -> None:
        self.paths, self._config = paths, config

    def read(self) -> GatewayView | None:
        """What the running gateway says of itself; ``None`` if none runs."""
        record = load_gateway(self.paths)
        if record is None:
            return None
        from gpubox.gateway.gateway_client import read_gateway

        try:
            status = read_gateway(self.paths)
        except GpuboxError as error:
            return GatewayView(record.base_url, problem=error.message)
        return GatewayView(record.base_url, status) if status else None

    def start(self) -> str:
        """Starts a gateway apart from this screen. Returns its address."""
        from gpubox.gateway.background import start_detached

        return start_detached(self.paths, *self.address()).base_url

    def address(self) -> tuple[str, int]:
        """Host and port on which a gateway would listen."""
        gateway = self._config().gateway
        return gateway.host, gateway.port

    def stop(self) -> None:
        from gpubox.gateway import gateway_client

        gateway_client.stop(self.paths)

    def pause(self, paused: bool) -> None:
        """Holds all requests, or lets them go on."""
        from gpubox.gateway import gateway_client

        gateway_client.hold(self.paths, paused)

    def cancel(self, number: int) -> LiveRequest:
        """Ends a request. Returns what it was."""
        from gpubox.gateway import gateway_client

        return gateway_client.cancel(self.paths, number)

    def wants_client(self) -> bool:
        """Whether no client has ever asked the gateway, and the owner did not dismiss the hint to connect one."""
        from gpubox.advisor.dismissed import Dismissals

        used = self.paths.ledger.exists() and any(self.paths.ledger.iterdir())
        return not used and CONNECT_HINT not in Dismissals(self.paths).of("")

    def end_connect_hint(self) -> None:
        from gpubox.advisor.dismissed import Dismissals

        Dismissals(self.paths).dismiss("", CONNECT_HINT)

    def profiles(self) -> Mapping[str, Profile]:
        """The profiles that a client may name."""
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths).profiles

    def add_key(self, client: str) -> str:
        """Makes a key for a client. Returns it: nothing else ever will."""
        from gpubox.gateway.client_keys import ClientKeys

        return ClientKeys(self.paths).add(client)

    def remove_key(self, client: str) -> None:
        from gpubox.gateway.client_keys import ClientKeys

        ClientKeys(self.paths).remove(client)
