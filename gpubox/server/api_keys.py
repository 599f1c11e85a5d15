"""Which API key a server at some address is sent: the box's own only to servers that gpubox started."""

from __future__ import annotations

import os

from gpubox.config import Config, api_key, read_key_file
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.server.address import origin, server_root
from gpubox.server.instance import instance_names, observe


def api_key_for(paths: Paths, config: Config, url: str) -> str | None:
    """The key for the server at ``url``, a server root; ``None``: none is sent. Reads files and /proc.

    ``$GPUBOX_URL_KEY`` is the owner's word for this very command; else the file that ``[keys]`` in config.toml names
    for this address; else the box's own key, where a server that gpubox started answers there.
    Raises UsageError for a key file that others can read.
    """
    if given := os.environ.get("GPUBOX_URL_KEY", "").strip():
        return given
    wanted = origin(url)
    for address, path in config.keys.items():
        if origin(_root(address)) == wanted:
            return read_key_file(path)
    return api_key(paths) if _is_ours(paths, wanted) else None


def _root(address: str) -> str:
    try:
        return server_root(address)
    except UsageError as error:
        raise UsageError(f"[keys] in config.toml: {error.message}", error.hint) from None


def _is_ours(paths: Paths, wanted: str) -> bool:
    """Whether the living server of a slot has that address."""
    for slot in instance_names(paths):
        running = observe(paths, slot).running
        if running is not None and origin(running.launch.base_url) == wanted:
            return True
    return False
