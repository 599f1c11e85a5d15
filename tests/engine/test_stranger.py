"""A stranger: from an empty home with one GGUF to a model that answers and opencode connected to it. All is real."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.tui.app import GpuboxApp
from gpubox.tui.services import LocalServices
from tests.ports import free_port
from tests.tui.conftest import shows

MOST_KEYS = 8


@pytest.fixture
def services(own_home: Path, paths: Paths, demo_model: Path) -> Iterator[LocalServices]:
    (own_home / "models").mkdir()
    (own_home / "models/SmolLM2.gguf").symlink_to(demo_model)
    port = free_port()
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(f'default-engine = "embedded"\n[gateway]\nport = {port}\n')
    local = LocalServices(
        paths, replace(Config(), default_engine="embedded", gateway=replace(Config().gateway, port=port))
    )
    yield local
    for stop in (local.gateway_service().stop, lambda: local.operate("stop", "main", False, False, lambda _: None)):
        try:
            stop()
        except GpuboxError as error:
            print(error)


def ask(settings: Path) -> str:
    """What the model answers to a client that reads the written settings."""
    written = json.loads(settings.read_text())
    url = written["provider"]["gpubox"]["options"]["baseURL"]
    body = {"model": written["model"].removeprefix("gpubox/"), "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


async def test_from_an_empty_home_to_a_connected_agent(services: LocalServices) -> None:
    settings = Path(os.environ["XDG_CONFIG_HOME"], "opencode/opencode.json")
    keys = 0
    async with GpuboxApp(services).run_test(size=(80, 24)) as pilot:
        for expected, key in (
            (("What do you have?", "SmolLM2", "to spare", "find a model", "98 MB", "⏎ start"), "enter"),
            (("smollm2 ready", "connect your coding agent: o"), "o"),
            (("No gateway runs yet", "⏎ start the gateway, write opencode.json"), "enter"),
        ):
            await shows(pilot, *expected)
            await pilot.press(key)
            keys += 1
        await shows(pilot, "✓ opencode has the settings")
        assert keys <= MOST_KEYS
        assert await run_in_thread(ask, settings)
        await pilot.press("escape")
        await shows(pilot, "gateway 127.0.0.1")
        assert not await run_in_thread(services.wants_client)
