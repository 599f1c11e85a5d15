"""The Profile and its parts: frozen values, no I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.toml_table import toml_key

FlagValue = bool | int | float | str | tuple[str | int | float, ...]
"""True is the bare option, False its ``--no-`` form, a tuple several values (see multi_value_flags.py)."""

TOP_LEVEL_FLAGS = {
    "model": "model",
    "m": "model",
    "hf-repo": 'model = "hf:user/repo[:quant]"',
    "hf": 'model = "hf:user/repo[:quant]"',
    "host": "host",
    "port": "port",
}
"""llama-server options that a profile has outside ``[flags]`` -> how they are written there."""
SECRET_FLAGS = {"api-key": "LLAMA_API_KEY", "hf-token": "HF_TOKEN", "hft": "HF_TOKEN"}
"""Options that no profile may hold -> the environment variable that replaces them."""
SAMPLING_FLAGS = {
    "temperature": "temp",
    "top_p": "top-p",
    "top_k": "top-k",
    "min_p": "min-p",
    "typical_p": "typical-p",
    "presence_penalty": "presence-penalty",
    "frequency_penalty": "frequency-penalty",
    "repeat_penalty": "repeat-penalty",
    "seed": "seed",
}
"""``[sampling]`` keys (the API's names) -> llama-server's option for the same default."""
_FLAG_SCALAR = {"type": ["string", "number"]}
_FLAG_SCHEMA = {
    "additionalProperties": {"type": ["boolean", "string", "number", "array"], "items": _FLAG_SCALAR, "minItems": 1},
    "propertyNames": {"pattern": "^[^-]", "not": {"enum": [*TOP_LEVEL_FLAGS, *SECRET_FLAGS, "api-key-file"]}},
}


@dataclass(frozen=True, slots=True)
class ChatDefaults:
    """Defaults of the chat screen for this profile."""

    system: str = toml_key("text", "The system prompt.", "")
    template_kwargs: Mapping[str, bool | int | float | str] = toml_key(
        "map", "chat_template_kwargs of each request, such as enable_thinking.", dict
    )


@dataclass(frozen=True, slots=True)
class RequestChanges:
    """What the gateway changes in a request for the profile. Parameters have the API's names."""

    remove: tuple[str, ...] = toml_key("list", "Parameters that are taken out.", tuple, items="text")
    default: Mapping[str, Any] = toml_key("map", "Parameters for requests that do not have them.", dict)
    set: Mapping[str, Any] = toml_key("map", "Parameters for all requests, whatever they have.", dict)


@dataclass(frozen=True, slots=True)
class HardwareNeeds:
    """What the machine must have for the reference figures to hold. None: not stated."""

    vram_gib: float | None = toml_key("number", "VRAM in GiB.", None)
    ram_gib: float | None = toml_key("number", "RAM in GiB.", None)
    engine: str = toml_key("text", "A description of the engine, such as: a TurboQuant fork of llama.cpp.", "")


@dataclass(frozen=True, slots=True)
class ReferenceFigure:
    """One published figure for this configuration, to compare with the owner's own."""

    what: str = toml_key("text", "What was measured.")
    value: float = toml_key("number", "The measured value.")
    unit: str = toml_key("text", "Its unit.", "")
    hardware: str = toml_key("text", "The machine it was measured on.", "")
    article: str = toml_key("text", "Where it was published.", "")
    note: str = toml_key("text", "How it was measured.", "")


@dataclass(frozen=True, slots=True)
class Profile:
    """One llama-server launch and its sampling defaults. Not a running server."""

    name: str
    model: str = toml_key("text", 'Write a path, "hf:user/repo:quant" or "demo:NAME".', "")
    title: str = toml_key("text", "The profile's name in lists.", "")
    description: str = toml_key("text", "What the profile is for.", "")
    engine: str = toml_key("text", "The name of an engine; the default engine if empty.", "")
    host: str = toml_key("text", "The address to listen on. 0.0.0.0: every address of this machine.", "127.0.0.1")
    port: int = toml_key(
        "integer", "The port to listen on. 0: any free port, chosen at each start.", 8080, between=(0, 65535)
    )
    companion: bool = toml_key(
        "boolean", "Run beside the active profile, in an instance of its own, instead of replacing it.", False
    )
    restart: bool = toml_key("boolean", "Start the server again when it dies, at most 3 times in 15 minutes.", False)
    aliases: tuple[str, ...] = toml_key(
        "list", "More names under which the gateway's clients may ask for the profile.", tuple, items="text"
    )
    idle_seconds: float = toml_key(
        "number", "The gateway stops the server after so long without a request. 0: never.", 0.0, least=0
    )
    pinned: bool = toml_key("boolean", "The gateway never stops the server to make room for another profile.", False)
    upstream: str = toml_key(
        "text",
        "The address of a server that gpubox does not start (another gpubox, Ollama, vLLM, LM Studio): the gateway "
        "passes requests on to it. `model` is its name there; default: the profile's name.",
        "",
    )
    fallback: str = toml_key("text", "The profile that answers the gateway's clients when this one does not load.", "")
    requests: RequestChanges = toml_key(  # noqa: RUF009 - it returns a field
        "table", "What the gateway changes in requests.", RequestChanges, table=RequestChanges
    )
    personas: Mapping[str, Mapping[str, Any]] = toml_key(
        "map", "More names for clients to ask for, each with the parameters that it sets.", dict, items="map"
    )
    env: Mapping[str, str] = toml_key("map", "Environment variables of the server.", dict, items="text")
    flags: Mapping[str, FlagValue] = toml_key(
        "map",
        "llama-server's options without leading dashes. true: bare, false: the --no- form, a list: several values.",
        dict,
        schema=_FLAG_SCHEMA,
    )
    sampling: Mapping[str, float] = toml_key(
        "map", "Sampling defaults under the API's names.", dict, items="number", choices=SAMPLING_FLAGS
    )
    chat: ChatDefaults = toml_key(  # noqa: RUF009
        "table", "Defaults of the chat.", ChatDefaults, table=ChatDefaults
    )
    needs: HardwareNeeds = toml_key(  # noqa: RUF009
        "table", "What the machine must have for the reference figures.", HardwareNeeds, table=HardwareNeeds
    )
    source: str = toml_key("text", "Where the configuration and its figures come from.", "")
    references: tuple[ReferenceFigure, ...] = toml_key(
        "list", "Published figures for this configuration.", tuple, table=ReferenceFigure, name="reference"
    )
    path: Path | None = None
    shipped: bool = False

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def elsewhere(self) -> str:
        """One sentence if the profile is not launched here; empty if it is."""
        return f"{self.name} runs elsewhere, at {self.upstream}; gpubox does not start it." if self.upstream else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which clients may ask for it."""
        return tuple(dict.fromkeys((self.name, *self.aliases, *self.personas)))

    @property
    def summary(self) -> str:
        """The title, or the name if there is none."""
        return self.title or self.name


def check_launched_here(profile: Profile) -> None:
    """Raises UsageError if the profile has an upstream: nothing is launched, planned or measured here."""
    if profile.elsewhere:
        raise UsageError(profile.elsewhere, "`gpubox serve` passes requests on to it.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than localhost counts as reachable from outside."""
    if host == "localhost" or host.endswith(".sock"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
