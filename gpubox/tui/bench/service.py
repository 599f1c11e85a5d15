"""What the Bench screen asks for. The real one is ``bench.live``; tests hand in their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpubox.bench.plan_outline import PlanOutline
    from gpubox.bench.report.leaderboard import Leaderboard
    from gpubox.bench.report.load import ReportBundle
    from gpubox.bench.report.run_comparison import RunComparison
    from gpubox.bench.report.run_progress import RunProgress
    from gpubox.bench.report.run_summaries import RunSummary


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that this screen started came to its end."""

    ok: bool
    text: str
    """Why it did not end well, and what to do; empty else."""


@dataclass(frozen=True, slots=True)
class BestCell:
    """What of a run is worth keeping as a profile."""

    cell: str
    """As the report calls it."""
    name: str
    """A name for the profile."""


class BenchService(Protocol):
    """The runs of this box. Methods raise GpuboxError."""

    read_only: str
    """Why nothing can be run here; empty where it can."""
    url: str | None
    """The server that is measured where gpubox owns none."""

    async def run_summaries(self) -> list[RunSummary]:
        """Every run, the newest first."""

    async def active(self) -> RunProgress | None:
        """The run at work now, whoever started it. Cheap."""

    async def load_report(self, run: str) -> ReportBundle: ...

    async def load_comparison(self, first: str, second: str) -> RunComparison: ...

    async def load_leaderboards(self) -> list[Leaderboard]: ...

    async def outline(self, words: Sequence[str]) -> PlanOutline:
        """What ``gpubox bench WORDS`` would do."""

    async def busy(self) -> tuple[str, ...]:
        """Who is being answered now, a sentence each."""

    async def run(self, words: Sequence[str], *, now: bool) -> RunOutcome:
        """Runs ``gpubox bench WORDS`` in a process of its own, which outlives this screen; returns at its end."""

    async def stop(self, live: RunProgress) -> None:
        """Has the run stop in good order: the item in flight is lost, what ran before comes back."""

    async def remove(self, run: str) -> None: ...

    async def best(self, run: str) -> BestCell:
        """The best cell of a sweep."""

    async def keep(self, run: str, name: str) -> None:
        """Writes the best cell of a sweep as the profile ``name``. Raises UsageError where the name will not do."""

    async def restore(self) -> str:
        """Brings back what ran before a run that was killed. Returns its profile, empty where nothing ran."""

    async def export(self, what: Sequence[str], form: str) -> str:
        """Writes it to a file in the folder gpubox was started in. Returns its path for showing."""
