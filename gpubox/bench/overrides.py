"""The owner's words for flags -> the profile's own keys, as this engine calls them."""

from __future__ import annotations

from collections.abc import Mapping

from gpubox.bench.model import Target
from gpubox.bench.target_server import apply_overrides
from gpubox.engines.capabilities import Capabilities
from gpubox.profiles.profile import FlagValue, Profile

_WINDOWS = ("spec-draft-n-max", "draft-max", "draft", "draft-n")
"""llama-server's names for the draft window, today's first."""


def flag_key(name: str, profile: Profile, capabilities: Capabilities) -> str:
    """The key of ``name`` in the profile's flags: the one it has there under any alias, else the engine's own name.

    An option that the engine has under no name stays as it is, for the check to refuse.
    """
    wanted = name.lstrip("-").replace("_", "-")
    if wanted in _WINDOWS:
        usable = [word for word in _WINDOWS if (option := capabilities.option(word)) and option.removed is None]
        wanted = usable[0] if usable else wanted
    canonical = capabilities.canonical(wanted)
    same = [key for key in profile.flags if capabilities.canonical(key) == canonical]
    return same[0] if same else canonical if capabilities.option(wanted) else wanted


def with_flag_keys(
    flags: Mapping[str, FlagValue], profile: Profile, capabilities: Capabilities
) -> dict[str, FlagValue]:
    """``flags`` under the profile's keys."""
    return {flag_key(name, profile, capabilities): value for name, value in flags.items()}


def check_overrides(target: Target, profile: Profile, capabilities: Capabilities) -> None:
    """Raises UsageError where the engine's help knows one of the target's flags not, before anything is stopped."""
    from gpubox.server.launch import check_flags

    check_flags(apply_overrides(profile, target), capabilities)


def toggle_mtp(profile: Profile) -> tuple[str, Mapping[str, FlagValue]]:
    """MTP off where the profile has it on, and on where it is off: in words, and as flags."""
    kinds = profile.flags.get("spec-type", "none")
    words = [str(one) for one in kinds] if isinstance(kinds, tuple) else str(kinds).split(",")
    if "draft-mtp" in words:
        synthetic = [name for name in profile.flags if name.startswith("spec-synth-")]  # refused where nothing drafts
        return "without MTP", {"spec-type": "none", **dict.fromkeys(synthetic, "")}
    return "with MTP", {"spec-type": "draft-mtp"}


def toggle_mmap(profile: Profile, capabilities: Capabilities) -> tuple[str, Mapping[str, FlagValue]]:
    """The model mapped where the profile reads it, and read where it is mapped: in words, and as flags."""
    mode = capabilities.option("load-mode")
    if mode is None or mode.removed is not None:  # builds before b11000 or so
        off = profile.flags.get("mmap") is False or profile.flags.get("no-mmap") is True
        name = "no-mmap" if "no-mmap" in profile.flags else "mmap"
        return ("with mmap", {name: ""}) if off else ("without mmap", {"mmap": False})
    off = profile.flags.get("load-mode", "auto") not in ("auto", "mmap", "mmap+mlock")
    return ("with mmap", {"load-mode": "mmap"}) if off else ("without mmap", {"load-mode": "none"})
