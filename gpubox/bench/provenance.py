"""What exactly was measured, and on which machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gpubox import __version__, units
from gpubox.bench.model import Machine, Provenance
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.engines.find import EMBEDDED, choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.models.gguf import check_gguf, shards_size
from gpubox.paths import Paths
from gpubox.profiles.argv import redacted_env
from gpubox.profiles.profile import Profile
from gpubox.server.launch import preview_launch
from gpubox.storage import read_cache, write_cache

if TYPE_CHECKING:
    from gpubox.bench.target_server import ActiveTarget

RUN_SPECIFIC_FLAGS = ("--port", "--log-file", "--host", "--api-key", "--alias", "--slot-save-path")
_LIBRARIES = re.compile(r"^lib(llama|ggml|mtmd)[\w.-]*\.(so|dylib)[\d.]*$")
_BLOCK = 4 << 20


def read_machine(driver: DriverReading, sandbox: str, gpu_processes: tuple[str, ...]) -> Machine:
    """The box as it is now."""
    return Machine(
        gpubox=__version__,
        cpu=_cpu_name(),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count(),
        ram_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        driver=driver.driver_version or "",
        gpus=tuple(
            {
                "name": gpu.name,
                "vram_total_bytes": gpu.vram_total_bytes,
                "power_limit_watts": gpu.power_limit_watts,
                "pcie_generation": gpu.pcie_max_generation,
                "pcie_width": gpu.pcie_max_width,
            }
            for gpu in driver.gpus
        ),
        gpu_processes=gpu_processes,
        sandbox=sandbox,
    )


async def read_provenance(active: ActiveTarget, paths: Paths, say: Callable[[str], None]) -> Provenance:
    """What ``active`` runs. Hashes its files unless the hashes are cached, which can take a minute. Never raises."""
    target, launch = active.target, active.running.launch if active.running else None
    props = _relevant_props(active)
    if launch is None:
        version = str(props.get("build_info") or "")
        return Provenance(target.name, url=target.url, dialect=active.dialect, model_path=active.model,
                          engine_version=version, props=props)  # fmt: skip
    own = Provenance(
        target=target.name,
        profile=launch.profile,
        argv=launch.argv,
        env=redacted_env(launch.env),
        engine=launch.engine,
        engine_path=launch.engine_path,
        engine_version=launch.engine_version,
        model_path=launch.model_path or "",
        model_bytes=launch.model_bytes,
        vram_bytes=sum(used for _, used in active.running.loaded_vram) or None if active.running else None,
        dialect=active.dialect,
        props=props,
    )
    return await _with_hashes(own, paths, say)


async def read_stopped_provenance(
    target: str, profile: Profile, paths: Paths, config: Config, say: Callable[[str], None]
) -> Provenance:
    """As ``read_provenance``, for a program that ran in place of the profile's server: what that server would run.

    So its figures can be joined with those of the server. Never raises.
    """
    return await _with_hashes(await run_in_thread(_stopped_provenance, target, profile, paths, config), paths, say)


def _stopped_provenance(target: str, profile: Profile, paths: Paths, config: Config) -> Provenance:
    launch = preview_launch(profile, paths, config, ask_engine=False)
    model = launch.model_path
    own = Provenance(
        target=target, profile=profile.name, argv=launch.argv, env=redacted_env(profile.env), model_path=model or "",
        model_bytes=shards_size(Path(model)) if model else None,
    )  # fmt: skip
    with contextlib.suppress(GpuboxError):
        engine = choose_engine(config, profile.engine)
        version = read_capabilities(engine, paths).version
        return replace(own, engine=engine.name, engine_path=str(engine.path), engine_version=version)
    return own


async def _with_hashes(own: Provenance, paths: Paths, say: Callable[[str], None]) -> Provenance:
    """``own`` with the hashes of its files. A caller that is cancelled ends the hashing: a thread would go on."""
    hashes = FileHashes(paths.cache / "hashes")

    def hashed() -> Provenance:
        engine = engine_files(own.engine, Path(own.engine_path)) if own.engine_path else []
        model = _shards(Path(own.model_path)) if own.model_path else []
        return replace(own, engine_sha256=hashes.of(engine), model_sha256=hashes.of(model, say))

    try:
        return await run_in_thread(hashed)
    except asyncio.CancelledError:
        hashes.stopped = True
        raise


def comparable_argv(argv: Sequence[str]) -> list[str]:
    """``argv`` without the flags that differ from start to start ("any free port") and change no measurement."""
    return [
        word for i, word in enumerate(argv)
        if word not in RUN_SPECIFIC_FLAGS and (i == 0 or argv[i - 1] not in RUN_SPECIFIC_FLAGS)
    ]  # fmt: skip


def engine_files(name: str, path: Path) -> list[Path]:
    """The binary, and the llama and ggml libraries next to it."""
    folders = [path.parent] if name == EMBEDDED else [path.resolve().parent, path.resolve().parent.parent / "lib"]
    files = {path.resolve()}
    for folder in folders:
        with contextlib.suppress(OSError):
            files |= {entry.resolve() for entry in folder.iterdir() if _LIBRARIES.match(entry.name)}
    return sorted(files)


class FileHashes:
    """SHA-256 of files, cached until a file's size or time changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stopped = False
        """Set by another thread to end hashing early."""

    def of(self, files: Iterable[Path], say: Callable[[str], None] = lambda text: None) -> str:
        """The hash of one file, or of the hashes of several. Empty without files, or if one cannot be read."""
        try:
            digests = [self._digest(path, say) for path in files]
        except OSError:
            return ""
        if len(digests) < 2:
            return "".join(digests)
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def _digest(self, path: Path, say: Callable[[str], None]) -> str:
        status = path.stat()
        key = [str(path), status.st_size, status.st_mtime_ns]
        kept = self._folder / f"{status.st_dev}-{status.st_ino}.json"
        if known := read_cache(kept, key, units.MIB):
            return str(known)
        if status.st_size > 1 << 30:
            say(f"hashing {path.name}, once, to record which file is measured")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                if self.stopped:
                    raise InterruptedError
                digest.update(block)
        write_cache(kept, key, digest.hexdigest())
        return digest.hexdigest()


def _shards(model: Path) -> list[Path]:
    try:
        return list(check_gguf(model).shards)
    except GpuboxError:
        return [model]


def _relevant_props(active: ActiveTarget) -> dict[str, Any]:
    """The fields of ``/props`` that affect speed or answers. The template is stored as a hash because it is long."""
    fields = ("build_info", "total_slots", "chat_template_caps", "modalities")
    relevant: dict[str, Any] = {name: active.props[name] for name in fields if name in active.props}
    template = active.props.get("chat_template")
    if isinstance(template, str):
        relevant["chat_template_sha256"] = hashlib.sha256(template.encode(errors="replace")).hexdigest()
    if active.context_tokens is not None:
        relevant["n_ctx"] = active.context_tokens
    return relevant


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
