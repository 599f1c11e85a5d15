"""What a trial says of the speed."""

from __future__ import annotations

from gpubox.bench.report.run_comparison import ComparedRow, RunComparison
from gpubox.bench.trial_measurement import summarize
from gpubox.profiles.profile import Profile


def test_another_profile_that_ran_before_is_not_what_the_change_is_compared_with() -> None:
    row = ComparedRow("tg", "", "tok/s", 54.5, 391.9, 7.2, None, None, 1, "past runs", "cannot tell")
    comparison = RunComparison("a", "b", ("small", "big"), "speed", (row,), (), (), False, 4, "")
    before, after = Profile("big", "/b.gguf"), Profile("big", "/b.gguf", flags={"ctx-size": 4096})

    other = summarize(comparison, before, after, "small")
    assert other.startswith("What the change does to the speed is not known, because small ran before: tg 391.9")
    assert "54.5" not in other and "`gpubox bench ab big --set ctx-size=4096`" in other
    assert "tg 54.5 before, 391.9 after" in summarize(comparison, before, after, "big")
