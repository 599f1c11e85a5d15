"""Changes one line of config.toml. Comments, order and all other lines stay byte for byte."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.storage import lock_file, read_text, write_atomically
from gpubox.toml_table import MAX_TOML_BYTES, parse_toml

_LOCK_ATTEMPTS = 100
_BOM = "\ufeff"
_KEY = re.compile(r"""^([ \t]*["']?default-engine["']?[ \t]*=[ \t]*)(?:"[^"\r\n]*"|'[^'\r\n]*')""", re.M)
_FILE_COMMENT = re.compile(r"(?:#[^\n]*\n)+(?:[ \t]*\r?\n)+")
_TABLE = re.compile(r"^[ \t]*\[", re.M)


def set_default_engine(paths: Paths, name: str) -> Path:
    """Sets ``default-engine`` in config.toml, which is made if there is none. Returns the file.

    Raises UsageError if the file cannot be read or is not TOML, GpuboxError if it cannot be written.
    """
    path = paths.config_file
    try:
        descriptor = lock_file(paths.state / "config.lock", attempts=_LOCK_ATTEMPTS)
        if descriptor is None:
            raise GpuboxError("Another gpubox is changing config.toml.", "Try again in a moment.")
        try:
            after = changed_text(path, _read(path), name)
            write_atomically(path.resolve(), after.encode())  # a symbolic link stays and its target is replaced
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GpuboxError(
            f"{path} cannot be written: {error.strerror}.", f'Write it yourself: default-engine = "{name}"'
        ) from None
    return path


def changed_text(path: Path, text: str, name: str) -> str:
    """``text`` with the default engine ``name``. Raises UsageError if that would change anything else."""
    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    try:
        expected = {**parse_toml(body), "default-engine": name}
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    table = _TABLE.search(body)
    top = body[: table.start()] if table else body
    line_end = "\r\n" if "\r\n" in body else "\n"
    if match := _KEY.search(top):
        after = f'{body[: match.end(1)]}"{name}"{body[match.end() :]}'
    else:  # at the top, because after a [table] it would belong to that, but below the comment about the whole file
        at = comment.end() if (comment := _FILE_COMMENT.match(body)) else 0
        after = f'{body[:at]}default-engine = "{name}"{line_end}{body[at:]}'
    try:
        right = parse_toml(after) == expected
    except ValueError:
        right = False
    if not right:
        raise UsageError(f"{path} cannot be changed safely.", f'Write it yourself: default-engine = "{name}"')
    return bom + after


def _read(path: Path) -> str:
    try:
        return read_text(path, MAX_TOML_BYTES)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
