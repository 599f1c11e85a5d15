"""Fetches ``hf:`` models with huggingface_hub, into the cache that llama.cpp and other tools share."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models.find import hub_cache
from gpubox.models.quants import HfReference, choose_files

HUB_TIMEOUT_SECONDS = 5.0
_Progress = Callable[[int, int | None], None]


def fetch_quant(reference: HfReference, on_progress: _Progress) -> Path:
    """The first file of the wanted quant, all its shards downloaded; a broken download goes on where it was.

    Raises GpuboxError: no such repository, quant or access, no connection, no space.
    """
    hub = _hub()
    try:
        found = hub.HfApi(endpoint=_endpoint()).model_info(reference.repo, files_metadata=True)
    except Exception as error:  # the library raises those of three HTTP stacks
        raise _explain(reference.repo, error) from None
    sizes = {file.rfilename: file.size or 0 for file in found.siblings or []}
    names = choose_files(reference, sizes)
    total = sum(sizes[name] for name in names)
    _check_space(total, reference)
    done, paths = 0, []
    for name in names:
        before = done
        paths.append(
            download(
                reference.repo,
                name,
                lambda here, _, before=before: on_progress(before + here, total or None),  # type: ignore[misc]
                revision=found.sha or "main",
            )
        )
        done += sizes[name]
    on_progress(done, total or None)
    return paths[0]


def quant_size(reference: HfReference) -> int | None:
    """Bytes of the wanted quant, all its shards; ``None`` where Hugging Face does not say within ASK_SECONDS."""
    try:
        found = (
            _hub()
            .HfApi(endpoint=_endpoint())
            .model_info(reference.repo, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS)
        )
        sizes = {file.rfilename: file.size or 0 for file in found.siblings or []}
        return sum(sizes[name] for name in choose_files(reference, sizes)) or None
    except Exception:  # the library raises those of three HTTP stacks; a fetch says what is wrong
        return None


def download(
    repo: str, name: str, on_progress: _Progress, *, revision: str = "main", folder: Path | None = None
) -> Path:
    """One file of a repository, in the shared cache or (``folder``) outside it. Raises GpuboxError."""
    hub = _hub()
    place: dict[str, Any] = {"local_dir": str(folder)} if folder else {"cache_dir": str(hub_cache())}
    try:
        return Path(
            hub.hf_hub_download(
                repo, name, revision=revision, endpoint=_endpoint(), tqdm_class=_bar(on_progress), **place
            )
        )
    except (GpuboxError, KeyboardInterrupt):
        raise
    except Exception as error:
        if _ours(error):
            raise
        raise _explain(repo, error) from None


def _bar(on_progress: _Progress) -> type:
    """A class that huggingface_hub takes for a tqdm bar and that only counts."""
    tqdm: Any = importlib.import_module("tqdm").tqdm  # comes with huggingface_hub; has no type stubs

    class CallbackBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.here = int(kwargs.get("initial") or 0)
            self.whole = kwargs.get("total")
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.here += int(n or 0)
            on_progress(self.here, int(self.whole) if self.whole else None)

    return CallbackBar


def _hub() -> ModuleType:
    # Plain HTTP: its downloads resume and can be cancelled; the xet client's do neither reliably.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        import huggingface_hub
    except ImportError:
        raise GpuboxError(
            "huggingface_hub is not installed, so hf: models cannot be fetched.", "pip install huggingface-hub"
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
            f"{reference} has {units.file_size(total)}, and {units.file_size(free)} are free in {cache}.",
            "Free some space, or set HF_HOME to a folder on a larger disk.",
        )


def _ours(error: Exception) -> bool:
    """Whether the error came out of ``on_progress`` (a cancel) and not out of the download."""
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
        return GpuboxError(f"The disk is full: {hub_cache()} takes no more.", "Free some space; the download resumes.")
    if status:
        return GpuboxError(f"Hugging Face answered with HTTP {status} for {repo}.", "Try again later.")
    if "Connect" in name or "Timeout" in name or name in {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        return GpuboxError(
            f"{repo} cannot be fetched: there is no connection to Hugging Face.", "Is this machine online?"
        )
    if isinstance(error, OSError) and error.strerror:
        return GpuboxError(f"{repo} cannot be fetched: {error.strerror}.")
    first = str(error).strip().splitlines()
    return GpuboxError(f"{repo} cannot be fetched: {first[0] if first else name}")
