"""What the gateway makes of profile files that come, go, change, or cannot be read for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.gateway import profile_servers
from gpubox.gateway.profile_servers import ProfileServers
from gpubox.gateway.servers import ProfileTable
from gpubox.paths import Paths

Write = Callable[[str, str], Path]
UPSTREAM = 'upstream = "http://127.0.0.1:9"\n'


def servers_of(paths: Paths) -> ProfileServers:
    return ProfileServers(paths, Config(), lambda event: None, lambda request: "")


def test_a_deleted_profile_leaves_the_list(paths: Paths, write_profile: Write) -> None:
    write_profile("a", UPSTREAM)
    deleted = write_profile("b", UPSTREAM)
    servers = servers_of(paths)
    servers.profiles.refresh()
    assert {status.name for status in servers.statuses()} == {"a", "b"}
    deleted.unlink()
    servers.profiles.refresh()
    assert {status.name for status in servers.statuses()} == {"a"}


def test_a_mended_profile_may_be_tried_at_once_whoever_reads_its_file(paths: Paths, write_profile: Write) -> None:
    write_profile("a", UPSTREAM)
    servers = servers_of(paths)
    servers.profiles.refresh()
    servers.queue.failed("a", "no such flag", time.monotonic())
    write_profile("new", UPSTREAM)
    assert asyncio.run(servers.profile_of("new")).name == "new"
    assert servers.queue.broken("a", time.monotonic()) is None


def test_a_folder_that_cannot_be_read_for_a_while_ends_no_watching(
    paths: Paths, write_profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile("a", UPSTREAM)
    read, failures = ProfileTable.refresh, [PermissionError(13, "Permission denied")]

    def refresh(table: ProfileTable) -> bool:
        if table.catalog.profiles and failures:
            raise failures.pop()
        return read(table)

    async def watch() -> None:
        servers = servers_of(paths)
        await servers.start()
        write_profile("b", UPSTREAM)
        async with asyncio.timeout(10):
            while len(servers.statuses()) < 2:
                await asyncio.sleep(0.01)
        await servers.close()

    monkeypatch.setattr(ProfileTable, "refresh", refresh)
    monkeypatch.setattr(profile_servers, "PROFILES_SECONDS", 0.0)
    asyncio.run(watch())
    assert not failures
