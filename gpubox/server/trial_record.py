"""The record of the trial that has not ended (see ``trial.py``): the watcher reads it, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.state import STATE_BYTES, Launch, launch_from_values
from gpubox.storage import read_json, read_text


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What is needed to end a trial."""

    profile: str
    instance: str
    started_at: str
    path: str
    """The file that keeping writes."""
    after: str
    """The text that keeping writes there."""
    previous: Launch | None
    """What ran before; ``None`` if nothing did."""
    owner: ProcessIdentity
    """The gpubox that tries. If it dies first, the watcher ends the trial."""


def trial_lock(paths: Paths) -> Path:
    """Held by the gpubox that tries."""
    return paths.state / "trial.lock"


def pending_trial(paths: Paths) -> TrialRecord | None:
    """The trial that has not ended, under way or interrupted. A damaged record is none."""
    try:
        values = read_json(read_text(paths.trial_record, STATE_BYTES), own=True)
        previous, owner = values["previous"], ProcessIdentity(**values["owner"])
        previous = launch_from_values(previous) if previous else None
        return TrialRecord(**{**values, "previous": previous, "owner": owner})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
