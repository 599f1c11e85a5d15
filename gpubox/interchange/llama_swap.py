"""llama-swap's config.yaml: the ``cmd`` of every model, with its macros (config.example.yaml)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpubox.interchange.batch import read_batch
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.profile_draft import typed_value
from gpubox.interchange.script import ExpansionBudget, ScriptCommand, split_words
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, omitted_leaves, texts_of
from gpubox.profiles.profile import SAMPLING_FLAGS

PORT_MACRO = "${PORT}"
"""The macro for the port that llama-swap chooses at each start."""
_MACRO = re.compile(r"\$\{([A-Za-z][\w.-]*)\}")
_MACRO_DEPTH = 16
_READ_KEYS = {"cmd", "macros", "name", "description", "env", "aliases", "ttl", "filters"}
_LLAMA_SWAP_ONLY = "llama-swap's own"


@dataclass(frozen=True, slots=True)
class LlamaSwapModel:
    """One entry of ``models``."""

    name: str
    command: ScriptCommand
    title: str
    description: str
    notes: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    idle_seconds: float = 0.0
    sampling: Mapping[str, float] = field(default_factory=dict)
    template_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)


def is_llama_swap(value: YamlValue) -> bool:
    """Whether a YAML document is llama-swap's configuration."""
    return isinstance(mapping_of(value).get("models"), dict)


def read_llama_swap(value: YamlValue) -> tuple[list[LlamaSwapModel], list[str]]:
    """The models of the file, and notes about all other lines.

    Raises UsageError if its macros expand to too much text.
    """
    budget = ExpansionBudget()
    values = mapping_of(value)
    common = _macros(values.get("macros"))
    used: set[str] = set()
    models: list[LlamaSwapModel] = []
    notes: list[str] = []
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
    return models, notes


def _model(
    name: str, entry: Mapping[str, YamlValue], common: Mapping[str, str], budget: ExpansionBudget, used: set[str]
) -> LlamaSwapModel:
    own = _macros(entry.get("macros"))
    macros = {"MODEL_ID": name, **common, **own}
    used_here: set[str] = set()
    text = _expand(str(entry["cmd"]), macros, budget, used_here).replace("${env.HOME}/", "~/")
    env = [_expand(line, macros, budget, used_here).partition("=") for line in texts_of(entry.get("env"))]
    unresolved = tuple(dict.fromkeys(match[0] for match in _MACRO.finditer(text)))
    command = ScriptCommand(
        tuple(_words(text)), {key: value for key, equals, value in env if equals}, unresolved, text=text
    )
    notes = [omitted(f"env {key}", "it has no value") for key, equals, _ in env if not equals]
    notes += [
        omitted(f"macros.{key} {value}", "cmd does not use it") for key, value in own.items() if key not in used_here
    ]
    used |= used_here
    ttl = _number(entry.get("ttl"))
    if entry.get("ttl") is not None and (ttl is None or ttl < 0):
        notes += omitted_leaves(entry["ttl"], "it is no number of seconds", path="ttl")
    sampling, template_kwargs = _set_params(entry.get("filters"), notes)
    for key in entry.keys() - _READ_KEYS:
        notes += omitted_leaves(entry[key], _LLAMA_SWAP_ONLY, path=key)
    return LlamaSwapModel(
        name, command, _text(entry.get("name")), _text(entry.get("description")), tuple(sorted(notes)),
        tuple(texts_of(entry.get("aliases"))), max(0.0, ttl or 0.0), sampling, template_kwargs,
    )  # fmt: skip


def _set_params(value: YamlValue, notes: list[str]) -> tuple[dict[str, float], dict[str, bool | int | float | str]]:
    """The request parameters that llama-swap sets, as sampling defaults and template kwargs; the rest is noted."""
    filters = mapping_of(value)
    params = mapping_of(filters.get("setParams"))
    sampling = {
        key: number for key, text in params.items() if key in SAMPLING_FLAGS and (number := _number(text)) is not None
    }
    kwargs = mapping_of(params.get("chat_template_kwargs"))
    plain = {key: _plain(text) for key, text in kwargs.items() if isinstance(text, str)}
    rest = {key: text for key, text in params.items() if key not in {*sampling, "chat_template_kwargs"}}
    rest |= {key: text for key, text in kwargs.items() if key not in plain}
    if rest:
        notes += omitted_leaves(rest, "no profile sets it in a request", path="filters.setParams")
    for key in filters.keys() - {"setParams"}:
        notes += omitted_leaves(filters[key], _LLAMA_SWAP_ONLY, path=f"filters.{key}")
    if sampling or plain:
        notes.append("llama-swap forces setParams on each request; in a profile they are defaults.")
    return sampling, plain


def _plain(text: str) -> bool | int | float | str:
    return {"true": True, "false": False}.get(text.lower(), typed_value(text))


def _number(value: YamlValue) -> float | None:
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _words(text: str) -> list[str]:
    """The words of ``cmd``, split as in llama-swap: without comment lines, nothing expanded."""
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    text = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    if re.search(r"[A-Za-z]:\\", text):
        return [word for command in read_batch(text)[0] for word in command.words]
    return split_words(text)


def _macros(value: YamlValue) -> dict[str, str]:
    return {name: text for name, text in mapping_of(value).items() if isinstance(text, str)}


def _expand(text: str, macros: Mapping[str, str], budget: ExpansionBudget, used: set[str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        content = macros.get(match[1])
        if content is None:
            return match[0]
        used.add(match[1])
        budget.spend(len(content))
        return content

    for _ in range(_MACRO_DEPTH):
        expanded = _MACRO.sub(replacement, text)
        if expanded == text:
            break
        text = expanded
    return text


def _text(value: YamlValue) -> str:
    return value.strip() if isinstance(value, str) else ""
