"""Flags as the owner writes them after ``--set``, and the name that a profile or engine has for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpubox.engines.capabilities import Capabilities
from gpubox.errors import UsageError
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.toml_table import parse_toml

MAX_INT = 1 << 63
DRAFT_WINDOW_FLAGS = ("spec-draft-n-max", "draft-max", "draft", "draft-n")
"""llama-server's names for the maximum draft length, the current one first."""


def parse_flag_change(text: str) -> tuple[str, FlagValue]:
    """``flag=value`` of ``--set``. The value is TOML, else a string; an empty one removes the flag.

    Raises UsageError.
    """
    name, sign, literal = text.partition("=")
    name = name.strip().removeprefix("--")
    if not sign or not name:
        raise UsageError(f"{text!r} sets no flag.", "Write: --set n-cpu-moe=4")
    try:
        value = parse_toml(f"value = {literal}")["value"]
    except ValueError:  # no TOML, or too long to read
        value = literal.strip()
    if isinstance(value, int | float) and not -MAX_INT < value < MAX_INT:
        value = literal.strip()  # nan, inf and huge numbers: the engine refuses them
    if isinstance(value, list):
        value = tuple(value)
    if not isinstance(value, bool | int | float | str | tuple):
        raise UsageError(f"No flag takes the value of {text!r}.")
    return name, value


def flag_key(name: str, profile: Profile, capabilities: Capabilities) -> str:
    """The key for ``name`` in the profile's flags: the alias used there, else the engine's own name.

    A flag that the engine does not know stays as it is; ``check_flags`` refuses it.
    """
    wanted = name.lstrip("-").replace("_", "-")
    if wanted in DRAFT_WINDOW_FLAGS:
        options = ((flag, capabilities.option(flag)) for flag in DRAFT_WINDOW_FLAGS)
        wanted = next((flag for flag, option in options if option and option.removed is None), wanted)
    canonical = capabilities.canonical(wanted)
    aliases = [key for key in profile.flags if capabilities.canonical(key) == canonical]
    return aliases[0] if aliases else canonical if capabilities.option(wanted) else wanted


def with_flag_keys(
    flags: Mapping[str, FlagValue], profile: Profile, capabilities: Capabilities
) -> dict[str, FlagValue]:
    """``flags`` under the profile's keys."""
    return {flag_key(name, profile, capabilities): value for name, value in flags.items()}
