"""Another machine on the screen: the whole box of a gateway, else the one server at an address. Read only."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.tui.messages import GatewayView
from gpubox.tui.services import LocalServices

if TYPE_CHECKING:
    from gpubox.gateway.gateway_client import BoxReading, RemoteBox
    from gpubox.models.find import LocalModel
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import EngineCompatibility, LaunchPreview
    from gpubox.telemetry.snapshot import Snapshot

BOX_READ_ONLY = "Another box is watched here. What changes or asks it is done there."
_LOG_LINES = 5000


class RemoteServices(LocalServices):
    """Asks the gateway at ``url`` for all that the screen shows. What answers there decides once what is shown."""

    def __init__(self, paths: Paths, config: Config, url: str, *, box_only: bool = False) -> None:
        """``box_only``: nothing but a gateway is shown, and nothing of this machine."""
        super().__init__(paths, config, url)
        self._box: RemoteBox | None = None
        self._is_box: bool | None = True if box_only else None
        """None: nothing has answered yet."""
        self._reading: BoxReading | None = None
        self._problem = ""
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        if box_only:
            self.read_only = BOX_READ_ONLY

    @property
    def only_watches(self) -> bool:
        return self._is_box is True

    async def snapshot(self) -> Snapshot:
        if self._is_box is False:
            return await super().snapshot()
        from gpubox.gateway.gateway_client import NotAGateway, connect_box

        try:
            if self._box is None:
                assert self.url is not None
                self._box = await run_in_thread(connect_box, self.paths, self.config, self.url)
            self._reading = await run_in_thread(self._box.read)
        except NotAGateway as error:
            if self._is_box is None:
                self._is_box = False
                return await super().snapshot()
            self._problem = error.message
            raise
        except GpuboxError as error:
            self._problem = error.message
            raise
        self._is_box, self.read_only, self._problem = True, BOX_READ_ONLY, ""
        self._lines.extend(self._reading.log)
        return self._reading.snapshot

    def gateway(self) -> GatewayView | None:
        if self._reading is None or self.url is None:
            return None
        if self._problem:
            return GatewayView(self.url, problem=self._problem)
        return GatewayView(self.url, replace(self._reading.gateway, base_url=self.url))

    def read_log(self) -> list[str]:
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def failed_log(self) -> tuple[str, list[str]]:
        raise GpuboxError("That log stays where the server ran.", "`gpubox logs --failed` prints it there.")

    def activity_marker(self) -> object:
        return None

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        if self._reading is None:
            return (), None
        active = self._reading.snapshot.server.profile
        up = (each.name for each in self._reading.gateway.profiles if each.state == "up")
        return tuple(name for name in up if name != active), None

    async def close(self) -> None:
        if self._box:
            self._box.close()
        await super().close()

    # -- profiles: of a box there are the names ------------------------------------------------------

    def profiles_marker(self) -> object:
        return self._names() if self._is_box is not False else super().profiles_marker()

    def catalog(self) -> ProfileCatalog:
        if self._is_box is False:
            return super().catalog()
        from gpubox.profiles.loader import ProfileCatalog
        from gpubox.profiles.profile import Profile

        about = "Its file stays on the box."
        return ProfileCatalog({name: Profile(name, description=about) for name in self._names()}, {})

    def _names(self) -> tuple[str, ...]:
        from gpubox.profiles.loader import PROFILE_NAME

        profiles = self._reading.gateway.profiles if self._reading else ()
        return tuple(each.name for each in profiles if PROFILE_NAME.fullmatch(each.name))

    def compatibility(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        return super().compatibility(catalog) if self._is_box is False else {}

    def models_without_profile(self, catalog: ProfileCatalog) -> list[LocalModel]:
        return super().models_without_profile(catalog) if self._is_box is False else []

    def preview_launch(self, profile: Profile) -> LaunchPreview:
        if self._is_box is False:
            return super().preview_launch(profile)
        raise GpuboxError(self.read_only)
