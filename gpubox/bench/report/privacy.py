"""The wall before all that leaves this box: no path, host, address or key; in a post no name of its owner either."""

from __future__ import annotations

import contextlib
import getpass
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

from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Report
from gpubox.profiles.profile import is_loopback
from gpubox.sanitize import sanitize_line

T = TypeVar("T")
HOST, HIDDEN = "HOST", "***"
PUBLIC_WORDS = frozenset(
    {
        "root", "user", "users", "admin", "home", "ubuntu", "debian", "fedora", "arch", "linux", "server", "box", "gpu",
        "cuda", "nvidia", "amd", "intel", "llama", "ollama", "qwen", "gemma", "mistral", "deepseek", "phi", "gpt",
        "model", "models", "ai", "ml", "llm", "localhost", "local", "shared", "public", "speed", "cold", "warm",
    }
)  # fmt: skip
"""User and host names that name nobody; a post would be unreadable without them."""
_PROSE_FIELDS = {"text", "verdict", "notes", "note", "message", "details"}
_HOST_FLAGS = {"--host", "--rpc"}
_KEY_FLAGS = {"--api-key", "--hf-token", "-hft"}

_FILE_URL = re.compile(r"(?i)\bfile:/+(?=[^/])")
"""``file:///home/ann``: without it, the path is recognised."""
_URL = re.compile(r"(?P<scheme>[a-z]+://)(?:[^@/\s]*@)?(?P<host>\[[^\]]*\]|[^/:\s\"']+)")
_IPV4 = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])")
_ASSIGNED_IPV6 = re.compile(r"(?i)fe80:|f[cd][0-9a-f]{2}:|[23][0-9a-f]{3}:")
"""The beginnings of real addresses; a Python slice (``a[b::2]``) looks much the same."""
_NAME = r"[^\s/'\":,;=<>|()\[\]]"
_PATH = re.compile(rf"(?<![\w:/.~)\]])(?:~[\w.-]*)?(?:/{_NAME}+){{2,}}")
_HOME = re.compile(rf"(?<![\w:/.~)\]])/(?:home|Users|media|run/media)/{_NAME}+(?!{_NAME}|/)")
"""A folder that is named after its owner. Of other paths the last part stays."""
_KEY = re.compile(
    r"(?i)\b(?:sk|hf|gsk|ghp|github_pat|glpat|xai)[-_][\w-]{12,}|\b(?:AKIA|AIza)[\w-]{12,}|(?<=bearer )\S+"
)
_WHOLE_PATH = re.compile(
    rf"(?<![\w:/.)\]])(?:~[\w.-]*|\$\{{?\w+\}}?)?/{{0,2}}(?:/{_NAME}+){{2,}}"
    r"|(?<!\w)(?:~[\w.-]*|\$\w+)/\S*|(?<!\w)[A-Za-z]:\\\S+"
)
"""With its last part, and as other shells write it: no text of a post needs one."""
_HOME_OWNER = re.compile(r"/(?:home|Users|media|run/media)/([^/\s'\":,;]+)|(?<![\w~])~([a-z_][\w.-]*)")
_PERSONAL = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # an address of a person
    r"|\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}\b"  # of a network card
    r"|\b(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"  # of a device
    r"|(?<!\w)(?=\w*\d)(?=\w*[A-Za-z])\w{32,}(?!\w)"  # a token
)
_LOCAL_HOST = re.compile(
    r"(?i)(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:lan|local|home|internal|intranet|ts\.net|fritz\.box|arpa)\b"
)


