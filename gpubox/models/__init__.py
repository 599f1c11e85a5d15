"""Models: GGUF files, where they are on disk, and how they are downloaded."""

from collections.abc import Callable

DownloadProgress = Callable[[int, int | None], None]
"""Called with the bytes downloaded and the total (None: unknown). It may raise to cancel."""
