"""Accounting for imports: every word of a source is in a profile, in a note, or grammar of its format.

Written apart from gpubox's readers: it takes a source apart at every sign that is no part of a word, and knows
llama-server's own option names, nothing of theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from gpubox.engines.capabilities import parse_help
from gpubox.interchange.profile_draft import ImportedProfile
from gpubox.profiles.writer import profile_toml

IK = parse_help((Path(__file__).parents[1] / "fixtures" / "engines" / "ik_llama-8337e4c.help.txt").read_text())
STOCK = parse_help((Path(__file__).parents[1] / "fixtures" / "llama-server-b11434.help.txt").read_text())
_WORD = re.compile(r"[\w.+-]+")
_COMMENT = re.compile(r"^\s*(?:#(?!\S*\$)|;|rem\b|::|```).*$|\s#\s.*$|^@echo off$", re.M | re.I)
_SAMPLING = {"temp": "temperature", "temperature": "temperature"}
_GRAMMAR = {
    "shell": (
        "docker podman run v p network set exec nohup export if then else fi do done for in home self e llama serve"
    ),
    "ps1": "try catch",
    "service": (
        "unit service install container execstart environment description image exec publishport volume h bash c"
    ),
    "yaml": (
        "services image command environment volumes ports entrypoint restart unless-stopped network_mode expose"
        " spec template containers args env name value kind containerport volumemounts mountpath models-volume"
        " hostpath path targetport nodeport type bind source target models cmd macros aliases server ttl globalttl"
        " filters stripparams setparams docker run p v"
    ),
    "ini": "version 1 model",
    "modelfile": "from parameter system adapter template",
    "json": "preset operation load fields key value checked true false name prediction",
}
_FOREIGN = {
    "contextsize": "ctx-size", "gpulayers": "n-gpu-layers", "quantkv": "cache-type-k", "flashattention": "flash-attn",
    "blasbatchsize": "ubatch-size", "ropeconfig": "rope-freq-base", "usemlock": "load-mode", "model_param": "model",
    "port_param": "port", "num_ctx": "ctx-size", "num_gpu": "n-gpu-layers", "num_batch": "batch-size",
    "num_thread": "threads", "num_predict": "n-predict", "mirostat_tau": "mirostat-ent", "stop": "reverse-prompt",
    "fmoe": "fused-moe",
    "llm.load.contextlength": "ctx-size", "llm.load.offloadkvcachetogpu": "kv-offload",
    "llm.load.llama.autofit": "fit", "llm.load.llama.acceleration.offloadratio": "n-gpu-layers",
    "llm.load.numparallelsessions": "parallel", "llm.load.llama.kcachequantizationtype": "cache-type-k",
    "llm.load.llama.vcachequantizationtype": "cache-type-v", "llm.load.llama.cputhreadpoolsize": "threads",
    "llm.load.llama.flashattention": "flash-attn", "llm.load.llama.trymmap": "load-mode",
    "llm.prediction.temperature": "temperature", "llm.prediction.topksampling": "top_k",
    "llm.prediction.toppsampling": "top_p", "llm.prediction.repeatpenalty": "repeat_penalty",
    "llm.prediction.reasoning.enablethinking": "enable_thinking", "llm.prediction.systemprompt": "system",
    "llm.prediction.maxtokens": "n-predict",
}  # fmt: skip
"""Other programs' names for llama-server's options, from their documentation."""
_VALUES = {("quantkv", "1"): "q8_0", ("quantkv", "2"): "q4_0"}


def words(text: str) -> list[str]:
    stripped = (word.strip(".+-").lower() for word in _WORD.findall(text))
    return [word for word in stripped if word]


def lost_words(text: str, suffix: str, imported: Iterable[ImportedProfile], secrets: Iterable[str] = ()) -> list[str]:
    """The words of ``text`` that are in no profile and in no note, and are no grammar."""
    kept = "\n".join(_kept_text(profile) for profile in imported)
    there = set(words(kept.replace("\\n", " ").replace("\\\\", "\\")))
    there |= {part for word in there for part in word.split(".")}  # "deploy.resources.limits" names three keys
    options = {STOCK.canonical(word).removeprefix("no-") for word in there}
    numbers = {float(word) for word in there if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", word)}
    family = "service" if "[Service]" in text else _family(suffix)
    grammar = set(_GRAMMAR.get(family, "").split()) | {word.lower() for word in secrets}
    text = _source(text, suffix)
    grammar |= _variables(text)
    lost = []
    for word in words(text):
        name = STOCK.canonical(word.removeprefix("llama_arg_").removeprefix("no-")).removeprefix("no-")
        by_variable = next((o.long for o in STOCK.options if (o.env or "").lower() == word), None)
        known = (
            word in there
            or (not word[0].isdigit() and all(part in there for part in word.split(".")))
            or word in grammar
            or name in options
            or IK.canonical(word) in there
            or name.removeprefix("chat-") in there
            or by_variable in options
            or by_variable in {"model", "port", "host"}
            or _SAMPLING.get(name) in there
            or name.replace("-", "_") in there
            or _FOREIGN.get(word) in there
            or (re.fullmatch(r"\d*\.?\d+", word) is not None and float(word) in numbers)
            or re.fullmatch(r"(?:llama-)?server(?:\.exe)?|koboldcpp(?:\.exe)?|hf-repo|hf", word) is not None
            or any((option, word) in _VALUES for option in _FOREIGN)
        )
        if not known:
            lost.append(word)
    return lost


def _kept_text(imported: ImportedProfile) -> str:
    profile = imported.profile  # the file omits defaults
    address = f"host {profile.host} port {profile.port}\n"
    return address + profile_toml(profile, profile.name) + "\n".join(imported.notes)


def _family(suffix: str) -> str:
    if suffix in {".yml", ".yaml"}:
        return "yaml"
    if suffix in {".json", ".kcpps"}:
        return "json"
    return {".sh": "shell", ".txt": "shell", ".bat": "shell", ".container": "service"}.get(suffix, suffix[1:].lower())


def _source(text: str, suffix: str) -> str:
    if suffix == ".kcpps":  # its launcher writes unused settings, too, with empty values
        values = {k: v for k, v in json.loads(text).items() if v not in (None, False, "", [])}
        return json.dumps(values)
    if suffix in {".yml", ".yaml"}:
        text = re.sub(r"[&*]\w+|^x-\w+", "", text, flags=re.M)  # names of anchors
    return text if suffix == ".json" else _COMMENT.sub("", text)


def _variables(text: str) -> set[str]:
    """Variables that the text sets and uses itself."""
    given = re.findall(r"(?:^|[\s(\]])(?:set\s+|export\s+)?\$?(\w+)\s*\+?=", text, re.I)
    used = re.findall(r"[$%]\{?(\w+)", text)
    return {name.lower() for name in given if name in used} | {n.lower() for n in re.findall(r"\$\{(\w+):[-=]", text)}
