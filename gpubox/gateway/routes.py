"""What a request asks for: its path, its API, the model that it names, and how its errors look. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, unquote

import msgspec

from gpubox import __version__
from gpubox.gateway.http_connection import Headers, HttpRequest, RequestRefused
from gpubox.profiles.profile import Profile
from gpubox.storage import DECODE_ERRORS

Api = Literal["openai", "anthropic", "ollama", "gpubox"]
"""Whose errors a client understands."""

CONTROL = "/gpubox/"
WATCH = "watch"
"""The one path below it that clients with a key may ask."""
LOGIN: Headers = ((b"WWW-Authenticate", b"Bearer"),)
_OWN = {
    "/health": "health", "/v1/health": "health", "/metrics": "metrics", "/v1/models": "models", "/models": "models",
    "/running": "running", "/api/tags": "tags", "/api/ps": "ps", "/api/version": "version",
}  # fmt: skip
_OWN_POSTS = {"/models/load": "load", "/models/unload": "unload", "/unload": "unload", "/api/show": "show"}
"""As llama-server's router, llama-swap and Ollama have them."""
_ANTHROPIC = "/v1/messages"
_MODEL = "/v1/models/"
_OTHER_API = "/api/"
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 502: "api_error", 503: "overloaded_error",
}  # fmt: skip
_NOT_IN_PATHS = re.compile(r"[\\\x00-\x1f\x7f]")
_LOCALHOST = "localhost"
_FROM_CONTAINERS = ("host.docker.internal", "host.containers.internal")
"""What Docker and Podman call the machine inside a container. Nobody can own a name that ends in internal."""
SLOT_FILES = "The slots and their files belong to gpubox, unless the profile has a slot-save-path of its own."
_SLOT_FLAG = "slot-save-path"


class _Body(msgspec.Struct):
    """What the gateway reads of a request's body."""

    model: str | None = None
    stream: bool | None = None
    name: str | None = None
    """The model, in older requests of Ollama's API."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes."""

    path: str
    """Decoded, without the query."""
    own: str
    """What the gateway answers by itself: a value of the tables above, model, or a control. Empty: a server does."""
    model: str | None
    """The model that the request names; None: it names none."""
    stream: bool = False
    api: Api = "openai"


def api_of(request: HttpRequest) -> Api:
    anthropic = request.target.startswith(_ANTHROPIC) or request.header("anthropic-version")
    return "anthropic" if anthropic else "ollama" if request.target.startswith(_OTHER_API) else "openai"


def route_of(request: HttpRequest) -> Route:
    """Raises RequestRefused if the path or the body cannot be understood."""
    raw, _, query = request.target.partition("?")
    path = unquote(raw, errors="replace")
    segments = path.split("/")
    if ".." in segments or "." in segments or _NOT_IN_PATHS.search(path):
        raise RequestRefused(400, "The path of the request is not valid.")
    path = "/" + "/".join(segment for segment in segments if segment)
    api = api_of(request)
    if (path + "/").startswith(CONTROL):
        return Route(f"{path}/", f"{path}/".removeprefix(CONTROL).rstrip("/") or "none", None, False, "gpubox")
    if request.method == "HEAD" and path == "/":  # so Ollama's program asks whether a server is here
        return Route(path, "health", None)
    if request.method in ("GET", "HEAD") and path in _OWN:
        return Route(path, _OWN[path], None, False, api)
    if request.method in ("GET", "HEAD") and path.startswith(_MODEL):
        return Route(path, "model", path.removeprefix(_MODEL), False, api)
    named = parse_qs(query, keep_blank_values=True).get("model", [None])[0]
    own = _OWN_POSTS.get(path, "") if request.method == "POST" else ""
    body = _read_body(request, path) if request.method == "POST" and request.body else _Body()
    named = named if body.model is None else body.model
    if own == "show" and request.body:
        named = body.model or body.name or ""
    return Route(path, own, named, bool(body.stream), api)


def _read_body(request: HttpRequest, path: str) -> _Body:
    if request.body[:1] not in b"{ \t\r\n" and "json" not in request.header("content-type"):
        return _Body()  # a form or a file: no model is named in it
    try:
        if not path.startswith("/v1/") and request.body.lstrip()[:1] == b"[":
            msgspec.json.decode(request.body, type=list[msgspec.Raw])
            return _Body()  # POST /lora-adapters takes a list: of the server's own endpoints it knows the bodies itself
        return msgspec.json.decode(request.body, type=_Body)
    except DECODE_ERRORS as error:
        raise RequestRefused(400, f"The body of the request is not the expected JSON: {str(error)[:160]}.") from None


def has_own_slots(profile: Profile) -> bool:
    """Whether the owner manages the slots and their files: then gpubox keeps no state in them."""
    return not profile.upstream and _SLOT_FLAG in profile.flags


