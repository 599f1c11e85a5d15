"""Downloads ``hf:`` models with huggingface_hub, into the cache that llama.cpp and other tools share."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models import DownloadProgress
from gpubox.models.find import hub_cache
from gpubox.models.quants import HfReference, choose_files

HUB_TIMEOUT_SECONDS = 5.0


def fetch_quant(reference: HfReference, on_progress: DownloadProgress) -> Path:
    """Downloads all shards of the wanted quant and returns the first. Resumes an interrupted download.

    Raises GpuboxError if there is no such repository or quant, no access, no connection, or no space.
    """
    try:
        revision, sizes = _wanted_files(reference)
    except GpuboxError:
        raise
    except Exception as error:  # the library raises errors of three HTTP stacks
        raise _explain(reference.repo, error) from None
    total = sum(sizes.values())
    _check_space(total, reference)
    done, paths = 0, []
    for name, size in sizes.items():
        before = done
        paths.append(
            download(
                reference.repo,
                name,
                lambda done_here, _, before=before: on_progress(before + done_here, total or None),  # type: ignore[misc]
                revision=revision,
            )
        )
        done += size
    on_progress(done, total or None)
    return paths[0]


def quant_size(reference: HfReference) -> int | None:
    """Bytes of all shards of the wanted quant; None without an answer of Hugging Face in HUB_TIMEOUT_SECONDS."""
    try:
        _, sizes = _wanted_files(reference, timeout=HUB_TIMEOUT_SECONDS)
        return sum(sizes.values()) or None
    except Exception:  # the library raises errors of three HTTP stacks; a download reports what is wrong
        return None


def _wanted_files(reference: HfReference, timeout: float | None = None) -> tuple[str, dict[str, int]]:
    """The revision, and the bytes of each shard of the wanted quant. Raises what huggingface_hub raises."""
    api = _hub().HfApi(endpoint=_endpoint())
    repository = api.model_info(reference.repo, files_metadata=True, timeout=timeout)
    sizes = {file.rfilename: file.size or 0 for file in repository.siblings or []}
    return repository.sha or "main", {name: sizes[name] for name in choose_files(reference, sizes)}


def download(
    repo: str, name: str, on_progress: DownloadProgress, *, revision: str = "main", folder: Path | None = None
) -> Path:
    """Downloads one file of a repository, into the shared cache or into ``folder``. Raises GpuboxError."""
    hub = _hub()
    target: dict[str, Any] = {"local_dir": str(folder)} if folder else {"cache_dir": str(hub_cache())}
    try:
        return Path(
            hub.hf_hub_download(
                repo, name, revision=revision, endpoint=_endpoint(), tqdm_class=_bar(on_progress), **target
            )
        )
    except (GpuboxError, KeyboardInterrupt):
        raise
    except Exception as error:
        if _is_cancel(error):
            raise
        raise _explain(repo, error) from None


def _bar(on_progress: DownloadProgress) -> type:
    """A class with tqdm's interface that only counts."""
    tqdm: Any = importlib.import_module("tqdm").tqdm  # a dependency of huggingface_hub, without type stubs

    class CallbackBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.done = int(kwargs.get("initial") or 0)
            self.whole = kwargs.get("total")
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.done += int(n or 0)
            on_progress(self.done, int(self.whole) if self.whole else None)

    return CallbackBar


def _hub() -> ModuleType:
    # Plain HTTP, because downloads of the xet client do not reliably resume or cancel.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        import huggingface_hub
    except ImportError:
        raise GpuboxError(
            "huggingface_hub is not installed, so hf: models cannot be downloaded.", "pip install huggingface-hub"
        ) from None
    return huggingface_hub


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _check_space(total: int, reference: HfReference) -> None:
    cache = hub_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
    except OSError as error:
        raise GpuboxError(f"The Hugging Face cache {cache} cannot be written: {error.strerror}.") from None
    if free < total:
        raise GpuboxError(
            f"{reference} needs {units.file_size(total)}, and {units.file_size(free)} are free in {cache}.",
            "Free some space, or set HF_HOME to a folder on a larger disk.",
        )


def _is_cancel(error: Exception) -> bool:
    """Whether the error was raised by ``on_progress``, to cancel, and not by the download."""
    module = type(error).__module__
    return not isinstance(error, OSError) and not module.startswith(
        ("huggingface_hub", "httpx", "httpcore", "requests")
    )


def _explain(repo: str, error: Exception) -> GpuboxError:
    name = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if name == "GatedRepoError":
        return GpuboxError(
            f"{repo} is gated: its owner must grant you access.",
            "Ask for it on its page, then set HF_TOKEN or run: hf auth login",
        )
    if name == "RepositoryNotFoundError" or status in {401, 403, 404}:
        return GpuboxError(
            f"{repo} does not exist on Hugging Face, or it is private (HTTP {status or 404}).",
            "Check its name; for a private one set HF_TOKEN or run: hf auth login",
        )
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return GpuboxError(f"The disk of {hub_cache()} is full.", "Free some space; the download resumes.")
    if status:
        return GpuboxError(f"Hugging Face answered with HTTP {status} for {repo}.", "Try again later.")
    if "Connect" in name or "Timeout" in name or name in {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        return GpuboxError(
            f"{repo} cannot be downloaded: there is no connection to Hugging Face.", "Is this machine online?"
        )
    if isinstance(error, OSError) and error.strerror:
        return GpuboxError(f"{repo} cannot be downloaded: {error.strerror}.")
    lines = str(error).strip().splitlines()
    return GpuboxError(f"{repo} cannot be downloaded: {lines[0] if lines else name}")
