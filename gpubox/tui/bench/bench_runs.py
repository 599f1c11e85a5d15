"""The benchmark runs of this machine, for the Bench screen.

Each benchmark runs in a process of its own: drawing the screen would disturb a measurement in the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from gpubox.children import own_program
from gpubox.concurrency import run_in_thread
from gpubox.errors import ExitCode, GpuboxError
from gpubox.storage import read_json

if TYPE_CHECKING:
    from gpubox.bench.plan_outline import PlanOutline
    from gpubox.bench.report.model import RunSummary
    from gpubox.bench.report.run_summaries import RunFollower, RunProgress
    from gpubox.bench.run_store import Run
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.profiles.profile import Profile
    from gpubox.views.documents import Document

POLL_SECONDS = 0.1
OUTLINE_TIMEOUT_SECONDS = 60.0
POSTS = "gpubox-posts"
EXPORTS = {"markdown": ("m", "Markdown", ".md"), "svg": ("s", "SVG charts", ".svg"), "csv": ("c", "CSV", ".csv"),
           "json": ("j", "JSON", ".json")}  # fmt: skip
"""Form of a view -> its key, its label, and the end of its file name."""
RUN_KEPT = "Its results are kept; r resumes it."


def bench_words(arguments: Sequence[str]) -> list[str]:
    """The words after ``gpubox`` that run ``arguments``: a tune is a verb of its own."""
    return list(arguments) if arguments[0] == "tune" else ["bench", *arguments]


class BenchRuns:
    """The benchmark runs of this machine. Methods raise GpuboxError."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, read_only: str = "") -> None:
        """``url``: the server to measure if gpubox owns none. ``read_only``: why nothing can be run; empty: it can."""
        self.paths, self.config, self.url, self.read_only = paths, config, url, read_only
        self._follower: RunFollower | None = None

    async def summaries(self) -> list[RunSummary]:
        """Every run, the newest first."""
        from gpubox.bench.report.run_summaries import run_summaries

        return list(reversed(await run_in_thread(run_summaries, self.paths)))

    async def active(self) -> RunProgress | None:
        """The run that is executed now, by any process. Cheap."""
        return await run_in_thread(self._active)

    def _active(self) -> RunProgress | None:
        if not (self.paths.state / "runs").is_dir():
            return None
        from gpubox.bench.report.run_summaries import RunFollower, active_run

        run = self._follower.run if self._follower and self._follower.run.busy else active_run(self.paths)
        if run is None:
            self._follower = None
            return None
        if self._follower is None or self._follower.run.id != run.id:
            self._follower = RunFollower(run)
        return self._follower.read()

    async def documents(self, view: str, runs: Sequence[str] = ()) -> list[Document]:
        """A view of ``gpubox bench show``: report, compare or leaderboard."""
        from gpubox.views.runs import run_documents

        return await run_in_thread(lambda: run_documents(self.paths, view, runs))

    async def outline(self, arguments: Sequence[str]) -> PlanOutline:
        """What ``gpubox bench ARGUMENTS`` would do."""
        try:
            async with asyncio.timeout(OUTLINE_TIMEOUT_SECONDS):
                code, values, stderr = await self._run_to_end([*arguments, "--dry-run"])
        except TimeoutError:
            raise GpuboxError("gpubox bench did not answer.") from None
        if code or "items" not in values:
            raise _reported_error(values, stderr)
        from gpubox.bench.plan_outline import PlanOutline

        return msgspec.convert(values, PlanOutline)

    async def busy(self) -> tuple[str, ...]:
        """The requests that the server answers now, a sentence each."""
        from gpubox.bench.plan_outline import busy_slots

        return () if self.url else await busy_slots(self.paths, self.config)

    async def run(self, arguments: Sequence[str], *, now: bool) -> None:
        """Runs ``gpubox bench ARGUMENTS`` to its end, in a process that outlives this screen.

        ``now``: requests that the server answers are cut off.
        """
        code, values, stderr = await self._run_to_end([*arguments, *(["--now"] if now else [])])
        if code == 0:
            return
        if code in (ExitCode.INTERRUPTED, -signal.SIGINT):
            raise GpuboxError("The run was stopped.", RUN_KEPT)
        if code < 0:
            raise GpuboxError(f"The run was killed (signal {-code}).", RUN_KEPT)
        raise _reported_error(values, stderr)

    async def _run_to_end(self, arguments: Sequence[str]) -> tuple[int, dict[str, Any], str]:
        """Runs ``gpubox bench ARGUMENTS --json``: exit code, JSON object, and stderr."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            command = own_program("gpubox.cli.entry", *self.paths.options, *bench_words(arguments), "--json")
            process = await run_in_thread(_start, command, stdout, stderr)
            while process.poll() is None:
                await asyncio.sleep(POLL_SECONDS)
            return process.returncode, _json_object(_read(stdout)), _read(stderr)

    async def stop(self, run: RunProgress) -> None:
        """Stops the run in good order: the current item is lost, the server that ran before is restored."""
        if run.owner is None:
            raise GpuboxError("The process of this run was not found.", "Ctrl-C in its terminal stops it.")
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(run.owner, signal.SIGINT)
            except PermissionError:
                raise GpuboxError("The run belongs to another user.") from None

    async def delete(self, run: str) -> None:
        await run_in_thread(lambda: self._find(run).remove())

    async def best_cell(self, run: str) -> tuple[str, str]:
        """The best cell of a sweep or a tune, and a name for its profile. Raises UsageError if there is none."""
        from gpubox.bench.saved_profile import default_profile_name, target_to_save

        def read() -> tuple[str, str]:
            target = target_to_save(self._find(run))
            return target.name, default_profile_name(self._profiles()(target.profile), target)

        return await run_in_thread(read)

    async def save_as_profile(self, run: str, name: str) -> None:
        """Saves the best cell of a sweep as a profile. Raises UsageError if the name cannot be used."""
        from gpubox.bench.saved_profile import save_target, target_to_save

        def save() -> None:
            target = target_to_save(self._find(run))
            save_target(self._profiles()(target.profile), target, name, run, self.paths)

        await run_in_thread(save)

    async def restore(self) -> str:
        """Restores the server that ran before a killed run. Returns its profile; empty if nothing ran."""
        code, values, stderr = await self._run_to_end(["resume", "--restore"])
        if code:
            raise _reported_error(values, stderr)
        return str(values.get("profile") or "")

    async def export(self, view: str, runs: Sequence[str], form: str) -> str:
        """Writes a view to a file in the current folder, as one of EXPORTS. Returns its path."""
        from gpubox.views.documents import document_text

        documents = await self.documents(view, runs)
        path = Path.cwd() / ("-against-".join(runs or [view]) + EXPORTS[form][2])
        await run_in_thread(lambda: _write(path, document_text(documents, form)))
        return str(path)

    async def post(self, run: str) -> tuple[str, Path]:
        """Writes the Markdown block and the card (SVG) of a run into the folder POSTS. Returns both."""
        from gpubox.bench.report.post import make_post
        from gpubox.bench.report.post_forms import post_markdown, post_svg

        def write() -> tuple[str, Path]:
            post = make_post(self._find(run))
            markdown, card = post_markdown(post), Path.cwd() / POSTS / f"{post.file_stem}.svg"
            _write(card.with_suffix(".md"), markdown)
            _write(card, post_svg(post))
            return markdown, card

        return await run_in_thread(write)

    def _find(self, run: str) -> Run:
        from gpubox.bench.run_store import find_run

        return find_run(self.paths, run)

    def _profiles(self) -> Callable[[str], Profile]:
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths).get


def _start(command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    # In a session of its own, the process survives Ctrl-C and the end of this terminal.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text, own=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _reported_error(values: dict[str, Any], stderr: str) -> GpuboxError:
    """The error that the other process reported: as JSON, otherwise the last line of its stderr."""
    if values.get("error"):
        return GpuboxError(str(values["error"]), str(values.get("hint") or ""))
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return GpuboxError(lines[-1] if lines else "gpubox bench ended without a message.")
