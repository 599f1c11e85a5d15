"""The keys of agents that gpubox starts: kept, known by name, made anew where the file cannot be trusted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.agent_keys import agent_key, remove_agent_key
from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.paths import Paths


def now(keys: ClientKeys) -> ClientKeys:
    """As the gateway asks them: it looks before each request."""
    keys.refresh()
    return keys


def test_an_agent_is_known_and_nobody_else_needs_a_key(paths: Paths) -> None:
    gateway = ClientKeys(paths)

    secret = agent_key(paths, "opencode")

    assert agent_key(paths, "opencode") == secret != agent_key(paths, "hosted-opencode")
    assert (now(gateway).any, now(gateway).client_of(secret), now(gateway).client_of("gb-guess")) == (
        False, "opencode", None,
    )  # fmt: skip
    assert paths.agent_keys.stat().st_mode & 0o777 == 0o600
    assert not paths.client_keys.exists()

    laptop = ClientKeys(paths).add("laptop")  # now everybody needs one
    assert now(gateway).any
    assert [now(gateway).client_of(each) for each in (secret, laptop, "")] == ["opencode", "laptop", None]
    ClientKeys(paths).reset()
    assert (now(gateway).any, now(gateway).client_of(secret)) == (False, "opencode")


def test_a_removed_key_is_wrong_and_the_next_start_makes_another(paths: Paths) -> None:
    gateway, secret = ClientKeys(paths), agent_key(paths, "opencode")
    other = agent_key(paths, "codex")
    assert not now(gateway).is_revoked("opencode")

    assert (remove_agent_key(paths, "opencode"), remove_agent_key(paths, "opencode")) == (True, False)

    assert (now(gateway).is_revoked("opencode"), now(gateway).client_of(secret)) == (True, None)
    assert (now(gateway).is_revoked("codex"), now(gateway).client_of(other)) == (False, "codex")
    assert agent_key(paths, "opencode") != secret


def test_limits_of_a_client_with_its_name_hold_for_the_agent(paths: Paths) -> None:
    gateway, secret = ClientKeys(paths), agent_key(paths, "opencode")
    with pytest.raises(UsageError, match="no key for 'opencode'") as refused:
        ClientKeys(paths).change("opencode", weight=2.0)
    assert "keys add opencode" in refused.value.hint
    limits = ClientLimits(weight=2.0, tokens_per_day=500)
    ClientKeys(paths).add("opencode", limits)

    assert (now(gateway).client_of(secret), now(gateway).limits_of("opencode")) == ("opencode", limits)
    assert [entry.limits for entry in now(gateway).agents.values()] == [limits]
    ClientKeys(paths).change("opencode", expires_at="2001-01-01T00:00:00.000Z")
    assert now(gateway).client_of(secret) is None


def test_many_that_ask_at_once_get_the_same_key(paths: Paths) -> None:
    with ThreadPoolExecutor(12) as starts:
        keys = set(starts.map(lambda number: agent_key(paths, f"agent{number % 3}"), range(24)))

    assert len(keys) == 3
    assert sorted(now(ClientKeys(paths)).agents) == ["agent0", "agent1", "agent2"]


_DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "deep": lambda file: file.write_bytes(b"[" * 100_000),
    "a short key": lambda file: file.write_bytes(
        b'{"schema_version": 1, "keys": [{"name": "opencode", "secret": "x", "made_at": ""}]}'
    ),
    "readable": lambda file: file.chmod(0o644),
    "gone": lambda file: file.unlink(),
    "a fifo": lambda file: subprocess.run(["sh", "-c", 'rm "$0"; mkfifo "$0"', file], check=True),
    "a circle": lambda file: subprocess.run(["ln", "-sf", file.name, file], check=True),
}


@pytest.mark.parametrize("damage", _DAMAGE.values(), ids=_DAMAGE)
def test_a_file_that_cannot_be_trusted_is_made_anew(paths: Paths, damage: Callable[[Path], object]) -> None:
    gateway, secret = ClientKeys(paths), agent_key(paths, "opencode")
    laptop = ClientKeys(paths).add("laptop")
    assert now(gateway).client_of(secret) == "opencode"

    damage(paths.agent_keys)

    assert [now(gateway).client_of(each) for each in (secret, laptop)] == [None, "laptop"]
    assert now(gateway).problem == ""
    assert now(gateway).is_revoked("opencode") == (not paths.agent_keys.is_symlink() and not paths.agent_keys.exists())
    new = agent_key(paths, "opencode")
    assert new != secret
    assert (now(gateway).client_of(new), now(gateway).client_of(secret)) == ("opencode", None)
    assert paths.agent_keys.stat().st_mode & 0o777 == 0o600


def test_no_agent_takes_the_name_of_the_box(paths: Paths) -> None:
    for name in ("box", "", "a b", "../x"):
        with pytest.raises(UsageError):
            agent_key(paths, name)
    secret = agent_key(paths, "opencode")
    paths.agent_keys.write_text(paths.agent_keys.read_text().replace('"opencode"', '"box"'))
    assert ClientKeys(paths).client_of(secret) is None


def test_a_folder_in_its_place_is_said(paths: Paths) -> None:
    paths.agent_keys.mkdir(parents=True)
    with pytest.raises(GpuboxError, match=r"agent-keys\.json cannot be written"):
        agent_key(paths, "opencode")
