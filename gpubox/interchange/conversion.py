"""From what a text holds to profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.interchange.containers import ServerInvocation
from gpubox.interchange.format import FileEntry, Reading
from gpubox.interchange.given_options import TargetEngine
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.profile_draft import (
    REFERENCE_ENGINE,
    ForeignSettings,
    ImportedProfile,
    ProfileDraft,
    draft_from_arguments,
    match_engine,
)
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.server_invocation import find_server, flags_without_program, is_unrelated
from gpubox.profiles.flag_values import map_paths

MAX_SERVERS = 300
_CLOSING_WORDS = {"fi", "done", "esac", "}", "{", ";;", "then", "else", "do", "try", "finally"}
"""Shell words that are no commands."""
ServerFinder = Callable[[ScriptCommand], ServerInvocation | None]


@dataclass(frozen=True, slots=True)
class ImportSource:
    """What an importer knows besides the text."""

    name: str = ""
    """The file's name without its suffix: the profile's name if nothing else names it."""
    engines: Mapping[str, str] = field(default_factory=dict)
    """Engine name -> path of its binary, as in config.toml."""
    target: Callable[[str], TargetEngine] = lambda engine: REFERENCE_ENGINE
    """Engine name -> the engine whose spellings the profile gets; ``""``: the default engine."""
    model: str = ""
    """Replaces the model that the text names."""
    folders: tuple[Path, ...] = ()
    """Where relative paths may start: the profile gets the whole path of a file that exists in one of them."""
    programs: tuple[ServerFinder, ...] = ()
    """Find the servers of other programs in a command line."""


def profiles_of(reading: Reading, source: ImportSource) -> tuple[list[ImportedProfile], list[str]]:
    """The profiles of ``reading``, and notes about lines that belong to none of them.

    Raises UsageError for more than MAX_SERVERS: each takes milliseconds to read.
    """
    profiles, used, notes = _of_commands(reading.commands, source)
    profiles = [with_changes(imported, reading.changes) for imported in profiles]
    notes += reading.notes
    for entry in reading.entries:
        profiles += _of_entry(entry, source, notes)
        _check_number(profiles)
    texts = [command.line or command.text for command in used]
    unused = reading.assignments.unused(texts, [name for command in used for name in command.env])
    return profiles, [*notes, *(omitted(assignment, "no command of a server uses it") for assignment in unused)]


def _check_number(profiles: Sequence[ImportedProfile]) -> None:
    if len(profiles) > MAX_SERVERS:
        raise UsageError(f"This starts more than {MAX_SERVERS} servers.", "Import a part of it.")


def _of_entry(entry: FileEntry, source: ImportSource, notes: list[str]) -> list[ImportedProfile]:
    """The profile of ``entry``; none, with a note, if it starts no server."""
    source = replace(source, name=entry.name or source.name)
    if isinstance(entry.start, ScriptCommand):
        profiles, _, own_notes = _of_commands([entry.start], source, entry.port_word)
        if not profiles:
            notes += [f"{note} (models.{entry.name})" for note in own_notes]
    elif isinstance(entry.start, ServerInvocation):
        profiles = [_of_server(entry.start, source)]
    else:
        profiles = [_of_settings(entry.start, source)]
    changed = [with_changes(imported, entry.changes) for imported in profiles]
    return [replace(imported, notes=(*imported.notes, *entry.notes)) for imported in changed]


def _of_commands(
    commands: Sequence[ScriptCommand], source: ImportSource, port_word: str = ""
) -> tuple[list[ImportedProfile], list[ScriptCommand], list[str]]:
    """The profiles of the commands that start a server, those commands, and a note for each other one."""
    profiles: list[ImportedProfile] = []
    used: list[ScriptCommand] = []
    notes: list[str] = []
    for command in commands:
        finders = () if is_unrelated(command) else (find_server, *source.programs)
        invocation = next((server for find in finders if (server := find(command))), None)
        if invocation:
            used.append(command)
            profiles.append(_of_server(invocation, source, port_word))
            _check_number(profiles)
        elif command.words[0] not in _CLOSING_WORDS:
            notes.append(omitted(command.text or " ".join(command.words)))
    if not profiles and (flags := flags_without_program(commands)):
        return [_of_settings(ForeignSettings(args=list(flags.words)), source)], list(commands), []
    return profiles, used, list(dict.fromkeys(notes))


def with_changes(imported: ImportedProfile, changes: Mapping[str, Any]) -> ImportedProfile:
    """``imported`` with those ``changes`` of its profile that are not empty."""
    return replace(imported, profile=replace(imported.profile, **{k: v for k, v in changes.items() if v}))


def _of_server(server: ServerInvocation, source: ImportSource, port_word: str = "") -> ImportedProfile:
    engine, note = match_engine(server.binary, source.engines)
    dropped = [omitted(word, "gpubox keeps the log") for word in server.command.dropped]
    notes = (*server.notes, *_open_questions(server.command, port_word), *([note] if note else []), *dropped)
    draft = draft_from_arguments(server.args, server.command.env, notes, port_word, source.target(engine))
    draft.engine = engine
    if source.model:
        draft.model = ""  # its place on the host does not matter
    if server.container is not None:
        server.container.map_to_host(draft)
    return _finish(draft, server.container.name if server.container else "", source)


def _of_settings(settings: ForeignSettings, source: ImportSource) -> ImportedProfile:
    draft = draft_from_arguments(settings.args, {}, settings.notes, target=source.target(""))
    draft.system = settings.system
    return _finish(draft, settings.name, source)


def _finish(draft: ProfileDraft, name: str, source: ImportSource) -> ImportedProfile:
    name = name or source.name or draft.model
    absolute = partial(absolute_path, folders=source.folders)
    draft.model = absolute(source.model or draft.model)
    draft.flags = {flag: map_paths(flag, value, absolute) for flag, value in draft.flags.items()}
    return draft.finish(name)


def absolute_path(text: str, folders: Sequence[Path]) -> str:
    """The whole path of the file ``text`` if it exists in one of ``folders``, else ``text``."""
    if not text or text.startswith(("~", "$", "hf:", "demo:")):
        return text
    for folder in folders:
        try:
            path = folder / text
            if path.exists():
                normal = Path(os.path.normpath(path))  # another file if a folder before ".." is a link
                return str(normal if normal.exists() and normal.samefile(path) else path)
        except (OSError, ValueError):
            break  # no file name at all
    return text


def _open_questions(command: ScriptCommand, port_word: str) -> Iterator[str]:
    if unresolved := [text for text in command.unresolved if text != port_word]:
        texts = ", ".join(text if len(text) < 40 else f"{text[:36]}..." for text in unresolved[:5])
        yield f"Not resolved, because gpubox runs nothing: {texts}."
    if command.branched:
        names = ", ".join(command.branched)
        yield f"The script sets {names} in branches (if, case); the profile has the last value, so check it."
