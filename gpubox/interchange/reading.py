"""From commands to profiles: what every reader of a foreign file ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpubox.interchange.commandline import RECORDED, Imported, engine_of, read_arguments
from gpubox.interchange.koboldcpp import find_koboldcpp
from gpubox.interchange.leftovers import left_out
from gpubox.interchange.llamafile import find_llamafile
from gpubox.interchange.locate import Found, find_server, only_flags, starts_nothing
from gpubox.interchange.shell import Command
from gpubox.interchange.spelling import Target

_PUNCTUATION = {"fi", "done", "esac", "}", "{", ";;", "then", "else", "do"}
"""Words that close what a shell's other words open."""
Engines = Mapping[str, str]
"""Engine name -> path of its binary, as config.toml has them."""


def _recorded(engine: str) -> Target:
    return RECORDED


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader may know beside the text."""

    name: str = ""
    """The file's name without its suffix; a profile is called so where nothing else names it."""
    path: str = ""
    """The whole path of the file."""
    engines: Engines = field(default_factory=dict)
    target: Callable[[str], Target] = _recorded
    """The engine that an import is written for, by its name; ``""``: the default engine."""


@dataclass(slots=True)
class Reading:
    """What a file holds."""

    found: list[Imported] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Notes about what belongs to none of the profiles."""

    def leave(self, lines: Iterable[str], why: str) -> None:
        """Names lines that are in no profile."""
        self.left += [left_out(line, why) for line in lines]


def from_commands(commands: Iterable[Command], source: Source, *, name: str = "", port_word: str = "") -> Reading:
    """The profiles of the commands that start a server, and a note for each of the others.

    ``name`` goes before the source's; ``port_word`` is what stands for a port that another program chooses at each
    start.
    """
    commands = list(commands)
    reading = Reading()
    for command in commands:
        server = None if starts_nothing(command) else _server(command)
        if server is None and command.words[0] in _PUNCTUATION:
            continue
        if server is None:
            reading.left.append(left_out(command.text or " ".join(command.words)))
        else:
            reading.found.append(imported_server(server, command, source, name=name, port_word=port_word))
    if not reading.found and (flags := only_flags(commands)):
        draft = read_arguments(flags.words, {}, target=source.target(""))
        draft.note_address()
        return Reading([Imported(draft.profile(name or source.name), tuple(draft.notes))])
    reading.left = list(dict.fromkeys(reading.left))
    return reading


def _server(command: Command) -> Found | None:
    return find_server(command) or find_koboldcpp(command) or find_llamafile(command)


def imported_server(
    server: Found, command: Command, source: Source, *, name: str = "", port_word: str = ""
) -> Imported:
    """The profile of one server."""
    engine, note = engine_of(server.binary, source.engines)
    dropped = [left_out(word, "gpubox keeps the log") for word in command.dropped]
    notes = (*server.notes, *_open_questions(server, port_word), *([note] if note else []), *dropped)
    draft = read_arguments(server.args, server.env, notes, port_word, source.target(engine))
    if server.container is not None:
        server.container.settle(draft)
    draft.note_address()
    return Imported(draft.profile(name or source.name, engine=engine), tuple(draft.notes))


def _open_questions(server: Found, port_word: str) -> Iterator[str]:
    if raws := [raw for raw in server.unresolved if raw != port_word]:
        shown = ", ".join(raw if len(raw) < 40 else f"{raw[:36]}..." for raw in raws[:5])
        yield f"Not resolved, because gpubox runs nothing: {shown}."
    if server.branched:
        names = ", ".join(server.branched)
        yield f"The script sets {names} in branches (if, case); the last value written was taken: check it."
