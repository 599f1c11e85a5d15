"""Ollama's Modelfile (its docs/modelfile.md) -> llama-server's flags, as far as both know the same thing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpubox.interchange.import_notes import omitted

_INSTRUCTIONS = {
    "FROM",
    "PARAMETER",
    "TEMPLATE",
    "SYSTEM",
    "ADAPTER",
    "LICENSE",
    "MESSAGE",
    "REQUIRES",
    "RENDERER",
    "PARSER",
}
_LINE = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.S)
_SAME = {
    "num_ctx": "--ctx-size", "num_gpu": "--n-gpu-layers", "num_predict": "--n-predict", "num_batch": "--batch-size",
    "num_thread": "--threads", "num_keep": "--keep", "main_gpu": "--main-gpu", "temperature": "--temp",
    "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "typical_p": "--typical-p", "seed": "--seed",
    "repeat_penalty": "--repeat-penalty", "repeat_last_n": "--repeat-last-n",
    "presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty", "mirostat": "--mirostat",
    "mirostat_tau": "--mirostat-ent", "mirostat_eta": "--mirostat-lr", "stop": "--reverse-prompt",
}  # fmt: skip
"""PARAMETER names that are one of llama-server's options with the same value."""
_WHY = {
    "TEMPLATE": "a Go template; llama-server takes the model's own, or --chat-template-file with Jinja",
    "LICENSE": "it changes nothing",
    "MESSAGE": "clients give the messages",
}


@dataclass(slots=True)
class Modelfile:
    """What of a Modelfile a llama-server could be given."""

    args: list[str] = field(default_factory=list)
    system: str = ""
    notes: list[str] = field(default_factory=list)


def looks_like_modelfile(text: str) -> bool:
    """Whether the text's first instruction is FROM, and none of its lines is a Dockerfile's."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not re.match(r"FROM\s+\S", lines[0], re.I):
        return False
    return not re.search(r"^(?:RUN|CMD|ENTRYPOINT|COPY|ADD|ENV|EXPOSE|WORKDIR|ARG|USER|VOLUME)\s", text, re.M)


def read_modelfile(text: str) -> Modelfile:
    """The instructions of ``text`` as arguments; each that llama-server has no option for is named."""
    found = Modelfile()
    for name, value in _instructions(text):
        if name == "FROM":
            _take_model(found, value)
        elif name == "PARAMETER":
            key, _, word = value.partition(" ")
            _take_parameter(found, key.lower(), _unquoted(word.strip()))
        elif name == "SYSTEM" and not found.system:
            found.system = value
        elif name == "ADAPTER":
            found.args += ["--lora", value]
        else:
            found.notes.append(omitted(f"{name} {value}", _WHY.get(name, "Ollama's own")))
    return found


def _take_model(found: Modelfile, value: str) -> None:
    if match := re.match(r"(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+(?::[\w.-]+)?)$", value):
        found.args += ["--hf-repo", match[1]]
    elif value.lower().endswith(".gguf") or "/blobs/sha256-" in value or value.startswith(("/", "./", "~")):
        found.args += ["--model", value]
    else:
        found.notes.append(
            f"FROM {value} is a name of Ollama's: `ollama show {value} --modelfile` says which file it is."
        )


def _take_parameter(found: Modelfile, key: str, value: str) -> None:
    if key in _SAME:
        found.args += [_SAME[key], value]
    elif key == "use_mmap" and value.lower() == "false":
        found.args.append("--no-mmap")
    elif key == "use_mlock" and value.lower() == "true":
        found.args.append("--mlock")
    else:
        found.notes.append(omitted(f"PARAMETER {key} {value}", "llama-server has no such option"))


def _instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with its value; a value in three quotes, or in one pair, may have many lines."""
    found: list[tuple[str, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        match = _LINE.fullmatch(line)
        if not line or line.startswith("#"):
            continue
        if match is None or match[1].upper() not in _INSTRUCTIONS:
            found.append(("line", line))
            continue
        value = match[2].strip()
        head = value if match[1].upper() != "MESSAGE" else value.partition(" ")[2]
        for quote in ('"""', '"'):
            if quote in head and head.count(quote) == 1:
                begun = [value]
                while at < len(lines) and quote not in lines[at]:
                    begun.append(lines[at])
                    at += 1
                if at < len(lines):
                    begun.append(lines[at])
                    at += 1
                value = "\n".join(begun).strip()
                break
        found.append((match[1].upper(), _unquoted(value)))
    return found


def _unquoted(value: str) -> str:
    for quote in ('"""', '"'):
        if value.startswith(quote) and value.endswith(quote) and len(value) >= 2 * len(quote):
            return value[len(quote) : -len(quote)].strip("\n" if quote == '"""' else "")
    return value
