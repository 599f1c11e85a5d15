"""Models: GGUF files, where they are on disk, and how they are downloaded."""

from collections.abc import Callable

DownloadProgress = Callable[[int, int | None, str], None]
"""Called with the bytes downloaded, the total (None: unknown), and a sentence while the other side makes it wait (else
empty). It may raise to cancel."""
