"""Writes a profile for other programs: as a unit, a script or a llama-swap entry, or as the settings of a client."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gpubox.errors import UsageError
from gpubox.interchange.reference_options import reference_options
from gpubox.profiles.argv import SECRET_NAME
from gpubox.profiles.profile import FlagValue, Profile


@dataclass(frozen=True, slots=True)
class _Export:
    profile: Profile
    argv: Sequence[str]
    base_url: str
    context: int | None

    @property
    def model(self) -> str:
        """The model's name for clients. llama-server accepts any name and reports its alias."""
        alias = profile_flag(self.profile, "alias")
        return str(alias).split(",")[0] if isinstance(alias, str) else self.profile.name

    @property
    def output(self) -> int | None:
        """Tokens of one answer: the profile's n-predict, else a quarter of the context."""
        predict = profile_flag(self.profile, "n-predict")
        if isinstance(predict, int) and predict > 0:
            return min(predict, self.context) if self.context else predict
        return self.context // 4 if self.context else None

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in self.profile.env.items() if not SECRET_NAME.search(name)}

    @property
    def title(self) -> str:
        return self.profile.summary.replace("\n", " ")


def export_profile(profile: Profile, kind: str, *, argv: Sequence[str], base_url: str, context: int | None) -> str:
    """The text of one of KINDS, without secrets. ``argv`` is the whole command, with the binary first.

    Raises UsageError for an unknown kind, and for a chat client of an embedding server.
    """
    if kind not in _WRITERS:
        raise UsageError(f"There is no export {kind!r}.", f"There are: {', '.join(KINDS)}.")
    if kind in {"opencode", "aider"} and serves_embeddings(profile):
        raise UsageError(f"{profile.name} serves embeddings, which {kind} does not use.", "Export a chat profile.")
    return _WRITERS[kind](_Export(profile, argv, base_url.rstrip("/").removesuffix("/v1"), context))


def context_per_slot(profile: Profile) -> int | None:
    """The context of one slot by the profile's flags, in tokens; ``None`` if the engine decides."""
    size, slots = profile_flag(profile, "ctx-size"), profile_flag(profile, "parallel")
    if not isinstance(size, int) or size <= 0:
        return None
    if isinstance(slots, int) and slots > 1 and not profile_flag(profile, "kv-unified"):
        return size // slots  # without --kv-unified the slots divide the context
    return size


def profile_flag(profile: Profile, name: str) -> FlagValue | None:
    """The value of a flag under any of its names."""
    canonical = reference_options().canonical(name)
    return next(
        (value for key, value in profile.flags.items() if reference_options().canonical(key) == canonical), None
    )


def serves_embeddings(profile: Profile) -> bool:
    return bool(profile_flag(profile, "embeddings"))


def _systemd(export: _Export) -> str:
    env = "".join(f"Environment={_unit_word(f'{name}={value}', dollars=False)}\n" for name, value in export.env.items())
    command = " \\\n  ".join(" ".join(map(_unit_word, words)) for words in _grouped(export.argv))
    return f"""\
# {export.profile.name}: ~/.config/systemd/user/llama-server.service, then
#   systemctl --user daemon-reload && systemctl --user enable --now llama-server

[Unit]
Description=llama-server: {export.title.replace("%", "%%")}

[Service]
Type=exec
{env}# One line, LLAMA_API_KEY=..., in a file of mode 0600: the key stays out of the process list.
EnvironmentFile=-%h/.config/gpubox/llama-server.env
ExecStart={command}
Restart=on-failure
RestartSec=5
TimeoutStopSec=20
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
UMask=0077

[Install]
WantedBy=default.target
"""


def _sh(export: _Export) -> str:
    env = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in export.env.items())
    command = " \\\n  ".join(" ".join(map(_shell_word, words)) for words in _grouped(export.argv))
    return f"""\
#!/bin/sh
# {export.profile.name}: {export.title}
# llama-server reads its API key from the variable LLAMA_API_KEY.
{env}exec {command} \\
  "$@"
"""


