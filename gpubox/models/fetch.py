"""Gets the model a profile names where it is not on this machine yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models.resolve import resolve_model
from gpubox.paths import Paths

DownloadProgress = Callable[[int, int | None], None]
"""Called with the bytes that are here and the bytes that will be (``None``: not known). It may raise to cancel."""


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What fetching a model comes to."""

    size_bytes: int | None
    """Of all its files; ``None`` where nobody says."""
    folder: Path
    free_bytes: int | None
    """On the disk of ``folder``."""

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, as far as is known."""
        return self.size_bytes is None or self.free_bytes is None or self.size_bytes <= self.free_bytes


def plan_download(text: str, paths: Paths) -> DownloadPlan:
    """What ``fetch_model`` would fetch for ``demo:`` and ``hf:`` models. Asks Hugging Face, and goes without."""
    if text.startswith("demo:"):
        from gpubox.models.demo_model import parse_demo

        size: int | None = parse_demo(text).size
        folder = paths.models
    else:
        from gpubox.models.find import hub_cache
        from gpubox.models.huggingface import quant_size
        from gpubox.models.quants import parse_reference

        size, folder = quant_size(parse_reference(text)), hub_cache()
    return DownloadPlan(size, folder, _free(folder))


def _free(folder: Path) -> int | None:
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def fetch_model(text: str, paths: Paths, config: Config, on_progress: DownloadProgress) -> Path:
    """The (first) file of the model that ``text`` names, fetched where it has to be.

    ``demo:`` models go to ``paths.models``, ``hf:`` ones into the Hugging Face cache that other tools share; a
    started ``hf:`` download is resumed. Cancelling (Ctrl-C, or an exception out of ``on_progress``) leaves no
    file under the final name. Raises GpuboxError.
    """
    if text.startswith("demo:"):
        from gpubox.models.demo_fetch import fetch_demo
        from gpubox.models.demo_model import parse_demo

        return fetch_demo(parse_demo(text), paths, on_progress)
    source = resolve_model(text, paths, config)
    if source.path is not None:
        return source.path
    if source.fetch == "hf":
        from gpubox.models.huggingface import fetch_quant
        from gpubox.models.quants import parse_reference

        return fetch_quant(parse_reference(text), on_progress)
    raise GpuboxError(f"The model {text!r} cannot be fetched.", 'Only "hf:" and "demo:" models can.')
