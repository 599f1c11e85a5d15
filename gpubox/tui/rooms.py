"""The screens beside the dashboard: the app makes each once, keeps it, and tells all of them the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from textual.app import App

from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bench.screen import BenchScreen
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.chat.screen import ChatScreen
    from gpubox.tui.dashboard.screen import DashboardScreen
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.persistent_screen import PersistentScreen

BENCH_POLL_SECONDS = 1.0
"""Between two looks at whether a benchmark is at work."""


class Rooms(App[bool]):
    """Mixed into the app."""

    bridge: ServiceBridge
    dashboard: DashboardScreen
    chat: ChatScreen | None = None
    bench: BenchScreen | None = None

    @property
    def rooms(self) -> list[PersistentScreen]:
        """Those that were opened."""
        return [room for room in (self.chat, self.bench) if room]

    def open_chat(self) -> ChatScreen:
        """The chat."""
        if self.chat is None:
            from gpubox.tui.chat.screen import ChatScreen

            self.chat = ChatScreen(self.bridge.services.chats(), note=self.dashboard.header.note)
        return self.chat

    def open_bench(self) -> BenchScreen:
        """The Bench screen."""
        if self.bench is None:
            from gpubox.tui.bench.screen import BenchScreen

            self.bench = BenchScreen(self.bridge.services.bench_service(), note=self.dashboard.header.note)
        return self.bench

    def broadcast(self, now: ServerOverview | None, snapshot: Snapshot | None = None) -> None:
        """What runs, and new readings."""
        for room in self.rooms:
            room.show_overview(self.dashboard.header, now)
            if snapshot:
                room.show_snapshot(snapshot)

    def show_mode(self, mode: str) -> None:
        """Brings a screen of the app to the front; in the chat once more: the keys go to the prompt."""
        if self.current_mode != mode and len(self.screen_stack) == 1:
            self.switch_mode(mode)
            app: Any = self
            self.broadcast(app.now)
        elif self.chat and mode == "chat":
            self.chat.action_chat_write()

    def action_show_dashboard(self) -> None:
        self.show_mode("dashboard")

    def action_show_chat(self) -> None:
        self.show_mode("chat")

    def action_show_bench(self) -> None:
        self.show_mode("bench")

    def action_bench_speed(self) -> None:
        self.show_mode("bench")
        self.open_bench().action_bench_measure()

    async def watch_bench(self) -> None:
        """Marks bench traffic on every screen, and has the Bench screen show how far the run is."""
        services = self.bridge.services
        service = services.bench_service()
        recording = bool(services.read_only) and not services.url  # what runs here now is no part of it
        while True:
            try:
                live = await service.active()
            except GpuboxError:
                live = None
            screens: list[Any] = [] if recording else [self.dashboard, *self.rooms]
            for screen in screens:
                screen.header.bench = f"bench {live.info.plan.kind} {live.done}/{live.info.items}" if live else ""
            if self.bench and (live or self.bench.live):
                self.bench.show_run(live)
            await asyncio.sleep(BENCH_POLL_SECONDS)
