"""Asks the running gateway: its status; to pause, go on, stop, or end a request. Blocking; for verbs and the screen."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.gateway_status import SCHEMA, GatewayStatus, LiveRequest
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.server.http_get import ConnectionPool, NoResponse
from gpubox.server.state import GatewayRecord, load_gateway
from gpubox.storage import DECODE_ERRORS

_TIMEOUT_SECONDS = 5.0
_STOP_SECONDS = 20.0
_STATUS_BYTES = 8 * 1024 * 1024
_PAUSE_SECONDS = 0.02


def read_gateway(paths: Paths) -> GatewayStatus | None:
    """What the gateway knows now; None if none runs. Raises GpuboxError if one runs and does not answer."""
    record = load_gateway(paths)
    if record is None:
        return None
    body = _ask(paths, record, "GET", "/gpubox/status")
    if body is None:
        return None
    try:
        status = msgspec.json.decode(body, type=GatewayStatus)
    except DECODE_ERRORS:
        status = None
    if status is None or status.schema_version != SCHEMA:
        raise GpuboxError(
            f"The gateway (pid {record.process.pid}) is of another version of gpubox.", _AGAIN, code=ExitCode.UNHEALTHY
        )
    return status


def pause(paths: Paths) -> None:
    """Holds all new requests. Raises GpuboxError if no gateway runs, or it does not answer."""
    _command(paths, "pause")


def resume(paths: Paths) -> None:
    """Lets the requests that wait go on. Raises as ``pause``."""
    _command(paths, "resume")


def cancel(paths: Paths, number: int) -> LiveRequest:
    """Ends a request, waiting or half answered. Returns what it was. Raises as ``pause``, and if there is none."""
    status = read_gateway(paths)
    request = next((each for each in status.requests if each.id == number), None) if status else None
    if status and request is None:
        raise GpuboxError(f"No request has the number {number} now.", "`gpubox clients` lists them.")
    _command(paths, f"cancel/{number}")
    assert request
    return request


def stop(paths: Paths) -> GatewayRecord:
    """Ends the gateway and waits for its end; the servers go on. Returns its record. Raises as ``pause``."""
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


_AGAIN = "Stop it (`kill` its pid) and start it again: gpubox serve. The servers behind it go on."


def _command(paths: Paths, verb: str) -> GatewayRecord:
    record = load_gateway(paths)
    if record is None or _ask(paths, record, "POST", f"/gpubox/{verb}") is None:
        raise GpuboxError("No gateway runs.", "`gpubox serve` starts one.", code=ExitCode.NOT_RUNNING)
    return record


def _ask(paths: Paths, record: GatewayRecord, method: Literal["GET", "POST"], path: str) -> bytes | None:
    """The body of the answer; None if the gateway has ended meanwhile. Raises GpuboxError."""
    pool = ConnectionPool(record.base_url, {"Authorization": f"Bearer {record.token}"}, _TIMEOUT_SECONDS)
    try:
        status, body = pool.get(path, _STATUS_BYTES) if method == "GET" else pool.post(path, _STATUS_BYTES)
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
        raise GpuboxError(f"The gateway answers {status} to {path}: {text}", _AGAIN, code=ExitCode.UNHEALTHY)
    return body
