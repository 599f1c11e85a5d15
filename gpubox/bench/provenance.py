"""What exactly is measured, and on what: without it a number is a rumour."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gpubox import __version__
from gpubox.bench.model import Machine, Provenance
from gpubox.engines.find import EMBEDDED
from gpubox.hardware.gpu import DriverReading
from gpubox.models.gguf import check_gguf
from gpubox.paths import Paths
from gpubox.profiles.argv import redacted_env

if TYPE_CHECKING:
    from gpubox.bench.target_server import ActiveTarget

_LIBRARIES = re.compile(r"^lib(llama|ggml|mtmd)[\w.-]*\.(so|dylib)[\d.]*$")
_BLOCK = 4 << 20


def read_machine(driver: DriverReading, sandbox: str = "", gpu_processes: tuple[str, ...] = ()) -> Machine:
    """The box now."""
    return Machine(
        gpubox=__version__,
        cpu=_cpu(),
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


async def read_provenance(server: ActiveTarget, paths: Paths, say: Callable[[str], None]) -> Provenance:
    """What ``server`` runs. Hashes its files where they are not known yet, which can take a minute; never raises."""
    target, launch = server.target, server.running.launch if server.running else None
    props = _told(server.props)
    if launch is None:
        return Provenance(
            target=target.name,
            url=target.url,
            dialect=server.dialect,
            model_path=server.model,
            engine_version=str(props.get("build_info") or ""),
            props=props,
        )
    hashes = FileHashes(paths.cache / "hashes.json")
    model = Path(launch.model_path) if launch.model_path else None
    try:
        engine = await asyncio.to_thread(hashes.of, engine_files(launch.engine, Path(launch.engine_path)))
        digest = await asyncio.to_thread(hashes.of, _shards(model), say) if model else ""
    except asyncio.CancelledError:
        hashes.stopped = True  # a thread cannot be cancelled, and gpubox waits for it before it leaves
        raise
    return Provenance(
        target=target.name,
        profile=launch.profile,
        argv=launch.argv,
        env=redacted_env(launch.env),
        engine=launch.engine,
        engine_path=launch.engine_path,
        engine_version=launch.engine_version,
        engine_sha256=engine,
        model_path=launch.model_path or "",
        model_bytes=launch.model_bytes,
        model_sha256=digest,
        dialect=server.dialect,
        props=props,
    )


def engine_files(name: str, path: Path) -> list[Path]:
    """The files that compute: the binary, and the llama and ggml libraries that lie beside it."""
    folders = [path.parent] if name == EMBEDDED else [path.resolve().parent, path.resolve().parent.parent / "lib"]
    found = {path.resolve()}
    for folder in folders:
        with contextlib.suppress(OSError):
            found |= {entry.resolve() for entry in folder.iterdir() if _LIBRARIES.match(entry.name)}
    return sorted(found)


class FileHashes:
    """SHA-256 of files, kept until a file's size or time changes. A cache that cannot be written costs only time."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.stopped = False
        """Set from another thread: what is being hashed is left at that."""

    def of(self, files: Iterable[Path], say: Callable[[str], None] = lambda text: None) -> str:
        """Of one file; of several: of their hashes in order. Empty where one of them cannot be read."""
        try:
            found = [self._one(path, say) for path in files]
        except OSError:
            return ""
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest() if found else ""

    def _one(self, path: Path, say: Callable[[str], None]) -> str:
        status = path.stat()
        key, stamp = str(path), [status.st_size, status.st_mtime_ns]
        known = self._read()
        held = known.get(key)
        if isinstance(held, list) and held[:2] == stamp:
            return str(held[2])
        if status.st_size > 1 << 30:
            say(f"hashing {path.name} once, so that the run says which file it measured")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                if self.stopped:
                    raise InterruptedError
                digest.update(block)
        known[key] = [*stamp, digest.hexdigest()]
        with contextlib.suppress(OSError):
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._cache.with_suffix(".new")
            fresh.write_text(json.dumps(known), encoding="utf-8")
            fresh.replace(self._cache)
        return digest.hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._cache.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}


def _shards(model: Path) -> list[Path]:
    from gpubox.errors import GpuboxError

    try:
        return list(check_gguf(model).shards)
    except GpuboxError:
        return [model]


def _told(props: dict[str, Any]) -> dict[str, Any]:
    """What of ``/props`` decides speed or answers; its template text does not go into every run."""
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    kept: dict[str, Any] = {
        name: props[name] for name in ("build_info", "total_slots", "chat_template_caps", "modalities") if name in props
    }
    template = props.get("chat_template")
    if isinstance(template, str):
        kept["chat_template_sha256"] = hashlib.sha256(template.encode(errors="replace")).hexdigest()
    return {**kept, "n_ctx": context} if context is not None else kept


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
