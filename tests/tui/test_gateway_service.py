"""What the screen asks of a real gateway's files: a record whose gateway is dead, lies, or does not answer."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import pytest

from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from gpubox.tui.services import LocalServices
from tests.ports import free_port


def services(paths: Paths, *, url: str | None = None) -> LocalServices:
    return LocalServices(paths, Config(), url)


def test_without_a_record_nothing_is_asked(paths: Paths) -> None:
    assert services(paths).gateway() is None


def test_a_killed_gateway_is_none(paths: Paths) -> None:
    dead = replace(own_identity(), pid=2**22 - 3)
    save_gateway(paths, GatewayRecord(dead, "127.0.0.1", 8080, "token", utc_now()))
    assert services(paths).gateway() is None


def test_a_damaged_record_is_none(paths: Paths) -> None:
    paths.gateway.mkdir(parents=True)
    for text in ("", "[]", "{", json.dumps({"process": 7}), "\x00" * 100):
        paths.gateway_record.write_text(text)
        assert services(paths).gateway() is None


def test_a_gateway_that_does_not_answer_is_shown_with_the_reason(paths: Paths) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening: refused at once
        save_gateway(paths, GatewayRecord(own_identity(), "127.0.0.1", taken.getsockname()[1], "token", utc_now()))
        view = services(paths).gateway()

    assert view is not None and view.status is None and view.base_url.startswith("http://127.0.0.1:")
    assert "does not answer" in view.problem and view.summary.problem == "no answer"


def test_the_gateway_of_this_machine_is_not_shown_beside_another_server(paths: Paths) -> None:
    save_gateway(paths, GatewayRecord(own_identity(), "127.0.0.1", 8080, "token", utc_now()))
    assert services(paths, url="http://box:8080").gateway() is None


def test_a_real_gateway_is_started_held_and_stopped(paths: Paths) -> None:
    port = free_port()
    local = LocalServices(paths, Config(gateway=replace(Config().gateway, port=port)))
    gateway = local.gateway_service()
    earlier = FinishedRequest(utc_now(), "laptop", "a", "/v1/models", 200, "done")
    Ledger(paths.ledger).add(earlier)
    assert gateway.address() == ("127.0.0.1", port)
    assert gateway.start() == gateway.start() == f"http://127.0.0.1:{port}"
    try:
        view = local.gateway()
        assert view and view.status and not view.status.paused and not view.status.has_keys
        assert view.status.finished == (earlier,)  # the gateway before it had finished this one
        gateway.pause(True)
        assert (view := local.gateway()) and view.summary.paused
        gateway.pause(False)
        assert gateway.add_key("laptop").startswith("gb-")
        assert (view := local.gateway()) and view.status and view.status.has_keys and not view.status.paused
        assert "laptop" in view.status.clients
        gateway.remove_key("laptop")
    finally:
        gateway.stop()
    assert local.gateway() is None
    with pytest.raises(GpuboxError, match="No gateway runs"):
        gateway.pause(True)


def test_a_gateway_that_cannot_start_says_why_and_what_to_do(paths: Paths) -> None:
    exposed = Config(gateway=replace(Config().gateway, host="0.0.0.0", port=free_port()))
    with pytest.raises(GpuboxError, match="opens the gateway to other machines") as error:
        LocalServices(paths, exposed).gateway_service().start()
    assert "gpubox keys add" in error.value.hint
