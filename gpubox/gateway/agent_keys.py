"""The keys of the agents that gpubox itself starts: each is made when it is first needed, and kept.

The gateway knows an agent by it (``ClientKeys``), and asks no other client for a key because of it. An agent gets the
key again at each start, so it is stored as it is, for the owner alone. A file that cannot be trusted is made anew:
that costs an agent that runs at most its next answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    with _changing(paths) as keys:
        keys.setdefault(name, AgentKey(name, new_secret(), utc_now()))
    return keys[name].secret


def remove_agent_key(paths: Paths, name: str) -> bool:
    """Makes the key of an agent wrong; its next start makes a new one. Whether there was one. Raises GpuboxError."""
    with _changing(paths) as keys:
        return keys.pop(name, None) is not None


@contextmanager
def _changing(paths: Paths) -> Iterator[dict[str, AgentKey]]:
    """The keys, which are written if they change meanwhile."""
    path = paths.agent_keys
    try:
        with held_lock(path.with_name(f".{path.stem}.lock"), "Another gpubox is changing the agents' keys."):
            keys, certain = read_agent_keys(paths)
            before = dict(keys)
            yield keys
            if keys == before:
                return
            if not certain:  # a new file has its own mode, and no key that others may have read
                path.unlink(missing_ok=True)
            write_atomically(path, msgspec.json.encode(AgentKeyFile(SCHEMA, tuple(keys.values()))))
    except OSError as error:
        raise unwritable(path, error) from None
    if not read_agent_keys(paths)[1]:  # a file system without modes: the gateway would not trust it
        raise GpuboxError(f"Other users can read {path}.", "Its folder needs a file system with modes.")
