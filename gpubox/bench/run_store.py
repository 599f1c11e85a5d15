"""One folder for each run: a head that is replaced atomically, journals that are appended and synced line by line."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpubox.bench.jsonl import JsonLinesFile, read_json_lines, write_error
from gpubox.bench.model import SCHEMA, Item, Plan, RawRecord, Result, RunInfo
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.server.state import utc_now
from gpubox.storage import is_locked, lock_file, open_regular, write_atomically

T = TypeVar("T")
LOCK_TRIES = 5
_HEAD, _ITEMS, _RAW, _RESULTS, _LOCK = "run.json", "items.json", "raw.jsonl", "results.jsonl", ".lock"


class Run:
    """One run's folder. Reading needs no lock; who writes holds it (``owned``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self._raw: JsonLinesFile | None = None
        self._results: JsonLinesFile | None = None

    @property
    def info(self) -> RunInfo:
        """The head as it is true now: a run that nobody works on is not ``running``. Raises GpuboxError if damaged."""
        info = _decode(self.folder / _HEAD, RunInfo)
        if info.schema != SCHEMA:
            raise GpuboxError(f"The run {self.id} was made by another gpubox (schema {info.schema}).")
        if info.state == "running" and self._raw is None and not self.busy:
            return replace(info, state="interrupted")
        return info

    @property
    def busy(self) -> bool:
        """Whether a living gpubox works on it."""
        return is_locked(self.folder / _LOCK)

    @property
    def owner(self) -> int | None:
        """The process that works on it; SIGINT has it stop in good order. ``None`` where none does."""
        if not self.busy:
            return None
        try:
            return int((self.folder / _LOCK).read_text() or "0") or None
        except (OSError, ValueError):
            return None

    def items(self) -> list[Item]:
        """All items, as they were planned. Raises GpuboxError if damaged."""
        return _decode(self.folder / _ITEMS, list[Item])

    def results(self) -> dict[str, Result]:
        """By item; the last one stands where there are two. A line that was cut off is none."""
        return {result.item: result for result in read_json_lines(self.folder / _RESULTS, Result)}

    def raws(self) -> dict[str, RawRecord]:
        """By item, as ``results``."""
        return {record.item: record for record in read_json_lines(self.folder / _RAW, RawRecord)}

    def scored(self) -> list[tuple[Item, Result]]:
        """Every item that has a result, in the order of the plan."""
        results = self.results()
        return [(item, results[item.id]) for item in self.items() if item.id in results]

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Holds the run: only inside may it be written. Raises GpuboxError where another gpubox has it."""
        try:
            descriptor = lock_file(self.folder / _LOCK, LOCK_TRIES)
        except OSError as error:
            raise write_error(self.folder, error) from None
        if descriptor is None:
            raise GpuboxError(f"Another gpubox works on the run {self.id}.", "`gpubox bench ls` shows how far it is.")
        try:
            os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
            self._raw, self._results = JsonLinesFile(self.folder / _RAW), JsonLinesFile(self.folder / _RESULTS)
            yield
        finally:
            for journal in (self._raw, self._results):
                if journal:
                    journal.close()
            self._raw = self._results = None
            os.close(descriptor)

    def add_raw(self, record: RawRecord) -> None:
        """On disk when this returns. Raises GpuboxError where there is no room; the journal is then as before."""
        assert self._raw is not None, "not owned"
        self._raw.append(record)

    def add_result(self, result: Result) -> None:
        """As ``add_raw``."""
        assert self._results is not None, "not owned"
        self._results.append(result)

    def replace_results(self, results: Sequence[Result]) -> None:
        """All results at once, after scoring again. Raises GpuboxError."""
        assert self._results is not None, "not owned"
        _write(self.folder / _RESULTS, b"".join(msgspec.json.encode(result) + b"\n" for result in results))
        fresh = JsonLinesFile(self.folder / _RESULTS)  # the old one is of a file that has no name any more
        self._results.close()
        self._results = fresh

    def save(self, info: RunInfo) -> RunInfo:
        """Replaces the head. Raises GpuboxError."""
        _write(self.folder / _HEAD, _pretty(info))
        return info

    def save_file(self, name: str, text: str) -> Path:
        """A file of the kind's own beside the journals (a chart, another tool's words)."""
        _write(self.folder / name, text.encode())
        return self.folder / name

    def remove(self) -> None:
        """Deletes the folder. Raises GpuboxError where somebody works on it."""
        if self.busy:
            raise GpuboxError(f"The run {self.id} is at work.", "Ctrl-C in its terminal stops it.")
        shutil.rmtree(self.folder, ignore_errors=True)


def runs_folder(paths: Paths) -> Path:
    """Where the runs are."""
    return paths.state / "runs"


def create_run(paths: Paths, plan: Plan, items: Sequence[Item]) -> Run:
    """A new folder with the plan in it. Raises GpuboxError where the disk refuses."""
    ids = {item.id for item in items}
    assert len(ids) == len(items), "item ids are not unique"
    names = "-".join(dict.fromkeys(target.profile or target.name for target in plan.targets if not target.stopped))
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{plan.kind}-{names}").strip("-.")[:60]
    stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{words}"
    for number in range(1, 1000):
        folder = runs_folder(paths) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise write_error(folder, error) from None
        run = Run(folder)
        try:
            _write(folder / _ITEMS, _pretty(list(items)))
            run.save(RunInfo(run.id, plan, utc_now(), len(items), state="interrupted"))
        except GpuboxError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return run
    raise GpuboxError(f"{runs_folder(paths)} is full of runs of this second.")


def list_runs(paths: Paths) -> list[Run]:
    """Every run that has a head, the newest last."""
    return runs_in(runs_folder(paths))


def runs_in(folder: Path) -> list[Run]:
    """As ``list_runs``, of a folder."""
    if not folder.is_dir():
        return []
    return [Run(path) for path in sorted(folder.iterdir()) if (path / _HEAD).is_file()]


def find_run(paths: Paths, words: str) -> Run:
    """The run with this id, a part of an id that only one has, or ``last``. Raises UsageError."""
    runs = list_runs(paths)
    if not runs:
        raise UsageError("There is no run yet.", "`gpubox bench speed` makes one.")
    if words == "last":
        return runs[-1]
    found = [run for run in runs if run.id == words] or [run for run in runs if words in run.id]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} runs are called so: {', '.join(run.id for run in found[-3:])}.", "Write more.")
    raise UsageError(f"There is no run {words!r}.", f"The last one is {runs[-1].id}; `gpubox bench ls` lists them.")


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _decode(path: Path, kind: type[T]) -> T:
    try:
        with open_regular(path) as file:
            return msgspec.json.decode(file.read(), type=kind)
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GpuboxError(f"{path} is damaged: {error}.", "`gpubox bench rm` removes the run.") from None


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise write_error(path, error) from None
