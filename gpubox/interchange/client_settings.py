"""What a client needs to send its requests here: a file, a command or a program, ready to paste. Pure.

A new client is a table in data/clients.toml, or one writer and one line of CLIENTS.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w
import yaml

from gpubox.errors import UsageError
from gpubox.interchange.reference_options import reference_options
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.sanitize import sanitize_line
from gpubox.toml_table import parse_toml

KEY_PLACEHOLDER = "YOUR-KEY"
"""Stands where the client's key belongs, if one is needed and none was made just now."""
_ANY_KEY = "none"
"""For clients that insist on a key although none is asked for."""


@dataclass(frozen=True, slots=True)
class ClientModel:
    """One model as settings name it. Token counts are None where the engine decides."""

    name: str
    """What the client sends as ``model``."""
    title: str
    context: int | None = None
    """Tokens of one slot."""
    output: int | None = None
    """Tokens of one answer."""
    embeddings: bool = False


@dataclass(frozen=True, slots=True)
class ClientTarget:
    """Where a client sends its requests."""

    provider: str
    """The name under which the client lists the address."""
    base_url: str
    """Without ``/v1``."""
    models: tuple[ClientModel, ...]
    """The first is the one that the client uses at first."""
    key: str = ""
    """The API key, or the client's notation for where it stands; empty: none is needed."""

    @property
    def model(self) -> ClientModel:
        return self.models[0]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Settings of one client."""

    client: str
    """A key of CLIENTS."""
    title: str
    where: str
    """Where the text belongs."""
    text: str

    @property
    def needs_key(self) -> bool:
        """Whether the owner must still put a key into the text."""
        return KEY_PLACEHOLDER in self.text


@dataclass(frozen=True, slots=True)
class _Client:
    title: str
    where: str
    write: Callable[[ClientTarget], str]
    embeddings: bool = False
    """Whether it can use a model that serves embeddings."""
    files: tuple[str, ...] = ()
    """Where it reads JSON settings, below the folder of configurations."""


def client_snippet(client: str, target: ClientTarget) -> Snippet:
    """The settings of ``client`` for ``target``. Raises UsageError for an unknown client, or one that cannot use it."""
    known = _known(client)
    if target.model.embeddings and not known.embeddings:
        raise UsageError(
            f"{target.model.name} serves embeddings, which {known.title} does not use.", "Choose a chat profile."
        )
    if not known.embeddings:
        target = replace(target, models=tuple(model for model in target.models if not model.embeddings))
    return Snippet(client, known.title, known.where, known.write(target))


def settings_place(client: str) -> str:
    """Where the settings of ``client`` belong. Raises UsageError for an unknown client."""
    return _known(client).where


def settings_files(client: str) -> tuple[str, ...]:
    """The JSON files that gpubox can write for a client, the first that exists, else the last; empty: none."""
    return _known(client).files


def client_name(word: str) -> str:
    """The key of CLIENTS that ``word`` means: its case does not matter, and python is openai's module."""
    return {"python": "openai"}.get(word.lower(), word.lower())


def usable_models(client: str, models: Iterable[ClientModel]) -> tuple[ClientModel, ...]:
    """Those of ``models`` that ``client`` can use. Raises UsageError for an unknown client."""
    known = _known(client)
    return tuple(model for model in models if known.embeddings or not model.embeddings)


def _known(client: str) -> _Client:
    if client not in _CLIENTS:
        raise UsageError(f"gpubox knows no client {client!r}.", f"There are: {', '.join(CLIENTS)}.")
    return _CLIENTS[client]


def client_model(profile: Profile, name: str = "", *, context: int | None) -> ClientModel:
    """The model of a profile for a client's settings. Without ``name`` it has the alias that llama-server reports.

    An answer may have the profile's n-predict tokens, else a quarter of the context.
    """
    alias, predict = profile_flag(profile, "alias"), profile_flag(profile, "n-predict")
    if not name:
        name = alias.split(",")[0] if isinstance(alias, str) else profile.name
        name = profile.model if profile.upstream else name
    output = context // 4 if context else None
    if isinstance(predict, int) and predict > 0:
        output = min(predict, context) if context else predict
    return ClientModel(name, one_line(profile), context, output, serves_embeddings(profile))


def one_line(profile: Profile) -> str:
    # A carriage return ends a line of a unit, a backslash at its end joins the next one to it.
    return sanitize_line(profile.summary).rstrip("\\ ")


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


