"""What the owner does with the gateway: start, stop, pause, connect a client. Inside workers, because it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpubox.concurrency import run_in_thread
from gpubox.sanitize import sanitize_line
from gpubox.tui.dialogs import confirm
from gpubox.views.clients import cancelled_text, live_words

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import LiveRequest
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.clients.gateway_calls import GatewayService

T = TypeVar("T")
NO_GATEWAY = "No gateway runs. 5 shows how to start one."


class GatewayController:
    """The keys of the dashboard and the Clients screen that change the gateway."""

    def __init__(self, bridge: ServiceBridge, service: GatewayService) -> None:
        self.bridge, self.app, self.service = bridge, bridge.app, service
        self._busy = False

    async def act(self, action: str, *values: Any) -> None:
        """Performs the action of a key."""
        actions: dict[str, Callable[..., Awaitable[None]]] = {
            "hold": self.toggle_pause, "connect": self.connect, "toggle": self.start_or_stop, "cancel": self.cancel,
        }  # fmt: skip
        if self.bridge.refuses() or self._busy:  # a key pressed twice must not start two
            return
        self._busy = True
        try:
            await actions[action](*values)
        finally:
            self._busy = False

    async def toggle_pause(self) -> None:
        """Holds all requests, or lets them go on."""
        view = self.bridge.gateway.view
        if view is None or view.status is None:
            self.app.say(NO_GATEWAY if view is None else view.problem, bad=True)
            return
        await self._do(self.service.pause, not view.status.paused)  # every header shows the outcome

    async def cancel(self, request: LiveRequest) -> None:
        """Ends a request; asks first if it is being answered."""
        question = f"Cancel request {request.id} of {sanitize_line(request.client)}?"
        body = f"It is {sanitize_line(live_words(request))}. Its client gets an error, and what was generated is lost."
        if request.state == "waiting" or await confirm(self.app, question, body, "cancel it", no="let it go on"):
            self.app.say(sanitize_line(cancelled_text(await self._do(self.service.cancel, request.id))))

    async def start_or_stop(self) -> None:
        """Starts a gateway, or stops the one that runs after asking."""
        if self.bridge.gateway.view is None:
            await self._start()
            return
        status = self.bridge.gateway.view.status
        running = len(status.requests) if status else 0
        body = (
            "Its clients cannot reach any model through it then. The servers go on, and answer at their own addresses."
        )
        if running:
            one = "1 request is" if running == 1 else f"{running} requests are"
            body = f"{one} under way. {body}"
        if await confirm(self.app, "Stop the gateway?", body, "stop the gateway", no="keep it running"):
            poller = self.bridge.gateway
            poller.is_stopped_here = True
            try:
                await self._do(self.service.stop)
            finally:
                poller.is_stopped_here = False
            self.app.say("The gateway is stopped.")

    async def connect(self) -> None:
        """Shows the settings of the clients; Enter there starts a gateway if none runs."""
        from gpubox.tui.clients.connect_screen import ConnectScreen

        profiles, start = await run_in_thread(self.service.profiles), partial(self._do, self.service.start)
        await self.app.push_screen(ConnectScreen(self.bridge, profiles, self.service, start))

    async def _start(self) -> None:
        base_url = await self._do(self.service.start)
        self.app.say(f"The gateway runs at {base_url}. It keeps running when gpubox closes.")

    async def _do(self, work: Callable[..., T], *values: Any) -> T:
        """Runs ``work``, then reads the gateway again."""
        try:
            return await run_in_thread(partial(work, *values))
        finally:
            await self.bridge.gateway.poll()
