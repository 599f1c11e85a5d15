"""The images of a chat: files in its folder, named by what they hold; a request sends them as data URLs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import private_folder, read_bytes, write_atomically

MAX_BYTES = 4 * 1024 * 1024
_KINDS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}
_NAME = re.compile(r"[0-9a-f]{32}\.(png|jpeg|gif|webp)")


def store_image(folder: Path, data: bytes) -> str:
    """Keeps an image in ``folder`` and returns its name, for ``Message.images``. Blocking. Raises GpuboxError."""
    kind = next((kind for kind, start in _KINDS.items() if data.startswith(start)), "")
    if not kind or (kind == "webp" and data[8:12] != b"WEBP"):
        raise GpuboxError("This is no image that a model reads.", "Use PNG, JPEG, GIF or WebP.")
    if len(data) > MAX_BYTES:
        raise GpuboxError(f"The image has {len(data):,} bytes.", f"At most {MAX_BYTES:,} are sent: make it smaller.")
    name = f"{hashlib.sha256(data).hexdigest()[:32]}.{kind}"
    try:
        write_atomically(private_folder(folder) / name, data)
    except OSError as error:
        raise GpuboxError(f"The image cannot be kept in {folder}: {error.strerror}.") from None
    return name


def image_urls(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The data URLs by name. Blocking. What is missing, too large or no image's name is left out."""
    urls = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            try:
                data = read_bytes(folder / name, MAX_BYTES)
            except (OSError, ValueError, GpuboxError):
                continue
            urls[name] = f"data:image/{match[1]};base64,{base64.b64encode(data).decode()}"
    return urls
