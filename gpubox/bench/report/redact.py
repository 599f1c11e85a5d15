"""A report for others: without paths, host names and keys. Works on every text of it, so that none slips by."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpubox.bench.model import Provenance, RunInfo
from gpubox.bench.report.model import Report
from gpubox.profiles.profile import is_loopback

T = TypeVar("T")
HOST = "HOST"
_URL = re.compile(r"(?P<scheme>[a-z]+://)(?:[^@/\s]*@)?(?P<host>\[[^\]]*\]|[^/:\s\"']+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_PATH = re.compile(r"(?<![\w:/.~)\]])(?:~[\w.-]*)?(?:/[^\s/'\":,;=<>|()\[\]]+){2,}")
_SIX = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_SIX_BEGINS = re.compile(r"(?i)fe80:|f[cd][0-9a-f]{2}:|[23][0-9a-f]{3}:")
"""Of addresses that somebody has; a slice of Python (``a[b::2]``) looks much the same."""
_NAME = r"[^\s/'\":,;=<>|()\[\]]"
_OWNERS = re.compile(rf"(?<![\w:/.~)\]])/(?:home|Users|media|run/media)/{_NAME}+(?!{_NAME}|/)")
"""A folder that is called after its owner: of a path the last word stays, but not of this one."""
_KEY = re.compile(r"(?i)\b(?:sk|hf|gsk|ghp|xai)[-_][\w-]{12,}|(?<=bearer )\S+")
_PROSE = {"text", "notes", "note", "message", "details"}
"""Fields that hold sentences or another program's words."""
_HOST_FLAGS = {"--host", "--rpc"}
_KEY_FLAGS = {"--api-key", "--hf-token", "-hft"}


class Redactor:
    """Cleans what was made of the runs ``infos``. File names stay; folders, hosts but loopback, and keys go."""

    def __init__(self, infos: Iterable[RunInfo]) -> None:
        infos = tuple(infos)
        found = {path for info in infos for one in info.provenance.values() for path in _paths(one)}
        self._paths = sorted(found, key=len, reverse=True)
        hosts = [_host_of(target.url) for info in infos for target in info.plan.targets if target.url]
        hosts += [host for info in infos for one in info.provenance.values() for host in _named_hosts(one.argv)]
        names = [name for name in dict.fromkeys(hosts) if name and not is_loopback(name)]
        self._names = {name: HOST if at == 0 else f"{HOST}-{at + 1}" for at, name in enumerate(names)}
        self._ids = {info.id: clean for info in infos if (clean := self._id(info)) != info.id}
        self._known = _words(names, rf"|(?<=-)(?:{'|'.join(map(re.escape, names))})(?=-\d)" if names else "")
        self._own = _words([socket.gethostname(), socket.gethostname().partition(".")[0]])
        self._home = str(Path.home()) + "/"

    def text(self, text: str, *, prose: bool = False) -> str:
        """One text. In ``prose`` this machine's name goes as well: elsewhere it may be a word of its own (``code``)."""
        for name, clean in self._ids.items():
            text = text.replace(name, clean)
        for path in self._paths:
            text = text.replace(path, "~" if _OWNERS.fullmatch(path) else path.rpartition("/")[2])
        text = self._known.sub(lambda m: self._names[m[0]], text)
        if prose:
            text = self._own.sub(HOST, text)
        text = _URL.sub(self._url, text)
        text = _ADDRESS.sub(lambda m: m[0] if m[0].startswith("127.") or m[0] == "0.0.0.0" else HOST, text)
        text = _SIX.sub(lambda m: HOST if _somebodys(m[0]) else m[0], text)
        if len(self._home) > 3:
            text = text.replace(self._home, "~/")
        text = _OWNERS.sub("~", text)
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
        return self.through(replace(info, before=None, applied_argv=(), restore_pending=False, provenance=provenance))

    def _id(self, info: RunInfo) -> str:
        """The run's id, which is made of its targets' names, without the hosts among them."""
        found = info.id
        for name in (_host_of(target.url) for target in info.plan.targets if target.url):
            if name in self._names:
                slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
                whole = bool(slug) and slug in found
                # where the name was too long for an id, its beginning is in it all the same
                found = found.replace(slug, self._names[name]) if whole else f"{found[:15]}-{info.plan.kind}-{HOST}"
        return found

    def _url(self, found: re.Match[str]) -> str:
        host = found["host"].strip("[]")
        return found["scheme"] + (found["host"] if is_loopback(host) or host in self._names.values() else HOST)


def redact_report(info: RunInfo, report: Report) -> tuple[RunInfo, Report]:
    """Both, fit to be pasted."""
    cleaner = Redactor([info])
    return cleaner.info(info), cleaner.through(report)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # half an IPv6 address
        return url.partition("://")[2]


def _named_hosts(argv: Sequence[str]) -> Iterator[str]:
    """What stands after ``--host`` and ``--rpc``, but for addresses, which are known by their form."""
    for flag, word in pairwise(argv):
        if flag in _HOST_FLAGS and not word.startswith("/"):
            for one in word.split(","):
                name = one.rpartition(":")[0] if one.rpartition(":")[2].isdigit() else one
                if re.search(r"[A-Za-z]", name) and ":" not in name:
                    yield name


def _somebodys(text: str) -> bool:
    try:
        found = IPv6Address(text)
    except ValueError:
        return False
    groups = sum(bool(group) for group in text.split(":"))
    return not (found.is_loopback or found.is_unspecified) and (groups > 2 or bool(_SIX_BEGINS.match(text)))


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
