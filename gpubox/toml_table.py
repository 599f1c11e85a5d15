"""Strict reading of TOML tables: a typo is an error that names the file, the key and the nearest one."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpubox.errors import UsageError
from gpubox.storage import NotRegularFile, read_text

MAX_TOML_BYTES = 256 * 1024
"""A larger file is nobody's settings, and costs a second of parsing for each megabyte."""


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was most likely meant to be, or ``None``."""
    import difflib  # only after a typo

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of one TOML file.

    Raises UsageError when the file is absent, unreadable or not TOML; the message holds line and column.
    """
    import tomllib  # most starts read no TOML before the first paint

    try:
        # Windows editors begin a file with a BOM, and end lines with \r\n.
        return tomllib.loads(read_text(path, MAX_TOML_BYTES, "utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file.", "A TOML file is UTF-8 text.") from None
    except NotRegularFile as error:
        hint = "A TOML file of gpubox is a short text." if error.errno == errno.EFBIG else ""
        raise UsageError(f"{path} is not read: {error.strerror}.", hint) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not usable: a number in it is too long, or its lists nest too deep.") from None


class TomlTable:
    """One table of a TOML file, read key by key; ``done`` refuses the keys that nobody asked for."""

    def __init__(self, path: Path, name: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.name = name
        self.values = values
        self._known: set[str] = set()

    def _where(self, key: str) -> str:
        return f"{self.path}: {f'[{self.name}] ' if self.name else ''}{key}"

    def refuse(self, key: str, why: str, hint: str = "") -> UsageError:
        """The error for a key whose value cannot be used; for the caller to raise."""
        return UsageError(f"{self._where(key)} {why}.", hint)

    def _get(self, key: str, kinds: tuple[type, ...], words: str, default: Any) -> Any:
        self._known.add(key)
        if key not in self.values:
            return default
        value = self.values[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.refuse(key, f"must be {words}, not {value!r}")
        return value

    def text(self, key: str, default: str = "") -> str:
        return str(self._get(key, (str,), "a text", default))

    def integer(self, key: str, default: int) -> int:
        return int(self._get(key, (int,), "a whole number", default))

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self._get(key, (int, float), "a number", default)
        try:
            number = None if value is None else float(value)
        except OverflowError:
            number = math.inf
        if number is not None and not math.isfinite(number):
            raise self.refuse(key, "must be a number of ordinary size")
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._get(key, (bool,), "true or false", default))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key, (list,), "a list of texts", [])
        if not all(isinstance(v, str) for v in value):
            raise self.refuse(key, "must be a list of texts")
        return tuple(value)

    def table(self, key: str) -> TomlTable:
        value = self._get(key, (dict,), "a table", {})
        return TomlTable(self.path, f"{self.name}.{key}" if self.name else key, value)

    def tables(self, key: str) -> list[TomlTable]:
        value = self._get(key, (list,), f"written as [[{key}]]", [])
        if not all(isinstance(v, dict) for v in value):
            raise self.refuse(key, f"must be written as [[{key}]]")
        return [TomlTable(self.path, key, v) for v in value]

    def text_map(self) -> dict[str, str]:
        """Every key of this table with its text (an ``[env]`` table, the ``[engines]`` of config.toml)."""
        return {key: self.text(key) for key in self.values}

    def done(self) -> None:
        """Raises UsageError for the first key that was never asked for."""
        for key in self.values:
            if key not in self._known:
                near = closest_match(key, self._known)
                hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(sorted(self._known))}."
                raise self.refuse(key, "is not a key gpubox knows", hint)
