"""How the screen looks: its theme, and what it remembers of the owner's choices. The terminal is asked once."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import constants

from gpubox.concurrency import run_in_thread
from gpubox.tui.background import ANSWER_SECONDS, ask_background
from gpubox.tui.theme import AUTO, GPUBOX, GPUBOX_LIGHT

if TYPE_CHECKING:
    from textual.driver import Driver

    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.remembered import LastSeen


class Appearance:
    """The theme is that of config.toml, of $TEXTUAL_THEME, the last choice on the screen, else as the terminal is."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge, self.app = bridge, bridge.app
        self.remembered = bridge.services.remembered()
        self._setting = bridge.services.config.theme
        self._asked_at = float("-inf")
        self._saving = asyncio.Lock()
        self._kept: object = None
        """What was kept for the next first frame, without its time."""
        for own in (GPUBOX, GPUBOX_LIGHT):
            self.app.register_theme(own)

    @property
    def wanted_theme(self) -> str:
        environment = constants.DEFAULT_THEME if os.environ.get("TEXTUAL_THEME") else ""
        for name in (self._setting, environment, self.remembered.theme):
            if name and name != AUTO and name in self.app.available_themes:
                return name
        return GPUBOX_LIGHT.name if self.remembered.background == "light" else GPUBOX.name

    def ask_background(self, driver: Driver | None) -> None:
        """Asks the terminal, if the theme depends on it."""
        if self._setting == AUTO and ask_background(driver):
            self._asked_at = time.monotonic()

    def background_known(self, *, light: bool) -> None:
        """The terminal has answered."""
        if time.monotonic() - self._asked_at < ANSWER_SECONDS:
            self.remember(background="light" if light else "dark")
            self.app.theme = self.wanted_theme

    async def ask_theme(self) -> None:
        """Lets the owner choose a theme. Call it in a worker."""
        from gpubox.tui.palette import PaletteRow, PaletteScreen

        names = dict.fromkeys((AUTO, GPUBOX.name, GPUBOX_LIGHT.name, *sorted(self.app.available_themes)))
        rows = [PaletteRow(name, name, "light or dark, as the terminal is" if name == AUTO else "") for name in names]
        chosen = await self.app.push_screen_wait(PaletteScreen(rows, "Colours", first=self.app.theme))
        if chosen in names:
            self._setting = chosen  # for this session, whatever config.toml says
            self.remember(theme="" if chosen == AUTO else chosen)
            self.app.theme = self.wanted_theme

    def remember(self, **values: Any) -> None:
        """Keeps choices for the next session."""
        before, self.remembered = self.remembered, replace(self.remembered, **values)
        if self.remembered != before:
            self.bridge.run(self._save, "remember")

    def keep_last_seen(self, seen: LastSeen | None) -> None:
        """Keeps what is shown for the next first frame, if it is not what was kept before."""
        if seen and (shown := seen._replace(at="")) != self._kept:
            self._kept = shown
            self.bridge.run(partial(run_in_thread, self.bridge.services.keep_last_seen, seen), "last-seen")

    async def _save(self) -> None:
        async with self._saving:
            await run_in_thread(lambda: self.bridge.services.remember(self.remembered))
