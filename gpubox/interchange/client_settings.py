"""What a client needs to send its requests here: a file, a command or a program, ready to paste. Pure.

A new client is one writer and one line of CLIENTS.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tomli_w
import yaml

from gpubox.errors import UsageError
from gpubox.interchange.reference_options import reference_options
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.sanitize import sanitize_line

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


def _opencode(target: ClientTarget) -> str:
    """``opencode.json``."""
    models: dict[str, Any] = {}
    for model in target.models:
        values: dict[str, Any] = {"name": model.title}
        if model.context:
            values["limit"] = {"context": model.context, "output": model.output}
        models[model.name] = values
    options = {"baseURL": f"{target.base_url}/v1"} | ({"apiKey": target.key} if target.key else {})
    provider = {"npm": "@ai-sdk/openai-compatible", "name": target.provider, "options": options, "models": models}
    values = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"gpubox": provider},
        "model": f"gpubox/{target.model.name}",
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _aider(target: ClientTarget) -> str:
    """``.aider.conf.yml``."""
    settings = {
        "model": f"openai/{target.model.name}",
        "openai-api-base": f"{target.base_url}/v1",
        "openai-api-key": target.key or _ANY_KEY,
    }
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _continue(target: ClientTarget) -> str:
    """``config.yaml`` of Continue."""
    models = []
    for model in target.models:
        values: dict[str, Any] = {
            "name": model.title,
            "provider": "openai",
            "model": model.name,
            "apiBase": f"{target.base_url}/v1",
            "roles": ["embed"] if model.embeddings else ["chat", "edit", "apply"],
        }
        if target.key:
            values["apiKey"] = target.key
        if model.context and not model.embeddings:
            values["defaultCompletionOptions"] = {"contextLength": model.context, "maxTokens": model.output}
        models.append(values)
    settings = {"name": "gpubox", "version": "1.0.0", "schema": "v1", "models": models}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


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


def _codex(target: ClientTarget) -> str:
    """``config.toml`` of Codex, which speaks only /v1/responses."""
    provider = {"name": target.provider, "base_url": f"{target.base_url}/v1", "wire_api": "responses"}
    provider |= {"experimental_bearer_token": target.key} if target.key else {}
    settings: dict[str, Any] = {"model": target.model.name, "model_provider": "gpubox"}
    settings |= {"model_context_window": target.model.context} if target.model.context else {}
    return tomli_w.dumps({**settings, "model_providers": {"gpubox": provider}})


def _crush(target: ClientTarget) -> str:
    """``crush.json``."""
    models = []
    for model in target.models:
        limits = {"context_window": model.context, "default_max_tokens": model.output} if model.context else {}
        models.append({"id": model.name, "name": model.title, **limits})
    provider = {"name": target.provider, "type": "openai-compat", "base_url": f"{target.base_url}/v1"}
    chosen = {"provider": "gpubox", "model": target.model.name}
    settings = {
        "$schema": "https://charm.land/crush.json",
        "providers": {"gpubox": {**provider, "api_key": target.key or _ANY_KEY, "models": models}},
        "models": {"large": chosen, "small": chosen},
    }
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _zed(target: ClientTarget) -> str:
    """``settings.json`` of Zed, which takes the key from its environment."""
    models = [
        {"name": model.name, "display_name": model.title, "max_tokens": model.context or _ASSUMED_CONTEXT}
        for model in target.models
    ]
    providers = {"openai_compatible": {"gpubox": {"api_url": f"{target.base_url}/v1", "available_models": models}}}
    chosen = {"provider": "gpubox", "model": target.model.name}
    settings = {"language_models": providers, "agent": {"default_model": chosen}}
    variable = f"// In the environment of Zed: GPUBOX_API_KEY={shlex.quote(target.key or _ANY_KEY)}\n"
    return variable + json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _exports(variables: Mapping[str, str]) -> Callable[[ClientTarget], str]:
    """Writes the variables of a client that needs no file, with ``{url}``, ``{model}`` and ``{key}`` filled in."""

    def write(target: ClientTarget) -> str:
        values = {"url": target.base_url, "model": target.model.name, "key": target.key or _ANY_KEY}
        texts = {name: value.format_map(values) for name, value in variables.items()}
        return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in texts.items())

    return write


def _text(value: str) -> str:
    """A string of Python: a JSON string is one."""
    return json.dumps(value)


_HELLO = "Hello"
_MESSAGES = [{"role": "user", "content": _HELLO}]
_ASSUMED_CONTEXT = 32_768
"""For a client that wants to know it and a profile that leaves it to the engine."""
_SHELL = "a shell, or its profile"
_CLAUDE = {
    "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{key}", "ANTHROPIC_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}", "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}  # fmt: skip
_GOOSE = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "{model}", "OPENAI_HOST": "{url}", "OPENAI_API_KEY": "{key}"}
_WEBUI = {"OPENAI_API_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "ENABLE_OLLAMA_API": "false"}
_QWEN = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"}
_OLLAMA = {"OLLAMA_HOST": "{url}", "OLLAMA_API_KEY": "{key}"}
_CLIENTS: dict[str, _Client] = {
    "opencode": _Client("opencode", "opencode.json, or ~/.config/opencode/opencode.json", _opencode),
    "aider": _Client("aider", ".aider.conf.yml in the repository or in ~", _aider),
    "continue": _Client("Continue", "~/.continue/config.yaml", _continue, embeddings=True),
    "cline": _Client("Cline", "the settings of Cline, in its panel", _cline),
    "claude-code": _Client("Claude Code", _SHELL, _exports(_CLAUDE)),
    "codex": _Client("Codex", "~/.codex/config.toml", _codex),
    "crush": _Client("Crush", "crush.json in the repository, or ~/.config/crush/crush.json", _crush),
    "goose": _Client("goose", _SHELL, _exports(_GOOSE)),
    "qwen-code": _Client("Qwen Code", _SHELL, _exports(_QWEN)),
    "zed": _Client("Zed", "~/.config/zed/settings.json", _zed),
    "open-webui": _Client("Open WebUI", "the environment of Open WebUI", _exports(_WEBUI)),
    "ollama": _Client("Ollama's clients", _SHELL, _exports(_OLLAMA)),
    "curl": _Client("curl", "a shell", _curl, embeddings=True),
    "openai": _Client("Python: openai", "a program", _openai, embeddings=True),
    "anthropic": _Client("Python: anthropic", "a program", _anthropic),
}
CLIENTS: Mapping[str, str] = {name: client.title for name, client in _CLIENTS.items()}
"""Name of a client in commands -> its title."""
