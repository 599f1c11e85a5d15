"""Writes a Profile as TOML text into the owner's folder. The opposite of loader.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.edit import locked_profiles, write_profile
from gpubox.profiles.loader import check_profile_name, parse_profile
from gpubox.profiles.profile import Profile
from gpubox.toml_edit import toml_key, toml_value
from gpubox.toml_table import given_values, parse_toml


def profile_toml(profile: Profile, header: str = "") -> str:
    """The text of a profile file that loads as ``profile``, without the keys that have their default.

    Tables come in a fixed order, flags in the order of the profile. ``header`` becomes the comment at the top.
    """
    top, chat = given_values(profile), given_values(profile.chat)
    if not profile.upstream:
        top["model"] = profile.model  # also an empty one: it is to be filled in
    keys = (
        "title", "description", "source", "engine", "model", "upstream", "host", "port", "companion", "restart",
        "aliases", "idle-seconds", "pinned", "fallback",
    )  # fmt: skip
    blocks = [
        _comment(header),
        _table("", {key: top[key] for key in keys if key in top}),
        _table("requests", given_values(profile.requests)),
        *(_table(f"personas.{toml_key(name)}", values, empty=True) for name, values in profile.personas.items()),
        _table("env", profile.env),
        _table("needs", given_values(profile.needs)),
        _table("flags", profile.flags),
        _table("sampling", profile.sampling),
        _table("chat", {key: value for key, value in chat.items() if key != "template-kwargs"}),
        _table("chat.template-kwargs", profile.chat.template_kwargs),
        *(_table("[reference]", given_values(reference)) for reference in profile.references),
    ]
    return "\n".join(block for block in blocks if block)


def save_profile(profile: Profile, paths: Paths, *, overwrite: bool = False, header: str = "") -> Path:
    """Writes ``profile`` into the owner's folder in one step and returns its path.

    Raises UsageError if the name is impossible, or taken (without ``overwrite``), or if the text would not load again;
    GpuboxError if the disk refuses, or another gpubox changes profiles for long.
    """
    return save_text(profile.name, profile_toml(profile, header), paths, overwrite=overwrite)


def save_text(name: str, text: str, paths: Paths, *, overwrite: bool = False) -> Path:
    """As ``save_profile``, for the text of a profile."""
    check_profile_name(name)
    path = paths.profiles / f"{name}.toml"
    parse_profile(path, parse_toml(text))  # a profile that would not load is not written
    if path.resolve().parent == shipped_profiles().resolve():
        raise UsageError(f"{path} is a shipped profile.", "Give the profile another name.")
    with locked_profiles(paths):
        if path.exists() and not overwrite:
            hint = "Give another --name, or --force."
            raise UsageError(f"There is a profile {name!r} already: {path}.", hint)
        write_profile(path, text)
    return path


def _comment(text: str) -> str:
    # A comment may hold anything printable; what TOML forbids there (control characters) is dropped.
    lines = (re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", "", line).rstrip() for line in text.strip("\n").splitlines())
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def _table(name: str, values: Mapping[str, Any], *, empty: bool = False) -> str:
    if not values and not empty:
        return ""
    lines = [f"{toml_key(key)} = {toml_value(value)}\n" for key, value in values.items()]
    return "".join([f"[{name}]\n", *lines] if name else lines)
