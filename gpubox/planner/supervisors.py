"""The one place above ``server`` that makes a Supervisor: each asks the planner before it stops anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server.events import ServerEvent
from gpubox.server.state import RunningServer
from gpubox.server.supervisor import Supervisor

if TYPE_CHECKING:
    from gpubox.planner.planner import Planner


def make_supervisor(
    paths: Paths, config: Config, instance: str = MAIN_INSTANCE,
    emit: Callable[[ServerEvent], None] = lambda event: None, *, anyway: bool = False, planner: Planner | None = None,
    hint: str = "", asked_by: str = "", gives_way: bool = False, cold: bool = False,
) -> Supervisor:  # fmt: skip
    """The Supervisor of an instance, which refuses a profile that would certainly not fit.

    ``anyway``: the owner has decided to try. ``planner``: one that exists already. ``hint``: a way out to offer with a
    refusal. The others as in Supervisor.
    """

    def check(profile: Profile, leaving: Sequence[RunningServer]) -> str:
        if anyway:
            return ""
        from gpubox.planner.planner import Planner
        from gpubox.planner.preflight import check_fits

        try:
            return check_fits(planner or Planner(paths, config), profile, replaces=leaving)
        except GpuboxError as error:
            error.hint = f"{error.hint} {hint}".strip()
            raise

    return Supervisor(paths, config, instance, emit, check, asked_by=asked_by, gives_way=gives_way, cold=cold)
