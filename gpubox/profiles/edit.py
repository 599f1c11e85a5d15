"""Changes the owner's profile files. Comments, order and all other lines stay byte for byte.

Every write happens under one lock, and only if the file is still what the change was made from: a second gpubox, or an
editor, never loses its work to this one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import check_profile_name, parse_profile
from gpubox.profiles.profile import Profile
from gpubox.storage import LOCK_ATTEMPTS, held_lock, make_folder, sync_folder, unwritable, write_atomically
from gpubox.toml_edit import KeyPath, change_toml
from gpubox.toml_table import parse_toml, read_toml_text

KeyValue = bool | int | float | str | tuple[str | int | float, ...] | None
"""A new value. ``None`` removes the key."""
_TABLES = {"flags", "sampling", "chat", "env", "needs", "requests", "personas"}
_LOCK_ATTEMPTS = LOCK_ATTEMPTS
EDITS_KEPT = 100
"""So many edits can be taken back."""
UNDONE = "undone"
"""What an undo has replaced: kept, but not offered."""


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
    def unchanged(self) -> Profile:
        """The profile as it is in its file. Raises UsageError if that does not load."""
        return parse_text(self.path, self.before)

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
    return (bare,) if bare.replace("-", "_") in top else ("flags", bare.replace("_", "-"))


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


def save_edit(edit: ProfileEdit, paths: Paths, kind: str = "edit") -> Path:
    """Writes the edit in one step and returns the file. ``kind``: what ``undo`` calls it, ``edit`` or ``trial``.

    Raises GpuboxError, and writes nothing, if the file has changed since the edit was made, or the disk refuses.
    """
    with locked_profiles(paths):
        current = read_toml_text(edit.path) if edit.path.exists() else None
        expected = edit.before if edit.source is not None and edit.source == edit.path else None
        if current != expected:
            how = "changed" if current is not None and expected is not None else "made" if current else "deleted"
            raise GpuboxError(
                f"{edit.path} was {how} by another program meanwhile. Nothing is written.",
                "Open the profile again and repeat the change.",
            )
        if current is not None and current != edit.after:
            write_profile(_former(paths, edit.name, kind, edit.after), current)
        write_profile(edit.path, edit.after)
        _forget_oldest(paths)
    return edit.path


def rename_profile(profile: Profile, name: str, paths: Paths) -> Path:
    """Gives the owner's profile another name and returns its new file. Raises UsageError, GpuboxError."""
    old = _own_path(profile, "renamed")
    with locked_profiles(paths):
        new = _new_path(name, paths)
        parse_text(new, read_toml_text(old))  # some names are refused for some profiles
        try:
            # link and unlink, not rename: rename would replace a file that appeared meanwhile
            new.hardlink_to(old)
            sync_folder(new.parent)
            old.unlink()
        except OSError as error:
            raise unwritable(old, error) from None
    return new


def delete_profile(profile: Profile, paths: Paths) -> Path:
    """Moves the owner's profile, or the link that it is, into the trash. Returns its place there.

    Raises UsageError, GpuboxError.
    """
    path = _own_path(profile, "deleted")
    with locked_profiles(paths):
        trashed = _former(paths, profile.name, "deletion")
        # The copy is on disk before the file goes: a kill in between leaves both.
        _copy(path, trashed)
        try:
            path.unlink()
        except OSError as error:
            raise unwritable(path, error) from None
    return trashed


@dataclass(frozen=True, slots=True)
class Former:
    """What a profile's file was before an edit, a kept trial or its deletion."""

    name: str
    kind: str
    """``edit``, ``trial`` or ``deletion``."""
    at: float
    """When it was changed, in seconds since 1970."""
    text: Path
    """Where its former bytes are."""

    def __str__(self) -> str:
        """What taking it back does."""
        if self.kind == "deletion":
            return f"bring back {self.name}"
        return f"undo the {'kept trial' if self.kind == 'trial' else 'edit'} of {self.name}"


def last_former(paths: Paths, name: str = "") -> Former | None:
    """The last change that can be taken back, of the profile ``name`` if there is one.

    None of a file that changed again since, or of a deleted profile whose name is taken.
    """
    for path in sorted(_formers(paths), key=_changed_at, reverse=True):
        of, at, kind, after = path.stem.split("@")
        now = paths.profiles / f"{of}.toml"
        if (
            kind != UNDONE
            and name in ("", of)
            and (_digest(now) == after if after else not now.is_symlink() and not now.exists())
        ):
            return Former(of, kind, int(at) / 1e9, path)
    return None


def undo(paths: Paths, name: str = "") -> tuple[Former, Path]:
    """Takes the last change back, of the profile ``name`` if there is one. Returns what it was, and the file.

    The text that it replaces is kept beside the former ones. Raises UsageError if there is nothing to take back, and
    GpuboxError if the disk refuses.
    """
    with locked_profiles(paths):
        former = last_former(paths, name)
        if former is None:
            raise UsageError(f"There is nothing to take back{f' of {name!r}' if name else ''}.")
        path = paths.profiles / f"{former.name}.toml"
        if former.kind == "deletion":
            _copy(former.text, path)
        else:
            write_profile(_former(paths, former.name, UNDONE, "-"), read_toml_text(path))
            write_profile(path, read_toml_text(former.text))
        with contextlib.suppress(OSError):
            former.text.unlink()
    return former, path