class Redactor:
    """Redacts values derived from the runs ``infos``. File names and loopback hosts stay.

    ``public``, for a post: whole paths, users and everything personal go, too.
    """

    def __init__(self, infos: Iterable[RunInfo], *, public: bool = False) -> None:
        infos = tuple(infos)
        launches = [own for info in infos for own in info.provenance.values()]
        words = {word for own in launches for word in (*own.argv, own.engine_path, own.model_path)}
        paths = [word for word in words if word.startswith("/") and len(word) > 3]
        self._paths = sorted(paths, key=len, reverse=True)  # whole, because they may contain spaces
        hosts = [_host_of(target.url) for info in infos for target in info.plan.targets if target.url]
        hosts += [host for own in launches for host in _named_hosts(own.argv)]
        names = [name for name in dict.fromkeys(hosts) if name and not is_loopback(name)]
        self._names = {name: HOST if i == 0 else f"{HOST}-{i + 1}" for i, name in enumerate(names)}
        self._ids = {info.id: redacted for info in infos if (redacted := self._id(info)) != info.id}
        in_ids = rf"|(?<=-)(?:{'|'.join(map(re.escape, names))})(?=-\d)" if names else ""
        self._hosts = _name_pattern(names, in_ids)
        self._this_host = _name_pattern([socket.gethostname(), socket.gethostname().partition(".")[0]])
        self._home = str(Path.home()) + "/"
        self._owners: re.Pattern[str] | None = _owner_pattern(infos) if public else None

    def text(self, text: str, *, prose: bool = False) -> str:
        """Redacts one text. This machine's name is removed from ``prose`` only; elsewhere it may be a common word."""
        text = _FILE_URL.sub("/", text)
        if self._owners:
            return self._public(sanitize_line(text), self._owners)
        return self._private(text, prose)

    def _private(self, text: str, prose: bool) -> str:
        for run_id, redacted in self._ids.items():
            text = text.replace(run_id, redacted)
        for path in self._paths:
            text = text.replace(path, "~" if _HOME.fullmatch(path) else path.rpartition("/")[2])
        text = self._hosts.sub(lambda match: self._names[match[0]], text)
        text = self._this_host.sub(HOST, text) if prose else text
        text = _IPV4.sub(HOST, _URL.sub(self._url, text))
        text = _IPV6.sub(lambda match: HOST if _is_assigned_ipv6(match[0]) else match[0], text)
        text = text.replace(self._home, "~/") if len(self._home) > 3 else text
        return _KEY.sub(HIDDEN, _PATH.sub(lambda match: match[0].rpartition("/")[2], _HOME.sub("~", text)))

    def _public(self, text: str, owners: re.Pattern[str]) -> str:
        for path in self._paths:
            text = text.replace(path, HIDDEN)
        text = self._private(_WHOLE_PATH.sub(HIDDEN, text), prose=True)
        return owners.sub(HIDDEN, _LOCAL_HOST.sub(HOST, _PERSONAL.sub(HIDDEN, text)))

    def redact(self, value: T) -> T:
        """Redacts every text in ``value``."""
        return _with_texts(value, lambda text, field: self.text(text, prose=field in _PROSE_FIELDS))

    def info(self, info: RunInfo) -> RunInfo:
        """Redacts ``info`` and removes the fields that concern only this box."""
        provenance = {
            name: replace(own, argv=_without_keys(own.argv), env=dict.fromkeys(own.env, HIDDEN))
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


def redact_report(info: RunInfo, report: Report) -> tuple[RunInfo, Report]:
    """Both without anything private."""
    redactor = Redactor([info])
    return redactor.info(info), redactor.redact(report)


def _with_texts(value: T, change: Callable[[str, str], str]) -> T:
    """``value`` with every text in it changed. ``change`` gets the text and the name of its field; of a key, ``""``."""

    def changed(value: Any, name: str) -> Any:
        if isinstance(value, str):
            return change(value, name)
        if isinstance(value, Mapping):
            return {changed(key, ""): changed(field, str(key)) for key, field in value.items()}
        return [changed(element, name) for element in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(changed(msgspec.to_builtins(value), ""), type(value))


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


def _without_keys(argv: tuple[str, ...]) -> tuple[str, ...]:
    shown, hide = [], False
    for word in argv:
        name, sign, _ = word.partition("=")
        shown.append(HIDDEN if hide else f"{name}={HIDDEN}" if sign and name in _KEY_FLAGS else word)
        hide = word in _KEY_FLAGS
    return tuple(shown)


def _name_pattern(names: Iterable[str], alternative: str = "") -> re.Pattern[str]:
    """Matches the names of more than one letter as whole words."""
    longest = sorted({name for name in names if len(name) > 1 and name != "localhost"}, key=len, reverse=True)
    if not longest:
        return re.compile(r"(?!)")
    return re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?!\w)" for name in longest) + alternative)


def _owner_pattern(infos: Iterable[RunInfo]) -> re.Pattern[str]:
    """Matches the names of home folders in any text of the runs, and this user's."""
    names = {Path.home().name}

    def note(text: str, field: str) -> str:
        names.update(match[1] or match[2] for match in _HOME_OWNER.finditer(text))
        return text

    for info in infos:
        _with_texts(info, note)
    with contextlib.suppress(OSError, KeyError):  # a container without an entry for the user
        names.add(getpass.getuser())
    own = sorted((name for name in names if len(name) > 1 and name.lower() not in PUBLIC_WORDS), key=len, reverse=True)
    alternatives = "|".join(map(re.escape, own))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])" if own else r"(?!)")
