"""Which models the gateway offers to a client, and the client's settings for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpubox.errors import UsageError
from gpubox.gateway.gateway_status import GatewayStatus, ProfileStatus
from gpubox.interchange.client_settings import (
    KEY_PLACEHOLDER,
    ClientModel,
    ClientTarget,
    Snippet,
    client_model,
    client_snippet,
    context_per_slot,
)
from gpubox.profiles.profile import Profile

_LOADED = ("up", "starting")


def gateway_snippet(
    client: str, models: Sequence[ClientModel], base_url: str, status: GatewayStatus | None, key: str
) -> Snippet:
    """The settings of ``client`` for the gateway at ``base_url``; ``models`` as ``choose_model`` orders them.

    Without a ``key`` a placeholder stands in its place where one is needed. Raises UsageError as ``client_snippet``.
    """
    key = key or (KEY_PLACEHOLDER if status and status.has_keys else "")
    return client_snippet(client, ClientTarget("gpubox", base_url, offered_models(models, models[0].name, status), key))


def gateway_models(status: GatewayStatus | None, profiles: Mapping[str, Profile]) -> tuple[ClientModel, ...]:
    """The models that a client can name: the loaded profiles, then the owner's, then the shipped ones; aliases last.

    Without ``status`` all profiles, as the gateway will have them.
    """
    listed = status.profiles if status else tuple(ProfileStatus(name, "down") for name in profiles)
    names = [(profile.name, profile.aliases) for profile in listed]
    loaded = {profile.name for profile in listed if profile.state in _LOADED}
    rank = {name: (name not in loaded, name in profiles and profiles[name].shipped) for name, _ in names}
    ordered = sorted(names, key=lambda entry: rank[entry[0]])
    live = {profile.name: profile.context for profile in listed}
    models = [_model(name, profiles.get(name), live[name]) for name, _ in ordered]
    models += [
        _model(alias, profiles.get(name), live[name], f"{name}, as {alias}")
        for name, aliases in ordered for alias in aliases
    ]  # fmt: skip
    return tuple(models)


def choose_model(models: Sequence[ClientModel], name: str | None) -> tuple[ClientModel, ...]:
    """``models`` with the one called ``name`` in front. Raises UsageError if there is none."""
    if not models:
        raise UsageError("There is no profile that a client could use.", "`gpubox import` makes one.")
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


def _model(name: str, profile: Profile | None, context: int | None, title: str = "") -> ClientModel:
    """``context``: what its server says."""
    if profile is None:
        return ClientModel(name, title or name, context)
    model = client_model(profile, name, context=context or context_per_slot(profile))
    return replace(model, title=title or model.title or name)
