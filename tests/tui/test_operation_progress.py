"""From the events of an operation to its lines on the screen."""

from __future__ import annotations

import pytest

from gpubox.errors import GpuboxError
from gpubox.server.events import LoadProgress, OperationFinished, Step, StepDone, StepFailed, StepStarted
from gpubox.tui.operation_progress import (
    DownloadStatus,
    OperationAborted,
    OperationEvent,
    OperationProgress,
    progress_parts,
)
from gpubox.tui.widgets.lines import wrap_phrases

GB = 1_000_000_000


def shown_text(*events: OperationEvent, kind: str = "switch", name: str = "b") -> str:
    progress = OperationProgress(kind, name)
    for event in events:
        progress = progress.with_event(event)
    return "  ".join(part.plain for part in progress_parts(progress))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([StepStarted(Step.CHECK, "b")], "◌ b  flags and memory …"),
        ([StepDone(Step.CHECK, "b", 2.0)], "◌ b  flags and memory ✓"),
        ([StepDone(Step.STOP, "a", 0.4), StepStarted(Step.SETTLE, "b")], "◌ b  stop ✓ 400 ms  VRAM settled …"),
        ([StepStarted(Step.LOAD, "b"), LoadProgress("b", "starting", None, None, 0.2)], "◌ b  load … starting"),
        (
            [LoadProgress("b", "loading weights", 5 * GB, 20 * GB, 5.0)],
            "◌ b  load ▓▓░░░░░░░░ 5.0 of 20.0 GB ~15 s left  loading weights",
        ),
        ([DownloadStatus("b", 98_000_000, 2 * GB, 1.0)], "◌ b  download ░░░░░░░░░░ 98 MB of 2.0 GB ~19 s left"),
        ([DownloadStatus("b", 500_000, None, 1.0)], "◌ b  download … 0 MB"),
        (
            [OperationAborted(GpuboxError("Another gpubox is busy.", "Try again."))],
            "✗ b  Another gpubox is busy.  Try again.",
        ),
        (
            [StepDone(Step.LOAD, "b", 3.0), OperationFinished("switch", "b", True, "b", 3.14, "b answers.")],
            "✓ b answers in 3.1 s  load ✓ 3.0 s",
        ),
        ([OperationFinished("stop", "a", True, None, 0.3, "a is stopped.")], "✓ a is stopped"),
    ],
)
def test_words(events: list[OperationEvent], expected: str) -> None:
    assert shown_text(*events) == expected


def test_failure_keeps_the_first_reason() -> None:
    shown = shown_text(
        StepFailed(Step.LOAD, "b", "out of VRAM", "Try less.", "cudaMalloc failed"),
        StepFailed(Step.RESTORE, "a", "also broken"),
        OperationFinished("switch", "b", False, None, 3.0, "b: out of VRAM. a could not be restored. Nothing runs."),
        OperationAborted(GpuboxError("b: out of VRAM.", "Try less.")),
    )
    assert shown.startswith("✗ b  out of VRAM. a could not be restored. Nothing runs.  Try less.")
    assert shown.endswith('  the log says "cudaMalloc failed"')


def test_no_estimate_while_nothing_is_read() -> None:
    reading = [LoadProgress("b", "fitting", GB, 20 * GB, second) for second in (1.0, 2.0, 3.0, 4.0)]
    assert "left" in shown_text(*reading[:2])
    assert "left" not in shown_text(*reading)


def test_lines_break_between_pieces() -> None:
    progress = (
        OperationProgress("switch", "b")
        .with_event(StepDone(Step.STOP, "a", 1.0))
        .with_event(LoadProgress("b", "x", GB, 2 * GB, 1.0))
    )
    lines = wrap_phrases(progress_parts(progress), 44).plain.splitlines()
    assert lines == ["◌ b  stop ✓ 1.0 s", "  load ▓▓▓▓▓░░░░░ 1.0 of 2.0 GB ~1 s left  x"]
    narrow = wrap_phrases(progress_parts(progress), 20).plain.splitlines()
    assert all(len(line) <= 20 for line in narrow)
    assert all(line.startswith("  ") for line in narrow[1:]), "what goes on in the next line is set in"
