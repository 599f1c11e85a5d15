"""Downloads ``hf:`` models into the cache that llama.cpp and other tools share."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.models import DownloadProgress
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubDownload, HubProgress, Retries
from gpubox.models.hub_search import choose_quant, read_repository
from gpubox.models.quants import HfReference

HUB_TIMEOUT_SECONDS = 5.0


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


def quant_size(reference: HfReference) -> int | None:
    """Bytes of all shards of the wanted quant; None without an answer of Hugging Face in HUB_TIMEOUT_SECONDS."""
    try:
        with HubClient(read_seconds=HUB_TIMEOUT_SECONDS) as client:
            return choose_quant(read_repository(client, reference.repo), reference.quant).size_bytes
    except GpuboxError:  # a download reports what is wrong
        return None


def download(repo: str, name: str, on_progress: DownloadProgress, *, revision: str, folder: Path) -> Path:
    """Downloads one file of a repository into ``folder``. Raises GpuboxError, and OSError if it cannot be stored."""
    path = folder / Path(name).name

    def fetch() -> None:
        with path.open("ab") as file, client.file_part(repo, revision, name, file.tell()) as (chunks, length):
            for chunk in chunks:
                file.write(chunk)
                on_progress(file.tell(), length, "")

    with HubClient() as client:
        Retries(partial(on_progress, 0, None)).run(fetch)
    return path
