"""One folder for each run: ``run.json`` is replaced atomically, the journals grow by one synced line at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpubox.bench.model import SCHEMA, Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.under_way import RUN_LOCK, executed_runs, runs_folder
from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.storage import (
    DECODE_ERRORS,
    decode_lines,
    is_locked,
    lock_file,
    open_lines,
    open_private,
    private_folder,
    read_bytes,
    write_atomically,
)

T = TypeVar("T")
LOCK_TRIES = 5
RUN_FILE, RESULTS_FILE = "run.json", "results.jsonl"
_ITEMS, _RAW = "items.jsonl", "raw.jsonl"
_FILE_BYTES = 128 << 20


class JsonLinesFile:
    """An append-only file of JSON lines. Opening it drops a last line that a crash cut off. Raises GpuboxError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = open_private(path, os.O_RDWR)
            self._end = read_bytes(path, _FILE_BYTES).rfind(b"\n") + 1
            os.ftruncate(self._descriptor, self._end)
        except OSError as error:
            raise write_error(path, error) from None

    def append(self, *values: Any) -> None:
        """Appends a line for each and syncs them to disk. If that fails, the file stays as it was.

        Raises GpuboxError.
        """
        line = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._end + written)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise write_error(self.path, error) from None
        self._end += len(line)

    def close(self) -> None:
        os.close(self._descriptor)


def read_json_lines(path: Path, kind: type[T]) -> list[T]:
    """Every complete line that decodes as ``kind``; damaged lines are left out. Raises GpuboxError."""
    try:
        with open_lines(path) as lines:
            return list(decode_results((line for line in lines if line.endswith(b"\n")), kind))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None


