"""From the commands of a foreign file to profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpubox.interchange.import_notes import omitted
from gpubox.interchange.koboldcpp import find_koboldcpp
from gpubox.interchange.llamafile import find_llamafile
from gpubox.interchange.option_updates import TargetEngine
from gpubox.interchange.profile_draft import (
    REFERENCE_ENGINE,
    ForeignSettings,
    ImportedProfile,
    ProfileDraft,
    draft_from_arguments,
    match_engine,
)
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.server_invocation import ServerInvocation, find_server, flags_without_program, is_unrelated
from gpubox.profiles.flag_paths import map_paths

_CLOSING_WORDS = {"fi", "done", "esac", "}", "{", ";;", "then", "else", "do", "try", "finally"}
"""Shell words that are no commands."""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """What an importer knows besides the text."""

    name: str = ""
    """The file's name without its suffix: the profile's name if nothing else names it."""
    path: str = ""
    port_word: str = ""
    """Stands for a port that another program chooses at each start."""
    engines: Mapping[str, str] = field(default_factory=dict)
    """Engine name -> path of its binary, as in config.toml."""
    target: Callable[[str], TargetEngine] = lambda engine: REFERENCE_ENGINE
    """Engine name -> the engine whose spellings the profile gets; ``""``: the default engine."""
    model: str = ""
    """Replaces the model that the text names."""
    folders: tuple[Path, ...] = ()
    """Where relative paths may start: the profile gets the whole path of a file that exists in one of them."""


@dataclass(slots=True)
class ImportResult:
    """What a file holds."""

    profiles: list[ImportedProfile] = field(default_factory=list)
    commands: list[ScriptCommand] = field(default_factory=list)
    """The commands that start the servers."""
    notes: list[str] = field(default_factory=list)
    """Notes about lines that belong to none of the profiles."""


def import_commands(commands: Sequence[ScriptCommand], source: ImportSource) -> ImportResult:
    """The profiles of the commands that start a server, and a note for each other command."""
    result = ImportResult()
    for command in commands:
        invocation = None if is_unrelated(command) else _find_any_server(command)
        if invocation:
            result.commands.append(command)
            result.profiles.append(import_server(invocation, source))
        elif command.words[0] not in _CLOSING_WORDS:
            result.notes.append(omitted(command.text or " ".join(command.words)))
    if not result.profiles and (flags := flags_without_program(commands)):
        return ImportResult([import_settings(ForeignSettings(args=list(flags.words)), source)], list(commands))
    result.notes = list(dict.fromkeys(result.notes))
    return result


def import_server(server: ServerInvocation, source: ImportSource) -> ImportedProfile:
    """The profile of one server."""
    engine, note = match_engine(server.binary, source.engines)
    dropped = [omitted(word, "gpubox keeps the log") for word in server.command.dropped]
    notes = (*server.notes, *_open_questions(server.command, source.port_word), *([note] if note else []), *dropped)
    draft = draft_from_arguments(server.args, server.command.env, notes, source.port_word, source.target(engine))
    draft.engine = engine
    if source.model:
        draft.model = ""  # its place on the host does not matter
    if server.container is not None:
        server.container.map_to_host(draft)
    return _finish(draft, server.container.name if server.container else "", source)


def import_settings(settings: ForeignSettings, source: ImportSource) -> ImportedProfile:
    """The profile of another program's settings."""
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


def _find_any_server(command: ScriptCommand) -> ServerInvocation | None:
    return find_server(command) or find_koboldcpp(command) or find_llamafile(command)


def _open_questions(command: ScriptCommand, port_word: str) -> Iterator[str]:
    if unresolved := [text for text in command.unresolved if text != port_word]:
        texts = ", ".join(text if len(text) < 40 else f"{text[:36]}..." for text in unresolved[:5])
        yield f"Not resolved, because gpubox runs nothing: {texts}."
    if command.branched:
        names = ", ".join(command.branched)
        yield f"The script sets {names} in branches (if, case); the profile has the last value, so check it."