def _former(paths: Paths, name: str, kind: str, after: str = "") -> Path:
    """Where the former bytes go: NAME@TIME@KIND@DIGEST of what is written instead, none for a deletion."""
    digest = sha256(after.encode(errors="surrogatepass")).hexdigest() if after else ""
    return paths.former_profiles / f"{name}@{time.time_ns()}@{kind}@{digest}.toml"


def _formers(paths: Paths) -> list[Path]:
    return list(paths.former_profiles.glob("*@[0-9]*@*@*.toml"))


def _changed_at(former: Path) -> int:
    return int(former.stem.split("@")[1])


def _digest(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _forget_oldest(paths: Paths) -> None:
    """Of edits the last ones are kept, of deletions all."""
    edits = [path for path in _formers(paths) if not path.stem.endswith("@")]
    for path in sorted(edits, key=_changed_at)[:-EDITS_KEPT]:
        with contextlib.suppress(OSError):
            path.unlink()


def _copy(path: Path, target: Path) -> None:
    """Copies a file, or a symbolic link as a link, also one whose target is gone."""
    if not path.is_symlink():
        write_profile(target, read_toml_text(path), like=path)
        return
    try:
        make_folder(target.parent)
        target.symlink_to(path.parent / path.readlink())
    except OSError as error:
        raise unwritable(target, error) from None


def read_profile(profile: Profile) -> str:
    """The text of the profile's file. Raises UsageError."""
    return read_toml_text(_path_of(profile))


def copied_text(profile: Profile) -> str:
    """The text of the profile's file for a copy: without more names, which belong to one profile. Raises UsageError."""
    text = read_profile(profile)
    names: dict[KeyPath, KeyValue] = {(key,): None for key in ("aliases", "personas") if key in text}
    return change_text(text, names) if names else text


def alias_names(text: str) -> tuple[str, ...]:
    """Aliases as they are typed: ``a, b`` or as in TOML."""
    return tuple(filter(None, re.split(r"[\s,\[\]\"']+", text)))


def change_text(text: str, changes: Mapping[KeyPath, KeyValue]) -> str:
    """The text of a profile with some values changed, as ``change_toml``. Raises UsageError."""
    return change_toml(text, changes, "Change it in an editor: gpubox edit NAME --editor")


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


def write_profile(path: Path, text: str, like: Path | None = None) -> None:
    """As ``write_atomically``, under ``locked_profiles``. Raises UsageError, and GpuboxError if the disk refuses."""
    try:
        write_atomically(path, text.encode(), like=like)
    except UnicodeEncodeError:
        raise UsageError(f"{path.name}: the profile holds bytes that cannot be written as text.") from None
    except OSError as error:
        raise unwritable(path, error) from None


def locked_profiles(paths: Paths) -> AbstractContextManager[int]:
    """The lock under which profiles are written. Raises GpuboxError if another gpubox holds it for long."""
    return held_lock(paths.state / "profiles.lock", "Another gpubox is changing a profile.", attempts=_LOCK_ATTEMPTS)


@contextmanager
def edit_in_editor(edit: ProfileEdit, profile: Profile, paths: Paths) -> Iterator[ProfileEdit]:
    """The edit after the owner's editor has changed it: check and save it inside the block.

    Blocks, and the editor has the terminal. What was typed is in a file until the block ends: a GpuboxError of the
    block names it, and a kill leaves it. Raises GpuboxError if the editor failed, UsageError if its text is wrong.
    """
    copy = paths.drafts / f"{profile.name}.{os.urandom(4).hex()}.toml"
    write_profile(copy, edit.after)
    try:
        _run_editor(copy)
        try:
            changed = replace_text(profile, edit.before, copy.read_bytes().decode(), paths)
        except OSError as error:
            raise GpuboxError(f"The editor left no text: {error.strerror}. Nothing is written.") from None
        except (UsageError, UnicodeDecodeError) as error:
            sentence = error.message if isinstance(error, UsageError) else "The text is not UTF-8."
            raise UsageError(f"{sentence} Nothing is written.") from None
        yield changed
    except GpuboxError as error:
        if copy.exists() and copy.read_bytes() != edit.after.encode():
            error.hint = f"{error.hint} Your text is in {copy}.".strip()
        else:
            copy.unlink(missing_ok=True)
        raise
    copy.unlink(missing_ok=True)


def typed_earlier(name: str, paths: Paths) -> str:
    """Where text of earlier edits of this profile is that was not saved, in a sentence; empty if there is none."""
    copies = sorted(str(path) for path in paths.drafts.glob(f"{name}.????????.toml"))
    return f"Text that was typed for {name} and not saved is in {', '.join(copies)}." if copies else ""


def _run_editor(path: Path) -> None:
    program = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = signal.signal(signal.SIGINT, lambda *_: None)  # a Ctrl-C is the editor's
    try:
        code = subprocess.run([*shlex.split(program), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GpuboxError(f"The editor {program!r} cannot be started: {reason}.", "Set $EDITOR.") from None
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise GpuboxError(f"The editor ended with code {code}. Nothing is written.")
