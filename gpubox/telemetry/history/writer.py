"""Writes the history: the one thread of the one gpubox that does. Nothing here may stop a screen or a server.

Whoever samples hands every Snapshot over with ``push``. The thread writes once a second, each time in one transaction,
so a kill costs at most the last second. At first it reads what it missed from the logs (``launch_logs``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpubox.hardware.process import boot_id, is_alive
from gpubox.notify import notify
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.failure_causes import FailureKind, find_cause
from gpubox.server.log import log_size, tail_text
from gpubox.server.state import load_state, recorded_launches
from gpubox.storage import lock_file
from gpubox.telemetry.history.file import MinuteReadings, OtherVersion, connect_writer, is_damage, set_aside, unix_time
from gpubox.telemetry.history.missed_logs import LaunchLog
from gpubox.telemetry.history.tables import HistoryTables, KnownLaunch
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.snapshot import Request, Snapshot

FLUSH_SECONDS = 1.0
CATCH_UP_SECONDS = 0.02
"""A step of reading old logs; the pause after it is four times as long, so that the screen keeps its share."""
RETRY_SECONDS = 10.0
"""After the disk refused, or while another gpubox writes."""
FOLLOW_SECONDS = 5.0
"""How often the logs of servers beside the main one are read."""
MAX_GAP_SECONDS = 5.0
"""A Snapshot stands for at most so long: the machine may have slept."""
MAX_WAITING = 1200
"""So many Snapshots that a full disk did not take are kept."""
NAMING_SECONDS = (1.5, 8.0)
"""When clients are looked up after a request ended: soon, and when a slow reader's line is in the ledger too."""
DAY_SECONDS = 86400.0
RECENT_SECONDS = 2 * DAY_SECONDS
"""Of a gpubox that was killed, the requests of so long may lack their client."""
AROUND_SECONDS = 60.0
"""So far around a request others are looked at, which might be meant instead."""
TIDY_SECONDS = 600.0
CLOSE_SECONDS = 3.0
ClientLookup = Callable[[Sequence[StoredRequest]], Sequence[str | None]]
"""The clients of these requests, which are all of a stretch of time."""


@dataclass(slots=True)
class _Seen:
    """The server that the last Snapshot showed."""

    pid: int | None = None
    started_at: str | None = None
    launch: int = 0
    """The id of its row; 0: nothing runs."""
    newest: Request | None = None
    """The newest request that was pushed."""
    at: float = 0.0
    """Monotonic, of the last Snapshot."""
    time: float = 0.0


