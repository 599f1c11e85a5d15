"""One editing of a profile: its options as rows, the changes so far, and undo. No I/O, and nothing of Textual."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.engines.option_values import help_sentence, next_value, option_default, option_kind, parse_flag_change
from gpubox.errors import UsageError
from gpubox.profiles.edit import KeyValue, ProfileEdit, alias_names
from gpubox.profiles.profile import SAMPLING_FLAGS, SECRET_FLAGS, TOP_LEVEL_FLAGS, Profile
from gpubox.toml_edit import KeyPath
from gpubox.toml_table import TomlKey
from gpubox.views.profile import value_text

OWN_KEYS = (
    "model", "engine", "host", "port", "title", "companion", "restart", "aliases", "idle_seconds", "pinned", "upstream",
)  # fmt: skip
"""The profile's own keys that the editor shows beside the flags."""
_ENDS_THE_SERVER = {"usage", "help", "version", "cache-list", "completion-bash", "list-devices"}
"""Options that print something and exit."""
_NOT_A_FLAG = {*TOP_LEVEL_FLAGS, *SECRET_FLAGS, "api-key-file", *_ENDS_THE_SERVER}
_HELP_SEARCH_LETTERS = 3
"""Shorter search words are compared with names only."""
EDIT_MARKS = {
    "~": ("$accent", "changed here, not saved yet"),
    "+": ("$accent", "added here, not saved yet"),
    "−": ("$accent", "removed here, not saved yet"),
    "!": ("$error", "the engine refuses it; the line below says why"),
    "?": ("$warning", "the engine has no such flag; it is kept"),
}
"""Mark of a row in the editor -> its colour and meaning."""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One line of the editor."""

    path: KeyPath
    name: str
    saved: KeyValue
    """The value in the file; ``None``: not set."""
    value: KeyValue
    """The value with the changes."""
    default: str = ""
    about: str = ""
    option: EngineOption | None = None
    """The engine's option; ``None`` for a key of the profile, and for a flag that the engine does not have."""
    choices: tuple[KeyValue, ...] = ()
    """The values of a key of the profile that has only a few."""

    @property
    def changed(self) -> bool:
        return self.value != self.saved

    @property
    def unknown(self) -> bool:
        """Whether it is a flag that the engine does not have."""
        return self.path[0] == "flags" and self.option is None

    @property
    def switch(self) -> bool:
        """Whether it has no value to type."""
        return bool(self.choices and True in self.choices) or bool(self.option and option_kind(self.option) == "switch")

    @property
    def mark(self) -> str:
        """A key of EDIT_MARKS; empty if nothing is to be said."""
        if self.changed:
            return "+" if self.saved is None else "−" if self.value is None else "~"
        return "?" if self.unknown else ""


class EditSession:
    """The changes of one profile. The order of the rows stays, so that a row does not move when it is changed."""

    def __init__(
        self, profile: Profile, base: ProfileEdit, capabilities: Capabilities, engine: str, engines: Iterable[str] = ()
    ) -> None:
        """``base``: the file as it was read; ``engine``: name and version; ``engines``: those that can be chosen."""
        self.profile, self.base, self.capabilities, self.engine = profile, base, capabilities, engine
        self.engines = tuple(engines)
        self.changes: dict[KeyPath, KeyValue] = {}
        self._history: list[dict[KeyPath, KeyValue]] = []
        self._rows = tuple(self._make_rows())

    @property
    def rows(self) -> tuple[OptionRow, ...]:
        """Flags that the profile sets, keys of the profile, then all other flags."""
        changes = self.changes
        return tuple(replace(row, value=changes[row.path]) if row.path in changes else row for row in self._rows)

    @property
    def unsaved(self) -> bool:
        return bool(self.changes)

    def set(self, row: OptionRow, value: KeyValue) -> None:
        """Sets a value; ``None`` removes the key."""
        if value == row.value and type(value) is type(row.value):
            return
        self._history.append(dict(self.changes))
        if value == row.saved and type(value) is type(row.saved):
            del self.changes[row.path]
        else:
            self.changes[row.path] = value

    def step(self, row: OptionRow, step: int) -> bool:
        """Sets the next (1) or previous (-1) value. Returns False if there is none."""
        value = row.value
        if row.choices:
            at = row.choices.index(value) if value in row.choices else -1
            new = row.choices[(at + step) % len(row.choices)]
        elif row.option is not None:
            new = next_value(row.option, value, step)
        elif isinstance(value, int) and not isinstance(value, bool):
            new = value + step
        else:
            return False
        if new == value and type(new) is type(value):
            return False
        self.set(row, new)
        return True

    def set_text(self, row: OptionRow, text: str) -> None:
        """Sets the value that was typed. Raises UsageError if no key takes it."""
        if text.strip() != editable_text(row.value):
            self.set(row, parse_value(row, text.strip()))

    def undo(self) -> bool:
        """Takes back the last change. Returns False if there is none."""
        if not self._history:
            return False
        self.changes = self._history.pop()
        return True

    def rebase(self, profile: Profile, base: ProfileEdit) -> None:
        """Puts the changes on another state of the file."""
        self.profile, self.base = profile, base
        self._rebuild()

    def use_engine(self, capabilities: Capabilities, engine: str) -> None:
        """Shows the options of another engine."""
        self.capabilities, self.engine = capabilities, engine
        self._rebuild()

    def _rebuild(self) -> None:
        self._rows = tuple(self._make_rows())
        self._history.clear()
        saved = {row.path: row.saved for row in self._rows}
        self.changes = {path: value for path, value in self.changes.items() if saved.get(path) != value}

    def _make_rows(self) -> Iterable[OptionRow]:
        flags, options = self.profile.flags, self.capabilities
        # A change of a flag that neither the file nor this engine has keeps its row.
        names = [*flags, *(path[1] for path in self.changes if path[0] == "flags" and path[1] not in flags)]
        set_names = [name for name in names if name in flags or options.option(name) is None]
        shown = set()
        for name in set_names:
            option = options.option(name)
            if option:
                shown.add(option.long)
            yield _flag_row(name, flags.get(name), option)
        yield from self._own_rows()
        for key, number in self.profile.sampling.items():
            if (option := options.option(SAMPLING_FLAGS[key])) is not None:
                shown.add(option.long)  # the same default has one row
            yield OptionRow(("sampling", key), key, number, number, "", "default of this profile's requests")
        for option in options.options:
            if option.long not in shown and not option.removed and _NOT_A_FLAG.isdisjoint(option.names):
                yield _flag_row(option.long, None, option)

    def _own_rows(self) -> Iterable[OptionRow]:
        for field in fields(Profile):
            if field.name not in OWN_KEYS:
                continue
            key: TomlKey = field.metadata["toml"]
            value = getattr(self.profile, field.name)
            empty = () if key.kind == "list" else ""
            default = field.default if isinstance(field.default, str | int | float) else empty
            name = field.name.replace("_", "-")
            saved = value if value != default else None
            choices: tuple[KeyValue, ...] = (None, True) if key.kind == "boolean" else ()
            if field.name == "engine":
                choices = (None, *self.engines)
            yield OptionRow((name,), name, saved, saved, value_text(default), key.description, choices=choices)


