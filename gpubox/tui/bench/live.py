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
from gpubox.threads import in_thread
from gpubox.tui.bench.service import Best, Ended

if TYPE_CHECKING:
    from gpubox.bench.planning import Outline
    from gpubox.bench.report.build import Told
    from gpubox.bench.report.compare import RunComparison
    from gpubox.bench.report.heads import Head
    from gpubox.bench.report.leaderboard import Board
    from gpubox.bench.report.live import Follower, LiveRun
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.profiles.model import Profile

POLL_SECONDS = 0.5


class LiveBench:
    """The runs under this owner's state folder."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, read_only: str = "") -> None:
        self.paths, self.config, self.url, self.read_only = paths, config, url, read_only
        self._follower: Follower | None = None

    async def heads(self) -> list[Head]:
        from gpubox.bench.report.heads import heads

        return list(reversed(await in_thread(heads, self.paths)))

    async def active(self) -> LiveRun | None:
        return await in_thread(self._active)

    def _active(self) -> LiveRun | None:
        if not (self.paths.state / "runs").is_dir():
            return None
        from gpubox.bench.report.heads import active_run
        from gpubox.bench.report.live import Follower

        run = self._follower.run if self._follower and self._follower.run.busy else active_run(self.paths)
        if run is None:
            self._follower = None
            return None
        if self._follower is None or self._follower.run.id != run.id:
            self._follower = Follower(run)
        return self._follower.read()

    async def told(self, run: str) -> Told:
        from gpubox.bench.report.build import told
        from gpubox.bench.store import find_run

        return await in_thread(lambda: told(find_run(self.paths, run), self._profiles()))

    async def compared(self, first: str, second: str) -> RunComparison:
        from gpubox.bench.report.build import compared
        from gpubox.bench.store import find_run

        return await in_thread(lambda: compared(find_run(self.paths, first), find_run(self.paths, second)))

    async def ranked(self) -> list[Board]:
        from gpubox.bench.report.build import ranked

        return await in_thread(ranked, self.paths)

    async def outline(self, words: Sequence[str]) -> Outline:
        code, out, err = await in_thread(self._ask, ["--plan", *words, "--json"])
        said = _values(out)
        if code or "items" not in said:
            raise _told(said, err)
        from gpubox.bench.planning import Outline

        return Outline(said["items"], tuple(said["starts"]), said["gives_back"], said["seconds"], said["tokens"])

    async def busy(self) -> tuple[str, ...]:
        from gpubox.bench.planning import busy_slots

        return () if self.url else await busy_slots(self.paths, self.config)

    async def run(self, words: Sequence[str], *, now: bool) -> Ended:
        code, said, err = await self._to_its_end([*words, *(["--now"] if now else [])])
        if code == 0:
            return Ended(True, "")
        if code in (ExitCode.INTERRUPTED, -signal.SIGINT):
            return Ended(False, "The run was stopped; what was measured is kept, r goes on with it.")
        if code < 0:
            return Ended(False, f"The run was killed (signal {-code}); what was measured is kept, r goes on with it.")
        problem = _told(said, err)
        return Ended(False, " ".join(filter(None, (problem.message, problem.hint))))

    async def _to_its_end(self, words: Sequence[str]) -> tuple[int, dict[str, Any], str]:
        """Runs ``gpubox bench WORDS --json``: exit code, what it said, and its diagnostics."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = await in_thread(_begin, [*self._gpubox(), *words, "--json"], out, err)
            while process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
            return process.returncode, _values(_read(out)), _read(err)

    async def stop(self, live: LiveRun) -> None:
        if live.owner is None:
            raise GpuboxError("Who works on it cannot be found.", "Ctrl-C in its terminal stops it.")
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(live.owner, signal.SIGINT)
            except PermissionError:
                raise GpuboxError("Somebody else's gpubox works on it.") from None

    async def remove(self, run: str) -> None:
        from gpubox.bench.store import find_run

        await in_thread(lambda: find_run(self.paths, run).remove())

    async def best(self, run: str) -> Best:
        from gpubox.bench.keep import default_name, target_to_keep
        from gpubox.bench.store import find_run

        def work() -> Best:
            target = target_to_keep(find_run(self.paths, run))
            return Best(target.name, default_name(self._profiles()(target.profile), target))

        return await in_thread(work)

    async def keep(self, run: str, name: str) -> None:
        from gpubox.bench.keep import kept_profile, target_to_keep
        from gpubox.bench.store import find_run
        from gpubox.profiles.writing import save_profile

        def work() -> None:
            target = target_to_keep(find_run(self.paths, run))
            made, header = kept_profile(self._profiles()(target.profile), target, name, run)
            save_profile(made, self.paths, header=header)

        await in_thread(work)

    async def give_back(self) -> str:
        code, said, err = await self._to_its_end(["give-back"])
        if code:
            raise _told(said, err)
        return str(said.get("profile") or "")

    async def export(self, what: Sequence[str], form: str) -> str:
        from gpubox.bench.report.share import share, write

        def work() -> str:
            text = share(self.paths, self._profiles(), what, form)
            stem = "-against-".join(what[1:]) if what[0] == "compare" else what[0]
            path = Path.cwd() / f"{stem}.{form}"
            write(text, path)
            return str(path)

        return await in_thread(work)

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