class HistoryWriter:
    """Takes Snapshots of the main instance. ``problem`` says in a sentence why nothing is written now."""

    def __init__(
        self,
        paths: Paths,
        clients: ClientLookup | None = None,
        *,
        clock: Callable[[], float] = time.time,
        launch_of: Callable[[Snapshot], KnownLaunch | None] | None = None,
        on_problem: Callable[[str], object] | None = None,
    ) -> None:
        """``on_problem`` is called in the writer's thread, once for each new problem."""
        self.paths, self.problem = paths, ""
        self._clients, self._clock, self._on_problem = clients, clock, on_problem
        self._launch_of = launch_of or self._recorded_launch
        self._waiting: deque[Snapshot] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._tables: HistoryTables | None = None
        self._retry_at = float("-inf")
        self._seen = _Seen()
        self._lost: set[str] = set()
        self._minutes: dict[tuple[int, int], MinuteReadings] = {}
        self._catch_up: Iterator[None] | None = None
        self._followed: dict[str, LaunchLog] = {}
        self._follow_at = float("-inf")
        self._unnamed: tuple[float, float] | None = None
        """Of which stretch of time requests still lack a client."""
        self._name_at: list[float] = []
        self._naming: Iterator[None] | None = None
        self._tidying: Iterator[None] | None = None
        self._tidy_at = float("-inf")

    def start(self) -> None:
        """Starts the thread. Opening the file, and every write, happens there."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="history")
        self._thread.start()

    def push(self, snapshot: Snapshot) -> None:
        """Hands over one Snapshot; returns at once."""
        self._waiting.append(snapshot)

    def catch_up(self, seconds: float) -> None:
        """Reads what was missed, for at most so long, without a thread. For a verb; nothing if another one writes."""
        until = time.monotonic() + seconds
        try:
            self.step()
            if self._tables is None:  # a damaged file was set aside: a new one begins
                self.step()
            while self._catch_up is not None and time.monotonic() < until:
                self.step()
            self._name_at = [time.monotonic()]  # what was read just now ended before: the ledger has it
            while self._tables is not None and (now := time.monotonic()) < until:
                if self._naming is None and not self._is_naming_due(now):
                    break
                self.step()
            while self._tables is not None and self._tidy_at < time.monotonic() < until:
                self.step()  # who is slower is judged once a day, for all who ask
        finally:
            self._release()

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._stop.set()
        if self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause()):
                self.step()
            self.step(last=True)
        finally:
            self._release()

    def _pause(self) -> float:
        return 4 * CATCH_UP_SECONDS if self._catch_up is not None else FLUSH_SECONDS

    # -- one step ---------------------------------------------------------------------------------------

    def step(self, *, last: bool = False) -> None:
        """Writes everything that waits. Called by the thread; tests call it instead of starting one. Never raises."""
        now = time.monotonic()
        try:
            if self._tables is None and (now < self._retry_at or not self._open()):
                return
            self._write(now, last=last)
        except OtherVersion as error:
            self._set_aside("other-version", error.message)
        except sqlite3.Error as error:
            if is_damage(error):
                self._set_aside("damaged", f"The history was damaged ({error}).")
            else:
                self._retry(f"The history cannot be written: {error}.")
        except OSError as error:
            self._retry(f"The history cannot be written: {error.strerror}.")
        except Exception as error:  # a bug here must not end the screen, and is tried again with a new connection
            self._retry(f"The history cannot be written: {type(error).__name__}: {error}.")
        else:
            self._report("")

    def _open(self) -> bool:
        """Takes the lock and opens the file; False if another gpubox writes it."""
        if self._lock is None:
            self._lock = lock_file(self.paths.history_lock, attempts=3)
        if self._lock is None:  # what the other one writes is the same
            self._waiting.clear()
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return False
        self._connection = connect_writer(self.paths.history)
        self._tables = HistoryTables(self._connection)
        self._seen, self._minutes, self._tidy_at = _Seen(), {}, float("-inf")
        self._catch_up = self._caught_up(self._tables)
        if self._clients is not None:
            now = self._clock()
            self._name_later(now - RECENT_SECONDS, now, (0.0,))
        return True

    def _set_aside(self, why: str, sentence: str) -> None:
        """Renames a file that this gpubox cannot use; a new one begins with the next step."""
        self._drop()
        try:
            aside = set_aside(self.paths.history, why)
        except OSError as error:
            self._retry(f"{sentence} It cannot be renamed: {error.strerror}.")
        else:
            self._retry_at = float("-inf")
            self._report(f"{sentence} It is now {aside.name}, and a new one begins.")

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem and self._on_problem:
            self._on_problem(problem)
        self.problem = problem

    def _retry(self, problem: str) -> None:
        self._report(problem)
        self._drop()
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _drop(self) -> None:
        for log in self._followed.values():
            log.close()
        self._followed.clear()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._tables = self._catch_up = self._tidying = self._naming = None

    def _release(self) -> None:
        self._drop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self, now: float, *, last: bool) -> None:
        tables, connection = self._tables, self._connection
        assert tables is not None and connection is not None
        snapshots = list(self._waiting)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for snapshot in snapshots:
                self._take(tables, snapshot)
            for (minute, launch), readings in self._minutes.items():
                tables.save_minute(minute, launch, readings)
            if not last:
                self._work_off(tables, now)
                self._name_clients(tables, now)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        for _ in snapshots:
            self._waiting.popleft()
        newest = max((minute for minute, _ in self._minutes), default=0)
        self._minutes = {key: readings for key, readings in self._minutes.items() if key[0] == newest}

    def _work_off(self, tables: HistoryTables, now: float) -> None:
        """A bounded part of what need not be done at once."""
        if self._catch_up is not None:
            if _is_done(self._catch_up):
                self._catch_up = None
        elif now >= self._follow_at:
            self._follow_at = now + FOLLOW_SECONDS
            self._follow_others(tables)
        elif now >= self._tidy_at:
            self._tidying = self._tidying or self._tidied(tables)
            if _is_done(self._tidying):
                self._tidying, self._tidy_at = None, now + TIDY_SECONDS

    def _tidied(self, tables: HistoryTables) -> Iterator[None]:
        """Deletes what is old, and judges once a day which profiles are slower, a step at a time."""
        clock = self._clock()
        while tables.prune(clock):
            yield
        for slower in (yield from tables.judged(clock)):
            notify(self.paths, "slowdown", f"{slower.profile} is slower", slower.sentence, profile=slower.profile)

    # -- Snapshots ----------------------------------------------------------------------------------------

    def _take(self, tables: HistoryTables, snapshot: Snapshot) -> None:
        at, seen, status = unix_time(snapshot.time), self._seen, snapshot.server
        if at is None:
            return
        self._tell_lost(snapshot)
        launch, newest, follows = seen.launch, seen.newest, seen.at > 0
        if (status.pid, status.started_at) != (seen.pid, seen.started_at):
            if launch:
                tables.note_end(launch, seen.time, _how_ended(snapshot), status.message)
            launch, newest, follows = 0, None, False
        if status.pid and not launch and (known := self._launch_of(snapshot)):
            launch = tables.launch_id(known, at)
        is_known = bool(launch) or not status.pid
        ended = _newer(snapshot.requests, newest)
        if launch:
            tables.note_seen(launch, at, snapshot.driver.driver_version or "")
            if ended:
                self._add_requests(tables, launch, ended)
            newest = snapshot.requests[0] if snapshot.requests else None
        seconds = min(max(0.0, snapshot.at - seen.at), MAX_GAP_SECONDS) if seen.at else 0.0
        if seconds and is_known:
            key = (int(at) - int(at) % 60, launch)
            readings = self._minutes.get(key)
            if readings is None:
                readings = self._minutes[key] = tables.minute(*key)
            if readings.observed_seconds < 60.0:  # else the clock went back: this minute was seen already
                seconds = min(seconds, 60.0 - readings.observed_seconds)
                readings.add(snapshot, seconds, ended if follows else ())
        self._seen = _Seen(status.pid, status.started_at, launch, newest, snapshot.at, at)

    def _tell_lost(self, snapshot: Snapshot) -> None:
        """Has the owner told of cards that are lost, each once a day of this boot."""
        lost = {f"GPU {gpu.index} {gpu.name or ''}".rstrip() for gpu in snapshot.driver.gpus if gpu.lost}
        for card in sorted(lost - self._lost):
            text = f"{card} does not answer any more. {snapshot.driver.problem}"
            notify(self.paths, "gpu", f"{card} is lost", text, once=f"{card} {boot_id()} {snapshot.time[:10]}")
        self._lost = lost

    def _recorded_launch(self, snapshot: Snapshot) -> KnownLaunch | None:
        """The launch that the Snapshot shows, with its identity from the record; None while that is not written."""
        running = load_state(self.paths.instance_state(MAIN_INSTANCE)).running
        if running is None or running.process is None or running.process.pid != snapshot.server.pid:
            return None
        return KnownLaunch.of(running)

    def _add_requests(self, tables: HistoryTables, launch: int, requests: Sequence[Request]) -> None:
        if not tables.add_requests(launch, requests) or self._clients is None:
            return
        times = [at for request in requests if (at := unix_time(request.at)) is not None]
        self._name_later(min(times), max(times) + 1.0, NAMING_SECONDS)

    # -- clients ------------------------------------------------------------------------------------------

    def _name_later(self, since: float, until: float, delays: Sequence[float]) -> None:
        """Has the clients of the requests that began in [since, until) looked up."""
        if self._unnamed is not None:
            since, until = min(since, self._unnamed[0]), max(until, self._unnamed[1])
        self._unnamed = (since, until)
        self._name_at = [time.monotonic() + delay for delay in delays]

    def _is_naming_due(self, now: float) -> bool:
        return self._unnamed is not None and bool(self._name_at) and now >= self._name_at[0]

    def _name_clients(self, tables: HistoryTables, now: float) -> None:
        """Looks up whose the new requests are, when it is time; those of one day at once."""
        if self._naming is None and self._unnamed is not None and self._is_naming_due(now):
            self._naming = self._named(tables, *self._unnamed)
            self._name_at = [at for at in self._name_at if at > now]
            if not self._name_at:
                self._unnamed = None
        if self._naming is not None and next(self._naming, self) is self:
            self._naming = None

    def _named(self, tables: HistoryTables, since: float, until: float) -> Iterator[None]:
        assert self._clients is not None
        while since < until:
            requests = tables.requests_of(since - AROUND_SECONDS, min(until, since + DAY_SECONDS) + AROUND_SECONDS)
            if any(stored.client is None for stored in requests):
                for stored, client in zip(requests, self._clients(requests), strict=True):
                    if client is not None and stored.client is None:
                        tables.name_client(stored, client)
            since += DAY_SECONDS
            yield

    # -- logs ---------------------------------------------------------------------------------------------

    def _caught_up(self, tables: HistoryTables) -> Iterator[None]:
        """Reads the logs of all launches that are not read to their end, a step at a time."""
        for path, running in recorded_launches(self.paths.logs):
            known = KnownLaunch.of(running)
            if known is None:
                continue
            launch = tables.launch_id(known, known.started)
            if is_alive(running.process):
                tables.note_seen(launch, self._clock(), "")
            part = tables.read_part(launch)
            if part[0] == log_size(path):
                continue
            with contextlib.suppress(OSError):
                log = LaunchLog(path, running, part)
                try:
                    while (requests := log.read()) is not None:
                        if requests:
                            self._add_requests(tables, launch, requests)
                        yield
                    if log.read_part:
                        tables.note_read(launch, log.read_part)
                    if not is_alive(running.process):
                        self._note_dead(tables, launch, log)
                finally:
                    log.close()
        for launch, seen in tables.unended():
            tables.note_end(launch, seen, "")
            yield

    def _note_dead(self, tables: HistoryTables, launch: int, log: LaunchLog) -> None:
        """Its log says when it wrote last, and whether somebody stopped it."""
        tables.note_read(launch, (log.size, log.requests.count))
        cause = find_cause(tail_text(log.path), log.running.exit_code, out_of_memory=log.running.out_of_memory)
        how = "stop" if cause.kind is FailureKind.STOPPED else ""
        if not how and (cause.line or self._is_missed(log)):
            how = "crash"
        tables.note_end(launch, log.changed_at, how, cause.sentence if how == "crash" else "")

    def _is_missed(self, log: LaunchLog) -> bool:
        """Whether its instance's record says that it still runs: nobody meant to stop it."""
        running = load_state(self.paths.instance_state(log.path.name.partition(".log")[0])).running
        if running is None or running.process is None:
            return False
        return running.launch_id == log.running.launch_id and running.process.boot_id == boot_id()

    def _follow_others(self, tables: HistoryTables) -> None:
        """Reads on in the logs of servers beside the main one, which no Snapshot shows."""
        running = {
            running.launch_id: (path, running)
            for path, running in recorded_launches(self.paths.logs, rotated=False)
            if path != self.paths.instance_log(MAIN_INSTANCE) and is_alive(running.process)
        }
        for launch_id in [*self._followed]:
            if launch_id not in running:
                self._read_on(tables, self._followed[launch_id])
                self._followed.pop(launch_id).close()
                self._catch_up = self._caught_up(tables)  # its end
        for launch_id, (path, record) in running.items():
            if launch_id not in self._followed:
                with contextlib.suppress(OSError):
                    self._followed[launch_id] = LaunchLog(path, record)
            if launch_id in self._followed:
                self._read_on(tables, self._followed[launch_id])

    def _read_on(self, tables: HistoryTables, log: LaunchLog) -> None:
        known = KnownLaunch.of(log.running)
        if known is None:
            return
        launch = tables.launch_id(known, known.started)
        until = time.monotonic() + 5 * CATCH_UP_SECONDS
        while time.monotonic() < until and (requests := log.read()) is not None:
            if requests:
                self._add_requests(tables, launch, requests)
        if is_alive(log.running.process):
            tables.note_seen(launch, self._clock(), "")


def _is_done(work: Iterator[None]) -> bool:
    """Goes on for CATCH_UP_SECONDS. Whether there is nothing left."""
    until = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < until:
        if next(work, work) is work:
            return True
    return False


def _how_ended(snapshot: Snapshot) -> str:
    """How the server ended that ran before this Snapshot."""
    status = snapshot.server
    if status.state == "crashed":
        return "crash"
    replaced = status.pid is not None or status.operation.startswith(("switch", "restart"))
    return "switch" if replaced else "stop"


def _newer(requests: Sequence[Request], newest: Request | None) -> list[Request]:
    """Those of ``requests``, which are newest first, that ended after ``newest``."""
    ended: list[Request] = []
    for request in requests:
        if request == newest:
            break
        ended.append(request)
    return ended