def check_slots(path: str, profile: Profile) -> None:
    """Raises RequestRefused for what would overwrite or read the states that gpubox saved."""
    if path.startswith("/slots/") and not has_own_slots(profile):
        raise RequestRefused(403, SLOT_FILES)


def check_api(path: str) -> None:
    """Raises RequestRefused for an endpoint that no llama-server has, before a model is loaded in vain."""
    if path.startswith(_OTHER_API):
        sentence = "is no endpoint. Of Ollama's API there are GET tags, ps, version, POST chat, generate, embed, show."
        shown = path if len(path) < 60 else f"{path[:60]}..."
        raise RequestRefused(404, f"{shown} {sentence} Use OpenAI's at /v1, or Anthropic's at /v1/messages.")


def error_body(status: int, sentence: str, api: Api) -> bytes:
    """The JSON of an error, as the client's API knows it."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    if api == "ollama":
        return json.dumps({"error": sentence}).encode()
    error: dict[str, object] = {"message": sentence, "type": kind}
    if api == "anthropic":
        return json.dumps({"type": "error", "error": error}).encode()
    name = {"gpubox": __version__} if api == "gpubox" else {}  # so a viewer knows whose refusal it is
    return json.dumps({"error": {**error, "code": status}, **name}).encode()


def error_event(status: int, sentence: str, api: Api) -> bytes:
    """The same inside a stream of server-sent events that has begun."""
    prefix = b"event: error\n" if api == "anthropic" else b""
    return prefix + b"data: " + error_body(status, sentence, api) + b"\n\n"


def secret_of(request: HttpRequest) -> str:
    """The key that the client sent (``Authorization: Bearer`` or ``x-api-key``); empty if none."""
    scheme, _, secret = request.header("authorization").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else request.header("x-api-key").strip()


def own_names(machine: str, others: Iterable[str]) -> frozenset[str]:
    """The names under which a gateway without keys may be asked; ``machine`` is what this one calls itself."""
    first = machine.partition(".")[0]
    own = (_LOCALHOST, *_FROM_CONTAINERS, machine, first, first and f"{first}.local", *others)
    return frozenset(name.lower().rstrip(".") for name in own if name)


def page_refusal(request: HttpRequest, names: Collection[str]) -> str:
    """Why a gateway without keys does not answer this request, in a sentence: a web page may have sent it.

    Empty if nothing speaks for that. ``Host`` is the name that was asked: one that is not in ``names`` may belong to
    somebody who lets it lead here (DNS rebinding). ``Origin``, which comes with every POST, is the page: it must be of
    this machine, also by one of ``names``, or of the address that was asked. ``Sec-Fetch-Site`` comes also where
    ``Origin`` does not, as with an image: of another origin it is same-site or cross-site (W3C, Fetch Metadata).
    """
    host, origin = _host_name(request.header("host")), request.header("origin")
    if not is_own_host(request.header("host"), names):
        hint = "If the name is this machine's, put it into `names` of [gateway] in config.toml."
        return f"A request to the host {host[:100]} needs a key. {hint}"
    page = _host_name(origin.partition("://")[2])
    if origin and not ((page and page in {host, *names}) or _is_local(page)):
        return f"Requests of the web page {origin[:100]} need a key."
    site = request.header("sec-fetch-site").strip().lower()
    if site in ("", "none", "same-origin") or (site == "same-site" and origin):
        return ""
    return "Requests of a web page of another site need a key."


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether ``Host`` is an address or in ``names``: another name may lead here (DNS rebinding)."""
    host = _host_name(header)
    return not host or host in names or _address(host) is not None


def is_preflight(request: HttpRequest) -> bool:
    """Whether a browser asks if a page may send a request. It sends no key with that question."""
    return request.method == "OPTIONS" and bool(request.header("access-control-request-method"))


def preflight_headers(request: HttpRequest) -> Headers:
    """That the page may."""
    wanted = request.header("access-control-request-headers").encode("latin-1")
    allowed = ((b"Access-Control-Allow-Headers", wanted),) if wanted else ()
    return ((b"Access-Control-Allow-Methods", b"GET, POST"), *allowed, (b"Access-Control-Max-Age", b"600"))


def _host_name(netloc: str) -> str:
    name, colon, port = netloc.strip().lower().rpartition(":")
    host = name if colon and port.isdecimal() else netloc.strip().lower()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host.rstrip(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    return host == _LOCALHOST or bool((address := _address(host)) and address.is_loopback)


def retry_headers(seconds: float, *, helps: bool = True) -> Headers:
    """When to try again. ``helps``: the client may do so by itself, without telling its user first.

    OpenAI's and Anthropic's clients wait for Retry-After up to two minutes, twice, unless ``x-should-retry`` is false.
    """
    after = ((b"Retry-After", b"%d" % max(1, round(seconds))),)
    return after if helps else (*after, (b"x-should-retry", b"false"))
