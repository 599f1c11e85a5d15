"""Reads the presets of llama.cpp's router (``--models-preset``, its docs/preset.md): ``[*]`` for all, ``[name]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpubox.errors import UsageError
from gpubox.interchange.commandline import flag_words
from gpubox.interchange.recorded import option_of_variable, recorded

_SECTION = re.compile(r"\[([^\]]+)\]")
_ROUTERS_OWN = {"load-on-startup", "stop-timeout", "dedup-cache-models"}


@dataclass(frozen=True, slots=True)
class Preset:
    """One section: the arguments that its keys are, the common ones first."""

    name: str
    args: tuple[str, ...]
    notes: tuple[str, ...]


def read_models_ini(text: str) -> list[Preset]:
    """The presets of the file. Raises UsageError with the line that is none of section, key and comment."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if match := _SECTION.fullmatch(line):
            current = sections.setdefault(match[1].strip(), {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"Line {number} of this models.ini is no section and no key: {line[:60]!r}.")
        if current is not None:  # what stands before the first section is the file's version
            current[_name(key.strip())] = value.strip()
    common = sections.pop("*", {})
    if not sections:
        raise UsageError("This models.ini has no section for a model.", "Each model is a section: [name].")
    return [_preset(name, {**common, **own}) for name, own in sections.items()]


def _name(key: str) -> str:
    """One spelling for ``c``, ``ctx-size`` and ``LLAMA_ARG_CTX_SIZE``, so that a section overrides ``[*]``."""
    option = option_of_variable(key)
    return option.long if option else key.lstrip("-").replace("_", "-")


def _preset(name: str, keys: dict[str, str]) -> Preset:
    args: list[str] = []
    own = sorted(key for key in keys if key in _ROUTERS_OWN)
    for key, value in keys.items():
        if key not in _ROUTERS_OWN:
            args += flag_words(key, value)
    names_a_model = {recorded().canonical(key) for key in keys} & {"model", "hf-repo", "model-url", "docker-repo"}
    if not names_a_model and re.fullmatch(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?", name):
        args = ["--hf-repo", name, *args]  # a section may be called like the repository it loads
    notes = (f"The router's own settings were left out: {', '.join(own)}.",) if own else ()
    return Preset(name, tuple(args), notes)
