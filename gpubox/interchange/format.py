"""What a format is: how its texts are recognized, and what is read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpubox.interchange.containers import ServerInvocation
from gpubox.interchange.profile_draft import ForeignSettings
from gpubox.interchange.script import ScriptAssignments, ScriptCommand


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One model or service of a file; it becomes one profile."""

    start: ScriptCommand | ServerInvocation | ForeignSettings
    """A command in which a server is searched, the server itself, or another program's settings."""
    name: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What the profile gets besides: title, aliases. Empty values change nothing."""
    notes: tuple[str, ...] = ()
    port_word: str = ""
    """Stands for a port that the other program chooses at each start."""


@dataclass(slots=True)
class Reading:
    """What a text holds: a script has commands, other files have entries."""

    commands: Sequence[ScriptCommand] = ()
    """Those that start a server become profiles, the others notes."""
    entries: Sequence[FileEntry] = ()
    notes: list[str] = field(default_factory=list)
    """About lines that belong to none of them."""
    assignments: ScriptAssignments = field(default_factory=ScriptAssignments)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What the profiles of ``commands`` get besides."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file or pasted text. A new one is a file with such a value, and its line in ``importing.FORMATS``."""

    title: str
    """As messages list it."""
    read: Callable[[Any, str], Reading]
    """Gets the text, or all documents that match, and the file's path. Raises UsageError if the text is broken."""
    files: str = ""
    """A regular expression of file names, in lower case."""
    matches: Callable[[Any], object] = lambda text: False
    """Whether a text (or a document of ``syntax``) has this format, if the name of its file does not tell."""
    syntax: Literal["text", "yaml", "json"] = "text"
    decides: bool = False
    """``matches`` counts more than the name of the file."""
    program: Callable[[ScriptCommand], ServerInvocation | None] | None = None
    """Finds the other program's server in a command line."""
