"""What the values of some flags are: lists, two words, paths. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpubox.profiles.profile import FlagValue

_ALIASES = {
    "ot": "override-tensor", "otd": "spec-draft-override-tensor", "override-tensor-draft": "spec-draft-override-tensor",
    "a": "alias", "r": "reverse-prompt", "l": "logit-bias", "C": "cpu-mask", "Cr": "cpu-range", "Cb": "cpu-mask-batch",
    "Crb": "cpu-range-batch", "Cd": "spec-draft-cpu-mask", "cpu-mask-draft": "spec-draft-cpu-mask",
    "Crd": "spec-draft-cpu-range", "cpu-range-draft": "spec-draft-cpu-range", "Cbd": "spec-draft-cpu-mask-batch",
    "cpu-mask-batch-draft": "spec-draft-cpu-mask-batch",
}  # fmt: skip
COMMA_LISTS = frozenset({"override-tensor", "spec-draft-override-tensor", "rpc", "spec-type", "alias", "tags"})
"""Values accumulate. Several are separated by commas; no value can contain a comma."""
QUOTED_LISTS = frozenset({"lora", "lora-scaled", "control-vector", "control-vector-scaled", "override-kv"})
"""Values accumulate. Several are separated by commas; one that contains a comma is in double quotes."""
REPEATED_FLAGS = frozenset({
    "reverse-prompt", "dry-sequence-breaker", "logit-bias", "cpu-mask", "cpu-range", "cpu-mask-batch",
    "cpu-range-batch", "spec-draft-cpu-mask", "spec-draft-cpu-range", "spec-draft-cpu-mask-batch",
})  # fmt: skip
"""Values accumulate. There is no list form: the flag is repeated for each value."""
LARGEST_WINS = frozenset({"n-cpu-moe", "n-cpu-ffn", "spec-draft-n-cpu-moe"})
"""Each value adds the first N layers, so the largest N of several counts."""
TWO_WORD_FLAGS = frozenset({"control-vector-layer-range"})
"""The flag takes two arguments."""
SHARED_LISTS = (
    frozenset({"override-tensor", "cpu-moe", "n-cpu-moe", "n-cpu-ffn"}),
    frozenset({"spec-draft-override-tensor", "spec-draft-cpu-moe", "spec-draft-n-cpu-moe"}),
    frozenset({"lora", "lora-scaled"}),
    frozenset({"control-vector", "control-vector-scaled"}),
)
"""Flags that fill one common list, in which order counts: the first pattern that matches a tensor wins, an adapter's
position is its id."""


def canonical_flag(name: str) -> str:
    """The main spelling of a flag in this file; any other name unchanged."""
    return _ALIASES.get(name, name)


def accumulates(name: str) -> bool:
    """Whether a second value of the flag adds to the first instead of replacing it."""
    return canonical_flag(name) in COMMA_LISTS | QUOTED_LISTS | REPEATED_FLAGS


def multi_value_argv(name: str, items: Iterable[str], repeated: frozenset[str] = frozenset()) -> list[str]:
    """The arguments that give ``items`` to the flag ``name``.

    ``repeated`` names flags that this engine wants once for each value, where newer builds take a list.
    """
    rule = canonical_flag(name)
    if rule in REPEATED_FLAGS or rule in repeated:
        return [argument for item in items for argument in (f"--{name}", item)]
    if rule in TWO_WORD_FLAGS:
        return [f"--{name}", *items]
    return [f"--{name}", ",".join(map(_quoted, items) if rule in QUOTED_LISTS else items)]


def split_values(name: str, text: str) -> list[str]:
    """The values in one argument of a flag that accumulates. The inverse of ``multi_value_argv``."""
    rule = canonical_flag(name)
    if rule in QUOTED_LISTS:
        return _quoted_fields(text)
    return text.split(",") if rule in COMMA_LISTS else [text]


def _quoted(item: str) -> str:
    return '"' + item.replace('"', '""') + '"' if "," in item or item.startswith('"') else item


def _quoted_fields(text: str) -> list[str]:
    """As ``parse_csv_row`` of llama.cpp's common/arg.cpp: a quote opens a field only at its beginning."""
    fields, field, quoted, at = [], "", False, 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == '"' and quoted and text[at : at + 1] == '"':
            field += char
            at += 1
        elif char == '"' and quoted:
            quoted = False
        elif char == '"' and not field:
            quoted = True
        elif char == "," and not quoted:
            fields.append(field)
            field = ""
        else:
            field += char
    return [*fields, field]


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
