"""Runs an engine for one short answer: its version, its options, its devices, and whether it accepts given flags."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gpubox.children import engine_environment
from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities, EngineOption, parse_help
from gpubox.engines.find import Engine, check_runnable, choose_engine
from gpubox.errors import GpuboxError
from gpubox.hardware.process import kill_group
from gpubox.paths import Paths
from gpubox.storage import file_stamp, read_cache, write_cache

TIMEOUT_SECONDS = 20.0
CACHE_BYTES = 16 * 1024 * 1024
_VERSION = re.compile(r"^version:\s*(.+?)\s*$", re.M)
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
"""What the dynamic linker says (glibc's elf/dl-load.c); Python repeats it when an extension module does not load."""
_accepted: set[str] = set()
# Cached options are invalid when one of these files changes.
_PARSER = Path(__file__).with_name("capabilities.py")
_LAUNCHER = (Path(__file__).with_name("embedded_server.py"), Path(__file__).with_name("embedded_flags.py"))


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What a short run of an engine printed, and its exit code (negative: a signal)."""

    code: int
    out: str
    err: str


def run_engine(
    engine: Engine, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = TIMEOUT_SECONDS
) -> EngineOutput:
    """Runs the engine with ``argv``; ``env`` is added to this process's environment.

    Raises GpuboxError if it cannot be started, hangs or is ended by a signal. Leaves no process behind.
    """
    try:
        process = subprocess.Popen(
            [*engine.command, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=engine_environment(env or {}),
            start_new_session=True,  # to kill the children of a wrapper script too: they hold the pipes open
        )
    except OSError as error:
        raise GpuboxError(
            f"The engine {engine.name!r} cannot be started: {error.strerror} ({engine.path}).",
            "Check that it was built for this machine.",
        ) from None
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            kill_group(process.pid)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise GpuboxError(
                f"The engine {engine.name!r} did not answer {argv[-1]} within {timeout:.0f} s.",
                f"Try it yourself: {engine.path} {argv[-1]}",
            ) from None
    output = EngineOutput(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    if output.code < 0:
        raise GpuboxError(
            f"The engine {engine.name!r} crashed on {argv[-1]} ({signal.Signals(-output.code).name}).",
            _last_line(output.err) or f"Try it yourself: {engine.path} {argv[-1]}",
        )
    return output


def read_capabilities(engine: Engine, paths: Paths) -> Capabilities:
    """The engine's version and options, from its own ``--version`` and ``--help``.

    They are cached in ``paths.capabilities`` until the engine's file changes. Raises GpuboxError if the engine cannot
    be run or is not a llama-server.
    """
    check_runnable(engine)
    if cached := cached_capabilities(engine, paths):
        return cached
    key, capabilities = _cache_key(engine), probe_capabilities(engine)
    options = [astuple(option) for option in capabilities.options]
    write_cache(_cache_file(engine, paths), key, [capabilities.version, options])
    return capabilities


def cached_capabilities(engine: Engine, paths: Paths) -> Capabilities | None:
    """What ``read_capabilities`` read before, if the engine's file is still the same. Runs nothing."""
    try:
        version, options = read_cache(_cache_file(engine, paths), _cache_key(engine), CACHE_BYTES)
        return Capabilities.of(str(version), tuple(EngineOption(*map(_from_json, fields)) for fields in options))
    except (ValueError, TypeError):
        return None


def probe_capabilities(engine: Engine) -> Capabilities:
    """Like ``read_capabilities``, without a cache: runs the engine twice."""
    check_runnable(engine)
    version = run_engine(engine, ["--version"])
    if version.code and (library := _MISSING_LIBRARY.search(version.err)):
        raise GpuboxError(
            f"The engine {engine.name!r} cannot run: the library {library[1]} is missing.",
            "Install the package that holds it: libgomp1 (Debian, Ubuntu) or libgomp (Fedora)."
            if library[1].startswith("libgomp.")
            else "Install the package that holds it, or set LD_LIBRARY_PATH to its folder.",
        )
    output = run_engine(engine, ["--help"])
    version_line = _VERSION.search(version.err) or _VERSION.search(version.out)
    capabilities = parse_help(output.out or output.err, version_line[1] if version_line else "")
    if not all(capabilities.option(name) for name in ("model", "port", "ctx-size")):
        message = _last_line(output.err) if output.code else ""
        raise GpuboxError(
            f"The engine {engine.name!r} is not a llama-server: its --help lists none of llama-server's flags.",
            f"{engine.path} printed: {message}" if message else f"Check that {engine.path} is the right file.",
        )
    return capabilities


def check_arguments(engine: Engine, argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Why the engine refuses ``argv``, in its own words; ``None`` if it accepts them.

    llama-server parses arguments from left to right and stops at the first bad one or at ``--version``, which is
    therefore last. What it has accepted in this process is not asked again, while no file of it has changed. Raises
    GpuboxError if the engine hangs or crashes.
    """
    folder = engine.path.parent  # of its libraries, too
    files = [file_stamp(engine.path), file_stamp(folder), *(file_stamp(Path(word)) for word in argv if "/" in word)]
    key = json.dumps([engine.command, files, list(argv), sorted(env.items())])
    if key in _accepted:
        return None
    output = run_engine(engine, [*argv, "--version"], env)
    if output.code == 0:
        _accepted.add(key)
    return None if output.code == 0 else refusal_text(output.err)


def list_devices(
    engine: Engine, rpc: Sequence[str] = (), env: Mapping[str, str] | None = None, timeout: float = TIMEOUT_SECONDS
) -> list[str] | None:
    """The engine's compute devices (``CUDA0: NVIDIA ... (24077 MiB, 23650 MiB free)``); empty for CPU only.

    ``None`` if it does not list them: ik_llama.cpp and builds before b4500 have no such option. Raises GpuboxError.
    """
    argv = ["--rpc", ",".join(rpc)] if rpc else []
    output = run_engine(engine, [*argv, "--list-devices"], env, timeout)
    _, answered, devices = output.out.partition("Available devices:")
    if output.code or not answered:
        return None
    return [line.strip() for line in devices.splitlines() if line.strip() and line.strip() != "(none)"]


def refusal_text(stderr: str) -> str:
    """The error in llama-server's message about a bad argument, as one line without the usage."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "")
    # C++ std::stoi and its kin print only their own name
    line = re.sub(r": sto(?:i|f|d|l|ll|ul|ull)$", ": not a number", line)
    return line.replace(": error: ", ": ") or "it exited without an error message"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _cache_key(engine: Engine) -> dict[str, list[int]]:
    files = [engine.path, _PARSER, *(_LAUNCHER if engine.kind == "embedded" else ())]
    return {str(path): [*stamp] for path in files if (stamp := file_stamp(path))}


def _cache_file(engine: Engine, paths: Paths) -> Path:
    return paths.capabilities / f"{hashlib.sha256(str(engine.path).encode()).hexdigest()[:16]}.json"


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def canonical_names(name: str, config: Config, paths: Paths) -> Callable[[str], str]:
    """Maps aliases of the flags of the engine ``name`` to main names; without an engine, they stay as written."""
    try:
        return read_capabilities(choose_engine(config, name), paths).canonical
    except GpuboxError:
        return lambda flag: flag
