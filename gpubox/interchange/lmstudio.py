"""LM Studio's presets and model settings (JSON) as llama-server's arguments.

Both are lists of ``{"key": "llm.load.contextLength", "value": 32768}`` under ``load`` and ``operation``; a value may be
``{"checked": true, "value": ...}``. What each key becomes is in ``data/lmstudio.toml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.profile_draft import ForeignSettings
from gpubox.profiles.argv import argument_text
from gpubox.toml_table import parse_toml

_TABLES = parse_toml(Path(__file__).with_name("data").joinpath("lmstudio.toml").read_text(encoding="utf-8"))
_SAME: dict[str, str] = _TABLES["same"]
_SWITCHES: dict[str, list[str]] = _TABLES["switches"]
_OFFLOAD = "llm.load.llama.acceleration.offloadRatio"
_MODEL_OF_CONFIG = re.compile(r"user-concrete-model-default-config/([^/]+/[^/]+/[^/]+\.gguf)\.json$")


def is_lmstudio(values: object) -> bool:
    """Whether a JSON object is an LM Studio preset or model settings."""
    return isinstance(values, dict) and any(
        isinstance(values.get(part), dict) and isinstance(values[part].get("fields"), list)
        for part in ("load", "operation", "prediction")
    )


def read_lmstudio(documents: list[dict[str, Any]], path: str = "") -> Reading:
    """The settings as arguments, with notes about settings that llama-server does not have.

    ``path`` is the file's path: LM Studio names the settings of a model after it.
    """
    (values,) = documents
    settings = ForeignSettings()
    if match := _MODEL_OF_CONFIG.search(path.replace("\\", "/")):
        settings.args += ["--model", f"~/.lmstudio/models/{match[1]}"]
        settings.name = match[1]
    for part, content in values.items():
        if isinstance(content, dict) and isinstance(content.get("fields"), list):
            for key, value in _fields(content["fields"], settings.notes):
                _add_setting(settings, key, value)
            for key in content.keys() - {"fields"}:
                settings.notes.append(omitted(f"{part}.{key} {_text(content[key])}", "a setting of LM Studio only"))
        elif part == "name" and isinstance(content, str):
            settings.name = settings.name or content
        elif content not in ("", None):
            settings.notes.append(omitted(f"{part} {_text(content)}", "a setting of LM Studio only"))
    return Reading(entries=[FileEntry(settings, Path(path).stem.removesuffix(".preset"))])


def _fields(fields: list[Any], notes: list[str]) -> Iterator[tuple[str, Any]]:
    for item in fields:
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            notes.append(omitted(_text(item), "a setting of LM Studio only"))
            continue
        key, value = item["key"], item.get("value")
        if isinstance(value, dict) and "checked" in value:
            if not value["checked"]:
                notes.append(omitted(f"{key} {_text(value.get('value'))}", "it is switched off in LM Studio"))
                continue
            value = value.get("value")
        yield key, value


def _add_setting(settings: ForeignSettings, key: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key == "llm.prediction.systemPrompt" and isinstance(value, str):
        settings.system = value
    elif key == "llm.prediction.stopStrings" and isinstance(value, list):
        settings.args += [word for item in value if isinstance(item, str) for word in ("--reverse-prompt", item)]
    elif key == _OFFLOAD and (value in ("max", "off") or (number and (value >= 1 or value == 0))):
        settings.args += ["--n-gpu-layers", "0" if value in ("off", 0) else "all"]
    elif key == "llm.load.numCpuExpertLayersRatio" and value == 1 and number:
        settings.args.append("--cpu-moe")
    elif isinstance(value, bool) and key in _SWITCHES and (words := _SWITCHES[key][not value]):
        settings.args += words.split()
    elif key in _SAME and (number or isinstance(value, str)):
        settings.args += [_SAME[key], _text(value)]
    else:
        reason = (
            "a share of the layers; llama-server needs a number" if key == _OFFLOAD else "a setting of LM Studio only"
        )
        settings.notes.append(omitted(f"{key} {_text(value)}", reason))


def _text(value: Any) -> str:
    return argument_text(value) if isinstance(value, (str, float)) else json.dumps(value, ensure_ascii=False)


FORMAT = Format("LM Studio's JSON", read_lmstudio, "", is_lmstudio, "json")
