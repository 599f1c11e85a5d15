"""The address of a server as people write it -> the root that every endpoint hangs on. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from gpubox.errors import UsageError

KEY_HINT = "Its key: in GPUBOX_URL_KEY, or in a file that [keys] in config.toml names for its address."
# What client configurations end with: a base URL, or the whole path of one endpoint. What stands before is a proxy's.
_ENDPOINT = re.compile(
    r"/(?:(?:v1|api/v0|api/v1|api)(?:/(?:(?:chat/)?completions|models|embeddings|responses|messages|rerank"
    r"|chat|generate|tags|ps|version))?|health|metrics|slots|props|models|completions?)\Z"
)


def server_root(text: str) -> str:
    """``text`` without what clients add: ``box:8080``, ``http://box:8080/v1/`` and its endpoints are all one server.

    Raises UsageError where it is no http address, or holds a password, which is not repeated.
    """
    text = text.strip()
    if "@" in text:  # it would stand on the screen and in every output
        raise UsageError("The address holds a user name or a password.", f"Write http://HOST:PORT. {KEY_HINT}")
    if "?" in text or "#" in text:  # a key in it would stand in every report
        raise UsageError("The address has a question mark or a # in it.", f"Write http://HOST:PORT. {KEY_HINT}")
    parts = _split(text if "://" in text else f"http://{text}")
    if parts is None:
        raise UsageError(f"{text!r} is not the address of a server.", "Write http://HOST:PORT.")
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{_ENDPOINT.sub('', path)}"


def origin(address: str) -> str:
    """Scheme, host and port of ``address``: what a key is kept for. The names of this machine's loopback are one."""
    parts = _split(address)
    if parts is None:
        return ""
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a port of 99999, half an IPv6 address
        return None
    good = parts.scheme in ("http", "https") and parts.hostname and port != 0
    return parts if good and re.fullmatch(r"[\w.:\[\]%~-]+", parts.netloc) else None
