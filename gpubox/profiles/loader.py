"""Profiles from TOML files: the shipped ones and the owner's. The owner's win by name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpubox.address import server_root
from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE, Paths, shipped_profiles
from gpubox.profiles.profile import SECRET_FLAGS, TOP_LEVEL_FLAGS, FlagValue, Profile
from gpubox.toml_table import TomlTable, closest_match, read_toml

PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")
"""What a client can ask for: also names such as gpt-oss:20b."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a shell takes as the name of a variable: an export writes it as it stands."""
NAME_HINT = "Use letters, digits, '.', '_' and '-', at most 64 characters."


@dataclass(frozen=True, slots=True)
class ProfileCatalog:
    """The profiles that loaded, and the errors of the files that did not, by name."""

    profiles: dict[str, Profile]
    """With those of their aliases that mean this profile alone."""
    broken: dict[str, UsageError]
    clashes: tuple[str, ...] = ()
    """Which aliases mean nothing because several profiles claim them, a sentence each."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alias -> the profile's name."""

    def get(self, name: str) -> Profile:
        """The profile called ``name``. Raises UsageError, which suggests the closest name."""
        if name in self.profiles:
            return self.profiles[name]
        if name in self.broken:
            raise self.broken[name]
        near = closest_match(name, [*self.profiles, *self.broken])
        hint = f"Did you mean {near!r}?" if near else "`gpubox ls` lists them."
        if name.endswith(".gguf") or name.startswith("hf:"):
            hint = f"That is a model. `gpubox import {name}` makes a profile of it."
        raise UsageError(f"There is no profile {name!r}.", hint)

    def get_file(self, name: str, folder: Path) -> Profile:
        """As ``get``, but a broken file in ``folder`` gives a profile of only its name and path, to mend it."""
        if name in self.broken:
            return Profile(name, "", path=folder / f"{name}.toml")
        return self.get(name)


def load_catalog(paths: Paths) -> ProfileCatalog:
    """Loads every shipped profile and every profile of the owner. A broken file does not affect the others."""
    profiles: dict[str, Profile] = {}
    broken: dict[str, UsageError] = {}
    for folder, shipped in ((shipped_profiles(), True), (paths.profiles, False)):
        for path in sorted(folder.glob("[!.]*.toml"), key=lambda path: path.stem):  # not the hidden copies of editors
            profiles.pop(path.stem, None)
            try:
                profiles[path.stem] = load_profile(path, shipped=shipped)
            except UsageError as error:
                broken[path.stem] = error
            else:
                broken.pop(path.stem, None)
    ordered = sorted(profiles.values(), key=_rank)
    aliases, clashes = _usable_aliases(ordered, broken)
    usable = {p.name: _with_names(p, {p.name, *aliases}) if p.names[1:] else p for p in ordered}
    return ProfileCatalog(usable, broken, clashes, aliases)


def _with_names(profile: Profile, usable: Collection[str]) -> Profile:
    personas = {name: values for name, values in profile.personas.items() if name in usable}
    return replace(profile, aliases=tuple(name for name in profile.aliases if name in usable), personas=personas)