def decode_results(lines: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Every line that decodes as ``kind``, up to the thousandth that does not."""
    return decode_lines(lines, msgspec.json.Decoder(kind).decode, 1000)


@contextlib.contextmanager
def readable_results(run: Run) -> Iterator[None]:
    """Around code that reads the values of stored results: only their kind knows their form. Raises GpuboxError."""
    try:
        yield
    except GpuboxError:
        raise
    except Exception as error:
        raise GpuboxError(
            f"{run.id}: {unreadable_reason(error)}.",
            "`gpubox bench resume --rescore` scores its stored replies again; `gpubox bench rm` removes the run.",
        ) from error


def unreadable_reason(error: Exception) -> str:
    """Why results of another version of gpubox, or damaged ones, have no report."""
    return f"its results cannot be read ({type(error).__name__})"


def write_error(path: Path, error: OSError) -> GpuboxError:
    """The error for a failed write, for the caller to raise."""
    return GpuboxError(
        f"{path} cannot be written: {error.strerror}.",
        "Earlier results are kept; free some disk space, then `gpubox bench resume`.",
    )


class Run:
    """One run's folder. Reading needs no lock; writing is allowed only inside ``owned``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self._raw: JsonLinesFile | None = None
        self._results: JsonLinesFile | None = None

    @property
    def info(self) -> RunInfo:
        """``run.json``; a ``running`` run without a live owner is ``interrupted``. Raises GpuboxError if damaged."""
        info = _decode(self.folder / RUN_FILE, RunInfo)
        if info.schema != SCHEMA:
            raise GpuboxError(f"The run {self.id} was made by another version of gpubox (schema {info.schema}).")
        if info.state == "running" and self._raw is None and not self.busy:
            return replace(info, state="interrupted")
        return info

    @property
    def busy(self) -> bool:
        """Whether a live gpubox works on it."""
        return is_locked(self.folder / RUN_LOCK)

    @property
    def owner(self) -> int | None:
        """The process that works on it (SIGINT makes it stop cleanly); ``None`` if there is none."""
        if not self.busy:
            return None
        try:
            return int((self.folder / RUN_LOCK).read_text() or "0") or None
        except (OSError, ValueError):
            return None

    def items(self) -> list[Item]:
        """All items that its course has asked for. Raises GpuboxError if they cannot be read."""
        return read_json_lines(self.folder / _ITEMS, Item)

    def add_items(self, items: Sequence[Item]) -> None:
        """Appends what the course asks for next, before any of it is done. Raises GpuboxError."""
        assert self._raw is not None, "not owned"
        with contextlib.closing(JsonLinesFile(self.folder / _ITEMS)) as journal:
            journal.append(*items)

    def results(self) -> dict[str, Result]:
        """By item. If an item has two results, the later one counts."""
        return {result.item: result for result in read_json_lines(self.folder / RESULTS_FILE, Result)}

    def raws(self) -> dict[str, RawRecord]:
        """The raw records by item, as ``results``."""
        return {record.item: record for record in read_json_lines(self.folder / _RAW, RawRecord)}

    def scored(self) -> ScoredItems:
        """Every item that has a result, in the order of the plan."""
        results = self.results()
        return [(item, results[item.id]) for item in self.items() if item.id in results]

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Locks the run for writing. Raises GpuboxError if another gpubox holds the lock."""
        try:
            descriptor = lock_file(self.folder / RUN_LOCK, LOCK_TRIES)
        except OSError as error:
            raise write_error(self.folder, error) from None
        if descriptor is None:
            raise GpuboxError(
                f"Another gpubox is working on the run {self.id}.", "`gpubox bench ls` shows its progress."
            )
        try:
            os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
            self._raw, self._results = JsonLinesFile(self.folder / _RAW), JsonLinesFile(self.folder / RESULTS_FILE)
            yield
        finally:
            for journal in (self._raw, self._results):
                if journal:
                    journal.close()
            self._raw = self._results = None
            os.close(descriptor)

    def add_raw(self, record: RawRecord) -> None:
        """Appends ``record`` and syncs it. Raises GpuboxError; the journal is then unchanged."""
        assert self._raw is not None, "not owned"
        self._raw.append(record)

    def add_result(self, result: Result) -> None:
        """As ``add_raw``."""
        assert self._results is not None, "not owned"
        self._results.append(result)

    def replace_results(self, results: Sequence[Result]) -> None:
        """Replaces all results, after scoring again. Raises GpuboxError."""
        assert self._results is not None, "not owned"
        _write(self.folder / RESULTS_FILE, b"".join(msgspec.json.encode(result) + b"\n" for result in results))
        reopened = JsonLinesFile(self.folder / RESULTS_FILE)
        self._results.close()
        self._results = reopened

    def save(self, info: RunInfo) -> None:
        """Replaces ``run.json``. Raises GpuboxError."""
        _write(self.folder / RUN_FILE, msgspec.json.format(msgspec.json.encode(info), indent=1) + b"\n")

    def save_file(self, name: str, text: str) -> None:
        """Writes another file into the folder (a summary, another tool's output). Raises GpuboxError."""
        _write(self.folder / name, text.encode())

    def remove(self) -> None:
        """Deletes the folder. Raises GpuboxError while a gpubox works on it."""
        if self.busy:
            raise GpuboxError(f"The run {self.id} is in progress.", "Ctrl-C in its terminal stops it.")
        shutil.rmtree(self.folder, ignore_errors=True)


def create_run(paths: Paths, plan: Plan, items: Sequence[Item] = ()) -> Run:
    """A new folder with the plan and its first items in it. Raises GpuboxError if it cannot be written."""
    assert len({item.id for item in items}) == len(items), "item ids are not unique"
    names = "-".join(dict.fromkeys(target.profile or target.name for target in plan.targets))
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{plan.kind}-{names}").strip("-.")[:60]
    stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{slug}"
    for number in range(1, 1000):
        folder = runs_folder(paths) / (stem if number == 1 else f"{stem}-{number}")
        try:
            private_folder(folder.parent)
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise write_error(folder, error) from None
        run = Run(folder)
        try:
            _write(folder / _ITEMS, b"".join(msgspec.json.encode(item) + b"\n" for item in items))
            run.save(RunInfo(run.id, plan, utc_now(), len(items), state="interrupted"))
        except GpuboxError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return run
    raise GpuboxError(f"{runs_folder(paths)} already has 999 runs that began in this second.")


def list_runs(paths: Paths) -> list[Run]:
    """Every run that has a ``run.json``, the newest last."""
    return runs_in(runs_folder(paths))


def runs_in(folder: Path) -> list[Run]:
    """As ``list_runs``, for any folder."""
    if not folder.is_dir():
        return []
    return [Run(path) for path in sorted(folder.iterdir()) if (path / RUN_FILE).is_file()]


def find_run(paths: Paths, name: str) -> Run:
    """The run with this id, an unambiguous part of an id, or ``last``. Raises UsageError."""
    matches = find_runs(paths, name)
    if len(matches) == 1:
        return matches[0]
    ids = ", ".join(run.id for run in matches[-3:])
    raise UsageError(f"{len(matches)} runs match {name!r}: {ids}.", "Give a longer part of the id.")


def find_runs(paths: Paths, name: str) -> list[Run]:
    """The run with this id, or all whose id holds ``name``, or the ``last``. Raises UsageError if there is none."""
    runs = list_runs(paths)
    if not runs:
        raise UsageError("There is no run yet.", "`gpubox bench speed` makes one.")
    if name == "last":
        return runs[-1:]
    matches = [run for run in runs if run.id == name] or [run for run in runs if name in run.id]
    if not matches:
        raise UsageError(f"There is no run {name!r}.", f"The last one is {runs[-1].id}; `gpubox bench ls` lists them.")
    return matches


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bytes(path, _FILE_BYTES), type=kind)
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    except DECODE_ERRORS as error:
        raise GpuboxError(f"{path} is damaged: {error}.", "`gpubox bench rm` removes the run.") from None


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise write_error(path, error) from None


def run_under_way(paths: Paths) -> Run | None:
    """The run that is being executed now, and starts and stops servers; None if there is none."""
    for run in map(Run, executed_runs(paths)):
        try:
            if all(target.url for target in run.info.plan.targets):
                continue  # it measures a server that gpubox neither starts nor stops, perhaps the gateway
        except GpuboxError:
            pass  # it has just begun
        return run
    return None
