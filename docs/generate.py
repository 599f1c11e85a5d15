"""Writes what the documents say about verbs, keys, files and the map of the code, from the code itself.

python docs/generate.py            writes verbs.md, keys.md, settings.md, gpubox.1 and the map in CONTRIBUTING.md
python docs/generate.py --check    names what is not current, and exits 1
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpubox.cli.main import SECTIONS, cli  # noqa: E402
from gpubox.config import Config  # noqa: E402
from gpubox.profiles.profile import Profile  # noqa: E402
from gpubox.toml_table import json_schema  # noqa: E402
from gpubox.tui.actions import ACTIONS, Action  # noqa: E402
from gpubox.views.figures import FIGURES  # noqa: E402

NOTE = "<!-- made by docs/generate.py: change the code, then run it -->\n"
MAP_BEGIN, MAP_END = "<!-- map: made by docs/generate.py -->\n", "<!-- end of the map -->"
PACKAGES = (
    "tui", "cli", "views", "advisor", "bench", "gateway", "agent", "planner", "telemetry", "sandbox", "server",
    "interchange", "models", "engines", "hardware", "profiles",
)  # fmt: skip
"""From the top of the house to its ground; a package imports only what stands below it."""
MAN_LISTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "FILES": (
        ("~/.config/gpubox/config.toml", "The settings; `gpubox show --schema config` prints its JSON Schema."),
        ("~/.config/gpubox/profiles/*.toml", "Your profiles; each replaces a shipped one of its name."),
        ("~/.local/state/gpubox", "Servers, logs, runs, chats and the history."),
        ("~/.cache/gpubox", "What can be found out again, and saved KV caches."),
    ),
    "ENVIRONMENT": (
        ("GPUBOX_CONFIG", "Another file in place of config.toml."),
        ("GPUBOX_API_KEY, LLAMA_API_KEY", "The key of the servers that gpubox starts."),
        ("XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_CACHE_HOME", "Other folders in place of those under FILES."),
    ),
    "SEE ALSO": (("https://github.com/ggml-org/llama.cpp", "llama-server, its flags and its API."),),
}
"""What the manual page says besides the verbs."""


def verbs() -> str:
    """The help of each verb, by the groups of ``gpubox --help``."""
    parts = [f"{NOTE}# Verbs\n", help_text(cli, ("gpubox",))]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _help_of(cli, (name,))
    return "\n".join(parts)


def _help_of(group: click.Group, words: tuple[str, ...]) -> Iterator[str]:
    """The help of one verb, then of the verbs below it."""
    command = group.get_command(click.Context(group), words[-1])
    assert command is not None, words
    yield f"{'#' * (len(words) + 2)} gpubox {' '.join(words)}\n"
    yield help_text(command, ("gpubox", *words))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _help_of(command, (*words, name))


def help_text(command: click.Command, words: tuple[str, ...]) -> str:
    """What ``--help`` prints, as a block of text."""
    context = click.Context(command, info_name=" ".join(words), max_content_width=100, terminal_width=100)
    return f"```text\n{command.get_help(context)}\n```\n"


def man() -> str:
    """The manual page, from what click knows of gpubox and of each verb."""
    parts = ['.\\" made by docs/generate.py: change the code, then run it', ".TH GPUBOX 1 DATE gpubox"]
    parts += [".SH NAME", "gpubox \\- the control room of a home GPU box"]
    parts += [".SH SYNOPSIS", ".B gpubox", "[OPTIONS] [VERB [ARGUMENTS]]", ".SH DESCRIPTION", *_man_of(cli, ())]
    for title, names in SECTIONS.items():
        parts.append(f'.SH "{title.upper()}"')
        for name in names:
            parts += _man_of(cli, (name,))
    for title, rows in MAN_LISTS.items():
        parts += [f".SH {title}", *_man_rows(rows)]
    text, file = "\n".join(parts) + "\n", ROOT / "docs/gpubox.1"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    dated = re.search(r"(?<=\.TH GPUBOX 1 )\S+", before)
    same = text.replace("DATE", dated[0], 1) if dated else ""
    return before if before == same else text.replace("DATE", date.today().isoformat(), 1)  # when it last changed


def _man_of(group: click.Group, words: tuple[str, ...]) -> Iterator[str]:
    """One verb and the verbs below it; without ``words`` gpubox itself."""
    command = group.get_command(click.Context(group), words[-1]) if words else group
    assert command is not None, words
    context = click.Context(command, info_name=" ".join(("gpubox", *words)))
    if words:
        yield f'.SS "{_roff(" ".join([*words, *command.collect_usage_pieces(context)]))}"'
    blocks = [block for block in inspect.cleandoc(command.help or "").split("\n\n") if block]
    for number, block in enumerate(blocks):
        listed = block.startswith("\b\n")
        lines = [_roff(line) for line in block.removeprefix("\b\n").splitlines()]
        yield from [*([".PP"] * (number > 0)), *([".nf"] * listed), *lines, *([".fi"] * listed)]
    yield from _man_rows(filter(None, (each.get_help_record(context) for each in command.get_params(context))))
    if words and isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _man_of(command, (*words, name))


def _man_rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in rows:
        if text and name != "--help":  # an argument without a word about it
            yield from (".TP", f"\\fB{_roff(name)}\\fR", _roff(text))


def _roff(text: str) -> str:
    """``text`` as it stands, for roff: a hyphen can be copied, and nothing begins a request."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("~", "\\(ti").replace("`", "\\(ga")
    )
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return f"\\&{text}" if text.startswith((".", "'", " ")) else text


def keys() -> str:
    """The keys of every screen, and the definitions of the numbers on them."""
    parts = [f"{NOTE}# Keys\n", "`?` (while you type: F1) shows the same on the screen.\n"]
    for scope in dict.fromkeys(action.scope for action in ACTIONS):
        rows = [
            (
                " ".join(f"`{label}`" for label in _labels(a)),
                a.title,
                a.help,
                f"`gpubox {a.command}`" if a.command else "",
            )
            for a in ACTIONS
            if a.scope is scope
        ]
        parts += [f"## {scope.capitalize()}\n", table(("key", "does", "more", "the same verb"), rows)]
    rows = [(name, figure.meaning, figure.moves) for name, figure in FIGURES.items()]
    parts += ["## What the numbers mean\n", table(("word", "meaning", "what moves it"), rows)]
    return "\n".join(parts)


def _labels(action: Action) -> list[str]:
    """How the keys of an action are shown, with the digit that opens its screen too."""
    digits = [key for key in action.key.split(",") if key.isdigit() and key != action.key_label]
    return [*filter(None, (action.key_label,)), *digits]


def settings() -> str:
    """The keys of a profile and of config.toml."""
    parts = [f"{NOTE}# Keys of a profile and of config.toml\n"]
    parts.append(
        "`gpubox show --schema` and `gpubox show --schema config` print the same as JSON Schema, for an editor.\n"
    )
    for title, kind in (("A profile", Profile), ("config.toml", Config)):
        parts += [f"## {title}\n", table(("key", "value", "means"), _schema_rows(json_schema(kind)))]
    return "\n".join(parts)


def _schema_rows(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, key in schema["properties"].items():
        table_of = key.get("items", {}) if key.get("type") == "array" else key
        yield f"`{prefix}{name}`", _value_words(key), key.get("description", "")
        if "properties" in table_of:
            yield from _schema_rows(table_of, f"{prefix}{name}.")
        elif isinstance(each := key.get("additionalProperties"), dict) and "properties" in each:
            yield from _schema_rows(each, f"{prefix}{name}.NAME.")


def _value_words(key: Mapping[str, Any]) -> str:
    """``integer``, ``one of a, b``; and its default."""
    kind = f"one of {', '.join(map(str, key['enum']))}" if "enum" in key else str(key.get("type", ""))
    default = key.get("default")
    return (
        kind
        if default in (None, "", [], {})
        else f"{kind}; {str(default).lower() if default in (True, False) else default}"
    )


def code_map() -> str:
    """One line for each file of the code, from the packages' own docstrings."""
    parts = [MAP_BEGIN]
    code = ROOT / "gpubox"
    inits = [path for name in PACKAGES for path in sorted((code / name).rglob("__init__.py"))]
    for init in [code / "__init__.py", *inits]:
        title, lines = _map_of(init)
        parts.append(f"**{init.parent.relative_to(ROOT)}/**: {title}\n")
        parts += ["```text", *lines, "```\n"] if lines else []
    return "\n".join([*parts, MAP_END])


def _map_of(init: Path) -> tuple[str, list[str]]:
    """What a package is for, and a line for each file: from its own docstring, else from those of the files."""
    title, _, rest = _docstring(init).partition("\n")
    lines = [line for line in rest.splitlines() if re.match(r"\S+(\.py|/|\.tcss|\.txt)\s", line)]
    if not lines:
        files = [path for path in sorted(init.parent.glob("*.py")) if path != init]
        cells = max((len(path.name) for path in files), default=0)
        lines = [f"{path.name:{cells}}  {_docstring(path).partition(chr(10))[0]}" for path in files]
    return title, lines


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def contributing() -> str:
    """CONTRIBUTING.md with the map as it is now."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    head, begin, rest = text.partition(MAP_BEGIN)
    return f"{head}{code_map()}{rest.partition(MAP_END)[2]}" if begin else text


def table(header: tuple[str, ...], rows: Any) -> str:
    """A table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines) + "\n"


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "docs/verbs.md": verbs,
    "docs/gpubox.1": man,
    "docs/keys.md": keys,
    "docs/settings.md": settings,
    "CONTRIBUTING.md": contributing,
}


def stale() -> list[str]:
    """The documents that the code has left behind."""
    return [
        name for name, make in DOCUMENTS.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != make()
    ]  # fmt: skip


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(stale()) or 0)
    for document, make in DOCUMENTS.items():
        (ROOT / document).write_text(make(), encoding="utf-8")
