"""Opens a profile's text in the owner's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.edit import ProfileEdit, replace_text
from gpubox.profiles.profile import Profile


def edit_in_editor(edit: ProfileEdit, profile: Profile, paths: Paths) -> ProfileEdit:
    """The edit after the owner's editor has changed it. Blocks, and the editor has the terminal.

    Raises GpuboxError, and writes nothing, if it cannot be started or failed; UsageError if its text does not load. The
    text is then kept in a file that the error names.
    """
    program = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile(
        "w", suffix=f".{profile.name}.toml", delete=False, encoding="utf-8", newline=""
    ) as file:
        file.write(edit.after)
    copy = Path(file.name)
    try:
        code = subprocess.run([*shlex.split(program), str(copy)], check=False).returncode
    except (OSError, ValueError) as error:
        copy.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else error
        raise GpuboxError(f"The editor {program!r} cannot be started: {reason}.", "Set $EDITOR.") from None
    if code:
        raise GpuboxError(f"The editor ended with code {code}. Nothing is written.", f"Its text is in {copy}.")
    try:
        changed = replace_text(profile, edit.before, copy.read_bytes().decode(), paths)
    except OSError as error:
        raise GpuboxError(f"The editor left no text: {error.strerror}. Nothing is written.") from None
    except (UsageError, UnicodeDecodeError) as error:
        sentence = error.message if isinstance(error, UsageError) else "The text is not UTF-8."
        raise UsageError(f"{sentence} Nothing is written.", f"Your text is in {copy}.") from None
    copy.unlink(missing_ok=True)
    return changed
