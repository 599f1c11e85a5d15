"""Reads the presets of llama.cpp's router (``--models-preset``, its docs/preset.md): ``[*]`` for all, ``[name]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpubox.errors import UsageError
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.reference_options import flag_arguments, option_for_variable, reference_options

_SECTION = re.compile(r"\[([^\]]+)\]")
_ROUTERS_OWN = {"load-on-startup", "stop-timeout", "dedup-cache-models"}

_Keys = dict[str, tuple[str, str]]
"""The option's one spelling, so that a section overrides ``[*]`` -> its name as typed, its value."""


@dataclass(frozen=True, slots=True)
class RouterPreset:
    """One section: the arguments that its keys are, the common ones first."""

    name: str
    args: tuple[str, ...]
    notes: tuple[str, ...]


def read_models_ini(text: str) -> list[RouterPreset]:
    """The presets of the file. Raises UsageError with the line that is none of section, key and comment."""
    sections: dict[str, _Keys] = {}
    dropped: dict[str, list[str]] = {}
    before: list[str] = []
    current: _Keys | None = None
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if match := _SECTION.fullmatch(line):
            section = match[1].strip()
            current = sections.setdefault(section, {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"Line {number} of this models.ini is no section and no key: {line[:60]!r}.")
        name = _name(key.strip())
        canonical = reference_options().canonical(name)
        if current is None:
            before += [omitted(line, "it stands before the first section")] if name != "version" else []
            continue
        if canonical in current and current[canonical][1] != value.strip():
            old = omitted(f"{name} = {current[canonical][1]}", "the last one of a section counts, as in llama-server")
            dropped.setdefault(section, []).append(old)
        current[canonical] = (name, value.strip())
    common = sections.pop("*", {})
    if not sections:
        raise UsageError("This models.ini has no section for a model.", "Each model is a section: [name].")
    notes = [*before, *dropped.get("*", [])]
    return [_preset(name, {**common, **own}, [*notes, *dropped.get(name, [])]) for name, own in sections.items()]


def _name(key: str) -> str:
    """The option that a key means: ``c``, ``ctx-size`` or ``LLAMA_ARG_CTX_SIZE``."""
    option = option_for_variable(key)
    return option.long if option else key.lstrip("-").replace("_", "-")


def _preset(name: str, keys: _Keys, notes: list[str]) -> RouterPreset:
    args: list[str] = []
    own = sorted(key for key in keys if key in _ROUTERS_OWN)
    for key, (typed, value) in keys.items():
        if key not in _ROUTERS_OWN:
            args += flag_arguments(typed, value)
    if not keys.keys() & {"model", "hf-repo", "model-url", "docker-repo"} and re.fullmatch(
        r"[\w.-]+/[\w.-]+(?::[\w.-]+)?", name
    ):
        args = ["--hf-repo", name, *args]  # a section may be called like the repository it loads
    notes = [*notes, *(omitted(f"{key} = {keys[key][1]}", "the router's own") for key in own)]
    return RouterPreset(name, tuple(args), tuple(notes))
