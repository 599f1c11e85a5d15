"""Lists hide the shipped profiles, but for what runs, and the demo for an owner who has no profile yet."""

from __future__ import annotations

from gpubox.profiles.loader import visible_profiles
from gpubox.profiles.profile import Profile

MINE, DEMO, RUNS = Profile("mine", "/m.gguf"), Profile("demo", "d", shipped=True), Profile("qwen", "q", shipped=True)


def test_the_owners_profiles_and_what_runs_are_listed() -> None:
    assert visible_profiles((DEMO, RUNS, MINE), {"qwen"}) == [RUNS, MINE]
    assert visible_profiles((DEMO, RUNS), ()) == [DEMO]