def _curl(target: ClientTarget) -> str:
    path, body = "chat/completions", {"model": target.model.name, "messages": _MESSAGES}
    if target.model.embeddings:
        path, body = "embeddings", {"model": target.model.name, "input": _HELLO}
    words = [f"curl {shlex.quote(f'{target.base_url}/v1/{path}')}", "-H 'Content-Type: application/json'"]
    if target.key:
        words.append(f"-H {shlex.quote(f'Authorization: Bearer {target.key}')}")
    words.append(f"-d {shlex.quote(json.dumps(body))}")
    return " \\\n  ".join(words) + "\n"


def _openai(target: ClientTarget) -> str:
    head = (
        "# pip install openai\nfrom openai import OpenAI\n\n"
        f"client = OpenAI(base_url={_quoted(f'{target.base_url}/v1')}, api_key={_quoted(target.key or _ANY_KEY)})\n"
    )
    if target.model.embeddings:
        call = f"reply = client.embeddings.create(model={_quoted(target.model.name)}, input={_quoted(_HELLO)})\n"
        return f"{head}{call}print(len(reply.data[0].embedding))\n"
    call = (
        "reply = client.chat.completions.create(\n"
        f"    model={_quoted(target.model.name)},\n    messages={json.dumps(_MESSAGES)},\n)\n"
    )
    return f"{head}{call}print(reply.choices[0].message.content)\n"


def _settings(entry: Mapping[str, Any]) -> Callable[[ClientTarget], str]:
    def write(target: ClientTarget) -> str:
        note = entry.get("note", "").replace("{key}", shlex.quote(target.key or _ANY_KEY))
        return str(note + _FORMS[entry["form"]](filled(entry["settings"], target, target.model)))

    return write


def filled(value: Any, target: ClientTarget, model: ClientModel, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A value of clients.toml with its words, and ``more`` words, replaced; None if it is unknown."""
    if isinstance(value, dict):
        filled_items = {
            key.replace("{each}", one.name): filled(item, target, one, more)
            for key, item in value.items()
            for one in (target.models if "{each}" in key else (model,))
        }
        return {key: item for key, item in filled_items.items() if item not in (None, "", {})}
    if isinstance(value, list):
        return [filled(value[0], target, one, more) for one in target.models]
    if not isinstance(value, str):
        return value
    words = {**_words(target, model), **more}
    return words[value[1:-2]] if value.endswith("?}") else value.format_map({**words, "key": target.key or _ANY_KEY})


def _words(target: ClientTarget, model: ClientModel) -> dict[str, Any]:
    chats = not model.embeddings
    limits = {"context": model.context, "output": model.output} if chats else {"context": None, "output": None}
    roles = ["chat", "edit", "apply"] if chats else ["embed"]
    names = {"provider": target.provider, "url": target.base_url, "model": model.name, "title": model.title}
    assumed = model.context or _ASSUMED_CONTEXT
    assumptions = {"assumed_context": assumed, "assumed_output": model.output or assumed // 4}
    return {**names, **limits, "key": target.key, "roles": roles, **assumptions}


_quoted = json.dumps
"""A string of Python: a JSON string is one."""
_HELLO = "Hello"
_MESSAGES = [{"role": "user", "content": _HELLO}]
_ASSUMED_CONTEXT = 32_768
"""For a client that wants to know it and a profile that leaves it to the engine."""
_FORMS: dict[str, Callable[[Any], str]] = {
    "json": lambda values: json.dumps(values, indent=2, ensure_ascii=False) + "\n",
    "json-list": lambda values: json.dumps([values], indent=2, ensure_ascii=False) + "\n",
    "yaml": lambda values: str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True)),
    "toml": tomli_w.dumps,
    "exports": lambda values: "".join(f"export {name}={shlex.quote(str(text))}\n" for name, text in values.items()),
    "rows": lambda values: "".join(f"{name + ':':<21}{text}\n" for name, text in values.items()),
    "text": str,
}
CLIENT_DATA = parse_toml((Path(__file__).parent / "data" / "clients.toml").read_text(encoding="utf-8"))
_CLIENTS: dict[str, _Client] = {
    name: _Client(entry["title"], entry["where"], _settings(entry), entry.get("embeddings", False),
                  tuple(entry.get("files", ())))
    for name, entry in CLIENT_DATA.items()
} | {
    "curl": _Client("curl", "a shell", _curl, embeddings=True),
    "openai": _Client("Python: openai", "a program", _openai, embeddings=True),
}  # fmt: skip
CLIENTS: Mapping[str, str] = {name: client.title for name, client in _CLIENTS.items()}
"""Name of a client in commands -> its title."""
