"""Asks the running gateway: its status; to pause, go on, stop, or end a request. Watches the box of another gateway.

Blocking; for verbs and the screen.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

import msgspec

from gpubox.address import KEY_HINT
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.gateway_status import SCHEMA, BoxNews, GatewayStatus, LiveRequest
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.server.http_get import ConnectionPool, NoResponse
from gpubox.server.state import GatewayRecord, load_gateway
from gpubox.server.status import api_key_for
from gpubox.storage import DECODE_ERRORS
from gpubox.telemetry.recorder import SnapshotReader
from gpubox.telemetry.snapshot import Snapshot

_TIMEOUT_SECONDS = 5.0
_STOP_SECONDS = 20.0
_STATUS_BYTES = 8 * 1024 * 1024
_PAUSE_SECONDS = 0.02


def read_gateway(paths: Paths) -> GatewayStatus | None:
    """What the gateway knows now; None if none runs. Raises GpuboxError if one runs and does not answer."""
    record = load_gateway(paths)
    if record is None or (body := _ask(paths, record, "GET", "status")) is None:
        return None
    with contextlib.suppress(*DECODE_ERRORS):
        status = msgspec.json.decode(body, type=GatewayStatus)
        if status.schema_version == SCHEMA:
            return status
    raise GpuboxError(
        f"The gateway (pid {record.process.pid}) is of another version of gpubox.", _AGAIN, code=ExitCode.UNHEALTHY
    )


def hold(paths: Paths, held: bool) -> None:
    """Holds all new requests, or lets them go on. Raises GpuboxError if no gateway runs, or it does not answer."""
    _command(paths, "pause" if held else "resume")


def cancel(paths: Paths, number: int) -> LiveRequest:
    """Ends a request, waiting or half answered. Returns what it was. Raises as ``hold``, and if there is none."""
    if (status := read_gateway(paths)) is None:
        raise GpuboxError(*_NONE_RUNS, code=ExitCode.NOT_RUNNING)
    for request in status.requests:
        if request.id == number:
            _command(paths, f"cancel/{number}")
            return request
    raise GpuboxError(f"No request has the number {number} now.", "`gpubox clients` lists them.")


def stop(paths: Paths) -> GatewayRecord:
    """Ends the gateway and waits for its end; the servers go on. Returns its record. Raises as ``hold``."""
    record = _command(paths, "stop")
    end = time.monotonic() + _STOP_SECONDS
    while load_gateway(paths) == record:
        if time.monotonic() > end:
            raise GpuboxError(
                f"The gateway (pid {record.process.pid}) still runs {_STOP_SECONDS:.0f} s after it was asked to stop.",
                f"Its log is {paths.gateway_log}.",
            )
        time.sleep(_PAUSE_SECONDS)
    return record


_NONE_RUNS = "No gateway runs.", "`gpubox serve` starts one."
_AGAIN = "Stop it (`kill` its pid) and start it again: gpubox serve. The servers behind it go on."


def _command(paths: Paths, verb: str) -> GatewayRecord:
    record = load_gateway(paths)
    if record is None or _ask(paths, record, "POST", verb) is None:
        raise GpuboxError(*_NONE_RUNS, code=ExitCode.NOT_RUNNING)
    return record


def _ask(paths: Paths, record: GatewayRecord, method: Literal["GET", "POST"], verb: str) -> bytes | None:
    """The body of the answer; None if the gateway has ended meanwhile. Raises GpuboxError."""
    pool = ConnectionPool(record.base_url, {"Authorization": f"Bearer {record.token}"}, _TIMEOUT_SECONDS)
    try:
        status, body = (pool.get if method == "GET" else pool.post)(f"/gpubox/{verb}", _STATUS_BYTES)
    except NoResponse as error:
        if load_gateway(paths) != record:
            return None
        raise GpuboxError(
            f"The gateway (pid {record.process.pid}) does not answer at {record.base_url}: {error}.",
            f"Its log is {paths.gateway_log}.",
            code=ExitCode.UNHEALTHY,
        ) from None
    finally:
        pool.close()
    if not 200 <= status < 300:
        text = sanitize_line(body[:200].decode(errors="replace"))
        raise GpuboxError(f"The gateway answers {status} to {verb}: {text}", _AGAIN, code=ExitCode.UNHEALTHY)
    return body


_WATCH_BYTES = 16 * 1024 * 1024
_STILL_SECONDS = 5.0


class _Reason(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Reason
    gpubox: str
    """The gateway's version."""


