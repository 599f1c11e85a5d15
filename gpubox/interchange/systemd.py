"""systemd service units and Podman's Quadlet ``.container`` units.

Sources: systemd.service(5), systemd.syntax(7), podman-systemd.unit(5).
"""

from __future__ import annotations

import re

from gpubox.interchange.containers import RESTART_POLICIES, Container, environment
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, ScriptCommand, joined_words
from gpubox.interchange.server_invocation import server_in_container

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_PIECE = re.compile(r"""\s+|"((?:\\.|[^"\\])*)"?|'((?:\\.|[^'\\])*)'?|((?:\\.|[^\s"'\\])+)|(\\)""", re.S)
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


def read_unit(text: str) -> Reading:
    """The commands of a service unit, with notes about its other lines.

    Raises UsageError if its variables expand to too much text.
    """
    notes: list[str] = []
    changes: dict[str, str | bool] = {}
    env: dict[str, str] = {}
    lines: list[str] = []
    budget = ExpansionBudget()
    for section, key, value in unit_assignments(text):
        if key == "Environment" and section:
            for word in unit_words(value):
                name, equals, content = word.partition("=")
                if equals:
                    env[name] = _specifiers(content)
        elif key == "EnvironmentFile":
            notes.append(f"EnvironmentFile={value}: its variables are not in the profile.")
        elif key == "WorkingDirectory":
            notes.append(f"WorkingDirectory={_specifiers(value)}: relative paths start there.")
        elif key == "ExecStart":
            lines = [*lines, value] if value else []  # an empty one resets the list
        elif key == "Description" and value and "title" not in changes:
            changes["title"] = value.replace("%%", "%").removeprefix("llama-server: ")
        elif key == "Restart" and value in RESTART_POLICIES:
            changes["restart"] = True
            notes.append(f"Restart={value} became restart = true in the profile.")
        else:
            reason = "a setting of systemd only" if section else "" if key else "units have no such line"
            notes.append(omitted(f"{key}={value}" if section else f"{key} {value}".strip(), reason))
    commands = []
    for line in lines:
        unresolved: list[str] = []
        words: list[str] = []
        for raw in unit_words(line.lstrip("-@:+!|")):
            words += _expanded(_specifiers(raw), env, unresolved, budget)
        commands.append(ScriptCommand(tuple(words), env, tuple(unresolved), text=line))
    return Reading(commands, notes=notes, changes=changes)


def read_quadlet(text: str) -> Reading:
    """The server of a ``.container`` unit, and notes about its other lines."""
    container = Container()
    notes: list[str] = []
    for section, key, value in unit_assignments(text):
        if section == "Unit" and key == "Description":
            container.title = value
        elif section == "Container" and _add_container_key(container, key, value):
            pass
        elif key == "Restart" and value in RESTART_POLICIES:
            container.restart = value
        elif section:
            notes.append(omitted(f"{key}={value}", f"[{section}]"))
        else:
            notes.append(omitted(f"{key} {value}".strip()))
    server = server_in_container(container)
    return Reading(entries=[FileEntry(server)] if server else [], notes=notes)


def _add_container_key(container: Container, key: str, value: str) -> bool:
    """Adds one key of ``[Container]``. Returns whether a profile can hold it."""
    if key == "Image":
        container.image = value
    elif key == "Exec":
        container.command = unit_words(value)
    elif key == "Entrypoint":
        container.entrypoint = unit_words(value)
    elif key == "Environment":
        container.env |= environment(unit_words(value), container.notes)
    elif key == "Volume":
        container.mount(re.sub(r"%h", "~", value))
    elif key == "PublishPort":
        container.publish(value)
    elif key == "Network" and value == "host":
        container.host_network = True
    else:
        return False
    return True


def unit_assignments(text: str) -> list[tuple[str, str, str]]:
    """(section, key, value) of each line. A backslash at its end continues it, also after comments.

    For a line that is no assignment, section and value are empty.
    """
    assignments: list[tuple[str, str, str]] = []
    section = ""
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")) or not (pending or line.strip()):
            continue
        line = pending + line
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        if match := re.fullmatch(r"\s*\[([\w -]+)\]\s*", line):
            section = match[1]
            continue
        key, equals, value = line.partition("=")
        if equals and section and re.fullmatch(r"\s*[\w-]+\s*", key):
            assignments.append((section, key.strip(), value.strip()))
        else:
            assignments.append(("", line.strip(), ""))
    return assignments


def unit_words(text: str) -> list[str]:
    """The words of a value, split as in systemd.syntax(7), "Quoting"."""
    return joined_words(
        # systemd keeps a backslash before other characters, so that patterns such as \.ffn_ are unchanged.
        _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), piece[piece.lastindex]) if piece.lastindex else None
        for piece in _PIECE.finditer(text)
    )


def _specifiers(word: str) -> str:
    return re.sub(r"%[%h]", lambda match: "%" if match[0] == "%%" else "~", word)


def _expanded(word: str, env: dict[str, str], unresolved: list[str], budget: ExpansionBudget) -> list[str]:
    if (alone := re.fullmatch(r"\$([A-Za-z_]\w*)", word)) and alone[1] in env:
        budget.spend(len(env[alone[1]]))
        return env[alone[1]].split()  # "$X" alone is split into words

    known = {**env, "$": "$"}
    return [budget.expand(_VARIABLE, word, lambda match: known.get(match[1] or match[2] or "$"), unresolved)]


QUADLET = Format(
    "Quadlet units",
    lambda text, path: read_quadlet(text),
    r".*\.container",
    re.compile(r"^\[Container\]\s*$", re.M).search,
    decides=True,
)
UNIT = Format(
    "systemd units",
    lambda text, path: read_unit(text),
    r".*\.service",
    re.compile(r"^\[(?:Service|Unit)\]\s*$", re.M).search,
    decides=True,
)
