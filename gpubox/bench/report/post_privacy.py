"""Removes from a post what would tell who its author is: a second wall behind a choice of what is shown at all."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpubox.bench.model import RunInfo
from gpubox.bench.report.redact import FILE_URL, Redactor, with_texts
from gpubox.sanitize import sanitize_line

T = TypeVar("T")
HIDDEN = "***"
PUBLIC_WORDS = frozenset(
    {
        "root", "user", "users", "admin", "home", "ubuntu", "debian", "fedora", "arch", "linux", "server", "box", "gpu",
        "cuda", "nvidia", "amd", "intel", "llama", "ollama", "qwen", "gemma", "mistral", "deepseek", "phi", "gpt",
        "model", "models", "ai", "ml", "llm", "localhost", "local", "shared", "public", "speed", "cold", "warm",
    }
)  # fmt: skip
"""User and host names that name nobody; a post would be unreadable without them."""
_PATH = re.compile(
    r"(?<![\w:/.)\]])(?:~[\w.-]*|\$\{?\w+\}?)?/{0,2}(?:/[^\s/'\":,;=<>|()\[\]]+){2,}"
    r"|(?<!\w)(?:~[\w.-]*|\$\w+)/\S*|(?<!\w)[A-Za-z]:\\\S+"
)
"""Whole, with its last part: no text of a post needs one."""
_ABSOLUTE = re.compile(r"/[^/]+/.")
"""Paths of a launch may contain spaces, so they are removed as they are."""
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_LOCAL_HOST = re.compile(
    r"(?i)(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:lan|local|home|internal|intranet|ts\.net|fritz\.box|arpa)\b"
)
_MAC = re.compile(r"(?i)\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b")
_DEVICE_ID = re.compile(r"(?i)\b(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TOKEN = re.compile(r"(?<![\w])(?=\w*\d)(?=\w*[A-Za-z])\w{32,}(?!\w)")
_HOME_OWNER = re.compile(r"/(?:home|Users|media|run/media)/([^/\s'\":,;]+)|(?<![\w~])~([a-z_][\w.-]*)")


class PublicText:
    """Redacts what a post of the run ``info`` shows."""

    def __init__(self, info: RunInfo) -> None:
        self._redactor = Redactor([info])
        self._paths = sorted({text for text in _texts(_launches(info)) if _ABSOLUTE.match(text)}, key=len, reverse=True)
        names = {name for name in (*_owners(info), *_this_user()) if len(name) > 1 and name.lower() not in PUBLIC_WORDS}
        alternatives = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])" if names else r"(?!)")

    def text(self, text: str) -> str:
        """One line without paths, hosts, addresses, keys and the names of users."""
        text = FILE_URL.sub("/", sanitize_line(text))
        for path in self._paths:
            text = text.replace(path, HIDDEN)
        text = _PATH.sub(HIDDEN, text)
        text = self._redactor.text(text, prose=True)
        for pattern in (_EMAIL, _MAC, _DEVICE_ID, _TOKEN):
            text = pattern.sub(HIDDEN, text)
        return self._names.sub(HIDDEN, _LOCAL_HOST.sub("HOST", text))

    def redact(self, value: T) -> T:
        """Every text in ``value``."""
        return with_texts(value, lambda text, field: self.text(text))


def _launches(info: RunInfo) -> Any:
    return [(own.argv, own.engine_path, own.model_path) for own in info.provenance.values()]


def _owners(info: RunInfo) -> Iterator[str]:
    """The names of home folders in any text of the run."""
    for text in _texts(msgspec.to_builtins(info)):
        for match in _HOME_OWNER.finditer(text):
            yield match[1] or match[2]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, field in value.items():
            yield str(key)
            yield from _texts(field)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _texts(element)


def _this_user() -> Iterator[str]:
    yield Path.home().name
    try:
        yield getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for the user
        return