def _llama_swap(export: _Export) -> str:
    argv = list(export.argv)
    if "--port" in argv[:-1]:
        argv[argv.index("--port") + 1] = "${PORT}"  # llama-swap chooses the port
    lines = [" ".join(map(_swap_word, words)) for words in _grouped(argv)]
    command = "\n".join(lines)
    if all(line.isprintable() for line in lines):
        cmd = " |\n" + "".join(f"      {line}\n" for line in lines)
    else:  # a line break in a word would get the block's indentation
        cmd = f" {json.dumps(command)}"
    entry = {"name": export.profile.title, "description": export.profile.description}
    text = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in entry.items() if value)
    if export.env:
        text += "    env:\n" + "".join(f"      - {json.dumps(f'{n}={v}')}\n" for n, v in export.env.items())
    return f"models:\n  {json.dumps(export.profile.name)}:\n{text}    cmd:{cmd.rstrip()}\n"


def _opencode(export: _Export) -> str:
    model: dict[str, Any] = {"name": export.title}
    if export.context:
        model["limit"] = {"context": export.context, "output": export.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "llama-server (gpubox)",
        "options": {"baseURL": f"{export.base_url}/v1", "apiKey": "{env:LLAMA_API_KEY}"},
        "models": {export.model: model},
    }
    values = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"gpubox": provider},
        "model": f"gpubox/{export.model}",
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _aider(export: _Export) -> str:
    """Two YAML documents; the second is the content of another file, in JSON."""
    settings: dict[str, Any] = {"model": f"openai/{export.model}", "openai-api-base": f"{export.base_url}/v1"}
    if export.context:
        settings["model-metadata-file"] = ".aider.model.metadata.json"
    text = (
        "# .aider.conf.yml\n"
        "# aider needs OPENAI_API_KEY in its environment: the server's key, or any word if it has none.\n"
        + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    )
    if not export.context:
        return text
    metadata = {
        "max_input_tokens": export.context,
        "max_output_tokens": export.output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    body = json.dumps({f"openai/{export.model}": metadata}, indent=2, ensure_ascii=False)
    return f"{text}---\n# .aider.model.metadata.json: what follows this line\n{body}\n"


def _continue(export: _Export) -> str:
    model: dict[str, Any] = {
        "name": export.title,
        "provider": "openai",
        "model": export.model,
        "apiBase": f"{export.base_url}/v1",
        "roles": ["embed"] if serves_embeddings(export.profile) else ["chat", "edit", "apply"],
    }
    if not export.profile.loopback:
        model["apiKey"] = "${{ secrets.LLAMA_API_KEY }}"
    if export.context and not serves_embeddings(export.profile):
        model["defaultCompletionOptions"] = {"contextLength": export.context, "maxTokens": export.output}
    values = {"name": "gpubox", "version": "1.0.0", "schema": "v1", "models": [model]}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


_WRITERS: dict[str, Callable[[_Export], str]] = {
    "systemd": _systemd,
    "sh": _sh,
    "llama-swap": _llama_swap,
    "opencode": _opencode,
    "aider": _aider,
    "continue": _continue,
}
CLIENT_KINDS = frozenset({"opencode", "aider", "continue"})
"""Kinds that are settings of a client; the other kinds start the server."""
KINDS = tuple(_WRITERS)
"""The values of ``gpubox export --as``."""


def _grouped(argv: Sequence[str]) -> Iterator[list[str]]:
    """The lines of the command: the binary, then each option with its value."""
    group: list[str] = []
    for at, word in enumerate(argv):
        if at and re.match(r"--[A-Za-z]", word) and group:
            yield group
            group = []
        group.append(word)
    yield group


def _shell_word(word: str) -> str:
    # The shell expands "~/" only without quotes.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and len(word) > 2 else shlex.quote(word)


def _swap_word(word: str) -> str:
    """llama-swap splits words like a shell, but expands only its own macros."""
    if word == "${PORT}":
        return word
    return shlex.quote(f"${{env.HOME}}/{word[2:]}" if word.startswith("~/") else word)


def _unit_word(word: str, *, dollars: bool = True) -> str:
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("\n", "\\n").replace('"', '\\"')
    text = text.replace("$", "$$") if dollars else text
    text = f"%h/{text[2:]}" if text.startswith("~/") else text
    return f'"{text}"' if not word or re.search(r"[\s\"';]", word) else text
