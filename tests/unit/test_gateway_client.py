"""Verbs and screen ask the gateway: its status, or one sentence why there is none."""

from __future__ import annotations

import socket
from dataclasses import replace

import msgspec
import pytest

from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway import gateway_client
from gpubox.gateway.gateway_client import cancel, hold, read_gateway, stop
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from tests.fake_gateway import DEAD, fake_gateway


def test_no_gateway(paths: Paths) -> None:
    assert read_gateway(paths) is None
    for command in (lambda: hold(paths, True), lambda: cancel(paths, 1), lambda: stop(paths)):
        with pytest.raises(GpuboxError, match="No gateway runs") as error:
            command()
        assert error.value.code == ExitCode.NOT_RUNNING
    save_gateway(paths, GatewayRecord(DEAD, "127.0.0.1", 1, "", ""))
    assert read_gateway(paths) is None
    paths.gateway_record.write_text("[")
    assert read_gateway(paths) is None


def test_status_pause_resume_and_stop(paths: Paths) -> None:
    with fake_gateway(paths) as gateway:
        assert read_gateway(paths) == gateway.status
        hold(paths, True)
        assert (status := read_gateway(paths)) and status.paused
        hold(paths, False)
        assert (status := read_gateway(paths)) and not status.paused
        stop(paths)  # returns when its process has ended
        assert gateway.asked[-1] == "POST /gpubox/stop"
        assert read_gateway(paths) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"\xff", b"<html>", b'{"schema_version": 1, "pid": "' + b"x" * 1000 + b'"}', b"[" * 100_000],
)
def test_a_lying_answer_is_one_sentence(paths: Paths, body: bytes) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (200, body)
        with pytest.raises(GpuboxError, match="another version"):
            read_gateway(paths)
        gateway.answer = (503, body + b"\x1b[31m")
        with pytest.raises(GpuboxError, match="answers 503") as error:
            hold(paths, True)
        assert "\x1b" not in error.value.message
        assert len(error.value.message) < 300


def test_a_newer_gateway_is_not_misread(paths: Paths) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (200, msgspec.json.encode(replace(gateway.status, schema_version=2)))
        with pytest.raises(GpuboxError, match="another version"):
            read_gateway(paths)


def test_a_gateway_that_does_not_answer_is_one_sentence(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "_TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        record = GatewayRecord(own_identity(), "127.0.0.1", silent.getsockname()[1], "t", "")
        save_gateway(paths, record)
        with pytest.raises(GpuboxError, match="does not answer") as error:
            read_gateway(paths)
        assert error.value.code == ExitCode.UNHEALTHY
    with pytest.raises(GpuboxError, match="does not answer"):  # refused
        read_gateway(paths)
