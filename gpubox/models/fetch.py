"""Downloads the model that a profile names, if it is not on this machine yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models import DownloadProgress
from gpubox.models.demo_model import parse_demo
from gpubox.models.find import hub_cache
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubDownload, HubProgress, Retries
from gpubox.models.hub_search import choose_quant, read_repository
from gpubox.models.quants import HfReference, parse_reference
from gpubox.models.resolve import resolve_model
from gpubox.paths import Paths
from gpubox.storage import free_bytes

HUB_TIMEOUT_SECONDS = 5.0
"""For the question of a size before the owner is asked."""


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What downloading a model takes."""

    size_bytes: int | None
    """Of all its files; None if unknown."""
    folder: Path
    free_bytes: int | None
    """On the disk of ``folder``."""

    @property
    def fits(self) -> bool:
        """Whether the disk has enough space, as far as is known."""
        return self.size_bytes is None or self.free_bytes is None or self.size_bytes <= self.free_bytes


def plan_download(text: str, paths: Paths) -> DownloadPlan:
    """What ``fetch_model`` would download for a ``demo:`` or ``hf:`` model. Asks Hugging Face for the size."""
    if text.startswith("demo:"):
        size: int | None = parse_demo(text).size
        folder = paths.models
    else:
        size, folder = _quant_size(parse_reference(text)), hub_cache()
    return DownloadPlan(size, folder, free_bytes(folder))


def fetch_model(text: str, paths: Paths, config: Config, on_progress: DownloadProgress) -> Path:
    """The first file of the model that ``text`` names, downloaded if it is missing.

    ``demo:`` models go to ``paths.models``, ``hf:`` models into the Hugging Face cache that other tools share. An
    interrupted ``hf:`` download is resumed. Cancelling (Ctrl-C, or an exception from ``on_progress``) leaves no file
    under the final name. Raises GpuboxError.
    """
    if text.startswith("demo:"):
        from gpubox.models.demo_model import fetch_demo

        return fetch_demo(parse_demo(text), paths, on_progress)
    source = resolve_model(text, paths, config)
    if source.path is not None:
        return source.path
    if source.fetch == "hf":
        return fetch_quant(parse_reference(text), on_progress)
    raise GpuboxError(f"The model {text!r} cannot be downloaded.", 'Only "hf:" and "demo:" models can be downloaded.')


def fetch_quant(reference: HfReference, on_progress: DownloadProgress) -> Path:
    """Downloads all shards of the wanted quant and returns the first. Resumes an interrupted download.

    Raises GpuboxError if there is no such repository or quant, no access, no connection, or no space.
    """

    def report(progress: HubProgress) -> None:
        on_progress(progress.done_bytes, progress.total_bytes, progress.waiting)

    with HubClient() as client:
        retries = Retries(partial(on_progress, 0, None))
        repository = retries.run(lambda: read_repository(client, reference.repo))
        quant = choose_quant(repository, reference.quant)
        return HubDownload(repository, quant.files).run(client, report)


def _quant_size(reference: HfReference) -> int | None:
    """Bytes of all shards of the wanted quant; None without an answer of Hugging Face in HUB_TIMEOUT_SECONDS."""
    try:
        with HubClient(read_seconds=HUB_TIMEOUT_SECONDS) as client:
            return choose_quant(read_repository(client, reference.repo), reference.quant).size_bytes
    except GpuboxError:  # a download reports what is wrong
        return None
