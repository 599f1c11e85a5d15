"""Asks the running gateway: its status; to pause, go on, stop, or end a request. Blocking; for verbs and the screen."""

from __future__ import annotations

import contextlib
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
