"""Changes the owner's profile files. Comments, order and all other lines stay byte for byte.

Every write happens under one lock, and only if the file is still what the change was made from: a second gpubox, or an
editor, never loses its work to this one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import check_profile_name, parse_profile
from gpubox.profiles.profile import Profile
from gpubox.storage import lock_file, read_text, write_atomically
from gpubox.toml_table import MAX_TOML_BYTES, parse_toml

KeyPath = tuple[str, ...]
"""Where a value stands in a profile's file: ``("port",)``, ``("flags", "ctx-size")``."""
KeyValue = bool | int | float | str | tuple[str | int | float, ...] | None
"""A new value. ``None`` removes the key."""
_TABLES = {"flags", "sampling", "chat", "env", "needs"}
_LOCK_ATTEMPTS = 100
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class ProfileEdit:
    """A change of one profile file that is not written yet."""

    name: str
    path: Path
    """The file to write. It may not exist yet: the change of a shipped profile becomes the owner's file."""
    source: Path | None
    """The file that ``before`` was read from; ``None`` for a new profile."""
    before: str
    after: str

    @property
    def profile(self) -> Profile:
        """The changed profile. Raises UsageError if the text would not load."""
        return parse_text(self.path, self.after)

    @property
    def diff(self) -> tuple[str, ...]:
        """The changed lines, as ``- old`` and ``+ new``, in the order of the file."""
        lines = difflib.ndiff(self.before.splitlines(), self.after.splitlines())
        return tuple(line.rstrip() for line in lines if line[0] in "+-")


def key_path(name: str) -> KeyPath:
    """Where ``name`` stands in a profile's file: ``port`` at the top, ``chat.system`` in a table, else a flag."""
    bare = name.strip().removeprefix("--")
    table, dot, key = bare.partition(".")
    if dot and table in _TABLES:
        return (table, key)
    top = {item.name for item in fields(Profile)} - {*_TABLES, "path", "shipped", "references", "name"}
    return (bare,) if bare.replace("-", "_") in top else ("flags", _with_hyphens(bare))


def parse_text(path: Path, text: str) -> Profile:
    """The profile in ``text``, named after ``path``. Raises UsageError that names the line or the key."""
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}.") from None
    return parse_profile(path, values)


def unchanged(profile: Profile, paths: Paths) -> ProfileEdit:
    """The edit that changes nothing, also of a file that does not load. Raises UsageError if it cannot be read."""
    text = read_profile(profile)
    return _edit_of(profile, text, text, paths)


def edit_profile(profile: Profile, changes: Mapping[KeyPath, KeyValue], paths: Paths) -> ProfileEdit:
    """The file of ``profile`` with ``changes``. Writes nothing. Raises UsageError if it would not load."""
    before = read_profile(profile)
    edit = _edit_of(profile, before, change_text(before, changes), paths)
    _ = edit.profile  # a change that would not load is refused here
    return edit


def replace_text(profile: Profile, before: str, after: str, paths: Paths) -> ProfileEdit:
    """The edit that replaces the file's text, as an external editor left it. Raises UsageError as ``edit_profile``."""
    edit = _edit_of(profile, before, after, paths)
    _ = edit.profile
    return edit


def _edit_of(profile: Profile, before: str, after: str, paths: Paths) -> ProfileEdit:
    path = paths.profiles / f"{profile.name}.toml" if profile.shipped else _path_of(profile)
    return ProfileEdit(profile.name, path, profile.path, before, after)


def new_edit(name: str, text: str, paths: Paths) -> ProfileEdit:
    """The edit that creates the profile ``name`` with ``text``. Raises UsageError if the name or the text is wrong."""
    path = _new_path(name, paths)
    edit = ProfileEdit(name, path, None, "", text)
    _ = edit.profile
    return edit


