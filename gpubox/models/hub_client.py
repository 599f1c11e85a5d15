"""Talks to the Hugging Face Hub: JSON answers and parts of files, within limits of time and size; errors as sentences.

Address, token and switches are those of huggingface_hub's variables and files. Its own client is not used: it waits
without limit for an answer, repeats a refused search for half a minute, and (2.4) deletes an interrupted download
instead of resuming it.
"""

from __future__ import annotations

import contextlib
import math
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from gpubox import __version__
from gpubox.errors import ExitCode, GpuboxError
from gpubox.models.find import hub_home
from gpubox.storage import read_json

CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
"""Without a byte for so long, the hub does not answer."""
ANSWER_SECONDS = 30.0
"""For a whole JSON answer."""
_ANSWER_BYTES = 32 << 20
_MAX_REDIRECTS = 8
_ENDPOINT = "https://huggingface.co"
_OFFLINE_HINT = "Check the network connection."


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")


def _token() -> str:
    """The owner's token: from the environment, else where ``hf auth login`` keeps it; empty if there is none."""
    given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        given = given or Path(os.environ.get("HF_TOKEN_PATH") or hub_home() / "token").expanduser().read_text("utf-8")
    return "".join((given or "").split())


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: that takes longer than all else that a client needs."""
    return httpx.create_ssl_context()


class HubOfflineError(GpuboxError):
    """The hub cannot be reached: what is on this machine can still be used."""


class HubPartError(GpuboxError):
    """The hub sent another part of a file than it was asked for, such as all of it."""

    length: int | None = None
    """Of the whole file, as the hub stated it."""


class HubClient:
    """One connection to the hub, for several threads. All methods raise GpuboxError."""

    def __init__(self, *, read_seconds: float = READ_SECONDS) -> None:
        if _is_on("HF_HUB_OFFLINE"):
            raise HubOfflineError("HF_HUB_OFFLINE is set, so Hugging Face is not asked.", "Unset it to search there.")
        headers = {"User-Agent": f"gpubox/{__version__}"}
        if not _is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") and (token := _token()):
            headers["Authorization"] = f"Bearer {token}"
        self.endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        try:
            self._http = httpx.Client(
                headers={**headers, "Accept-Encoding": "identity"},
                verify=_certificates(),
                timeout=httpx.Timeout(read_seconds, connect=CONNECT_SECONDS),
            )
        except (ValueError, OSError, httpx.InvalidURL) as error:  # a broken proxy variable, no certificates
            raise GpuboxError(f"Hugging Face cannot be asked: {_first_line(error)}.") from None

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get_json(self, path: str, params: Mapping[str, str | int], subject: str) -> Any:
        """The JSON answer for ``path``. ``subject`` is what the error sentences are about."""
        deadline = time.monotonic() + ANSWER_SECONDS
        body = bytearray()
        with self._answer(f"{self.endpoint}/{path}", subject, params=params) as response:
            for chunk in response.iter_raw():  # as they arrive: the limits hold for an answer that trickles, too
                body += chunk
                if len(body) > _ANSWER_BYTES:
                    raise GpuboxError(f"The answer of Hugging Face for {subject} is too long.", "Try again later.")
                if time.monotonic() > deadline:
                    raise _too_slow(subject)
        try:
            return read_json(bytes(body))
        except ValueError:
            raise GpuboxError(
                f"Hugging Face did not answer with JSON for {subject}.",
                "A login page of the network may have answered: open a page in a browser.",
            ) from None

    @contextmanager
    def file_part(
        self, repo: str, revision: str, name: str, start: int, end: int | None = None, *, seconds: float = math.inf
    ) -> Iterator[tuple[Iterator[bytes], int | None]]:
        """The bytes ``start`` to ``end`` (without it) of a file, and the length of the file as the hub states it.

        ``seconds``: the longest time that the bytes may take together.
        Raises GpuboxError also if the hub sends another part than it was asked for.
        """
        url = f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(name)}"
        headers = {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        with self._answer(url, f"{repo}/{name}", headers=headers) as response:
            first, length = _served_part(response)
            if first != start:
                error = HubPartError(f"Hugging Face does not serve {repo}/{name} in parts.", "Try again later.")
                error.length = length
                raise error
            deadline = time.monotonic() + seconds
            yield self._limited(response, None if end is None else end - start, deadline, f"{repo}/{name}"), length

    def _limited(self, response: httpx.Response, limit: int | None, deadline: float, subject: str) -> Iterator[bytes]:
        left = limit
        for chunk in response.iter_raw():  # as they arrive: with a chunk size, a broken connection loses what was read
            if time.monotonic() > deadline:
                raise _too_slow(subject)
            yield chunk if left is None else chunk[:left]
            if left is not None:
                left -= len(chunk)
                if left <= 0:  # more than was asked for is not read
                    return

    @contextmanager
    def _answer(self, url: str, subject: str, **options: Any) -> Iterator[httpx.Response]:
        """A successful response, whose body is read inside the block."""
        try:
            response = self._final_response(self._http.build_request("GET", url, **options), subject)
            try:
                if response.status_code == 416:
                    raise GpuboxError(f"{subject} is shorter than Hugging Face says.", "Try again later.")
                if not response.is_success:
                    raise status_error(subject, response.status_code, response.headers)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise GpuboxError(f"Hugging Face sends {subject} in an encoding that gpubox did not ask for.")
                yield response
            finally:
                response.close()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise connection_error(subject, error) from None

    def _final_response(self, request: httpx.Request, subject: str) -> httpx.Response:
        """Follows redirects. httpx itself would read the body of each, however long it is.

        ``next_request`` leaves out the token if it leads to another host.
        """
        for _ in range(_MAX_REDIRECTS):
            response = self._http.send(request, stream=True)
            if response.next_request is None:
                return response
            response.close()
            request = response.next_request
        raise GpuboxError(f"Hugging Face redirects {subject} in a circle.", "Try again later.")


def _served_part(response: httpx.Response) -> tuple[int, int | None]:
    """Where the sent part begins, and how long the whole file is."""
    if response.status_code != 206:
        return 0, _number(response.headers.get("Content-Length", ""))
    span, _, length = response.headers.get("Content-Range", "").removeprefix("bytes").strip().partition("/")
    first = _number(span.partition("-")[0])
    return -1 if first is None else first, _number(length)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def status_error(subject: str, status: int, headers: Mapping[str, str]) -> GpuboxError:
    """An answer that is no success, in a sentence."""
    code = headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        return GpuboxError(
            f"{subject} is gated: its owner must grant you access.",
            "Ask for it on its page, then set HF_TOKEN or run: hf auth login",
        )
    wait = _wait_seconds(headers.get("Retry-After", ""))
    if status == 429:
        hint = f"Try again in {wait:.0f} s." if wait else "Try again in some minutes."
        text = f"{hint} With a token the limit is higher."
        return HubBrokenConnection("Hugging Face limits your requests (HTTP 429).", text, wait_seconds=wait)
    if status in {401, 403, 404}:
        if subject.startswith("the search"):
            return GpuboxError(
                f"Hugging Face refuses {subject} (HTTP {status}).", "Check that the token in HF_TOKEN is still valid."
            )
        return GpuboxError(
            f"{subject} does not exist on Hugging Face, or it is private (HTTP {status}).",
            "Check its name; for a private one set HF_TOKEN or run: hf auth login",
        )
    sentence = f"Hugging Face answered with HTTP {status} for {subject}."
    if status == 408 or status >= 500:
        return HubBrokenConnection(sentence, "Try again later.", wait_seconds=wait)
    return GpuboxError(sentence, "Try again later.")


def _wait_seconds(retry_after: str) -> float | None:
    """What the header ``Retry-After`` asks for: seconds or a date (RFC 9110, 10.2.3)."""
    if (seconds := _number(retry_after)) is not None:
        return float(seconds)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def connection_error(subject: str, error: Exception) -> GpuboxError:
    """A connection that failed or broke, in a sentence."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return HubOfflineError("There is no connection to Hugging Face.", _OFFLINE_HINT, code=ExitCode.FAILED)
    if isinstance(error, httpx.TimeoutException):
        return _too_slow(subject)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return HubBrokenConnection(f"The connection to Hugging Face broke while it sent {subject}.", "Try again.")
    return GpuboxError(f"Hugging Face cannot be asked for {subject}: {_first_line(error)}.")


class HubBrokenConnection(GpuboxError):
    """The hub stopped in the middle, or cannot answer now: what is missing can be asked for again."""

    def __init__(self, message: str, hint: str, *, wait_seconds: float | None = None) -> None:
        """``wait_seconds``: how long the hub asks to wait before that."""
        super().__init__(message, hint)
        self.wait_seconds = wait_seconds


def _too_slow(subject: str) -> GpuboxError:
    return HubBrokenConnection(f"Hugging Face does not answer for {subject}.", "Try again later.")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")