def _usable_aliases(profiles: Iterable[Profile], broken: Collection[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Alias -> profile, and a sentence for each alias that another profile has as its name or as an alias too."""
    owners: dict[str, list[str]] = {}
    names = {*broken}
    for profile in profiles:
        names.add(profile.name)
        for alias in profile.names[1:]:
            owners.setdefault(alias, []).append(profile.name)
    clashes = []
    for alias, (first, *others) in owners.items():
        if alias in names:
            clashes.append(f"The alias {alias!r} of {' and '.join([first, *others])} is the name of a profile.")
        elif others:
            clashes.append(f"{' and '.join([first, *others])} have the same alias {alias!r}: it means neither of them.")
    return {a: who[0] for a, who in owners.items() if len(who) == 1 and a not in names}, tuple(clashes)


def check_profile_name(name: str) -> None:
    """Raises UsageError if no profile can have this name."""
    if not PROFILE_NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a profile's name.", NAME_HINT)


def free_profile_name(name: str, paths: Paths) -> str:
    """``name``, or the first of ``name-2``, ``name-3`` ... that no profile has."""
    taken = {path.stem for folder in (shipped_profiles(), paths.profiles) for path in folder.glob("*.toml")}
    names = (name, *(f"{name[:60]}-{number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in names if candidate not in taken)


DEMO = "demo"
"""The shipped profile that works on every machine."""


def _rank(profile: Profile) -> int:
    """The owner's profiles first; of the shipped ones the demos, because a newcomer starts there."""
    return 1 + (not profile.model.startswith("demo:")) if profile.shipped else 0


def visible_profiles(profiles: Collection[Profile], keep: Collection[str]) -> list[Profile]:
    """What lists show: the owner's profiles, else the demo; and the shipped ones in ``keep`` (which run or ran)."""
    keep = keep if any(not profile.shipped for profile in profiles) else {DEMO, *keep}
    return [profile for profile in profiles if not profile.shipped or profile.name in keep]


def load_profile(path: Path, *, shipped: bool = False) -> Profile:
    """Reads one profile file. Raises UsageError that names the file and the key."""
    return parse_profile(path, read_toml(path), shipped=shipped)


def parse_profile(path: Path, values: dict[str, Any], *, shipped: bool = False) -> Profile:
    """The profile in ``values``. It is named after ``path``. Raises UsageError that names ``path`` and the key."""
    name = path.stem
    if not PROFILE_NAME.fullmatch(name):
        raise UsageError(f"{path}: a profile's file name holds letters, digits, '.', '_' and '-' only.")
    top = TomlTable(path, "", values)
    profile = Profile(name, **top.read(Profile), path=path, shipped=shipped)
    profile = _with_upstream(profile, top)
    _check_aliases(profile, top)
    for key in ("model", "host"):
        _refuse_nul(top, key, top.values.get(key))
    if not profile.host:
        raise top.error("host", "is empty", 'Write "127.0.0.1", or "0.0.0.0" for every address of this machine.')
    if profile.companion and name == MAIN_INSTANCE:
        raise top.error("companion", f"must be false here: gpubox calls the active server {name!r}", "Rename the file.")
    _check_env(TomlTable(path, "env", profile.env))
    _check_json(TomlTable(path, "chat.template-kwargs", profile.chat.template_kwargs))
    _check_parameters(TomlTable(path, "requests", dict.fromkeys(profile.requests.remove)))
    for table in ("default", "set"):
        _check_parameters(TomlTable(path, f"requests.{table}", getattr(profile.requests, table)))
    for persona, parameters in profile.personas.items():
        _check_parameters(TomlTable(path, f"personas.{persona}", parameters))
    flags = _flags(TomlTable(path, "flags", profile.flags))
    return replace(profile, description=profile.description.strip(), flags=flags)


def _with_upstream(profile: Profile, top: TomlTable) -> Profile:
    """The profile with the root of its upstream. Raises UsageError if the address, or a model, is missing or wrong."""
    if profile.upstream:
        try:
            upstream = server_root(profile.upstream)
        except UsageError as error:
            raise top.error("upstream", f"cannot be used: {error.message.rstrip('.')}", error.hint) from None
        if not re.fullmatch(r"[!-~]+", upstream):  # it becomes part of a request line
            raise top.error("upstream", "cannot be used: it holds a character that no address has")
        return replace(profile, upstream=upstream, model=profile.model or profile.name)
    if not profile.model:
        what = next(item.metadata["toml"].description for item in fields(Profile) if item.name == "model")
        raise top.error("model", "is missing", what)
    return profile


def _check_aliases(profile: Profile, top: TomlTable) -> None:
    for alias, times in Counter((*profile.aliases, *profile.personas)).items():
        if not MODEL_NAME.fullmatch(alias):
            raise top.error("aliases", f"cannot hold {alias!r}", f"{NAME_HINT} Here also ':' and '/'.")
        if times > 1 or (alias == profile.name and alias not in profile.personas):
            raise top.error("aliases", f"holds {alias!r} twice" if times > 1 else "holds the profile's own name")
    if profile.fallback == profile.name:
        raise top.error("fallback", "names the profile itself")


def _refuse_nul(table: TomlTable, key: str, value: object) -> None:
    # The kernel ends an argument at NUL.
    if isinstance(value, str) and "\0" in value:
        raise table.error(key, "holds a NUL character")


def _check_env(table: TomlTable) -> None:
    for name, value in table.values.items():
        _refuse_nul(table, name, value)
        if not ENV_NAME.fullmatch(name):
            raise table.error(repr(name), "cannot be the name of an environment variable")
        if name == "LLAMA_API_KEY":
            raise table.error(name, "is a secret, and gpubox needs the key too", "Put it into the api-key file.")


def _check_parameters(table: TomlTable) -> None:
    for key in ("model", "stream"):
        if key in table.values:
            raise table.error(key, "is the client's own: the gateway answers by it")
    _check_json(table)


def _check_json(table: TomlTable) -> None:
    for key, value in table.values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise table.error(key, f"must be a JSON value, not {value!r}") from None


def _flags(table: TomlTable) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    for key, value in table.values.items():
        if key.startswith("-"):
            raise table.error(key, "must be written without leading dashes")
        name = key.replace("_", "-")
        if name in TOP_LEVEL_FLAGS:
            raise table.error(key, f"belongs at the top of the file: {TOP_LEVEL_FLAGS[name]}")
        if name == "api-key-file":
            hint = "Put the key into the api-key file; gpubox passes it to every engine."
            raise table.error(key, "is set by gpubox", hint)
        if name in SECRET_FLAGS:
            hint = f"Set {SECRET_FLAGS[name]} or the api-key file."
            raise table.error(key, "would show a secret in the process list", hint)
        if name in flags:
            raise table.error(key, "is given twice")
        items = value if isinstance(value, list) else [value]
        for item in items:
            _refuse_nul(table, key, item)
        if not isinstance(value, (bool, int, float, str, list)):
            raise table.error(key, f"must be a flag's value, not {value!r}")
        if isinstance(value, list):
            if not items or not all(isinstance(v, (str, int, float)) and not isinstance(v, bool) for v in items):
                raise table.error(key, "must be a list of strings and numbers")
            value = tuple(items)
        flags[name] = value
    return flags