def save_edit(edit: ProfileEdit, paths: Paths) -> Path:
    """Writes the edit in one step and returns the file.

    Raises GpuboxError, and writes nothing, if the file has changed since the edit was made, or the disk refuses.
    """
    with locked_profiles(paths):
        current = _read(edit.path) if edit.path.exists() else None
        expected = edit.before if edit.source is not None and edit.source == edit.path else None
        if current != expected:
            how = "changed" if current is not None and expected is not None else "made" if current else "deleted"
            raise GpuboxError(
                f"{edit.path} was {how} by another program meanwhile. Nothing is written.",
                "Open the profile again and repeat the change.",
            )
        write_profile(edit.path, edit.after)
    return edit.path


def rename_profile(profile: Profile, name: str, paths: Paths) -> Path:
    """Gives the owner's profile another name and returns its new file. Raises UsageError, GpuboxError."""
    old = _own_path(profile, "renamed")
    with locked_profiles(paths):
        new = _new_path(name, paths)
        parse_text(new, _read(old))  # some names are refused for some profiles
        try:
            # link and unlink, not rename: rename would replace a file that appeared meanwhile
            new.hardlink_to(old)
            old.unlink()
        except OSError as error:
            raise _refused(old, error) from None
    return new


def delete_profile(profile: Profile, paths: Paths) -> Path:
    """Moves the owner's profile, or the link that it is, into the trash. Returns its place there.

    Raises UsageError, GpuboxError.
    """
    path = _own_path(profile, "deleted")
    with locked_profiles(paths):
        trashed = _trash(paths) / f"{profile.name}@{time.time_ns()}.toml"
        # The copy is on disk before the file goes: a kill in between leaves both.
        _copy(path, trashed)
        try:
            path.unlink()
        except OSError as error:
            raise _refused(path, error) from None
    return trashed


def restore_deleted(paths: Paths, name: str = "") -> Path:
    """Brings back the profile that was deleted last, or the last one called ``name``. Returns its file.

    Raises UsageError if there is none or its name is taken, GpuboxError if the disk refuses.
    """
    with locked_profiles(paths):
        trashed = [path for path in _trash(paths).glob("*@[0-9]*.toml") if not name or path.stem.split("@")[0] == name]
        if not trashed:
            raise UsageError(f"There is no deleted profile{f' {name!r}' if name else ''}.")
        last = max(trashed, key=lambda path: int(path.stem.partition("@")[2]))
        path = _new_path(last.stem.split("@")[0], paths)
        _copy(last, path)
        with contextlib.suppress(OSError):
            last.unlink()
    return path


def _copy(path: Path, target: Path) -> None:
    """Copies a file, or a symbolic link as a link, also one whose target is gone."""
    if not path.is_symlink():
        write_profile(target, _read(path))
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.parent / path.readlink())
    except OSError as error:
        raise _refused(target, error) from None


def read_profile(profile: Profile) -> str:
    """The text of the profile's file. Raises UsageError."""
    return _read(_path_of(profile))


def copied_text(profile: Profile) -> str:
    """The text of the profile's file for a copy: without aliases, which belong to one profile. Raises UsageError."""
    text = read_profile(profile)
    return change_text(text, {("aliases",): None}) if "aliases" in text else text


def alias_names(text: str) -> tuple[str, ...]:
    """Aliases as they are typed: ``a, b`` or as in TOML."""
    return tuple(filter(None, re.split(r"[\s,\[\]\"']+", text)))


