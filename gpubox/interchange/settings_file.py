"""Writes a client's settings into the file that it reads. All else in it stays, and a copy of it is kept beside it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.client_settings import KEY_PLACEHOLDER, Snippet, settings_files
from gpubox.interchange.jsonc import set_values
from gpubox.storage import read_bytes, read_json, write_atomically

_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """What one file becomes."""

    path: Path
    before: str | None
    """``None``: there is no such file yet."""
    after: str

    def diff(self) -> Iterator[str]:
        """The lines that change, and one line around them; each begins with a space, + or -."""
        lines = difflib.unified_diff((self.before or "").splitlines(), self.after.splitlines(), n=1, lineterm="")
        return (line for line in lines if not line.startswith(("---", "+++", "@@")))


def settings_change(snippet: Snippet) -> SettingsChange | None:
    """The change that connects the client of ``snippet``; ``None`` if gpubox cannot write its settings.

    Raises GpuboxError for a file that cannot be read, or whose JSON is broken: it is never overwritten.
    """
    files = settings_files(snippet.client)
    if not files:
        return None
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    paths = [home / name for name in files]
    path = next((path for path in paths if path.exists()), paths[-1])
    try:
        before = read_bytes(path, _FILE_BYTES).decode() if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
        raise GpuboxError(f"{path} cannot be read: {why}.") from None
    if before is None:
        return SettingsChange(path, None, snippet.text)
    try:
        return SettingsChange(path, before, set_values(before, read_json(snippet.text)))
    except UsageError as error:
        hint = "gpubox leaves a broken file as it is. Mend it, or copy the settings into it."
        raise UsageError(f"{path}, {error.message}", hint) from None


def write_settings(change: SettingsChange) -> Path | None:
    """Writes the change. Returns the copy of the file as it was; ``None`` if none was needed. Raises GpuboxError."""
    if KEY_PLACEHOLDER in change.after:
        raise UsageError("The gateway asks for a key, and the settings have none.", "Make one for this client first.")
    try:
        _check_unchanged(change.path, change.before)
        backup = None
        if change.before == change.after:
            return None
        if change.before is not None:
            stamp = utc_now()[:19].replace(":", "")
            backup = change.path.with_name(f"{change.path.name}.before-gpubox-{stamp}")
            write_atomically(backup, change.before.encode(), like=change.path)
        write_atomically(change.path, change.after.encode())
    except OSError as error:
        raise GpuboxError(f"{change.path} cannot be written: {error.strerror}.") from None
    return backup


def undo_settings(change: SettingsChange) -> None:
    """Brings the file back as it was. Raises GpuboxError if it was changed since."""
    try:
        _check_unchanged(change.path, change.after)
        if change.before is None:
            change.path.unlink()
        else:
            write_atomically(change.path, change.before.encode())
    except OSError as error:
        raise GpuboxError(f"{change.path} cannot be written: {error.strerror}.") from None


def _check_unchanged(path: Path, text: str | None) -> None:
    now = read_bytes(path, _FILE_BYTES).decode(errors="replace") if path.exists() else None
    if now != text:
        raise GpuboxError(f"{path} was changed meanwhile.", "Nothing is written. Look at it, then try again.")
