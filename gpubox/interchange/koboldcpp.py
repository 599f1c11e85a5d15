"""KoboldCpp's command lines and .kcpps files as llama-server's arguments.

Source: the argument parser of koboldcpp.py, release 1.100; what most options become is in ``data/koboldcpp.toml``. A
.kcpps file is the JSON of the same options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpubox.interchange.containers import ServerInvocation
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import join_words, omitted
from gpubox.interchange.script import ScriptCommand, base_name
from gpubox.profiles.argv import argument_text
from gpubox.toml_table import parse_toml

_PROGRAM = re.compile(r"koboldcpp[\w.-]*?(?:\.exe|\.py)?", re.I)
_QUANT_KV = {"0": "f16", "1": "q8_0", "2": "q4_0"}
_PORT = 5001
_TABLES = parse_toml(Path(__file__).with_name("data").joinpath("koboldcpp.toml").read_text(encoding="utf-8"))
_SAME: dict[str, str] = _TABLES["same"]
_SWITCHES: dict[str, list[str]] = _TABLES["switches"]
_OWN_SWITCHES = {"noavx2", "useswa", "failsafe", "quiet", "skiplauncher", "nocertify"}
_LISTS = {"lora", "tensor_split", "ropeconfig", "ssl", "usecublas", "usecuda", "usevulkan", "useclblast", "usehipblas"}
"""Options with several values. All others, besides the switches, have one."""


def find_koboldcpp(command: ScriptCommand) -> ServerInvocation | None:
    """The server that a KoboldCpp command starts, with llama-server's flags; ``None`` for other commands."""
    words = command.words
    start = next((at for at, word in enumerate(words) if _is_program(word)), None)
    if start is None:
        return None
    before = [word for word in words[:start] if not re.fullmatch(r"python[\d.]*(?:\.exe)?|exec|nohup|start", word)]
    notes = [omitted(join_words(before), "it comes before the server")] if before else []
    options, positional = _options(words[start + 1 :])
    if positional:
        options = {"model_param": positional[0], **options}
        if len(positional) > 1:
            options["port_param"] = positional[1]
        notes += [omitted(word, "no option takes it") for word in positional[2:]]
    return _invocation(command, options, notes)


def is_kcpps(values: object) -> bool:
    """Whether a JSON object is a .kcpps file."""
    return isinstance(values, dict) and ("model_param" in values or {"contextsize", "gpulayers"} <= values.keys())


def _is_program(word: str) -> bool:
    return bool(_PROGRAM.fullmatch(base_name(word))) and not re.search(r"\.(?:sh|bat|kcpps|gguf)$", word)


def _options(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Option -> value (``True`` for a switch, a list for several values), and the positional arguments."""
    options: dict[str, Any] = {}
    positional: list[str] = []
    at = 0
    while at < len(words):
        word, joined, value = words[at].partition("=")
        at += 1
        if not word.startswith("--"):
            positional.append(words[at - 1])
            continue
        name = word[2:].replace("-", "_")
        values = [value] if joined else []
        max_values = 9 if name in _LISTS else 0 if name in _SWITCHES or name in _OWN_SWITCHES else 1
        while at < len(words) and not words[at].startswith("--") and len(values) < max_values:
            values.append(words[at])
            at += 1
        options[name] = (values if name in _LISTS else values[0]) if values else True
    return options, positional


def _invocation(command: ScriptCommand, options: dict[str, Any], notes: list[str]) -> ServerInvocation:
    args: list[str] = []
    for name, value in options.items():
        if value in (None, False, "", [], 0) and not (name in {"gpulayers", "quantkv"} and value in (0, "0")):
            continue  # the launcher writes unused options, too, with empty values
        translated = _translated(name, value)
        if translated is None:
            typed = [
                f"--{name}",
                *map(argument_text, value if isinstance(value, list) else [] if value is True else [value]),
            ]
            notes.append(omitted(join_words(typed), "KoboldCpp's own"))
        else:
            args += translated
    if "--port" not in args:
        args += ["--port", str(_PORT)]
        notes.append(f"Port {_PORT} is KoboldCpp's default.")
    if "--host" not in args:
        notes.append("KoboldCpp listens on every address of the machine; the profile listens on 127.0.0.1 only.")
    return ServerInvocation(command, tuple(args), tuple(notes))


def _translated(name: str, value: Any) -> list[str] | None:
    """llama-server's arguments for one option; ``None`` if it has none."""
    match name, value:
        case "quantkv", _ if kind := _QUANT_KV.get(argument_text(value)):
            return ["--cache-type-k", kind, "--cache-type-v", kind]
        case "tensor_split", list():
            return ["--tensor-split", ",".join(map(argument_text, value))]
        case "lora", str():
            return ["--lora", value]
        case "lora", [_, *_]:
            return [word for path in value for word in ("--lora", argument_text(path))]
        case "ropeconfig", [scale, *base]:
            scaled = argument_text(scale) not in {"0", "0.0"}
            args = ["--rope-freq-scale", argument_text(scale)] if scaled else []
            return args + (["--rope-freq-base", argument_text(base[0])] if base else []) or None
        case "ssl", [certificate, key]:
            return ["--ssl-cert-file", argument_text(certificate), "--ssl-key-file", argument_text(key)]
        case _, True:
            return _SWITCHES.get(name)
        case _, str() | int() | float() if name in _SAME:
            return [_SAME[name], argument_text(value)]
    return None


def _read(documents: list[dict[str, Any]], path: str = "") -> Reading:
    return Reading(entries=[FileEntry(_invocation(ScriptCommand((), {}), values, [])) for values in documents])


FORMAT = Format(".kcpps", _read, "", is_kcpps, "json", program=find_koboldcpp)
