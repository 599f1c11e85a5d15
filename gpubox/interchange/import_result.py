"""From commands to profiles: what every reader of a foreign file ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpubox.interchange.import_notes import omitted
from gpubox.interchange.koboldcpp import find_koboldcpp
from gpubox.interchange.llamafile import find_llamafile
from gpubox.interchange.option_updates import TargetEngine
from gpubox.interchange.profile_draft import REFERENCE_ENGINE, ImportedProfile, draft_from_arguments, match_engine
from gpubox.interchange.script import ScriptCommand
from gpubox.interchange.server_invocation import ServerInvocation, find_server, flags_without_program, is_unrelated

_PUNCTUATION = {"fi", "done", "esac", "}", "{", ";;", "then", "else", "do"}
"""Words that close what a shell's other words open."""
Engines = Mapping[str, str]
"""Engine name -> path of its binary, as config.toml has them."""


def _recorded(engine: str) -> TargetEngine:
    return REFERENCE_ENGINE


@dataclass(frozen=True, slots=True)
class ImportSource:
    """What a reader may know beside the text."""

    name: str = ""
    """The file's name without its suffix; a profile is called so where nothing else names it."""
    path: str = ""
    """The whole path of the file."""
    engines: Engines = field(default_factory=dict)
    target: Callable[[str], TargetEngine] = _recorded
    """The engine that an import is written for, by its name; ``""``: the default engine."""


@dataclass(slots=True)
class ImportResult:
    """What a file holds."""

    found: list[ImportedProfile] = field(default_factory=list)
    servers: list[ScriptCommand] = field(default_factory=list)
    """The commands that start them."""
    left: list[str] = field(default_factory=list)
    """Notes about what belongs to none of the profiles."""

    def leave(self, lines: Iterable[str], why: str) -> None:
        """Names lines that are in no profile."""
        self.left += [omitted(line, why) for line in lines]


def import_commands(
    commands: Iterable[ScriptCommand], source: ImportSource, *, name: str = "", port_word: str = ""
) -> ImportResult:
    """The profiles of the commands that start a server, and a note for each of the others.

    ``name`` goes before the source's; ``port_word`` is what stands for a port that another program chooses at each
    start.
    """
    commands = list(commands)
    reading = ImportResult()
    for command in commands:
        server = None if is_unrelated(command) else _server(command)
        if server is None and command.words[0] in _PUNCTUATION:
            continue
        if server is None:
            reading.left.append(omitted(command.text or " ".join(command.words)))
        else:
            reading.servers.append(command)
            reading.found.append(import_server(server, command, source, name=name, port_word=port_word))
    if not reading.found and (flags := flags_without_program(commands)):
        draft = draft_from_arguments(flags.words, {}, target=source.target(""))
        draft.note_address()
        return ImportResult([ImportedProfile(draft.profile(name or source.name), tuple(draft.notes))], commands)
    reading.left = list(dict.fromkeys(reading.left))
    return reading


def _server(command: ScriptCommand) -> ServerInvocation | None:
    return find_server(command) or find_koboldcpp(command) or find_llamafile(command)


def import_server(
    server: ServerInvocation, command: ScriptCommand, source: ImportSource, *, name: str = "", port_word: str = ""
) -> ImportedProfile:
    """The profile of one server."""
    engine, note = match_engine(server.binary, source.engines)
    dropped = [omitted(word, "gpubox keeps the log") for word in command.dropped]
    notes = (*server.notes, *_open_questions(server, port_word), *([note] if note else []), *dropped)
    draft = draft_from_arguments(server.args, server.env, notes, port_word, source.target(engine))
    if server.container is not None:
        server.container.map_to_host(draft)
    draft.note_address()
    return ImportedProfile(draft.profile(name or source.name, engine=engine), tuple(draft.notes))


def _open_questions(server: ServerInvocation, port_word: str) -> Iterator[str]:
    if raws := [raw for raw in server.unresolved if raw != port_word]:
        shown = ", ".join(raw if len(raw) < 40 else f"{raw[:36]}..." for raw in raws[:5])
        yield f"Not resolved, because gpubox runs nothing: {shown}."
    if server.branched:
        names = ", ".join(server.branched)
        yield f"The script sets {names} in branches (if, case); the last value written was taken: check it."
