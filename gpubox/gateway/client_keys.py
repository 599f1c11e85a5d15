"""The clients' keys: a file with the name, the SHA-256 and the limits of each. A key itself is shown once.

A key is 256 random bits, so a fast hash is enough, and what the time of a comparison tells about a hash helps nobody.
The gateway fails closed: while a key file is damaged, unreadable, readable by others or gone, no key is right. Another
folder remembers that there was one (``Paths.key_memory``), until ``gpubox keys reset``.

The agents that gpubox starts have keys as well (``agent_keys``). They name an agent, and nobody needs a key for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from gpubox.clock import utc_now
from gpubox.config import api_key
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import PROFILE_NAME
from gpubox.storage import DECODE_ERRORS, held_lock, open_regular, read_text, unwritable, write_atomically

SCHEMA = 1
BOX = "box"
"""The client that sends the box's own API key."""
_MAX_BYTES = 1024 * 1024
_LOCK_ATTEMPTS = 250
_RACY_SECONDS = 0.1
"""A file that changed so lately may change again without another time stamp."""
_REFUSED = "the gateway refuses every client until this is mended"
_MEND = "Mend it, or bring it back. `gpubox keys reset` forgets all keys, and that there were any."
_Content = TypeVar("_Content", bound="_KeyFile | AgentKeyFile")
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{PROFILE_NAME.pattern}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Moment = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How much a client may ask for. What is None or empty has no limit."""

    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Its share where several clients wait: 2 gets twice as much as 1."""
    requests_at_once: _Count | None = None
    """So many of its requests may be at servers; the others wait."""
    tokens_per_day: _Count | None = None
    """On a local day: prompt tokens that were read (those of the KV cache are free) and generated ones."""
    models: tuple[str, ...] = ()
    """The profiles, or aliases, that it may name."""
    expires_at: _Moment | None = None
    """ISO-8601 UTC, as ``utc_now`` writes it. From then on its key is wrong; an answer that runs is finished."""
    watch: bool = False
    """It may see what the box's screen shows, and ask for nothing else."""

    def allows(self, names: Iterable[str]) -> bool:
        """Whether it may use the profile that has these names."""
        return not self.models or not set(names).isdisjoint(self.models)

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= utc_now()


UNLIMITED = ClientLimits()


