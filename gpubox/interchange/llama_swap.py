"""Reads llama-swap's config.yaml: every model's ``cmd`` with its macros (its config.example.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpubox.errors import UsageError
from gpubox.interchange.batch import read_batch
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, ScriptCommand, split_words
from gpubox.interchange.yaml_text import YamlValue, leaf_texts, mapping_of, texts_of

PORT_MACRO = "${PORT}"
"""The port that llama-swap chooses at each start."""
_MACRO = re.compile(r"\$\{([A-Za-z][\w.-]*)\}")
_MACRO_DEPTH = 16
_READ = {"cmd", "macros", "name", "description", "env", "aliases"}
_OWN = "llama-swap's own"


@dataclass(frozen=True, slots=True)
class LlamaSwapModel:
    """One entry of ``models``."""

    name: str
    command: ScriptCommand
    title: str
    description: str
    notes: tuple[str, ...]


def is_llama_swap(value: YamlValue) -> bool:
    """Whether a YAML document is llama-swap's configuration."""
    return isinstance(mapping_of(value).get("models"), dict)


def read_llama_swap(value: YamlValue) -> tuple[list[LlamaSwapModel], list[str]]:
    """The models of the file, and a note for each line of it that belongs to none of them.

    Raises UsageError where its macros grow without measure.
    """
    budget = ExpansionBudget()
    values = mapping_of(value)
    common = _macros(values.get("macros"))
    used: set[str] = set()
    models: list[LlamaSwapModel] = []
    left: list[str] = []
    for name, content in mapping_of(values.get("models")).items():
        entry = mapping_of(content)
        if isinstance(entry.get("cmd"), str):
            models.append(_model(name, entry, common, budget, used))
        else:
            left += [omitted(f"models.{path} {text}", "it has no cmd") for path, text in leaf_texts(content, name)]
    for key, content in values.items():
        if key == "macros":
            left += [
                omitted(f"macros.{path} {text}", "no cmd uses it")
                for path, text in leaf_texts(content)
                if path.partition(".")[0] not in used
            ]
        elif key != "models":
            left += [omitted(f"{path} {text}", _OWN) for path, text in leaf_texts(content, key)]
    return models, left


def unknown_yaml_error(value: YamlValue) -> UsageError:
    """What to say of a YAML file that is none of those gpubox reads."""
    keys = ", ".join(list(mapping_of(value))[:6])
    return UsageError(
        "There are no models, services or manifests in this YAML" + (f" (it has {keys})." if keys else "."),
        "gpubox reads llama-swap's config.yaml (`models`), compose files and Kubernetes manifests.",
    )


def _model(
    name: str, entry: Mapping[str, YamlValue], common: Mapping[str, str], budget: ExpansionBudget, used: set[str]
) -> LlamaSwapModel:
    own = _macros(entry.get("macros"))
    macros = {"MODEL_ID": name, **common, **own}
    mine: set[str] = set()
    text = _expand(str(entry["cmd"]), macros, budget, mine).replace("${env.HOME}/", "~/")
    env = [_expand(line, macros, budget, mine).partition("=") for line in texts_of(entry.get("env"))]
    unresolved = tuple(dict.fromkeys(match[0] for match in _MACRO.finditer(text)))
    command = ScriptCommand(
        tuple(_words(text)), {key: value for key, equals, value in env if equals}, unresolved, text=text
    )
    notes = [omitted(f"env {key}", "it has no value") for key, equals, _ in env if not equals]
    notes += [
        omitted(f"macros.{key} {value}", "its cmd does not use it") for key, value in own.items() if key not in mine
    ]
    used |= mine
    if aliases := texts_of(entry.get("aliases")):
        notes.append(f"llama-swap also calls it {', '.join(aliases)}.")
    for key in entry.keys() - _READ:
        notes += [omitted(f"{path} {text}", _OWN) for path, text in leaf_texts(entry[key], key)]
    return LlamaSwapModel(
        name, command, _text(entry.get("name")), _text(entry.get("description")), tuple(sorted(notes))
    )


def _words(text: str) -> list[str]:
    """``cmd`` as llama-swap splits it: comment lines dropped, quotes respected, nothing expanded."""
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    text = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    if re.search(r"[A-Za-z]:\\", text):
        return [word for command in read_batch(text) for word in command.words]
    return split_words(text)


def _macros(value: YamlValue) -> dict[str, str]:
    return {name: text for name, text in mapping_of(value).items() if isinstance(text, str)}


def _expand(text: str, macros: Mapping[str, str], budget: ExpansionBudget, used: set[str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = macros.get(match[1])
        if found is None:
            return match[0]
        used.add(match[1])
        budget.spend(len(found))
        return found

    for _ in range(_MACRO_DEPTH):
        expanded = _MACRO.sub(value, text)
        if expanded == text:
            break
        text = expanded
    return text


def _text(value: YamlValue) -> str:
    return value.strip() if isinstance(value, str) else ""
