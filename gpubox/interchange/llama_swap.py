"""llama-swap's config.yaml: the ``cmd`` of every model, with its macros (config.example.yaml)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpubox.interchange.batch import read_batch
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, ScriptCommand, split_words
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, omitted_leaves, texts_of
from gpubox.profiles.loader import MODEL_NAME
from gpubox.profiles.profile import RequestChanges
from gpubox.storage import read_json

PORT_MACRO = "${PORT}"
"""The macro for the port that llama-swap chooses at each start."""
_MACRO = re.compile(r"\$\{([A-Za-z][\w.-]*)\}")
_MACRO_DEPTH = 16
_READ_KEYS = {"cmd", "macros", "name", "description", "env", "aliases", "ttl", "filters"}
_PROTECTED = ("model", "stream")
_LLAMA_SWAP_ONLY = "llama-swap's own"


def is_llama_swap(value: YamlValue) -> bool:
    """Whether a YAML document is llama-swap's configuration."""
    return isinstance(mapping_of(value).get("models"), dict)


def read_llama_swap(documents: list[YamlValue]) -> Reading:
    """The models of the files, and notes about all other lines.

    Raises UsageError if its macros expand to too much text.
    """
    budget = ExpansionBudget()
    reading = Reading()
    reading.entries = [
        entry for document in documents for entry in _models(mapping_of(document), budget, reading.notes)
    ]
    return reading


def _models(values: dict[str, YamlValue], budget: ExpansionBudget, notes: list[str]) -> list[FileEntry]:
    common = _macros(values.get("macros"))
    used: set[str] = set()
    models: list[FileEntry] = []
    for name, content in mapping_of(values.get("models")).items():
        entry = {"ttl": values.get("globalTTL"), **mapping_of(content)}
        if isinstance(entry.get("cmd"), str):
            models.append(_model(name, entry, common, budget, used))
        else:
            notes += omitted_leaves(content, "it has no cmd", path=f"models.{name}")
    for key, content in values.items():
        if key == "macros":
            notes += [
                omitted(f"macros.{path} {text}", "no cmd uses it")
                for path, text in leaf_texts(content)
                if path.partition(".")[0] not in used
            ]
        elif key not in {"models", "globalTTL"}:
            notes += omitted_leaves(content, _LLAMA_SWAP_ONLY, path=key)
    return models


def _model(
    name: str, entry: Mapping[str, YamlValue], common: Mapping[str, str], budget: ExpansionBudget, used: set[str]
) -> FileEntry:
    own = _macros(entry.get("macros"))
    macros = {"MODEL_ID": name, **common, **own}
    used_here: set[str] = set()
    text = _expand(str(entry["cmd"]), macros, budget, used_here).replace("${env.HOME}/", "~/")
    env = [_expand(line, macros, budget, used_here).partition("=") for line in texts_of(entry.get("env"))]
    unresolved = tuple(dict.fromkeys(match[0] for match in _MACRO.finditer(text)))
    notes = [omitted(f"env {key}", "it has no value") for key, equals, _ in env if not equals]
    filters = mapping_of(_expanded(entry.get("filters"), lambda each: _expand(each, macros, budget, used_here)))
    requests, personas = _request_changes(filters, notes), _personas(filters, notes)
    if filters:
        notes += omitted_leaves(filters, _LLAMA_SWAP_ONLY, path="filters")
    command = ScriptCommand(
        tuple(_words(text)), {key: value for key, equals, value in env if equals}, unresolved, text=text
    )
    notes += [
        omitted(f"macros.{key} {value}", "cmd does not use it") for key, value in own.items() if key not in used_here
    ]
    used |= used_here
    ttl = _text(entry.get("ttl"))
    seconds = float(ttl) if re.fullmatch(r"\d{1,9}", ttl) else 0.0
    if ttl and not seconds:
        notes.append(omitted(f"ttl {ttl}", "it is no number of seconds, or never"))
    for key in entry.keys() - _READ_KEYS:
        notes += omitted_leaves(entry[key], _LLAMA_SWAP_ONLY, path=key)
    changes = {
        "title": _text(entry.get("name")),
        "description": _text(entry.get("description")),
        "aliases": tuple(alias for alias in texts_of(entry.get("aliases")) if alias not in personas),
        "requests": requests,
        "personas": personas,
        "idle_seconds": seconds,
    }
    return FileEntry(command, name, changes, tuple(sorted(notes)), PORT_MACRO)


