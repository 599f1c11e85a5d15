"""A report for others: without paths, host names and keys. Works on every text of it, so that none slips by."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpubox.bench.model import Provenance, RunInfo
from gpubox.bench.report.model import Report
from gpubox.profiles.model import is_loopback

T = TypeVar("T")
HOST = "HOST"
_URL = re.compile(r"(?P<scheme>[a-z]+://)(?:[^@/\s]*@)?(?P<host>\[[^\]]*\]|[^/:\s\"']+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_PATH = re.compile(r"(?<![\w:/.~)\]])(?:~[\w.-]*)?(?:/[^\s/'\":,;=<>|()\[\]]+){2,}")
_KEY = re.compile(r"(?i)\b(?:sk|hf|gsk|ghp|xai)[-_][\w-]{12,}|(?<=bearer )\S+")
_PROSE = {"text", "notes", "note", "message", "details"}
"""Fields that hold sentences or another program's words."""
_KEY_FLAGS = {"--api-key", "--hf-token", "-hft"}


class Redactor:
    """Cleans what was made of the runs ``infos``. File names stay; folders, hosts but loopback, and keys go."""

    def __init__(self, infos: Iterable[RunInfo]) -> None:
        infos = tuple(infos)
        found = {path for info in infos for one in info.provenance.values() for path in _paths(one)}
        self._paths = sorted(found, key=len, reverse=True)
        hosts = [urlsplit(target.url).hostname or "" for info in infos for target in info.plan.targets if target.url]
        names = [name for name in dict.fromkeys(hosts) if name and not is_loopback(name)]
        self._names = {name: HOST if at == 0 else f"{HOST}-{at + 1}" for at, name in enumerate(names)}
        self._known = _words(names, rf"|(?<=-)(?:{'|'.join(map(re.escape, names))})(?=-\d)" if names else "")
        self._own = _words([socket.gethostname(), socket.gethostname().partition(".")[0]])
        self._home = str(Path.home()) + "/"

    def text(self, text: str, *, prose: bool = False) -> str:
        """One text. In ``prose`` this machine's name goes as well: elsewhere it may be a word of its own (``code``)."""
        for path in self._paths:
            text = text.replace(path, path.rpartition("/")[2])
        text = self._known.sub(lambda m: self._names[m[0]], text)
        if prose:
            text = self._own.sub(HOST, text)
        text = _URL.sub(self._url, text)
        text = _ADDRESS.sub(lambda m: m[0] if m[0].startswith("127.") or m[0] == "0.0.0.0" else HOST, text)
        if len(self._home) > 3:
            text = text.replace(self._home, "~/")
        return _KEY.sub("***", _PATH.sub(lambda m: m[0].rpartition("/")[2], text))

    def through(self, value: T) -> T:
        """Every text in ``value``."""
        return msgspec.convert(_walk(msgspec.to_builtins(value), self), type(value))

    def info(self, info: RunInfo) -> RunInfo:
        """A run's head, without what concerns only this box."""
        provenance = {
            name: replace(found, argv=_without_keys(found.argv), env=dict.fromkeys(found.env, "***"))
            for name, found in info.provenance.items()
        }
        return self.through(replace(info, before=None, lent=(), owed=False, provenance=provenance))

    def _url(self, found: re.Match[str]) -> str:
        host = found["host"].strip("[]")
        return found["scheme"] + (found["host"] if is_loopback(host) or host in self._names.values() else HOST)


def redacted(info: RunInfo, report: Report) -> tuple[RunInfo, Report]:
    """Both, fit to be pasted."""
    cleaner = Redactor([info])
    return cleaner.info(info), cleaner.through(report)


def _paths(found: Provenance) -> Iterator[str]:
    """Paths as whole words: those may have spaces in them."""
    for word in (*found.argv, found.engine_path, found.model_path):
        if word.startswith("/") and len(word) > 3:
            yield word


def _without_keys(argv: tuple[str, ...]) -> tuple[str, ...]:
    shown, hide = [], False
    for word in argv:
        name, sign, _ = word.partition("=")
        shown.append("***" if hide else f"{name}=***" if sign and name in _KEY_FLAGS else word)
        hide = word in _KEY_FLAGS
    return tuple(shown)


def _words(names: Sequence[str], more: str = "") -> re.Pattern[str]:
    """Finds the names that are longer than a letter, as whole words."""
    longest = sorted({name for name in names if len(name) > 1 and name != "localhost"}, key=len, reverse=True)
    if not longest:
        return re.compile(r"(?!)")
    return re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?!\w)" for name in longest) + more)


def _walk(value: Any, change: Redactor, name: str = "") -> Any:
    if isinstance(value, str):
        return change.text(value, prose=name in _PROSE)
    if isinstance(value, Mapping):
        return {
            change.text(key) if isinstance(key, str) else key: _walk(one, change, str(key))
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_walk(one, change, name) for one in value]
    return value
