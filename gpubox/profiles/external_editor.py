"""Opens a profile's text in the owner's editor."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.edit import ProfileEdit, replace_text, write_profile
from gpubox.profiles.profile import Profile


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
