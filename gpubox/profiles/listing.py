"""Which profiles a list leaves out until it is asked for all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpubox.profiles.profile import Profile


def hides_shipped(profiles: Iterable[Profile], setting: str) -> bool:
    """Whether the shipped profiles are left out; ``setting`` is ``shipped-profiles`` of config.toml."""
    return setting == "hide" or (setting == "auto" and any(not profile.shipped for profile in profiles))


def visible_profiles(profiles: Iterable[Profile], keep: Collection[str]) -> list[Profile]:
    """The owner's profiles and those named in ``keep`` (what runs, what ran last)."""
    return [profile for profile in profiles if not profile.shipped or profile.name in keep]