@dataclass(frozen=True, slots=True)
class BoxReading:
    """All that the gateway tells of its box."""

    snapshot: Snapshot
    gateway: GatewayStatus
    log: tuple[str, ...]
    """The lines since the reading before; at first the end of the log."""


class RemoteBox:
    """The box of a gateway on another machine. One thread at a time reads."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._pool = ConnectionPool(url, {"Authorization": f"Bearer {key}"} if key else {}, _TIMEOUT_SECONDS)
        self._reader: SnapshotReader | None = None
        self._after = self._log_position = ""
        self._changed_at = 0.0

    def read(self) -> BoxReading:
        """All that is new. Raises GpuboxError, which says why there is nothing, and NotAGateway."""
        try:
            status, body = self._pool.get(f"/gpubox/watch?{self.query()}", _WATCH_BYTES)
        except NoResponse as error:
            text = f"{self.url} does not answer: {getattr(error, 'sentence', error.words)}."
            text = f"Nothing answers at {self.url}." if error.kind == "ConnectError" else text
            raise GpuboxError(text, code=ExitCode.NOT_RUNNING) from None
        if status != 200:
            with contextlib.suppress(*DECODE_ERRORS):
                refusal = msgspec.json.decode(body, type=_Refusal)
                hint = KEY_HINT if status in (401, 403) else ""
                raise GpuboxError(sanitize_line(refusal.error.message)[:400], hint, code=ExitCode.UNHEALTHY)
            raise NotAGateway(f"{self.url} is no gateway of gpubox.", code=ExitCode.UNHEALTHY)
        return self.read_body(body)

    def close(self) -> None:
        self._pool.close()

    def query(self) -> str:
        """Says what it has already."""
        return urlencode({"after": self._after, "log": self._log_position})

    def read_body(self, body: bytes) -> BoxReading:
        """Raises as ``read``."""
        header, _, rest = body.partition(b"\n")
        line, _, news_line = rest.partition(b"\n")
        try:
            new_reader = SnapshotReader(header)
        except DECODE_ERRORS:
            raise NotAGateway(f"{self.url} is no gateway of gpubox.", code=ExitCode.UNHEALTHY) from None
        self._reader = self._reader or new_reader
        try:
            snapshot = self._reader.read(line)
            news = msgspec.json.decode(news_line, type=BoxNews)
            is_known = not new_reader.other_version and news.gateway.schema_version == SCHEMA
        except (OverflowError, *DECODE_ERRORS):
            is_known = False
        if not is_known:
            version = new_reader.other_version and f" ({new_reader.other_version})"
            text = f"The gateway at {self.url} is of another version of gpubox{version}."
            raise GpuboxError(text, "Update the older one.", code=ExitCode.UNHEALTHY)
        now = time.monotonic()
        if snapshot.time != self._after:
            self._after, self._changed_at = snapshot.time, now
        elif now - self._changed_at > _STILL_SECONDS:
            raise GpuboxError(f"{self.url} sends no new readings.", code=ExitCode.UNHEALTHY)
        self._log_position = news.log_position[:64]
        return BoxReading(snapshot, news.gateway, news.log)


class NotAGateway(GpuboxError):
    """Something else answers there."""


def connect_box(paths: Paths, config: Config, url: str) -> RemoteBox:
    """The box at ``url`` with its key, not asked yet. Raises UsageError for a key file that others can read."""
    return RemoteBox(url, api_key_for(paths, config, url))


async def open_box(paths: Paths, config: Config, url: str | None) -> RemoteBox | None:
    """The box of the gateway at ``url``; None: that is none, or nothing answers there. Raises as ``RemoteBox.read``."""
    if url is None:
        return None
    box = await run_in_thread(connect_box, paths, config, url)
    try:
        await run_in_thread(box.read)
    except GpuboxError as error:
        box.close()
        if isinstance(error, NotAGateway) or error.code == ExitCode.NOT_RUNNING:
            return None
        raise
    return box