def _flag_row(name: str, value: KeyValue, option: EngineOption | None) -> OptionRow:
    if option is None:
        return OptionRow(("flags", name), name, value, value, "", "this engine has no such flag")
    if name in option.negatives:  # written as no-mmap: true
        option = replace(option, negatives=())
    return OptionRow(("flags", name), name, value, value, option_default(option), help_sentence(option), option)


def editable_text(value: KeyValue) -> str:
    """A value as it is typed. A list is written as in TOML."""
    return json.dumps(list(value), ensure_ascii=False) if isinstance(value, tuple) else value_text(value)


def parse_value(row: OptionRow, text: str) -> KeyValue:
    """The value of ``text``; an empty one removes the key. Raises UsageError."""
    if not text:
        return None
    if row.switch or isinstance(row.value, bool):
        words = {"on": True, "true": True, "off": False, "false": False}
        if text.lower() in words:
            return words[text.lower()]
    if row.path[0] in ("model", "engine", "host", "title", "upstream"):
        return text
    if row.path[0] == "aliases":
        return alias_names(text)
    value = parse_flag_change(f"{row.name}={text}")[1]
    if row.path[0] in ("port", "idle-seconds", "sampling"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{row.name} takes a number, not {text!r}.")
        return value
    return text if isinstance(value, bool) and not row.switch else value


def search_rows(rows: Iterable[OptionRow], search: str) -> tuple[OptionRow, ...]:
    """The rows that contain every word: in the name (without hyphens too), in an alias or in the help; names first."""
    terms = search.lower().split()
    ranked = [(max((_rank(row, term) for term in terms), default=0), row) for row in rows]
    return tuple(row for rank, row in sorted(ranked, key=lambda pair: pair[0]) if rank < _NO_MATCH)


_NO_MATCH = 9


def _rank(row: OptionRow, term: str) -> int:
    compact = term.replace("-", "").replace("_", "")
    names = [row.name, *(row.option.names if row.option else ())]
    for rank, name in enumerate([names[0], "\n".join(names[1:])]):
        bare = name.lower().replace("-", "")
        if bare.startswith(compact) or f"\n{compact}" in bare:
            return 3 * rank
        if compact in bare:
            return 3 * rank + 1
    if len(term) >= _HELP_SEARCH_LETTERS and term in row.about.lower():
        return 7
    return _NO_MATCH


def changed_words(before: Iterable[str], after: Iterable[str]) -> tuple[tuple[str, bool], ...]:
    """``after`` as it is typed in a shell, each option with its values, and whether ``before`` has not got it."""
    old = set(_groups(before))
    return tuple((" ".join(map(shlex.quote, group)), group not in old) for group in _groups(after))


def _groups(argv: Iterable[str]) -> list[tuple[str, ...]]:
    """``--flag value`` pairs, and single words."""
    groups: list[list[str]] = []
    for word in argv:
        if (word.startswith("-") and not word[1:2].isdigit()) or not groups or not groups[-1][0].startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return [tuple(group) for group in groups]


def describe_changes(rows: Iterable[OptionRow]) -> str:
    """``n-cpu-moe 18 instead of 22, mmap off`` for a heading."""
    texts = []
    for row in rows:
        if not row.changed:
            continue
        new, old = value_text(row.value), value_text(row.saved)
        if row.value is None:
            texts.append(f"without {row.name}")
        else:
            texts.append(f"{row.name} {new} instead of {old}" if old else f"{row.name} {new}")
    return ", ".join(texts)


def refused_names(refusals: Mapping[str, str], rows: Iterable[OptionRow]) -> frozenset[KeyPath]:
    """The rows whose flag is refused."""
    return frozenset(row.path for row in rows if row.path[0] == "flags" and row.name in refusals)
