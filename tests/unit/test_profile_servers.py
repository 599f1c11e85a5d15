"""What the gateway makes of profile files that come, go or change, and of an operation that dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.config import Config, GatewaySettings
from gpubox.errors import UsageError
from gpubox.gateway import profile_servers
from gpubox.gateway.admission import Ticket
from gpubox.gateway.http_connection import RequestRefused
from gpubox.gateway.profile_servers import ProfileServers
from gpubox.gateway.servers import GatewayServer, ProfileTable
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.server.state import Launch, RunningServer

Write = Callable[[str, str], Path]
UPSTREAM = 'upstream = "http://127.0.0.1:9"\n'


def servers_of(paths: Paths) -> ProfileServers:
    return ProfileServers(paths, Config(), lambda event: None)


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


def test_an_unknown_model_goes_to_what_runs_if_the_owner_says_so(paths: Paths, write_profile: Write) -> None:
    write_profile("a", 'model = "a.gguf"\n')
    (paths.profiles / "broken.toml").write_text("model = 7")
    servers = ProfileServers(paths, Config(gateway=GatewaySettings(unknown_model="current")), print)
    with pytest.raises(RequestRefused, match=r"No profile runs.* There is no profile 'gpt-4'\. There are: a"):
        asyncio.run(servers.profile_of("gpt-4"))
    with pytest.raises(RequestRefused, match="The request names none in `model`"):
        asyncio.run(servers.profile_of(None))
    servers.running = (GatewayServer("main", "a", "http://127.0.0.1:9", "1", ready=True, changed_by=None),)
    for name in ("gpt-4", "", None, "a"):
        assert asyncio.run(servers.profile_of(name)).name == "a"
    with pytest.raises(RequestRefused, match="model must be a string"):  # a known one is never replaced
        asyncio.run(servers.profile_of("broken"))


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


@pytest.mark.parametrize("end", ["exit 9", "kill -9 $$"])
def test_an_operation_that_dies_is_a_failure_and_one_that_was_killed_is_begun_again(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    child = tmp_path / "child"
    child.write_text(f'#!/bin/sh\nread line\necho \'{{"event": "placed", "instances": ["main"]}}\'\n{end}\n')
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))

    async def wait() -> None:
        servers, now = servers_of(paths), time.monotonic()
        servers.running = (GatewayServer("main", "old", "http://127.0.0.1:9", "launch", True, None),)
        servers.queue.set_up(["old"], (), now)
        servers.queue.run(Ticket(1, "c", "old"), now)  # it keeps the operation waiting
        waiting = servers.ask(Ticket(2, "c", "new"), Profile("new", ""))
        assert isinstance(waiting, asyncio.Future)
        servers._next_operation(now)
        if end == "exit 9":
            with pytest.raises(RequestRefused, match=r"ended without a result \(exit code 9\)"):
                await asyncio.wait_for(waiting, 30)
            return
        async with asyncio.timeout(30):
            while servers._operations:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        assert servers.queue.next_profiles(time.monotonic() + 1.0) == ["new"]

    asyncio.run(wait())


def test_while_the_owner_waits_or_works_the_gateway_begins_nothing(
    paths: Paths, write_profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile("a", 'model = "/m.gguf"\n')
    begun: list[str] = []
    monkeypatch.setattr(ProfileServers, "_begin", lambda self, operation: begun.append(operation.switch.profile))

    async def ask() -> None:
        servers = servers_of(paths)
        await servers.start()
        paths.owner_lock.parent.mkdir(parents=True)
        owner = os.open(paths.owner_lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(owner, fcntl.LOCK_SH)
        servers.ask(Ticket(1, "c", "a"), servers.profiles.find("a"))
        for _ in range(3):
            servers._next_operation(time.monotonic())
        assert not begun
        os.close(owner)  # as a kill does
        servers._next_operation(time.monotonic())
        assert begun == ["a"]
        await servers.close()

    asyncio.run(ask())


def test_a_swap_is_as_long_as_it_took_from_the_go_on(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only as long as the server says that it has loaded: another one stopped before."""
    child = tmp_path / "child"
    lines = ('{"event": "placed", "instances": ["main"]}', '{"event": "OperationFinished"}', '{"event": "finished"}')
    child.write_text("#!/bin/sh\nread line\necho '{}'\nread go\nsleep 0.2\necho '{}'\necho '{}'\n".format(*lines))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    record = RunningServer(Launch("new", (), "127.0.0.1", 9), "launch", "", ready_at="now", load_seconds=0.001)
    loaded = GatewayServer("main", "new", "http://127.0.0.1:9", "launch", True, None, record)

    async def wait() -> None:
        servers = servers_of(paths)
        servers.ask(Ticket(1, "c", "new"), Profile("new", ""))
        servers._next_operation(time.monotonic())
        monkeypatch.setattr(profile_servers, "read_servers", lambda paths: (loaded,))
        async with asyncio.timeout(30):
            while servers._operations:
                await asyncio.sleep(0.01)
        assert servers.queue.of("new").load_seconds >= 0.2
        await servers.close()

    asyncio.run(wait())


def test_a_server_is_asked_for_its_slots_as_soon_as_the_key_can_be_read(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [UsageError("others can read the key")]

    def key(paths: Paths) -> str:
        if faults:
            raise faults.pop()
        return "secret"

    async def props(url: str, key: str, *words: str, seconds: float) -> tuple[int, bytes]:
        return 200, b'{"total_slots": 3}'

    async def watch() -> None:
        servers = servers_of(paths)
        server = GatewayServer("main", "a", "http://127.0.0.1:9", "1", True, None)
        watching = asyncio.create_task(servers._watch_slots(server))
        async with asyncio.timeout(10):
            while servers.queue.of("a").slots != 3:
                await asyncio.sleep(0.01)
        watching.cancel()

    monkeypatch.setattr(profile_servers, "api_key", key)
    monkeypatch.setattr(profile_servers, "ask_server", props)
    asyncio.run(watch())


def test_profiles_that_wait_for_the_same_place_are_not_tried_again_before_it_is_free(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each attempt that ends in vain is a reason for the other one's next."""
    child = tmp_path / "child"
    placed, failed = '{"event": "placed", "instances": ["main"]}', '{"event": "failed", "temporary": true}'
    child.write_text(
        f"#!/bin/sh\nread line\ncase $line in *'e\":\"a\"'*) echo '{placed}'; cat;; *) echo '{failed}';; esac\n"
    )
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    begun: list[str] = []

    async def wait() -> None:
        servers = ProfileServers(paths, Config(), lambda event: begun.append(f"{event.profile} {event.step}"))  # type: ignore[union-attr]
        for number, name in enumerate("abc"):
            servers.ask(Ticket(number, "c", name), Profile(name, ""))
        async with asyncio.timeout(30):
            while not {"a begin", "b failed", "c failed"} <= set(begun):
                servers._next_operation(time.monotonic())
                await asyncio.sleep(0.01)
        assert servers.queue.next_profiles(time.monotonic()) == ["a"]
        assert (begun.count("b begin"), begun.count("c begin")) == (1, 1)
        await servers.close()

    asyncio.run(wait())
