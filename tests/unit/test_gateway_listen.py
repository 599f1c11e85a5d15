"""Why the gateway cannot listen."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.gateway.gateway import Gateway
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