@dataclass(frozen=True, slots=True)
class ClientKey:
    """One client's key, as stored."""

    name: _Name
    sha256: _Digest
    """Of the key's UTF-8 bytes, in hexadecimal."""
    made_at: str
    """ISO-8601 UTC."""
    limits: ClientLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class _KeyFile:
    schema_version: int
    keys: tuple[ClientKey, ...]


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The key of an agent that gpubox starts, as stored."""

    name: _Name
    secret: Annotated[str, msgspec.Meta(min_length=40)]
    made_at: str
    """ISO-8601 UTC."""


@dataclass(frozen=True, slots=True)
class AgentKeyFile:
    schema_version: int
    keys: tuple[AgentKey, ...]


class ClientKeys:
    """The keys of the box's clients, and its own API key, as they were at the last ``refresh``."""

    def __init__(self, paths: Paths) -> None:
        self._paths, self._path, self._box_file = paths, paths.client_keys, paths.api_key_file
        self._files = (str(self._path), str(self._box_file), str(paths.key_memory), str(paths.agent_keys))
        self.clients: dict[str, ClientKey] = {}
        """Those that have a key, by name. Empty while the file is damaged."""
        self.agents: dict[str, ClientKey] = {}
        """The agents that have a key, by name. While their file is damaged, those before: no key of theirs is right."""
        self.box_key: str | None = None
        """The box's own API key, which is a key, too."""
        self._owners: dict[str, str] = {}
        """The client by the hash of its key. Empty while every client is refused."""
        self._damage = self._box_problem = ""
        self._seen: tuple[object, ...] | None = None
        """What stat said of the files that were read last."""
        self._known: set[str] = set()
        """The names of the key files that there have been."""
        self.refresh()

    @property
    def any(self) -> bool:
        """Whether a request needs a key: a key file exists, also an empty or a damaged one, or the box has a key."""
        return self._path.name in self._known or bool(self.box_key or self.problem)

    @property
    def problem(self) -> str:
        """Why every client is refused, in one sentence; empty if the keys can be read."""
        return self._damage or self._box_problem

    def limits_of(self, client: str) -> ClientLimits:
        """What the client, and an agent of the same name, may ask for; no limits if it has no key of its own."""
        key = self.clients.get(client)
        return key.limits if key else UNLIMITED

    def client_of(self, secret: str) -> str | None:
        """The client whose key ``secret`` is; None if it is nobody's, or has expired. Raises nothing."""
        client = self._owner(secret)
        return None if client is None or self.limits_of(client).expired else client

    def why_refused(self, secret: str, option: str = "") -> str:
        """Why ``client_of`` knows nobody with this key, in words for that client. ``option``: of a key that may."""
        if (client := self._owner(secret)) is None:
            return f"The key is missing or wrong. `gpubox keys add NAME{option}` on the box makes one."
        return f"The key of {client} has expired. `gpubox keys change {client} --expires 30d` on the box renews it."

    def _owner(self, secret: str) -> str | None:
        return self._owners.get(_digest(secret)) if secret else None

    def is_revoked(self, client: str) -> bool:
        """Whether a client that had a key has none now. A damaged file revokes nothing: it only lets nobody new in."""
        return not self._damage and client not in self.clients and client not in self.agents

    def add(self, name: str, limits: ClientLimits = UNLIMITED) -> str:
        """Makes a key for the client ``name`` and returns it: it is stored nowhere.

        Raises UsageError for a wrong or taken name and a damaged file, GpuboxError if the file cannot be written.
        """
        check_name(name)
        secret = new_secret()
        with self._locked():
            if name in self.clients:
                raise UsageError(
                    f"There is a key for {name!r} already.",
                    f"Choose another name, or replace it: gpubox keys remove {name}, then add it again.",
                )
            self._write({**self.clients, name: ClientKey(name, _digest(secret), utc_now(), limits)})
        return secret

    def change(self, name: str, **limits: Any) -> ClientKey:
        """Changes these fields of the client's limits; a gateway that runs heeds it at once. Returns the new entry.

        Raises as ``add``, and UsageError for an unknown name.
        """
        with self._locked():
            key = self._known_key(name)
            changed = replace(key, limits=replace(key.limits, **limits))
            self._write({**self.clients, name: changed})
        return changed

    def remove(self, name: str) -> None:
        """Makes the key of ``name`` wrong from now on. Raises as ``change``."""
        with self._locked():
            key = self._known_key(name)
            self._write({each: known for each, known in self.clients.items() if known is not key})

    def _known_key(self, name: str) -> ClientKey:
        if key := self.clients.get(name):
            return key
        known = f"There are: {', '.join(self.clients)}." if self.clients else "There are no keys."
        if name in self.agents:  # else its limits would be lost with a file that is made anew
            known = f"That of the agent has no limits; those of `gpubox keys add {name}` hold for it, too."
        raise UsageError(f"There is no key for {name!r}.", known)

    def reset(self) -> None:
        """Forgets all keys, and that there were any: then only the box's own key is asked for, if it has one.

        Raises GpuboxError if the files cannot be written.
        """
        with self._locked(check=False):
            self._path.unlink(missing_ok=True)
            self._known = {self._box_file.name} if self._box_file.exists() else set()
            self._write_memory()
        self.refresh()

    @contextmanager
    def _locked(self, *, check: bool = True) -> Iterator[None]:
        lock = self._path.with_name(f".{self._path.stem}.lock")
        try:
            with held_lock(lock, "Another gpubox is changing the keys.", attempts=_LOCK_ATTEMPTS):
                self.refresh()
                if check and self._damage:  # what cannot be read is never written over
                    raise UsageError(self._damage, _MEND)
                yield
        except OSError as error:
            raise unwritable(self._path, error) from None

    def _write(self, clients: dict[str, ClientKey]) -> None:
        self._known.add(self._path.name)
        self._write_memory()  # first: there is no key file that nobody remembers
        data = msgspec.json.format(msgspec.json.encode(_KeyFile(SCHEMA, tuple(clients.values()))), indent=2)
        write_atomically(self._path, data + b"\n")
        self.refresh()

    def refresh(self) -> None:
        """Reads the files again if they have changed. What changes them here does so by itself."""
        seen = tuple(map(_stamp, self._files))
        if seen == self._seen:
            return
        remembered = self._recall()
        self.clients, self._damage = {}, ""
        try:
            self.clients = {key.name: key for key in read_keys(self._path, _KeyFile).keys}
        except FileNotFoundError:
            if self._path.name in self._known:  # deleted by whom? Answering everybody would be a surprise
                self._damage = f"{self._path} is gone; {_REFUSED}."
        except OSError as error:
            self._damage = f"{self._path} cannot be read: {error.strerror}; {_REFUSED}."
        except DECODE_ERRORS as error:
            self._damage = f"{self._path} is damaged ({error}); {_REFUSED}."
        if self._damage or self._path.exists():
            self._known.add(self._path.name)
        self.box_key, self._box_problem = self._read_own()
        own = {_digest(self.box_key): BOX} if self.box_key else {}
        clients = {key.sha256: key.name for key in self.clients.values()}
        stored, certain = read_agent_keys(self._paths)
        agents = [ClientKey(each.name, _digest(each.secret), each.made_at, self.limits_of(each.name))
                  for each in stored.values()]  # fmt: skip
        self.agents = {key.name: key for key in agents} if certain else self.agents
        self._owners = {} if self.problem else {key.sha256: key.name for key in agents} | own | clients
        if self._known != remembered:
            with contextlib.suppress(OSError):  # this process remembers it
                self._write_memory()
        newest = max((stamp[-1] for stamp in seen), default=0)
        self._seen = seen if time.time_ns() - newest > _RACY_SECONDS * 1e9 else None

    def _read_own(self) -> tuple[str | None, str]:
        """The box's own key, and why it cannot be read."""
        try:
            key = api_key(self._paths)
        except GpuboxError as error:
            return None, f"{error.message.rstrip('.')}; {_REFUSED}."
        if self._path.name not in self._known:  # else a key is needed anyway
            if key is None and self._box_file.name in self._known:
                return None, f"{self._box_file} is gone; {_REFUSED}."
            if key and self._box_file.exists():
                self._known.add(self._box_file.name)
        return key, ""

    def _recall(self) -> set[str]:
        """Reads the names of the key files that there have been, as far as no reset has forgotten them.

        Returns those that need not be written again: without the file, which opens nothing when it is deleted, none.
        """
        try:
            self._known = set(read_text(self._paths.key_memory, _MAX_BYTES).split())
        except FileNotFoundError:
            return set()
        except (OSError, UnicodeDecodeError):
            self._known |= {self._path.name, self._box_file.name}
        return set(self._known)

    def _write_memory(self) -> None:
        write_atomically(self._paths.key_memory, "".join(f"{name}\n" for name in sorted(self._known)).encode())


