"""The real runs. Each runs in a process of its own, so that drawing never stands beside measuring in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpubox.errors import ExitCode, GpuboxError
from gpubox.threads import run_in_thread
from gpubox.tui.bench.service import BestCell, RunOutcome

if TYPE_CHECKING:
    from gpubox.bench.plan_outline import PlanOutline
    from gpubox.bench.report.leaderboard import Leaderboard
    from gpubox.bench.report.load import ReportBundle
    from gpubox.bench.report.run_comparison import RunComparison
    from gpubox.bench.report.run_progress import RunFollower, RunProgress
    from gpubox.bench.report.run_summaries import RunSummary
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.profiles.profile import Profile

POLL_SECONDS = 0.5


class LocalBenchService:
    """The runs under this owner's state folder."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, read_only: str = "") -> None:
        self.paths, self.config, self.url, self.read_only = paths, config, url, read_only
        self._follower: RunFollower | None = None

    async def run_summaries(self) -> list[RunSummary]:
        from gpubox.bench.report.run_summaries import run_summaries

        return list(reversed(await run_in_thread(run_summaries, self.paths)))

    async def active(self) -> RunProgress | None:
        return await run_in_thread(self._active)

    def _active(self) -> RunProgress | None:
        if not (self.paths.state / "runs").is_dir():
            return None
        from gpubox.bench.report.run_progress import RunFollower
        from gpubox.bench.report.run_summaries import active_run

        run = self._follower.run if self._follower and self._follower.run.busy else active_run(self.paths)
        if run is None:
            self._follower = None
            return None
        if self._follower is None or self._follower.run.id != run.id:
            self._follower = RunFollower(run)
        return self._follower.read()

    async def load_report(self, run: str) -> ReportBundle:
        from gpubox.bench.report.load import load_report
        from gpubox.bench.run_store import find_run

        return await run_in_thread(lambda: load_report(find_run(self.paths, run), self._profiles()))

    async def load_comparison(self, first: str, second: str) -> RunComparison:
        from gpubox.bench.report.load import load_comparison
        from gpubox.bench.run_store import find_run

        return await run_in_thread(lambda: load_comparison(find_run(self.paths, first), find_run(self.paths, second)))

    async def load_leaderboards(self) -> list[Leaderboard]:
        from gpubox.bench.report.load import load_leaderboards

        return await run_in_thread(load_leaderboards, self.paths)

    async def outline(self, words: Sequence[str]) -> PlanOutline:
        code, out, err = await run_in_thread(self._ask, ["--dry-run", *words, "--json"])
        said = _values(out)
        if code or "items" not in said:
            raise _told(said, err)
        import msgspec

        from gpubox.bench.plan_outline import PlanOutline

        return msgspec.convert(said, PlanOutline)

    async def busy(self) -> tuple[str, ...]:
        from gpubox.bench.plan_outline import busy_slots

        return () if self.url else await busy_slots(self.paths, self.config)

    async def run(self, words: Sequence[str], *, now: bool) -> RunOutcome:
        code, said, err = await self._to_its_end([*words, *(["--now"] if now else [])])
        if code == 0:
            return RunOutcome(True, "")
        if code in (ExitCode.INTERRUPTED, -signal.SIGINT):
            return RunOutcome(False, "The run was stopped; what was measured is kept, r goes on with it.")
        if code < 0:
            return RunOutcome(
                False, f"The run was killed (signal {-code}); what was measured is kept, r goes on with it."
            )
        problem = _told(said, err)
        return RunOutcome(False, " ".join(filter(None, (problem.message, problem.hint))))

    async def _to_its_end(self, words: Sequence[str]) -> tuple[int, dict[str, Any], str]:
        """Runs ``gpubox bench WORDS --json``: exit code, what it said, and its diagnostics."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = await run_in_thread(_begin, [*self._gpubox(), *words, "--json"], out, err)
            while process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
            return process.returncode, _values(_read(out)), _read(err)

    async def stop(self, live: RunProgress) -> None:
        if live.owner is None:
            raise GpuboxError("Who works on it cannot be found.", "Ctrl-C in its terminal stops it.")
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(live.owner, signal.SIGINT)
            except PermissionError:
                raise GpuboxError("Somebody else's gpubox works on it.") from None

    async def remove(self, run: str) -> None:
        from gpubox.bench.run_store import find_run

        await run_in_thread(lambda: find_run(self.paths, run).remove())

    async def best(self, run: str) -> BestCell:
        from gpubox.bench.run_store import find_run
        from gpubox.bench.saved_profile import default_profile_name, target_to_save

        def work() -> BestCell:
            target = target_to_save(find_run(self.paths, run))
            return BestCell(target.name, default_profile_name(self._profiles()(target.profile), target))

        return await run_in_thread(work)

    async def keep(self, run: str, name: str) -> None:
        from gpubox.bench.run_store import find_run
        from gpubox.bench.saved_profile import profile_of_target, target_to_save
        from gpubox.profiles.writer import save_profile

        def work() -> None:
            target = target_to_save(find_run(self.paths, run))
            made, header = profile_of_target(self._profiles()(target.profile), target, name, run)
            save_profile(made, self.paths, header=header)

        await run_in_thread(work)

    async def restore(self) -> str:
        code, said, err = await self._to_its_end(["restore"])
        if code:
            raise _told(said, err)
        return str(said.get("profile") or "")

    async def export(self, what: Sequence[str], form: str) -> str:
        from gpubox.bench.report.formats import export_text, write_export

        def work() -> str:
            text = export_text(self.paths, self._profiles(), what, form)
            stem = "-against-".join(what[1:]) if what[0] == "compare" else what[0]
            path = Path.cwd() / f"{stem}.{form}"
            write_export(text, path)
            return str(path)

        return await run_in_thread(work)

    def _profiles(self) -> Callable[[str], Profile]:
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths).get

    def _gpubox(self) -> list[str]:
        override = self.paths.config_override
        return [sys.executable, "-m", "gpubox", *(["--config", str(override)] if override else []), "bench"]

    def _ask(self, words: Sequence[str]) -> tuple[int, str, str]:
        try:
            found = subprocess.run(
                [*self._gpubox(), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60.0
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GpuboxError(f"gpubox bench did not answer: {error}.") from None
        return found.returncode, found.stdout, found.stderr


def _begin(line: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own: neither Ctrl-C here nor the end of this terminal reaches it.
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _values(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(said: dict[str, Any], err: str) -> GpuboxError:
    """The error that the other process told: as JSON, else in its last words."""
    if said.get("error"):
        return GpuboxError(str(said["error"]), str(said.get("hint") or ""))
    words = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "It ended without a word.")
    return GpuboxError(words)
