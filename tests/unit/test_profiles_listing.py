"""Lists hide the shipped profiles once the owner has one."""

from __future__ import annotations

import pytest

from gpubox.profiles.loader import hides_shipped, visible_profiles
from gpubox.profiles.profile import Profile

MINE, SHIPPED, RUNS = Profile("mine", "/m.gguf"), Profile("demo", "d", shipped=True), Profile("qwen", "q", shipped=True)


@pytest.mark.parametrize(
    ("profiles", "setting", "hides"),
    [
        ((SHIPPED,), "auto", False), ((SHIPPED, MINE), "auto", True), ((SHIPPED, MINE), "show", False),
        ((SHIPPED,), "hide", True), ((), "auto", False),
    ],
)  # fmt: skip
def test_shipped_profiles_are_hidden_beside_the_owners_or_by_the_setting(
    profiles: tuple[Profile, ...], setting: str, hides: bool
) -> None:
    assert hides_shipped(profiles, setting) is hides


def test_running_profiles_are_always_listed() -> None:
    assert visible_profiles((SHIPPED, RUNS, MINE), {"qwen"}) == [RUNS, MINE]