def _request_changes(filters: dict[str, YamlValue], notes: list[str]) -> RequestChanges:
    """What llama-swap takes out of requests, sets, and (``key?``) sets where they have none."""
    sets = _parameters(filters.pop("setParams", None), "filters.setParams", notes)
    removed = [key.strip() for key in _text(filters.pop("stripParams", None)).split(",")]
    return RequestChanges(
        remove=tuple(key for key in removed if key not in ("", *_PROTECTED)),
        default={key[:-1]: value for key, value in sets.items() if key.endswith("?")},
        set={key: value for key, value in sets.items() if not key.endswith("?")},
    )


def _personas(filters: dict[str, YamlValue], notes: list[str]) -> dict[str, dict[str, Any]]:
    """The names with parameters of their own; of their ``key?`` a persona knows no form."""
    personas: dict[str, dict[str, Any]] = {}
    for name, content in mapping_of(filters.pop("setParamsByID", None)).items():
        path = f"filters.setParamsByID.{name}"
        sets = _parameters(content, path, notes)
        notes += [omitted(f"{path}.{key}", "a persona always sets") for key in sets if key.endswith("?")]
        if MODEL_NAME.fullmatch(name):
            personas[name] = {key: value for key, value in sets.items() if not key.endswith("?")}
        else:
            notes.append(omitted(path, "no client of gpubox can ask for this name"))
    return personas


def _parameters(value: YamlValue, path: str, notes: list[str]) -> dict[str, Any]:
    values = mapping_of(value)
    notes += [omitted(f"{path}.{key}", "it is the client's own") for key in values if key.rstrip("?") in _PROTECTED]
    return {key: _json(item) for key, item in values.items() if key.rstrip("?") not in _PROTECTED and item is not None}


def _json(value: YamlValue) -> Any:
    """``value`` with numbers and booleans as such, which YAML's reader here leaves as texts."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_json(item) for item in value]
    number = re.fullmatch(r"-?\d{1,18}(\.\d+)?(e-?\d{1,2})?|true|false", value or "")
    return read_json(number[0]) if number and not re.match(r"-?0\d", number[0]) else value or ""


def _expanded(value: YamlValue, expand: Callable[[str], str]) -> YamlValue:
    if isinstance(value, dict):
        return {expand(key): _expanded(item, expand) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, expand) for item in value]
    return expand(value) if value else value


def _words(text: str) -> list[str]:
    """The words of ``cmd``, split as in llama-swap: without comment lines, nothing expanded."""
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    text = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    if re.search(r"[A-Za-z]:\\", text):
        return [word for command in read_batch(text).commands for word in command.words]
    return split_words(text)


def _macros(value: YamlValue) -> dict[str, str]:
    return {name: text for name, text in mapping_of(value).items() if isinstance(text, str)}


def _expand(text: str, macros: Mapping[str, str], budget: ExpansionBudget, used: set[str]) -> str:
    for _ in range(_MACRO_DEPTH):
        used |= macros.keys() & set(_MACRO.findall(text))
        expanded = budget.expand(_MACRO, text, lambda macro: macros.get(macro[1]), [])
        if expanded == text:
            break
        text = expanded
    return text


def _text(value: YamlValue) -> str:
    return value.strip() if isinstance(value, str) else ""


FORMAT = Format(
    "llama-swap's config.yaml", lambda documents, path: read_llama_swap(documents), "", is_llama_swap, "yaml"
)
