"""Profiles from TOML files: the shipped ones and the owner's, which win by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE, Paths, shipped_profiles
from gpubox.profiles.argv import SAMPLING_FLAGS
from gpubox.profiles.profile import TOP_LEVEL_FLAGS, ChatDefaults, FlagValue, HardwareNeeds, Profile, ReferenceFigure
from gpubox.toml_table import TomlTable, closest_match, read_toml

PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECRET_FLAGS = {"api-key": "LLAMA_API_KEY", "hf-token": "HF_TOKEN", "hft": "HF_TOKEN"}


@dataclass(frozen=True, slots=True)
class ProfileCatalog:
    """The profiles that loaded, by name, and the files that did not, with the reason."""

    profiles: dict[str, Profile]
    broken: dict[str, UsageError]

    def get(self, name: str) -> Profile:
        """The profile called ``name``. Raises UsageError with the nearest name there is."""
        if name in self.profiles:
            return self.profiles[name]
        if name in self.broken:
            raise self.broken[name]
        near = closest_match(name, [*self.profiles, *self.broken])
        hint = f"Did you mean {near!r}?" if near else "`gpubox ls` lists them."
        raise UsageError(f"There is no profile {name!r}.", hint)


def load_catalog(paths: Paths) -> ProfileCatalog:
    """Every profile of the shipped folder and of the owner's. A broken file spoils only itself."""
    profiles: dict[str, Profile] = {}
    broken: dict[str, UsageError] = {}
    for folder, shipped in ((shipped_profiles(), True), (paths.profiles, False)):
        for path in sorted(folder.glob("[!.]*.toml"), key=lambda path: path.stem):  # no editor's hidden copies
            profiles.pop(path.stem, None)
            try:
                profiles[path.stem] = load_profile(path, shipped=shipped)
            except UsageError as error:
                broken[path.stem] = error
            else:
                broken.pop(path.stem, None)
    return ProfileCatalog({profile.name: profile for profile in sorted(profiles.values(), key=_rank)}, broken)


def _rank(profile: Profile) -> int:
    """The owner's own first; of the shipped ones the demos, where a newcomer starts."""
    return 1 + (not profile.model.startswith("demo:")) if profile.shipped else 0


def load_profile(path: Path, *, shipped: bool = False) -> Profile:
    """One profile file. Raises UsageError naming the file and the key."""
    return parse_profile(path, read_toml(path), shipped=shipped)


def parse_profile(path: Path, values: dict[str, Any], *, shipped: bool = False) -> Profile:
    """The profile that ``values`` describe; ``path`` gives its name and stands in errors."""
    name = path.stem
    if not PROFILE_NAME.fullmatch(name):
        raise UsageError(f"{path}: a profile's file name holds letters, digits, '.', '_' and '-' only.")
    top = TomlTable(path, "", values)
    chat, needs = top.table("chat"), top.table("needs")
    profile = Profile(
        name=name,
        model=top.text("model"),
        title=top.text("title"),
        description=top.text("description").strip(),
        engine=top.text("engine"),
        host=top.text("host", "127.0.0.1"),
        port=top.integer("port", 8080),
        companion=top.flag("companion"),
        restart=top.flag("restart"),
        env=_env(top.table("env")),
        flags=_flags(top.table("flags")),
        sampling=_sampling(top.table("sampling")),
        chat=ChatDefaults(system=chat.text("system"), template_kwargs=_template_kwargs(chat.table("template-kwargs"))),
        needs=HardwareNeeds(needs.number("vram-gib"), needs.number("ram-gib"), needs.text("engine")),
        source=top.text("source"),
        references=tuple(_reference(t) for t in top.tables("reference")),
        path=path,
        shipped=shipped,
    )
    for table in (top, chat, needs):
        table.done()
    if not profile.model:
        raise top.refuse("model", "is missing", 'Write a path, "hf:user/repo:quant" or "demo:NAME".')
    if not profile.host:
        raise top.refuse("host", "is empty", 'Write "127.0.0.1", or "0.0.0.0" for every address of this machine.')
    if not 0 <= profile.port <= 65535:
        raise top.refuse("port", f"must be 0 to 65535, not {profile.port}")
    if profile.companion and name == MAIN_INSTANCE:
        raise top.refuse("companion", f"must be false here: {name!r} is the active server's name", "Rename the file.")
    for key in ("model", "host"):
        _refuse_nul(top, key, top.values.get(key))
    return profile


def _refuse_nul(table: TomlTable, key: str, value: object) -> None:
    # No program can be given one: the kernel ends an argument at it.
    if isinstance(value, str) and "\0" in value:
        raise table.refuse(key, "holds a NUL character")


def _env(table: TomlTable) -> Mapping[str, str]:
    for name, value in table.text_map().items():
        _refuse_nul(table, name, value)
        if not name or "=" in name or "\0" in name:
            raise table.refuse(repr(name), "cannot be the name of an environment variable")
        if name == "LLAMA_API_KEY":
            raise table.refuse(name, "is a secret, and gpubox has to know it too", "Put it into the api-key file.")
    return table.text_map()


def _template_kwargs(table: TomlTable) -> dict[str, Any]:
    for key, value in table.values.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise table.refuse(key, f"must be something that JSON can say, not {value!r}") from None
    return dict(table.values)


def _flags(table: TomlTable) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    for key, value in table.values.items():
        if key.startswith("-"):
            raise table.refuse(key, "must be written without leading dashes")
        name = key.replace("_", "-")
        if name in TOP_LEVEL_FLAGS:
            raise table.refuse(key, f"belongs at the top of the file: {TOP_LEVEL_FLAGS[name]}")
        if name == "api-key-file":
            raise table.refuse(key, "is gpubox's to give", "Put the key into the api-key file; every engine gets it.")
        if name in SECRET_FLAGS:
            raise table.refuse(
                key, "would show a secret in the process list", f"Set {SECRET_FLAGS[name]} or the api-key file."
            )
        if name in flags:
            raise table.refuse(key, "is given twice")
        for word in value if isinstance(value, list) else [value]:
            _refuse_nul(table, key, word)
        if isinstance(value, list):
            if not value or not all(isinstance(v, (str, int, float)) and not isinstance(v, bool) for v in value):
                raise table.refuse(key, "must be a list of texts and numbers")
            flags[name] = tuple(value)
        elif isinstance(value, (bool, int, float, str)):
            flags[name] = value
        else:
            raise table.refuse(key, f"must be a flag's value, not {value!r}")
    return flags


def _sampling(table: TomlTable) -> dict[str, float]:
    values = {key: table.number(key) for key in SAMPLING_FLAGS}
    table.done()
    return {key: value for key, value in values.items() if value is not None}


def _reference(table: TomlTable) -> ReferenceFigure:
    what, value = table.text("what"), table.number("value")
    if not what or value is None:
        raise table.refuse("what" if not what else "value", "is missing")
    reference = ReferenceFigure(
        what, value, table.text("unit"), table.text("hardware"), table.text("article"), table.text("note")
    )
    table.done()
    return reference
