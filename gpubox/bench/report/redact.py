"""Removes paths, host names and keys from every text of a report, a comparison or a leaderboard."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_PATH = re.compile(r"(?<![\w:/.~)\]])(?:~[\w.-]*)?(?:/[^\s/'\":,;=<>|()\[\]]+){2,}")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_ASSIGNED_IPV6 = re.compile(r"(?i)fe80:|f[cd][0-9a-f]{2}:|[23][0-9a-f]{3}:")
"""The beginnings of real addresses; a Python slice (``a[b::2]``) looks much the same."""
_NAME = r"[^\s/'\":,;=<>|()\[\]]"
_HOME = re.compile(rf"(?<![\w:/.~)\]])/(?:home|Users|media|run/media)/{_NAME}+(?!{_NAME}|/)")
"""A folder that is named after its owner. Of other paths the last part stays."""
FILE_URL = re.compile(r"(?i)\bfile:/+(?=[^/])")
"""``file:///home/ann``: without it, the path is recognised."""
_KEY = re.compile(
    r"(?i)\b(?:sk|hf|gsk|ghp|github_pat|glpat|xai)[-_][\w-]{12,}|\b(?:AKIA|AIza)[\w-]{12,}|(?<=bearer )\S+"
)
_PROSE_FIELDS = {"text", "verdict", "notes", "note", "message", "details"}
_HOST_FLAGS = {"--host", "--rpc"}
_KEY_FLAGS = {"--api-key", "--hf-token", "-hft"}


class Redactor:
    """Redacts values derived from the runs ``infos``. File names and loopback hosts stay."""

    def __init__(self, infos: Iterable[RunInfo]) -> None:
        infos = tuple(infos)
        provenances = [provenance for info in infos for provenance in info.provenance.values()]
        self._paths = sorted({path for own in provenances for path in _paths(own)}, key=len, reverse=True)
        hosts = [_host_of(target.url) for info in infos for target in info.plan.targets if target.url]
        hosts += [host for own in provenances for host in _named_hosts(own.argv)]
        names = [name for name in dict.fromkeys(hosts) if name and not is_loopback(name)]
        self._names = {name: HOST if i == 0 else f"{HOST}-{i + 1}" for i, name in enumerate(names)}
        self._ids = {info.id: redacted for info in infos if (redacted := self._id(info)) != info.id}
        in_ids = rf"|(?<=-)(?:{'|'.join(map(re.escape, names))})(?=-\d)" if names else ""
        self._hosts = _name_pattern(names, in_ids)
        self._this_host = _name_pattern([socket.gethostname(), socket.gethostname().partition(".")[0]])
        self._home = str(Path.home()) + "/"

    def text(self, text: str, *, prose: bool = False) -> str:
        """Redacts one text. This machine's name is removed from ``prose`` only; elsewhere it may be a common word."""
        text = FILE_URL.sub("/", text)
        for run_id, redacted in self._ids.items():
            text = text.replace(run_id, redacted)
        for path in self._paths:
            text = text.replace(path, "~" if _HOME.fullmatch(path) else path.rpartition("/")[2])
        text = self._hosts.sub(lambda match: self._names[match[0]], text)
        if prose:
            text = self._this_host.sub(HOST, text)
        text = _URL.sub(self._url, text)
        text = _IPV4.sub(lambda match: match[0] if match[0].startswith("127.") or match[0] == "0.0.0.0" else HOST, text)
        text = _IPV6.sub(lambda match: HOST if _is_assigned_ipv6(match[0]) else match[0], text)
        if len(self._home) > 3:
            text = text.replace(self._home, "~/")
        text = _HOME.sub("~", text)
        return _KEY.sub("***", _PATH.sub(lambda match: match[0].rpartition("/")[2], text))

    def redact(self, value: T) -> T:
        """Redacts every text in ``value``."""
        return with_texts(value, lambda text, field: self.text(text, prose=field in _PROSE_FIELDS))

    def info(self, info: RunInfo) -> RunInfo:
        """Redacts ``info`` and removes the fields that concern only this box."""
        provenance = {
            name: replace(own, argv=_without_keys(own.argv), env=dict.fromkeys(own.env, "***"))
            for name, own in info.provenance.items()
        }
        public = replace(info, previous=None, applied_argv=(), restore_pending=False, provenance=provenance)
        return self.redact(public)

    def _id(self, info: RunInfo) -> str:
        """The run's id without the hosts: it contains the names of the targets."""
        run_id = info.id
        for name in (_host_of(target.url) for target in info.plan.targets if target.url):
            if name in self._names:
                slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")
                if slug and slug in run_id:
                    run_id = run_id.replace(slug, self._names[name])
                else:  # a long name is cut off in the id, but its beginning is in it
                    run_id = f"{run_id[:15]}-{info.plan.kind}-{HOST}"
        return run_id

    def _url(self, match: re.Match[str]) -> str:
        host = match["host"].strip("[]")
        return match["scheme"] + (match["host"] if is_loopback(host) or host in self._names.values() else HOST)


def with_texts(value: T, change: Callable[[str, str], str]) -> T:
    """``value`` with every text in it changed. ``change`` gets the text and the name of its field; of a key, ``""``."""
    return msgspec.convert(_with_texts(msgspec.to_builtins(value), change, ""), type(value))


def _with_texts(value: Any, change: Callable[[str, str], str], name: str) -> Any:
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, Mapping):
        return {
            change(key, "") if isinstance(key, str) else key: _with_texts(field, change, str(key))
            for key, field in value.items()
        }
    return [_with_texts(element, change, name) for element in value] if isinstance(value, list | tuple) else value


def redact_report(info: RunInfo, report: Report) -> tuple[RunInfo, Report]:
    """Both, redacted."""
    redactor = Redactor([info])
    return redactor.info(info), redactor.redact(report)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # an incomplete IPv6 address
        return url.partition("://")[2]


def _named_hosts(argv: Sequence[str]) -> Iterator[str]:
    """The host names after ``--host`` and ``--rpc``. Addresses are recognised by their form instead."""
    for flag, word in pairwise(argv):
        if flag in _HOST_FLAGS and not word.startswith("/"):
            for part in word.split(","):
                name = part.rpartition(":")[0] if part.rpartition(":")[2].isdigit() else part
                if re.search(r"[A-Za-z]", name) and ":" not in name:
                    yield name


def _is_assigned_ipv6(text: str) -> bool:
    try:
        address = IPv6Address(text)
    except ValueError:
        return False
    groups = sum(bool(group) for group in text.split(":"))
    return not (address.is_loopback or address.is_unspecified) and (groups > 2 or bool(_ASSIGNED_IPV6.match(text)))


def _paths(provenance: Provenance) -> Iterator[str]:
    """Whole paths, because they may contain spaces."""
    for word in (*provenance.argv, provenance.engine_path, provenance.model_path):
        if word.startswith("/") and len(word) > 3:
            yield word


def _without_keys(argv: tuple[str, ...]) -> tuple[str, ...]:
    shown, hide = [], False
    for word in argv:
        name, sign, _ = word.partition("=")
        shown.append("***" if hide else f"{name}=***" if sign and name in _KEY_FLAGS else word)
        hide = word in _KEY_FLAGS
    return tuple(shown)


def _name_pattern(names: Sequence[str], alternative: str = "") -> re.Pattern[str]:
    """Matches the names of more than one letter as whole words."""
    longest = sorted({name for name in names if len(name) > 1 and name != "localhost"}, key=len, reverse=True)
    if not longest:
        return re.compile(r"(?!)")
    return re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?!\w)" for name in longest) + alternative)
