"""The one error of the owner's, and the codes it maps to."""

from __future__ import annotations

from gpubox.errors import ExitCode, GpuboxError, UsageError


def test_the_exit_codes_are_the_documented_ones() -> None:
    documented = {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_RUNNING": 3,
        "UNHEALTHY": 4,
        "WOULD_NOT_FIT": 5,
        "PROGRAM_FAILED": 6,
    }

    assert {code.name: code.value for code in ExitCode} == {**documented, "INTERRUPTED": 130}


def test_an_error_is_a_failure_and_a_usage_error_is_usage() -> None:
    assert GpuboxError("x").code == 1
    assert GpuboxError("x", code=ExitCode.NOT_RUNNING).code == 3
    assert UsageError("x", "y").code == 2


def test_the_hint_is_included_and_markup_and_braces_stay_text() -> None:
    error = UsageError("[red]{0} broke[/red]", "say %s")

    assert str(error) == "[red]{0} broke[/red]  say %s"
    assert str(GpuboxError("only this")) == "only this"
