"""What a client needs to send its requests to the gateway: a file, a command or a program, ready to paste. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox.errors import UsageError
from gpubox.gateway.status import GatewayStatus, ProfileStatus
from gpubox.interchange.client_settings import (
    ClientModel,
    ClientTarget,
    aider_settings,
    continue_settings,
    opencode_settings,
)
from gpubox.interchange.exporting import client_model, context_per_slot
from gpubox.profiles.profile import Profile

KEY_PLACEHOLDER = "YOUR-KEY"
"""Stands where the client's key belongs, if the gateway asks for keys and none was made just now."""
PROVIDER = "gpubox"
_ANY_KEY = "none"
"""For clients that insist on a key although the gateway asks for none."""
_LOADED = ("up", "starting")


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


def gateway_snippet(
    client: str, models: Sequence[ClientModel], base_url: str, status: GatewayStatus | None, key: str
) -> Snippet:
    """The settings of ``client`` for the gateway at ``base_url``; ``models`` as ``choose_model`` orders them.

    Without a ``key`` a placeholder stands in its place where one is needed. Raises UsageError as ``client_snippet``.
    """
    key = key or (KEY_PLACEHOLDER if status and status.has_keys else "")
    return client_snippet(client, ClientTarget(PROVIDER, base_url, offered_models(models, models[0].name, status), key))


def settings_place(client: str) -> str:
    """Where the settings of ``client`` belong. Raises UsageError for an unknown client."""
    return _known(client).where


def client_name(word: str) -> str:
    """The key of CLIENTS that ``word`` means: its case does not matter, and python is openai's module."""
    return {"python": "openai"}.get(word.lower(), word.lower())


def _known(client: str) -> _Client:
    if client not in _CLIENTS:
        raise UsageError(f"gpubox knows no client {client!r}.", f"There are: {', '.join(CLIENTS)}.")
    return _CLIENTS[client]


def client_models(
    client: str, status: GatewayStatus | None, profiles: Mapping[str, Profile]
) -> tuple[ClientModel, ...]:
    """The models of ``gateway_models`` that ``client`` can use. Raises UsageError for an unknown client."""
    uses_all = _known(client).embeddings
    return tuple(model for model in gateway_models(status, profiles) if uses_all or not model.embeddings)


def gateway_models(status: GatewayStatus | None, profiles: Mapping[str, Profile]) -> tuple[ClientModel, ...]:
    """The models that a client can name: the loaded profiles, then the owner's, then the shipped ones; aliases last.

    Without ``status`` all profiles, as the gateway will have them.
    """
    listed = status.profiles if status else tuple(ProfileStatus(name, "down") for name in profiles)
    names = [(profile.name, profile.aliases) for profile in listed]
    loaded = {profile.name for profile in listed if profile.state in _LOADED}
    rank = {name: (name not in loaded, name in profiles and profiles[name].shipped) for name, _ in names}
    ordered = sorted(names, key=lambda entry: rank[entry[0]])
    models = [_model(name, profiles.get(name)) for name, _ in ordered]
    models += [
        _model(alias, profiles.get(name), f"{name}, as {alias}") for name, aliases in ordered for alias in aliases
    ]
    return tuple(models)


def choose_model(models: Sequence[ClientModel], name: str | None) -> tuple[ClientModel, ...]:
    """``models`` with the one called ``name`` in front. Raises UsageError if there is none."""
    if not models:
        raise UsageError("There is no profile that a client could use.", "`gpubox new` makes one.")
    if name is None:
        return tuple(models)
    first = [model for model in models if model.name == name]
    if not first:
        from gpubox.toml_table import closest_match

        near = closest_match(name, [model.name for model in models])
        raise UsageError(f"The gateway has no model {name!r}.", f"Did you mean {near}?" if near else "")
    return (*first[:1], *(model for model in models if model.name != name))


def offered_models(models: Iterable[ClientModel], chosen: str, status: GatewayStatus | None) -> tuple[ClientModel, ...]:
    """The models that settings with a list of models get: the chosen one, and others that answer without a download."""
    loaded = {p.name for p in status.profiles if p.state in (*_LOADED, "upstream")} if status else set()
    return tuple(model for model in models if model.name == chosen or model.name in loaded)


def _model(name: str, profile: Profile | None, title: str = "") -> ClientModel:
    if profile is None:
        return ClientModel(name, title or name)
    model = client_model(profile, name, context=context_per_slot(profile))
    return replace(model, title=title or model.title or name)


# -- one writer for each client --------------------------------------------------------------------------


def _aider(target: ClientTarget) -> str:
    return aider_settings(replace(target, key=target.key or _ANY_KEY))


def _cline(target: ClientTarget) -> str:
    rows = [
        ("API Provider", "OpenAI Compatible"),
        ("Base URL", f"{target.base_url}/v1"),
        ("API Key", target.key or _ANY_KEY),
        ("Model ID", target.model.name),
    ]
    if target.model.context:
        rows.append(("Context Window Size", str(target.model.context)))
    return "".join(f"{name + ':':<21}{value}\n" for name, value in rows)


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
        f"client = OpenAI(base_url={_text(f'{target.base_url}/v1')}, api_key={_text(target.key or _ANY_KEY)})\n"
    )
    if target.model.embeddings:
        call = f"reply = client.embeddings.create(model={_text(target.model.name)}, input={_text(_HELLO)})\n"
        return f"{head}{call}print(len(reply.data[0].embedding))\n"
    call = (
        "reply = client.chat.completions.create(\n"
        f"    model={_text(target.model.name)},\n    messages={json.dumps(_MESSAGES)},\n)\n"
    )
    return f"{head}{call}print(reply.choices[0].message.content)\n"


def _anthropic(target: ClientTarget) -> str:
    return (
        "# pip install anthropic\nfrom anthropic import Anthropic\n\n"
        f"client = Anthropic(base_url={_text(target.base_url)}, api_key={_text(target.key or _ANY_KEY)})\n"
        "reply = client.messages.create(\n"
        f"    model={_text(target.model.name)},\n    max_tokens=512,\n    messages={json.dumps(_MESSAGES)},\n)\n"
        'print("".join(block.text for block in reply.content if block.type == "text"))\n'
    )


def _text(value: str) -> str:
    """A string of Python: a JSON string is one."""
    return json.dumps(value)


_HELLO = "Hello"
_MESSAGES = [{"role": "user", "content": _HELLO}]
_CLIENTS: dict[str, _Client] = {
    "opencode": _Client("opencode", "opencode.json, or ~/.config/opencode/opencode.json", opencode_settings),
    "aider": _Client("aider", ".aider.conf.yml in the repository or in ~", _aider),
    "continue": _Client("Continue", "~/.continue/config.yaml", continue_settings, embeddings=True),
    "cline": _Client("Cline", "the settings of Cline, in its panel", _cline),
    "curl": _Client("curl", "a shell", _curl, embeddings=True),
    "openai": _Client("Python: openai", "a program", _openai, embeddings=True),
    "anthropic": _Client("Python: anthropic", "a program", _anthropic),
}
CLIENTS: Mapping[str, str] = {name: client.title for name, client in _CLIENTS.items()}
"""Name of a client in commands -> its title."""
