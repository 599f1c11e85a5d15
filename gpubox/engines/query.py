"""What an engine says of itself: its version, its options, its devices, and whether it takes given flags."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox.engines.capabilities import Capabilities, EngineOption, parse_help
from gpubox.engines.engine_run import EngineOutput, last_line, run_engine
from gpubox.engines.find import Engine, check_runnable
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.storage import read_bytes, write_atomically

CACHE_BYTES = 16 * 1024 * 1024
_SCHEMA = 1
_VERSION = re.compile(r"^version:\s*(.+?)\s*$", re.M)
# The parser is part of what made the cached options: a changed parser must not meet old results.
_PARSER = Path(__file__).with_name("capabilities.py")
_LAUNCHER = (Path(__file__).with_name("embedded_server.py"), Path(__file__).with_name("embedded_flags.py"))


def read_capabilities(engine: Engine, paths: Paths) -> Capabilities:
    """The engine's version and options, from its own ``--version`` and ``--help``.

    The answer is kept in ``paths.capabilities`` until the engine's file changes; a cache that cannot be read or
    written costs only time. Raises GpuboxError where the engine cannot be run or is not a llama-server.
    """
    check_runnable(engine)
    key = _key(engine)
    cache = paths.capabilities / f"{hashlib.sha256(str(engine.path).encode()).hexdigest()[:16]}.json"
    if cached := _read(cache, key):
        return cached
    version = run_engine(engine, ["--version"])
    text = run_engine(engine, ["--help"])
    capabilities = parse_help(text.out, _version(version))
    if not all(capabilities.option(name) for name in ("model", "port", "ctx-size")):
        said = last_line(text.err) if text.code else ""
        raise GpuboxError(
            f"The engine {engine.name!r} is not a llama-server: its --help lists none of llama-server's options.",
            f"{engine.path} said: {said}" if said else f"Is {engine.path} the right file?",
        )
    _write(cache, key, capabilities)
    return capabilities


def check_arguments(engine: Engine, argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Why the engine refuses these arguments, in its own words; ``None`` where it takes them.

    llama-server reads arguments from left to right and stops at the first bad one or at ``--version``, which
    therefore stands last. ``env`` is added to this process's environment. Raises GpuboxError where the engine
    hangs or crashes.
    """
    answer = run_engine(engine, [*argv, "--version"], env)
    return None if answer.code == 0 else refusal_text(answer.err)


def list_devices(engine: Engine) -> list[str]:
    """The compute devices it lists (``CUDA0: NVIDIA ... (24077 MiB, 23650 MiB free)``); empty for CPU only."""
    answer = run_engine(engine, ["--list-devices"])
    _, _, listed = answer.out.partition("Available devices:")
    return [line.strip() for line in listed.splitlines() if line.strip() and line.strip() != "(none)"]


def refusal_text(stderr: str) -> str:
    """One sentence out of what llama-server prints about a bad argument: the error line without the usage."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "")
    # C++ std::stoi and its kin say no more than their own name
    line = re.sub(r": sto(?:i|f|d|l|ll|ul|ull)$", ": not a number", line)
    return line.replace(": error: ", ": ") or "it ended without saying why"


def _version(answer: EngineOutput) -> str:
    if match := _VERSION.search(answer.err) or _VERSION.search(answer.out):
        return match[1]
    return ""


def _key(engine: Engine) -> dict[str, list[int]]:
    files = [engine.path, _PARSER, *(_LAUNCHER if engine.kind == "embedded" else ())]
    key: dict[str, list[int]] = {}
    for path in files:
        with contextlib.suppress(OSError):
            status = path.stat()
            key[str(path)] = [status.st_mtime_ns, status.st_size]
    return key


def _read(cache: Path, key: Mapping[str, list[int]]) -> Capabilities | None:
    try:
        stored: Any = json.loads(read_bytes(cache, CACHE_BYTES))
        if stored["schema"] != _SCHEMA or stored["key"] != key:
            return None
        options = tuple(_option(fields) for fields in stored["options"])
        version = str(stored["version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    by_name = {name: option for option in options for name in (*option.names, *option.negatives)}
    return Capabilities(version, options, by_name)


def _option(fields: Sequence[Any]) -> EngineOption:
    names, negatives, value, allowed, env, removed, text, long = fields
    return EngineOption(tuple(names), tuple(negatives), value, tuple(allowed), env, removed, text, long)


def _write(cache: Path, key: Mapping[str, list[int]], capabilities: Capabilities) -> None:
    stored = {
        "schema": _SCHEMA,
        "key": key,
        "version": capabilities.version,
        "options": [
            [o.names, o.negatives, o.value, o.allowed, o.env, o.removed, o.help, o.long] for o in capabilities.options
        ],
    }
    with contextlib.suppress(OSError):  # without the cache the engine is asked again
        write_atomically(cache, json.dumps(stored).encode())
