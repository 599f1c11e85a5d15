"""The Profile and its parts: frozen values, no I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FlagValue = bool | int | float | str | tuple[str | int | float, ...]
"""``True`` is a bare flag, ``False`` its ``--no-`` form, a tuple several values (see profiles/repeating.py)."""

TOP_LEVEL_FLAGS = {
    "model": "model",
    "m": "model",
    "hf-repo": 'model = "hf:user/repo[:quant]"',
    "hf": 'model = "hf:user/repo[:quant]"',
    "host": "host",
    "port": "port",
}
"""llama-server options that a profile gives outside ``[flags]``, and how they are written there."""


@dataclass(frozen=True, slots=True)
class ChatDefaults:
    """Defaults of the chat pane for this profile."""

    system: str = ""
    template_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """``chat_template_kwargs`` of each request, such as ``enable_thinking``."""


@dataclass(frozen=True, slots=True)
class HardwareNeeds:
    """What the machine must have for the figures to come true. ``None``: not said."""

    vram_gib: float | None = None
    ram_gib: float | None = None
    engine: str = ""
    """In words, what the engine must be: ``a TurboQuant fork of llama.cpp``."""


@dataclass(frozen=True, slots=True)
class ReferenceFigure:
    """One figure somebody measured with this configuration, to set beside the owner's own."""

    what: str
    value: float
    unit: str
    hardware: str
    article: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """One llama-server launch and its sampling defaults. Not a running thing."""

    name: str
    model: str
    """A path, ``hf:user/repo[:quant]`` or ``demo:NAME``."""
    title: str = ""
    description: str = ""
    engine: str = ""
    """An engine's name; empty: the default engine."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free port, chosen at each start."""
    companion: bool = False
    """Runs beside the active profile in a slot of its own instead of replacing it."""
    restart: bool = False
    """Started again when it dies, by the watcher beside it: at most 3 times in 15 minutes."""
    env: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling defaults under the API's names (``temperature``, ``top_p``, ...), given to the server."""
    chat: ChatDefaults = ChatDefaults()
    needs: HardwareNeeds = HardwareNeeds()
    source: str = ""
    """Where the figures come from."""
    references: tuple[ReferenceFigure, ...] = ()
    path: Path | None = None
    shipped: bool = False

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def summary(self) -> str:
        """Title, or name where there is none."""
        return self.title or self.name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host`` (a name other than localhost counts as outside)."""
    if host == "localhost" or host.endswith(".sock"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
