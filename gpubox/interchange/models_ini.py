"""The presets of llama.cpp's router (``--models-preset``, its docs/preset.md): sections ``[*]`` and ``[name]``."""

from __future__ import annotations

import re

from gpubox.errors import UsageError
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.profile_draft import ForeignSettings
from gpubox.interchange.reference_options import flag_arguments, option_for_variable, reference_options

_SECTION = re.compile(r"\[([^\]]+)\]")
_ROUTER_KEYS = {"load-on-startup", "stop-timeout", "dedup-cache-models"}

_Keys = dict[str, tuple[str, str]]
"""Canonical name of an option -> (name as typed, value)."""


def looks_like_models_ini(text: str) -> bool:
    """Whether a section is the first line besides comments and ``version = 1``."""
    for line in map(str.strip, text.splitlines()):
        if line and not re.fullmatch(r"[;#].*|version\s*=.*", line):
            return bool(re.fullmatch(r"\[[\w*][^\]]*\]", line))
    return False


def read_models_ini(text: str) -> Reading:
    """The presets of the file. Raises UsageError for a line that is no section, key or comment."""
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
            raise UsageError(f"Line {number} of this models.ini is neither a section nor a key: {line[:60]!r}.")
        name = _option_name(key.strip())
        canonical = reference_options().canonical(name)
        if current is None:
            before += [omitted(line, "it comes before the first section")] if name != "version" else []
            continue
        if canonical in current and current[canonical][1] != value.strip():
            reason = "the last one of a section counts, as in llama-server"
            dropped.setdefault(section, []).append(omitted(f"{name} = {current[canonical][1]}", reason))
        current[canonical] = (name, value.strip())
    common = sections.pop("*", {})
    if not sections:
        raise UsageError("This models.ini has no section for a model.", "Each model is a section: [name].")
    notes = [*before, *dropped.get("*", [])]
    presets = [_preset(name, {**common, **own}, [*notes, *dropped.get(name, [])]) for name, own in sections.items()]
    return Reading(entries=[FileEntry(preset) for preset in presets])


def _option_name(key: str) -> str:
    """The option of a key such as ``c``, ``ctx-size`` or ``LLAMA_ARG_CTX_SIZE``."""
    option = option_for_variable(key)
    return option.long if option else key.lstrip("-").replace("_", "-")


def _preset(name: str, keys: _Keys, notes: list[str]) -> ForeignSettings:
    router_keys = sorted(key for key in keys if key in _ROUTER_KEYS)
    args = [arg for key, typed in keys.items() if key not in _ROUTER_KEYS for arg in flag_arguments(*typed)]
    if not keys.keys() & {"model", "hf-repo", "model-url", "docker-repo"} and re.fullmatch(
        r"[\w.-]+/[\w.-]+(?::[\w.-]+)?", name
    ):
        args = ["--hf-repo", name, *args]  # the name of a section may be the repository
    notes = [*notes, *(omitted(f"{key} = {keys[key][1]}", "a setting of the router only") for key in router_keys)]
    return ForeignSettings(name, args, notes=notes)


FORMAT = Format("models.ini", lambda text, path: read_models_ini(text), r".*\.ini", looks_like_models_ini)
