"""Where the gateway listens, and why it cannot."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.gateway import Gateway
from gpubox.gateway.listening import listen
from gpubox.hardware.process import PortOwner
from gpubox.paths import Paths


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("127.0.0.1", r"^Port {port} is used by .+\.$"),
        ("192.0.2.1", r"^The gateway cannot listen on 192\.0\.2\.1:{port}: .+\.$"),
        ("no-such-host.invalid", r"^The gateway cannot listen on no-such-host.invalid:{port}: .+\.$"),
    ],
)
def test_the_sentence_names_what_is_wrong(paths: Paths, host: str, says: str) -> None:
    async def serve(port: int) -> None:
        await Gateway(paths, Config(), host=host, port=port, emit=lambda event: None).serve()

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(GpuboxError) as error:
            asyncio.run(serve(port))
    assert re.search(says.format(port=port), error.value.message)


@pytest.mark.parametrize("inherited", [True, False])
async def test_many_clients_may_wait_for_a_gateway_that_starts_again(inherited: bool) -> None:
    with ExitStack() as stack:
        given = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))] if inherited else []
        [server] = await listen("127.0.0.1", 0, asyncio.Protocol, given)
        address = server.sockets[0].getsockname()
        for _ in range(200):  # the loop, which would take them, does not run meanwhile
            stack.enter_context(socket.create_connection(address, 0.9))  # a SYN for a full queue is repeated after 1 s
        server.close()


async def test_a_port_that_systemd_keeps_for_the_gateway_is_no_server_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.gateway.listening.port_owner", lambda port: PortOwner(124, "systemd"))
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(GpuboxError, match="by systemd") as error:
        await listen("127.0.0.1", other.getsockname()[1], asyncio.Protocol, ())
    assert "systemctl --user start gpubox-gateway.service" in error.value.hint and "gpubox stop" not in error.value.hint
