"""What the gateway changes on the way: a request's body for its profile, and the model's name in a reply. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gpubox.profiles.profile import Profile, RequestChanges
from gpubox.storage import DECODE_ERRORS

_Headers = Sequence[tuple[bytes, bytes]]
_GENERATING = frozenset({"completion", "completions", "infill", "messages", "responses"})
"""Ends of the paths whose requests have parameters."""
_NO_CHANGES = RequestChanges()
_HELD_BYTES = 1024 * 1024
_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
"""Inside a text of JSON no quote stands without a backslash: this is a key and its value."""


def body_for(profile: Profile, path: str, asked: str | None, body: bytes, *, keep_slot: bool) -> bytes:
    """``body`` for the profile's server: an upstream's own name of the model, the profile's changes, then the persona.

    ``asked``: the model that the request names. Without ``keep_slot`` no local server gets ``id_slot``: one that is
    busy lets llama-server (build 11434, server-context.cpp get_available_slot) load another prompt into it, and the
    answer of the client that the slot works for goes on with the wrong text. All other values stay as written, and
    what is no JSON object stays whole.
    """
    generates = path.rpartition("/")[2] in _GENERATING
    changes = profile.requests if generates else _NO_CHANGES
    persona = profile.personas.get(asked or "", {}) if generates else {}
    # a name may be written with escapes
    names_slot = not (keep_slot or profile.upstream) and (b"id_slot" in body or b"\\u" in body)
    if not body or not (profile.upstream or persona or names_slot or changes is not _NO_CHANGES):
        return body
    try:
        values = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return body  # a form or a file
    before = dict(values)
    for key in (*changes.remove, *(("id_slot",) if names_slot else ())):
        values.pop(key, None)
    model = {"model": profile.model} if profile.upstream else {}
    values = {**_raw(changes.default), **values, **_raw(changes.set), **_raw(persona), **_raw(model)}
    return body if values == before else msgspec.json.encode(values)


def _raw(values: Any) -> dict[str, msgspec.Raw]:
    return {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in values.items()}


class ReplyChange(Protocol):
    """Changes a reply on its way to the client, also one of the gateway itself. What comes out has another length."""

    def head(self, headers: _Headers) -> _Headers:
        """The headers of the reply, before anything of its body."""

    def feed(self, payload: bytes) -> bytes:
        """What the client gets now for a part of the body."""

    def end(self) -> bytes:
        """What it gets at the end."""


class ModelName:
    """Puts the name that the client asked for into an upstream's reply."""

    def __init__(self, name: str) -> None:
        self._own = b'"model":' + msgspec.json.encode(name)
        self._theirs = b""
        self._held = b""
        self._stream = False

    def head(self, headers: _Headers) -> _Headers:
        self._stream = any(b"event-stream" in value for _, value in headers)
        return headers

    def feed(self, payload: bytes) -> bytes:
        data = self._held + payload
        if not self._theirs and (first := _MODEL.search(data)):
            self._theirs = first[0]
        whole = data.rfind(b"\n") + 1 if self._stream else len(data) * bool(self._theirs)
        if len(data) - whole > _HELD_BYTES:
            whole = len(data)
        self._held = data[whole:]
        return self._renamed(data[:whole])

    def end(self) -> bytes:
        return self._renamed(self._held)

    def _renamed(self, data: bytes) -> bytes:
        return data.replace(self._theirs, self._own) if self._theirs else data