def change_text(text: str, changes: Mapping[KeyPath, KeyValue]) -> str:
    """``text`` with some values changed. All other lines stay as they are.

    A key keeps its spelling (``ctx_size``) and its comment. Raises UsageError if the text is not TOML, or if a change
    would touch more than its own value.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    windows = "\r\n" in body and body.count("\r\n") == body.count("\n")
    if windows:
        body = body.replace("\r\n", "\n")
    try:
        expected = parse_toml(body)
        document = tomlkit.parse(body)
        for key_path, value in changes.items():
            _set(document, key_path, value)
            _set(expected, key_path, value)
        after = tomlkit.dumps(document)
        right = parse_toml(after) == expected and _only_changes(body, after, changes)
    except (TOMLKitError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"The profile's text cannot be changed: {error}.", _BY_HAND) from None
    if not right:
        raise UsageError("The change would touch other lines of the profile.", _BY_HAND)
    return bom + (after.replace("\n", "\r\n") if windows else after)


_BY_HAND = "Change it in an editor: gpubox edit NAME --editor"


def _set(table: MutableMapping[str, Any], key_path: KeyPath, value: KeyValue) -> None:
    *parents, last = key_path
    for parent in parents:
        if parent not in table:
            if value is None:
                return
            table[parent] = _new_table(table)
        table = table[parent]
    key = next((key for key in table if _with_hyphens(key) == _with_hyphens(last)), last)
    if value is None:
        table.pop(key, None)
    else:
        _put(table, key, list(value) if isinstance(value, tuple) else value)


def _with_hyphens(name: str) -> str:
    return name.replace("_", "-")


def _put(table: MutableMapping[str, Any], key: str, value: Any) -> None:
    """Sets a key. A new one goes after the last key of its table, before the empty lines and comments that follow."""
    if type(table) is dict or key in table:
        table[key] = value
        return
    import tomlkit
    from tomlkit.container import Container
    from tomlkit.items import AbstractTable, AoT

    container: Any = table.value if isinstance(table, AbstractTable) else table
    keys = [name for name, item in container.body if name is not None and not isinstance(item, AbstractTable | AoT)]
    if isinstance(container, Container) and keys and not isinstance(table, tomlkit.items.InlineTable):
        container._insert_after(keys[-1], key, tomlkit.item(value))
    else:
        table[key] = value


def _new_table(table: MutableMapping[str, Any]) -> Any:
    if type(table) is dict:
        return {}
    import tomlkit

    return tomlkit.table()


def _only_changes(before: str, after: str, changes: Mapping[KeyPath, KeyValue]) -> bool:
    """Whether every line that differs belongs to a changed key, or is empty."""
    names = {
        _with_hyphens(name) for key_path in changes for name in key_path
    }  # also of its table: it may be written in one line
    in_changed_value = False  # a value over several lines is replaced as a whole
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[0] == " ":
            in_changed_value = False
        elif line[0] in "+-":
            text = line[2:].strip()
            in_changed_value |= not names.isdisjoint(re.split(r"[^\w-]+", _with_hyphens(text)))
            if text and not in_changed_value:
                return False
    return True


def _path_of(profile: Profile) -> Path:
    if profile.path is None:
        raise UsageError(f"{profile.name} has no file.")
    return profile.path


def _own_path(profile: Profile, verb: str) -> Path:
    if profile.shipped:
        raise UsageError(
            f"{profile.name} is a shipped profile and cannot be {verb}.",
            'shipped-profiles = "hide" in config.toml leaves the shipped ones out of lists.',
        )
    return _path_of(profile)


def _new_path(name: str, paths: Paths) -> Path:
    check_profile_name(name)
    path = paths.profiles / f"{name}.toml"
    if path.exists() or path.is_symlink():
        raise UsageError(f"There is a profile {name!r} already: {path}.", "Choose another name.")
    return path


def _trash(paths: Paths) -> Path:
    return paths.state / "deleted-profiles"


def _read(path: Path) -> str:
    try:
        return read_text(path, MAX_TOML_BYTES)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def write_profile(path: Path, text: str) -> None:
    """Writes a profile's file, under ``locked_profiles``. Raises UsageError, and GpuboxError if the disk refuses."""
    try:
        write_atomically(path.resolve(), text.encode())  # a symbolic link stays and its target is replaced
    except UnicodeEncodeError:
        raise UsageError(f"{path.name}: the profile holds bytes that cannot be written as text.") from None
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> GpuboxError:
    return GpuboxError(
        f"{path} cannot be written: {error.strerror}.", "Check the owner of the folder and the free disk space."
    )


@contextmanager
def locked_profiles(paths: Paths) -> Iterator[None]:
    """The lock under which profiles are written. Raises GpuboxError if another gpubox holds it for long."""
    try:
        descriptor = lock_file(paths.state / "profiles.lock", attempts=_LOCK_ATTEMPTS)
    except OSError as error:
        raise _refused(paths.state / "profiles.lock", error) from None
    if descriptor is None:
        raise GpuboxError("Another gpubox is changing a profile.", "Try again in a moment.")
    try:
        yield
    finally:
        os.close(descriptor)
