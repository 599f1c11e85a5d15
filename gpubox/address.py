"""The address of a server, as people write it -> the root URL that all its endpoints begin with. Pure."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from gpubox.errors import UsageError

KEY_HINT = "Put its key into GPUBOX_URL_KEY, or into a file that [keys] in config.toml names for its address."
# The end of the path in client configurations: a base URL or a whole endpoint. A path before it belongs to a proxy.
_ENDPOINT = (
    r"/(?:(?:v1|api/v0|api/v1|api)(?:/(?:(?:chat/)?completions|models|embeddings|responses|messages|rerank"
    r"|chat|generate|tags|ps|version))?|health|metrics|slots|props|models|completions?)\Z"
)


def server_root(text: str) -> str:
    """The root of ``text``: ``box:8080``, ``http://box:8080/v1/`` and all endpoints have the root ``http://box:8080``.

    Raises UsageError if it is not an http address, or contains a password (which the message does not repeat).
    """
    text = text.strip()
    if "@" in text:  # the address appears on the screen and in every output
        raise UsageError("The address contains a user name or a password.", f"Write http://HOST:PORT. {KEY_HINT}")
    if "?" in text or "#" in text:  # a key in it would appear in every report
        raise UsageError("The address contains a question mark or a #.", f"Write http://HOST:PORT. {KEY_HINT}")
    parts = _split(text if "://" in text else f"http://{text}")
    if parts is None:
        raise UsageError(f"{text!r} is not the address of a server.", "Write http://HOST:PORT.")
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{re.sub(_ENDPOINT, '', path)}"


def local_url(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on ``host``."""
    host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening_url(url: str, exposed: str) -> str:
    """Where the server of a ``local_url`` listens: on every address, if others can reach it (``exposed``)."""
    return url.replace("//127.0.0.1:", "//0.0.0.0:").replace("//[::1]:", "//[::]:") if exposed else url


def origin(address: str) -> str:
    """Scheme, host and port of ``address``, for which a key is valid. All names of the loopback give 127.0.0.1."""
    parts = _split(address)
    if parts is None:
        return ""
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # port 99999, or half an IPv6 address
        return None
    valid = parts.scheme in ("http", "https") and parts.hostname and port != 0
    return parts if valid and re.fullmatch(r"[\w.:\[\]%~-]+", parts.netloc) else None
