"""The clients' keys: made once, stored hashed, and nobody gets in through a damaged file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.client_keys import UNLIMITED, ClientKeys, ClientLimits
from gpubox.paths import Paths
from gpubox.storage import make_folder


def now(keys: ClientKeys) -> ClientKeys:
    """As the gateway asks them: it looks before each request."""
    keys.refresh()
    return keys


def test_a_key_opens_until_it_is_revoked(paths: Paths) -> None:
    keys, gateway = ClientKeys(paths), ClientKeys(paths)
    assert (now(gateway).any, now(gateway).client_of("gb-guess")) == (False, None)

    laptop, desk = keys.add("laptop"), keys.add("desk")

    assert len(laptop) == 46
    assert laptop.startswith("gb-")
    assert (now(gateway).any, [*now(gateway).clients]) == (True, ["laptop", "desk"])
    assert [now(gateway).client_of(secret) for secret in (laptop, desk, laptop[:-1], "", "\udc80é")] == [
        "laptop", "desk", None, None, None,
    ]  # fmt: skip
    keys.remove("laptop")
    assert (now(gateway).is_revoked("laptop"), now(gateway).is_revoked("desk")) == (True, False)
    assert [now(gateway).client_of(secret) for secret in (laptop, desk)] == [None, "desk"]
    keys.remove("desk")
    assert now(gateway).any  # who revokes the last key does not open the gateway


def test_the_file_holds_no_key_and_is_the_owners_alone(paths: Paths) -> None:
    secret, file = ClientKeys(paths).add("laptop"), paths.client_keys

    assert secret not in file.read_text()
    assert json.loads(file.read_text())["keys"][0]["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "é", "x" * 65, "box", "laptop", "a\n"])
def test_a_wrong_or_taken_name_is_refused(paths: Paths, name: str) -> None:
    keys = ClientKeys(paths)
    keys.add("laptop")

    with pytest.raises(UsageError):
        keys.add(name)

    assert list(keys.clients) == ["laptop"]


def test_limits_hold_at_once_and_an_expired_key_is_wrong(paths: Paths) -> None:
    keys, gateway = ClientKeys(paths), ClientKeys(paths)
    limits = ClientLimits(2.0, 3, 200_000, ("coder",), "2999-01-01T00:00:00.000Z")
    secret = keys.add("laptop", limits)
    assert (now(gateway).limits_of("laptop"), now(gateway).limits_of("curl")) == (limits, UNLIMITED)
    assert [limits.allows(names) for names in (("coder", "c"), ("small",))] == [True, False]
    assert UNLIMITED.allows(("small",))

    assert keys.change("laptop", weight=1.5, models=()).limits == ClientLimits(1.5, 3, 200_000, (), limits.expires_at)
    assert (now(gateway).limits_of("laptop").weight, now(gateway).client_of(secret)) == (1.5, "laptop")

    keys.change("laptop", expires_at="2001-01-01T00:00:00.000Z")
    assert (now(gateway).client_of(secret), now(gateway).is_revoked("laptop")) == (None, False)  # what runs is finished
    assert "has expired" in now(gateway).why_refused(secret) and "missing or wrong" in now(gateway).why_refused("guess")
    with pytest.raises(UsageError, match="no key for 'desk'"):
        keys.change("desk", weight=2.0)


def test_an_unknown_name_is_refused(paths: Paths) -> None:
    keys = ClientKeys(paths)
    with pytest.raises(UsageError, match="There are no keys"):
        keys.remove("desk")
    keys.add("laptop")
    with pytest.raises(UsageError, match="There are: laptop"):
        keys.remove("desk")


def _damage(data: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(data)


_ENTRY = b'{"name": "laptop", "sha256": "%s", "made_at": "x"}' % (b"0" * 64)
_DAMAGE = {
    "empty": _damage(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "another file": _damage(b'{"a": 1}'),
    "another schema": _damage(b'{"schema_version": 2, "keys": []}'),
    "twice": _damage(b'{"schema_version": 1, "keys": [%s, %s]}' % (_ENTRY, _ENTRY)),
    "no hash": _damage(b'{"schema_version": 1, "keys": [{"name": "laptop", "sha256": "", "made_at": ""}]}'),
    "odd name": _damage(b'{"schema_version": 1, "keys": [%s]}' % _ENTRY.replace(b'laptop"', b'laptop\\n"')),
    "no text": _damage(b'{"schema_version": 1, "keys": "\xff"}'),
    "deep": _damage(b"[" * 100_000),
    "huge": lambda file: os.truncate(file, 2**40),
    **{
        f"limits {limits}": _damage(
            b'{"schema_version": 1, "keys": [%s]}' % _ENTRY.replace(b'"x"}', b'"x", "limits": {%s}}' % limits.encode())
        )
        for limits in ('"expires_at": "soon"', '"weight": 0', '"tokens_per_day": -1', '"requests_at_once": 0')
    },
    "readable": lambda file: file.chmod(0o644),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: file.unlink() or file.mkdir(),
    "a fifo": lambda file: subprocess.run(["sh", "-c", 'rm "$0"; mkfifo "$0"', file], check=True),
    "a circle": lambda file: file.unlink() or file.symlink_to(file.name),
}


@pytest.mark.parametrize("damage", _DAMAGE.values(), ids=_DAMAGE)
def test_a_damaged_file_lets_nobody_in_and_a_mended_one_does(
    paths: Paths, damage: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUBOX_API_KEY", "box-key")
    gateway, file = ClientKeys(paths), paths.client_keys
    secret = gateway.add("laptop")
    good = file.read_bytes()
    assert now(gateway).client_of(secret) == "laptop"

    damage(file)

    assert (now(gateway).any, now(gateway).client_of(secret), now(gateway).client_of("box-key")) == (True, None, None)
    assert "refuses every client" in now(gateway).problem
    assert not now(gateway).is_revoked("laptop")  # what runs goes on
    assert len(now(gateway).problem) < 400
    if file.exists():  # a gpubox started now sees the damage, too, and writes nothing over it
        with pytest.raises(GpuboxError):
            ClientKeys(paths).add("desk")
        assert not ClientKeys(paths).client_of(secret)
    file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
    file.write_bytes(good)
    file.chmod(0o600)
    assert (now(gateway).client_of(secret), now(gateway).problem) == ("laptop", "")


def test_many_that_add_at_once_lose_nothing(paths: Paths) -> None:
    names = [f"client{number}" for number in range(12)]
    threads = [threading.Thread(target=ClientKeys(paths).add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(ClientKeys(paths).clients) == sorted(names)


def test_the_boxs_own_key_is_a_key_too(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ClientKeys(paths)
    assert not now(keys).any
    paths.config.mkdir(parents=True)
    paths.api_key_file.write_text("secret\n")
    paths.api_key_file.chmod(0o600)

    assert (now(keys).any, now(keys).client_of("secret"), now(keys).client_of("secre")) == (True, "box", None)

    paths.api_key_file.chmod(0o644)
    assert (now(keys).any, now(keys).client_of("secret")) == (True, None)
    assert "can be read by other users; the gateway refuses every client" in now(keys).problem
    monkeypatch.setenv("GPUBOX_API_KEY", "other")
    keys = ClientKeys(paths)  # a process keeps its environment
    assert (now(keys).client_of("secret"), now(keys).client_of("other")) == (None, "box")


def _gone(paths: Paths, what: str) -> None:
    if what == "its folder":
        shutil.rmtree(paths.config)
        return
    if "the memory" in what:
        paths.key_memory.unlink()
    if what == "the memory, and then the key file":
        assert ClientKeys(paths).any  # whoever looks meanwhile remembers it again
    if "damaged" in what:
        paths.key_memory.write_bytes(b"\xff")
    if "a folder" in what:
        paths.key_memory.mkdir()
    paths.client_keys.unlink()


@pytest.mark.parametrize(
    "what",
    [
        "the key file", "its folder", "the memory, and then the key file", "the key file, and the memory is damaged",
        "the key file, and the memory is a folder",
    ],
)  # fmt: skip
def test_no_deleted_file_opens_the_gateway_until_a_reset(paths: Paths, what: str) -> None:
    gateway = ClientKeys(paths)
    secret = gateway.add("laptop")
    assert now(gateway).client_of(secret) == "laptop"

    _gone(paths, what)

    for keys in (gateway, ClientKeys(paths)):  # also the one that starts now
        assert (now(keys).any, now(keys).client_of(secret), now(keys).client_of("")) == (True, None, None)
        assert "client-keys.json is gone; the gateway refuses every client" in now(keys).problem
        with pytest.raises(UsageError, match="is gone"):
            keys.add("desk")
    if paths.key_memory.is_dir():
        with pytest.raises(GpuboxError, match="cannot be written"):
            ClientKeys(paths).reset()
        paths.key_memory.rmdir()
    ClientKeys(paths).reset()
    for keys in (gateway, ClientKeys(paths)):
        assert (now(keys).any, now(keys).problem) == (False, "")
    assert ClientKeys(paths).add("desk") and [*now(gateway).clients] == ["desk"]


def test_who_deletes_both_files_has_forgotten_the_keys_unless_a_gateway_runs(paths: Paths) -> None:
    gateway = ClientKeys(paths)
    gateway.add("laptop")
    paths.client_keys.unlink()
    paths.key_memory.unlink()
    assert not ClientKeys(paths).any
    assert now(gateway).any and now(gateway).problem
    assert ClientKeys(paths).any  # it has remembered them again


def test_the_boxs_key_that_is_gone_opens_nothing_either(paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.api_key_file.write_text("secret\n")
    paths.api_key_file.chmod(0o600)
    assert ClientKeys(paths).client_of("secret") == "box"
    secret = ClientKeys(paths).add("laptop")
    paths.api_key_file.unlink()
    assert ClientKeys(paths).client_of(secret) == "laptop"  # a key is needed anyway
    ClientKeys(paths).reset()
    assert not ClientKeys(paths).any

    paths.api_key_file.write_text("secret\n")
    paths.api_key_file.chmod(0o600)
    assert ClientKeys(paths).any
    ClientKeys(paths).reset()
    assert ClientKeys(paths).client_of("secret") == "box"  # it stays, and is not forgotten
    paths.api_key_file.unlink()
    keys = ClientKeys(paths)
    assert (keys.any, keys.client_of("secret")) == (True, None)
    assert "api-key is gone; the gateway refuses every client" in keys.problem
    keys.reset()
    assert not keys.any


@pytest.mark.parametrize("damage", [name for name in _DAMAGE if name != "a folder"])
def test_a_reset_forgets_damaged_keys_too(paths: Paths, damage: str) -> None:
    ClientKeys(paths).add("laptop")
    harm: Callable[[Path], object] = _DAMAGE[damage]
    harm(paths.client_keys)
    ClientKeys(paths).reset()
    assert not ClientKeys(paths).any


def test_a_key_that_cannot_be_remembered_is_not_made(paths: Paths) -> None:
    paths.gateway.parent.mkdir(parents=True)
    paths.gateway.write_text("a file")
    with pytest.raises(GpuboxError):
        ClientKeys(paths).add("laptop")
    assert not paths.client_keys.exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(paths: Paths) -> None:
    make_folder(paths.config.parent)
    paths.config.write_text("a file")

    with pytest.raises(GpuboxError, match="cannot be written"):
        ClientKeys(paths).add("laptop")


def test_a_link_stays_a_link(paths: Paths, tmp_path: Path) -> None:
    """Of somebody who keeps settings elsewhere."""
    target, file = tmp_path / "dotfiles.json", paths.client_keys
    make_folder(file.parent)
    file.symlink_to(target)

    secret = ClientKeys(paths).add("laptop")

    assert file.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert ClientKeys(paths).client_of(secret) == "laptop"
