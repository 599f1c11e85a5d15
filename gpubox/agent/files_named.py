"""Files that a prompt names with ``@``: their names for the picker, and their text for the model. Blocking."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.agent.file_tools import SKIPPED_FOLDERS
from gpubox.agent.images import MAX_BYTES
from gpubox.errors import GpuboxError
from gpubox.sandbox.layers import OPEN_FILE, View
from gpubox.units import small_size

MAX_NAMES = 20_000
"""Names of a workspace that the picker knows."""
MAX_LINES, MAX_CHARACTERS, MAX_FILES = 200, 8_000, 8
"""Of one file, and of one prompt."""
MAX_READ_BYTES = 1 << 20
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
ATTACHED = "\n\nFiles named: "
"""What stands between a prompt and the text of its files."""
_NAMED = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|(\S+))')
_BEING_NAMED = re.compile(r'(?:(?<=\s)|^)@("?)([^\s"]*)$')


def attachment(text: str) -> str:
    """What was added to a prompt: names in its first line, then their text."""
    return text.partition(ATTACHED)[2]


def being_named(before: str) -> str | None:
    """The name that is being typed at the end of ``before``; ``None``: none is."""
    match = _BEING_NAMED.search(before)
    return match[2] if match else None


def with_name(before: str, path: str) -> str:
    """``before`` with ``path`` instead of the name that is being typed. After a folder the next name can follow."""
    start = before.rindex("@")
    quoted = f'@"{path}"' if " " in path else f"@{path}"
    return before[:start] + quoted + ("" if path.endswith("/") else " ")


def workspace_names(view: View) -> list[str]:
    """The paths of files, and of folders with a slash at the end; nearest first, at most MAX_NAMES.

    Folders in which nobody looks are left out; a path in them that is typed is read all the same.
    """
    names: list[str] = []
    level: list[tuple[str, ...]] = [()]
    while level and len(names) < MAX_NAMES:
        below: list[tuple[str, ...]] = []
        for folder_names in level:
            with contextlib.suppress(OSError), view.folder(folder_names) as folder:
                items = (item for item in folder.items() if item.name.isprintable())  # no other name can be typed
                for item in sorted(items, key=lambda item: item.name):
                    path = "/".join((*folder_names, item.name))
                    if item.is_folder and item.name not in SKIPPED_FOLDERS:
                        below.append((*folder_names, item.name))
                        names.append(f"{path}/")
                    elif item.is_file:
                        names.append(path)
            if len(names) >= MAX_NAMES:
                break
        level = below
    return names[:MAX_NAMES]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent for a prompt."""

    text: str
    attached: str = ""
    """What the model reads behind it; see ``attachment``."""
    images: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not added, and why."""

    @property
    def image_names(self) -> list[str]:
        """Names and sizes."""
        return [f"{path.name} {small_size(path.stat().st_size)}" for path in self.images]


def named(typed: str) -> list[str]:
    """What stands behind an ``@``, once each."""
    return [*dict.fromkeys(match[1] or match[2].rstrip(".,;:!?)") for match in _NAMED.finditer(typed))]


def read_named(typed: str, view: View | None, given: Mapping[str, str] = {}) -> Prompt:
    """``typed`` with the text of the files that it names, whole lines within the bounds, and the images it names.

    A name that is none of a file stays as it is: ``@decorator`` is no mistake. ``given``: texts by name that hold
    instead of the files'.
    """
    blocks: list[str] = []
    names: list[str] = []
    images: list[Path] = []
    notes: list[str] = []
    for name in named(typed):
        if is_image(name) and name not in given:
            if path := _image_path(name, view):
                images.append(path)
            continue
        data = given[name].encode("utf-8", "replace") if name in given else _read(name, view) if view else None
        if data is None or len(names) >= MAX_FILES:
            notes += [f"{name} was not added: at most {MAX_FILES} files are."] if data is not None else []
            continue
        if b"\0" in data:
            notes.append(f"{name} was not added: it is no text.")
            continue
        names.append(name)
        blocks.append(_block(name, data.decode("utf-8", "replace")))
    attached = ATTACHED + ", ".join(names) + "\n" + "\n".join(blocks) if blocks else ""
    return Prompt(typed, attached, tuple(images), tuple(notes))


def is_image(name: str) -> bool:
    """Whether ``name`` ends as that of an image."""
    return name.lower().endswith(IMAGE_ENDINGS)


def pasted_image(text: str) -> str:
    """How a pasted path of an image is named in the prompt; empty: it is no such path."""
    path = text.strip().strip("'\"").removeprefix("file://").replace("\\ ", " ")
    if "\n" in path or not is_image(path) or not path.startswith(("/", "~")):
        return ""
    return f'@"{path}" ' if " " in path else f"@{path} "


def _image_path(name: str, view: View | None) -> Path | None:
    """The file of an image: the owner may name any of his, and those of the workspace by their path in it."""
    path = Path(name).expanduser()
    inner = view.folders if view and ".." not in path.parts else ()
    for root in [None] if path.is_absolute() else inner:
        with contextlib.suppress(OSError):
            status = View([root]).status(path.parts) if root else path.lstat()  # no link of the model leads out
            if status and stat.S_ISREG(status.st_mode):
                if status.st_size > MAX_BYTES:
                    raise GpuboxError(
                        f"{name} is {small_size(status.st_size)}: at most {small_size(MAX_BYTES)} are sent."
                    )
                return root / path if root else path
    return None


def _read(name: str, view: View) -> bytes | None:
    """The begin of a file of the workspace; of a folder its names. ``None``: there is neither."""
    names = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith(("/", "~")) or ".." in names:
        return None
    try:
        if not names or ((status := view.status(names)) and stat.S_ISDIR(status.st_mode)):
            with view.folder(names) as folder:
                inner = sorted(f"{item.name}/" if item.is_folder else item.name for item in folder.items())
            return "\n".join(inner).encode("utf-8", "replace")
        with view.folder(names[:-1]) as folder:
            item = folder.find(names[-1])
            if item is None or not item.is_file:
                return None
            with os.fdopen(os.open(item.name, OPEN_FILE, dir_fd=item.folder), "rb") as file:
                return file.read(MAX_READ_BYTES)
    except (OSError, ValueError):
        return None


def _block(name: str, text: str) -> str:
    """The file as the model reads it: whole lines, and the number of the next one if it does not fit."""
    lines = text.splitlines()
    shown = list(_within(lines))
    rest = f"\n[line {len(shown) + 1} is the next of {len(lines):,}]" if len(shown) < len(lines) else ""
    return f"--- {name}\n" + "\n".join(shown) + rest


def _within(lines: Sequence[str]) -> Iterator[str]:
    room = MAX_CHARACTERS
    for line in lines[:MAX_LINES]:
        room -= len(line) + 1
        if room < 0:
            return
        yield line