def check_name(name: str) -> None:
    """Raises UsageError if a client or an agent cannot be called so."""
    if not PROFILE_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a client's name.", "Use letters, digits, '.', '_' and '-', at most 64 characters."
        )
    if name == BOX:
        raise UsageError(f"The name {BOX!r} means the box's own API key.", "Choose another name.")


def new_secret() -> str:
    """A key."""
    return f"gb-{secrets.token_urlsafe(32)}"


def read_keys(path: Path, kind: type[_Content]) -> _Content:
    """A file of keys. Raises OSError, also if other users can read it, and what DECODE_ERRORS has."""
    with open_regular(path, _MAX_BYTES) as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(_MAX_BYTES + 1)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(0, f"other users can read it; run: chmod 600 {path}")
    content = msgspec.json.decode(data, type=kind)
    if content.schema_version != SCHEMA:
        raise ValueError(f"its schema_version is {content.schema_version}, and this gpubox knows {SCHEMA}")
    if len({key.name for key in content.keys}) < len(content.keys):
        raise ValueError("a name is in it twice")
    return content


def read_agent_keys(paths: Paths) -> tuple[dict[str, AgentKey], bool]:
    """The agents' keys by name; and whether that is certain: not if their file is damaged, or others can read it."""
    try:
        return {key.name: key for key in read_keys(paths.agent_keys, AgentKeyFile).keys if key.name != BOX}, True
    except FileNotFoundError:
        return {}, True
    except (OSError, *DECODE_ERRORS):
        return {}, False


def _stamp(file: str) -> tuple[int, ...]:
    """What tells that a file has changed, the time of the change last."""
    try:
        status = os.stat(file)  # noqa: PTH116 - asked at each request, and half as dear as with pathlib
    except OSError as error:
        return (error.errno or 0, 0)
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
