"""Ollama's Modelfile (its docs/modelfile.md) as llama-server's arguments."""

from __future__ import annotations

import re
from pathlib import Path

from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.profile_draft import ForeignSettings

_INSTRUCTIONS = {
    "FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES", "RENDERER", "PARSER",
}  # fmt: skip
_LINE = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.S)
_SAME = {
    "num_ctx": "--ctx-size", "num_gpu": "--n-gpu-layers", "num_predict": "--n-predict", "num_batch": "--batch-size",
    "num_thread": "--threads", "num_keep": "--keep", "main_gpu": "--main-gpu", "temperature": "--temp",
    "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "typical_p": "--typical-p", "seed": "--seed",
    "repeat_penalty": "--repeat-penalty", "repeat_last_n": "--repeat-last-n",
    "presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty", "mirostat": "--mirostat",
    "mirostat_tau": "--mirostat-ent", "mirostat_eta": "--mirostat-lr", "stop": "--reverse-prompt",
}  # fmt: skip
"""Parameters that llama-server has as an option with the same value."""
_REASONS = {
    "TEMPLATE": "a Go template; llama-server uses the model's own, or --chat-template-file with Jinja",
    "LICENSE": "it changes nothing",
    "MESSAGE": "clients give the messages",
}


def looks_like_modelfile(text: str) -> bool:
    """Whether the first instruction is FROM, and the text is not a Dockerfile."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not re.match(r"FROM\s+\S", lines[0], re.I):
        return False
    return not re.search(r"^(?:RUN|CMD|ENTRYPOINT|COPY|ADD|ENV|EXPOSE|WORKDIR|ARG|USER|VOLUME)\s", text, re.M)


def read_modelfile(text: str, path: str = "") -> Reading:
    """The instructions of ``text`` as arguments, with notes about those that llama-server does not have."""
    settings = ForeignSettings()
    for name, value in _instructions(text):
        if name == "FROM":
            _set_model(settings, value)
        elif name == "PARAMETER":
            key, _, word = value.partition(" ")
            _set_parameter(settings, key.lower(), _unquoted(word.strip()))
        elif name == "SYSTEM" and not settings.system:
            settings.system = value
        elif name == "ADAPTER":
            settings.args += ["--lora", value]
        else:
            settings.notes.append(omitted(f"{name} {value}", _REASONS.get(name, "Ollama's own")))
    if not (settings.args or settings.notes or settings.system):
        return Reading()
    stem = Path(path).stem
    return Reading(entries=[FileEntry(settings, "" if stem.lower() == "modelfile" else stem)])


def _set_model(settings: ForeignSettings, value: str) -> None:
    if match := re.match(r"(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+(?::[\w.-]+)?)$", value):
        settings.args += ["--hf-repo", match[1]]
    elif value.lower().endswith(".gguf") or "/blobs/sha256-" in value or value.startswith(("/", "./", "~")):
        settings.args += ["--model", value]
    else:
        settings.notes.append(
            f"FROM {value} is one of Ollama's names: `ollama show {value} --modelfile` prints its file."
        )


def _set_parameter(settings: ForeignSettings, key: str, value: str) -> None:
    if key in _SAME:
        settings.args += [_SAME[key], value]
    elif key == "use_mmap" and value.lower() == "false":
        settings.args.append("--no-mmap")
    elif key == "use_mlock" and value.lower() == "true":
        settings.args.append("--mlock")
    else:
        settings.notes.append(omitted(f"PARAMETER {key} {value}", "llama-server has no such flag"))


def _instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with its value. A quoted value may have many lines."""
    instructions: list[tuple[str, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        match = _LINE.fullmatch(line)
        if not line or line.startswith("#"):
            continue
        if match is None or match[1].upper() not in _INSTRUCTIONS:
            instructions.append(("line", line))
            continue
        value = match[2].strip()
        head = value if match[1].upper() != "MESSAGE" else value.partition(" ")[2]
        for quote in ('"""', '"'):
            if quote in head and head.count(quote) == 1:
                value_lines = [value]
                while at < len(lines) and quote not in lines[at]:
                    value_lines.append(lines[at])
                    at += 1
                if at < len(lines):
                    value_lines.append(lines[at])
                    at += 1
                value = "\n".join(value_lines).strip()
                break
        instructions.append((match[1].upper(), _unquoted(value)))
    return instructions


def _unquoted(value: str) -> str:
    for quote in ('"""', '"'):
        if value.startswith(quote) and value.endswith(quote) and len(value) >= 2 * len(quote):
            return value[len(quote) : -len(quote)].strip("\n" if quote == '"""' else "")
    return value


FORMAT = Format("Modelfile", read_modelfile, r"modelfile.*|.*\.modelfile", looks_like_modelfile)
