"""The keys of the agents that gpubox itself starts: each is made when it is first needed, and kept.

The gateway knows an agent by it (``ClientKeys``), and asks no other client for a key because of it. An agent gets the
key again at each start, so it is stored as it is, for the owner alone. A file that cannot be trusted is made anew:
that costs an agent that runs at most its next answer.
"""

from __future__ import annotations

import contextlib

import msgspec

from gpubox.clock import utc_now
from gpubox.errors import GpuboxError
from gpubox.gateway.client_keys import SCHEMA, AgentKey, AgentKeyFile, check_name, new_secret, read_agent_keys
from gpubox.paths import Paths
from gpubox.storage import held_lock, unwritable, write_atomically


def agent_key(paths: Paths, name: str) -> str:
    """The key of the agent ``name``; two that ask at once get the same. Blocks while another gpubox changes the keys.

    Raises UsageError for a wrong name, GpuboxError if the file cannot be written.
    """
    check_name(name)
    with _locked(paths):
        keys, certain = read_agent_keys(paths)
        if name not in keys:
            if not certain:  # a new file has its own mode, and no key that others may have read
                _unlink(paths)
            keys[name] = AgentKey(name, new_secret(), utc_now())
            _write(paths, keys)
        return keys[name].secret


def remove_agent_key(paths: Paths, name: str) -> bool:
    """Makes the key of an agent wrong; its next start makes a new one. Whether there was one. Raises GpuboxError."""
    with _locked(paths):
        keys, _ = read_agent_keys(paths)
        if keys.pop(name, None) is None:
            return False
        _write(paths, keys)
    return True


def _locked(paths: Paths) -> contextlib.AbstractContextManager[int]:
    lock = paths.agent_keys.with_name(f".{paths.agent_keys.stem}.lock")
    return held_lock(lock, "Another gpubox is changing the agents' keys.")


def _unlink(paths: Paths) -> None:
    try:
        paths.agent_keys.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(paths.agent_keys, error) from None


def _write(paths: Paths, keys: dict[str, AgentKey]) -> None:
    try:
        write_atomically(paths.agent_keys, msgspec.json.encode(AgentKeyFile(SCHEMA, tuple(keys.values()))))
    except OSError as error:
        raise unwritable(paths.agent_keys, error) from None
    if not read_agent_keys(paths)[1]:  # a file system without modes: the gateway would not trust it
        raise GpuboxError(f"Other users can read {paths.agent_keys}.", "Its folder needs a file system with modes.")
