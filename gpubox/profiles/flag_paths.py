"""Which flags of a profile hold file paths, and how to rewrite those paths. Pure: looks at no file."""

from __future__ import annotations

from collections.abc import Callable

from gpubox.profiles.multi_value_flags import multi_value_argv, split_values
from gpubox.profiles.profile import FlagValue

GGUF_FLAGS = {"model-draft", "spec-draft-model", "md", "mmproj", "mm"}
FILE_FLAGS = {
    "chat-template-file", "grammar-file", "json-schema-file", "jf", "ssl-key-file", "ssl-cert-file", "ui-config-file",
    "webui-config-file", "mcp-servers-config", "models-preset", "lookup-cache-static", "lcs",
}  # fmt: skip
"""Files that must exist before a start."""
_ADAPTER_FLAGS = {"lora", "lora-scaled", "control-vector", "control-vector-scaled"}
"""Comma lists; the items of the scaled ones are ``FILE:SCALE``."""
_OUTPUT_FLAGS = {
    "lookup-cache-dynamic", "lcd", "slot-save-path", "media-path", "models-dir", "path", "log-file", "log-prompts-dir",
}  # fmt: skip
"""Files and folders that the server may create."""


def map_paths(name: str, value: FlagValue, change: Callable[[str], str]) -> FlagValue:
    """``value`` of the flag ``name`` with ``change`` applied to each path in it; unchanged if it holds none."""
    if name in _ADAPTER_FLAGS:
        if isinstance(value, tuple):
            return tuple(_map_adapter(item, change) if isinstance(item, str) else item for item in value)
        if isinstance(value, str):
            return multi_value_argv(name, [_map_adapter(item, change) for item in split_values(name, value)])[1]
        return value
    if isinstance(value, str) and value and name in GGUF_FLAGS | FILE_FLAGS | _OUTPUT_FLAGS:
        return change(value)
    return value


def _map_adapter(item: str, change: Callable[[str], str]) -> str:
    path, colon, scale = item.partition(":")
    return change(path) + colon + scale
