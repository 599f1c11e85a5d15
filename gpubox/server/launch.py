"""Profile -> Launch, with every check that is possible while the old server still runs; and whether an engine would
accept a whole list of profiles, which reads only the engines' help."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.config import Config, api_key, read_key_file
from gpubox.engines.capabilities import (
    Capabilities,
    added_flags,
    engine_words,
    find_refusals,
    reads_key_variable,
    repeated_flags,
)
from gpubox.engines.find import Engine, choose_engine
from gpubox.engines.query import check_arguments, read_capabilities
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import port_owner
from gpubox.models.gguf import GgufFile, check_gguf
from gpubox.models.header_cache import read_model
from gpubox.models.resolve import profile_model, with_resolved_flag_paths
from gpubox.paths import Paths
from gpubox.profiles.argv import server_argv
from gpubox.profiles.flag_values import FILE_FLAGS, GGUF_FLAGS
from gpubox.profiles.profile import FlagValue, Profile, check_launched_here
from gpubox.server.kv_store import prepare_folder
from gpubox.server.state import Launch, load_gateway
from gpubox.storage import existing_folder

MIN_FREE_DISK_BYTES = 100 * 1000 * 1000
"""For the log and the state file."""
_EMBEDDING_FLAGS = {"embeddings", "embedding"}


@dataclass(frozen=True, slots=True)
class LaunchPreview:
    """The command line of a profile on this machine, and whether its engine accepts it. Empty if it runs elsewhere."""

    argv: tuple[str, ...]
    engine: str
    """Name and version; empty if there is no engine."""
    model_path: str | None
    """``None`` if the model is not on this machine."""
    refusal: GpuboxError | None


def preview_launch(profile: Profile, paths: Paths, config: Config, *, ask_engine: bool = True) -> LaunchPreview:
    """What a start would run, also for a profile that cannot run here. Does not check ports and files.

    Without ``ask_engine`` the flags are compared with the engine's help only, which starts no process.
    """
    if profile.elsewhere:
        return LaunchPreview((), "", None, None)
    profile = expand_paths(profile, paths, config)
    # llama-server itself can fetch hf: models, so the command works in a shell
    is_hub = profile.model.startswith("hf:")
    model: tuple[str, ...] = ("--hf-repo" if is_hub else "--model", profile.model.removeprefix("hf:"))
    path = None
    with contextlib.suppress(GpuboxError):  # the command can be shown without the model
        source = profile_model(profile, paths, config)
        path = str(source.path) if source.path and source.path.exists() else None
        model = source.argv or model
    try:
        engine = choose_engine(config, profile.engine)
        capabilities = read_capabilities(engine, paths)
    except GpuboxError as error:
        argv = server_argv(profile, model)
        return LaunchPreview(("llama-server", *argv), "", path, error)
    argv = _argv(profile, capabilities, model, paths, kept_kv=_kept_kv_folder(paths, config))
    refusal: GpuboxError | None = None
    try:
        check_flags(profile, capabilities)
        if ask_engine:
            _check_argv(profile, engine, argv)
    except GpuboxError as error:
        refusal = error
    return LaunchPreview((*engine.command, *argv), engine_words(engine, capabilities.version), path, refusal)


def prepare_launch(
    profile: Profile,
    paths: Paths,
    config: Config,
    *,
    old: Launch | None = None,
    allow_exposed: bool = False,
    on_checked: Callable[[str], None] = lambda note: None,
) -> Launch:
    """The Launch that ``profile`` describes, checked without starting it.

    ``old`` is the launch that will be stopped first, so its port counts as free. ``on_checked`` gets a note after each
    check. Raises GpuboxError for the first problem: exposure, engine, flags, files, port, disk, or the engine's own
    parser. Blocks.
    """
    check_launched_here(profile)
    check_exposure(profile, paths, allow_exposed=allow_exposed or config.allow_exposed)
    engine = choose_engine(config, profile.engine)
    capabilities = read_capabilities(engine, paths)
    if not reads_key_variable(capabilities):
        check_exposure(profile, paths, allow_exposed=allow_exposed or config.allow_exposed, key_from_file=True)
    on_checked(f"engine {engine_words(engine, capabilities.version)}")
    profile = expand_paths(profile, paths, config)
    check_flags(profile, capabilities)
    source = profile_model(profile, paths, config)
    if source.path is None:
        raise GpuboxError(
            f"{profile.name}: the model {profile.model} is not on this machine.",
            f"`gpubox start {profile.name}` downloads it first." if source.fetch else "Correct `model` in the profile.",
        )
    model = read_model(source.path, paths)
    on_checked(f"model {source.path.name}")
    _check_files(profile)
    port, note = _port(profile, old, paths)
    if note:
        on_checked(note)
    if old is None or port != old.port:
        check_port(profile.host, port, paths)
    _check_disk(paths)
    argv = _argv(profile, capabilities, source.argv, paths, port, kept_kv=_kept_kv_folder(paths, config))
    _check_argv(profile, engine, argv)
    on_checked("flags accepted")
    return Launch(
        profile=profile.name,
        argv=(*engine.command, *argv),
        host=profile.host,
        port=port,
        env=dict(profile.env),
        engine=engine.name,
        engine_path=str(engine.path),
        engine_version=capabilities.version,
        model_path=str(source.path),
        model_bytes=model.size,
        restart=profile.restart,
        layers=_layers(model),
        has_experts=bool(model.metadata.get(f"{model.architecture}.expert_count")),
        embeddings=any(profile.flags.get(flag) for flag in _EMBEDDING_FLAGS),
    )


def _port(profile: Profile, old: Launch | None, paths: Paths) -> tuple[int, str]:
    """The port that the server listens on, and a note if it is not the profile's."""
    gateway = load_gateway(paths)
    taken = gateway.port if gateway else 0
    if profile.port and profile.port != taken:
        return profile.port, ""
    # "any free port" stays the same port in a restart, so that its clients stay connected
    keeps = old is not None and old.profile == profile.name and old.port != taken
    port = old.port if old and keeps else free_port(profile.host)
    return port, f"port {port}, because the gateway listens on {taken}" if profile.port else ""


def beside_gateway(launch: Launch, paths: Paths) -> Launch:
    """``launch``, on another port if a gateway has taken its own since."""
    gateway = load_gateway(paths)
    if gateway is None or launch.port != gateway.port or "--port" not in launch.argv[:-1]:
        return launch
    port, at = free_port(launch.host), launch.argv.index("--port") + 1
    return replace(launch, port=port, argv=(*launch.argv[:at], str(port), *launch.argv[at + 1 :]))


def _argv(
    profile: Profile, capabilities: Capabilities, model_argv: tuple[str, ...], paths: Paths, port: int | None = None, *,
    kept_kv: Path | None = None,
) -> list[str]:  # fmt: skip
    own_name = "LLAMA_ARG_ALIAS" in profile.env or "," in profile.name  # a comma separates aliases
    defaults = added_flags(capabilities, profile.flags, kept_kv, name="" if own_name else profile.name)
    if not reads_key_variable(capabilities) and paths.api_key_file.exists():
        defaults["api-key-file"] = str(paths.api_key_file)
    return server_argv(profile, model_argv, port=port, defaults=defaults, repeated=repeated_flags(capabilities))


def _kept_kv_folder(paths: Paths, config: Config) -> Path | None:
    """The folder of kept KV caches, made if there is none: the engine refuses a folder that does not exist."""
    return paths.kept_kv if config.kept_kv.enabled and prepare_folder(paths.kept_kv) else None


def _check_argv(profile: Profile, engine: Engine, argv: list[str]) -> None:
    """Raises UsageError if the engine's own parser refuses ``argv``.

    It gets no RPC devices: parsing ``--rpc`` connects, and would wait for an rpc-server that is in use.
    """
    omitted = {"--port"}  # it is new at each start, and checked already
    if "--rpc" in argv:
        omitted |= {"--rpc", "--device", "--tensor-split", "--main-gpu"}  # these name devices of --rpc
    argv = [word for i, word in enumerate(argv) if word not in omitted and (i == 0 or argv[i - 1] not in omitted)]
    if refusal := check_arguments(engine, argv, profile.env):
        message = f"{profile.name}: the engine {engine.name} refuses: {refusal}"
        raise UsageError(message, "Correct [flags] in the profile.")


def _layers(model: GgufFile) -> int | None:
    blocks = model.metadata.get(f"{model.architecture}.block_count")
    draft = model.metadata.get(f"{model.architecture}.nextn_predict_layers", 0)
    return blocks - draft if isinstance(blocks, int) and isinstance(draft, int) else None


def check_flags(profile: Profile, capabilities: Capabilities) -> None:
    """Raises UsageError if the engine's help does not list one of the flags; the message names all of them."""
    refusals = find_refusals(capabilities, profile.flags)
    if not refusals:
        return
    first, *others = refusals
    also = f" (and {', '.join(refusal.flag for refusal in others)})" if others else ""
    hint = "; ".join(f"{refusal.flag}: {refusal.hint}" for refusal in refusals if refusal.hint)
    raise UsageError(f"{profile.name}: {first.flag}: {first.why}{also}.", hint)


def check_exposure(profile: Profile, paths: Paths, *, allow_exposed: bool, key_from_file: bool = False) -> None:
    """Raises UsageError if the profile would open a port without an API key to other machines.

    ``key_from_file``: the engine takes its key from the file alone.
    """
    if profile.loopback or allow_exposed or (read_key_file(paths.api_key_file) if key_from_file else api_key(paths)):
        return
    raise UsageError(
        f"{profile.name}: host {profile.host} opens the server to other machines without an API key.",
        f"Put a key into {paths.api_key_file} (mode 0600), or use --yes, or set allow-exposed in config.toml.",
    )


def check_port(host: str, port: int, paths: Paths) -> None:
    """Raises GpuboxError if a server cannot listen there; the message names the program that uses ``port``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe_socket:
        # As llama-server does: an address in TIME_WAIT counts as free.
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind((host, port))
            probe_socket.listen(1)
            return
        except socket.gaierror:
            raise UsageError(f"The host {host} is unknown on this machine.", "Correct `host` in the profile.") from None
        except PermissionError:
            raise GpuboxError(f"Port {port} needs root.", "Use a port from 1024 up.") from None
        except OSError as error:
            owner = port_owner(port)
            if owner is None:
                raise GpuboxError(f"{host}:{port} cannot be used: {error.strerror}.") from None
    gateway = load_gateway(paths)
    if gateway and gateway.port == port:
        raise GpuboxError(f"Port {port} is used by the gateway.", "Give the profile another port, or 0 for any.")
    raise GpuboxError(f"Port {port} is used by {owner}.", "Stop that program or give the profile another port.")


def free_port(host: str) -> int:
    """A TCP port on which nobody listens now; 8080 if ``host`` is not of this machine, which ``check_port`` reports."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe_socket:
        with contextlib.suppress(OSError):
            probe_socket.bind((host, 0))
        return int(probe_socket.getsockname()[1]) or 8080


def expand_paths(profile: Profile, paths: Paths, config: Config) -> Profile:
    """``profile`` with absolute paths in its flags: ``~/`` is expanded, and files are found as the loader finds them.

    The server runs in another folder than gpubox, so it must get no relative path.
    """

    def expand(value: FlagValue) -> FlagValue:
        return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~/") else value

    profile = replace(profile, flags={name: expand(value) for name, value in profile.flags.items()})
    return with_resolved_flag_paths(profile, paths, config)


def _check_files(profile: Profile) -> None:
    for name, value in profile.flags.items():
        if not isinstance(value, str):
            continue
        if name in GGUF_FLAGS:
            check_gguf(Path(value))
        elif name in FILE_FLAGS and not Path(value).is_file():
            raise GpuboxError(f"{profile.name}: {name} names {value}, which does not exist.")


def _check_disk(paths: Paths) -> None:
    folder = existing_folder(paths.state)
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_DISK_BYTES:
        raise GpuboxError(
            f"Only {free / 1e6:.0f} MB are free in the log folder ({folder}).",
            "Free some disk space.",
        )


@dataclass(frozen=True, slots=True)
class EngineCompatibility:
    """Whether an engine accepts a profile, and whether the profile's model is on this machine."""

    engine: str
    ok: bool
    why: str = ""
    """Why it does not."""
    needs_fork: bool = False
    model_present: bool = False
    fetchable: bool = False
    """Whether a start downloads the model."""
    missing: str = ""
    """Which model file is missing, if no start downloads it."""

    @property
    def summary(self) -> str:
        """The problem in one short line; empty if there is none."""
        if not self.ok:
            return f"not with your llama-server: {self.why}" if self.needs_fork else self.why
        if self.model_present:
            return ""
        return self.missing or f"model not here yet{', start downloads it' if self.fetchable else ''}"


def compatibility_by_profile(
    profiles: Iterable[Profile], paths: Paths, config: Config
) -> dict[str, EngineCompatibility]:
    """The compatibility of each profile, by its name. Each engine is asked at most once. Never raises."""
    engines: dict[str, Capabilities | GpuboxError] = {}
    results: dict[str, EngineCompatibility] = {}
    for profile in profiles:
        if profile.elsewhere:
            results[profile.name] = EngineCompatibility("", True, missing=profile.elsewhere)
            continue
        if profile.engine not in engines:
            try:
                engines[profile.engine] = read_capabilities(choose_engine(config, profile.engine), paths)
            except GpuboxError as error:
                engines[profile.engine] = error
        capabilities = engines[profile.engine]
        why, needs_fork = _why_refused(profile, capabilities)
        engine = profile.engine or ("" if isinstance(capabilities, GpuboxError) else "default")
        model = locate_model(profile, paths, config)
        results[profile.name] = EngineCompatibility(engine, not why, why, needs_fork, *model)
    return results


def _why_refused(profile: Profile, capabilities: Capabilities | GpuboxError) -> tuple[str, bool]:
    """Why the engine refuses the profile (empty: it accepts it), and whether only a fork accepts it."""
    if isinstance(capabilities, GpuboxError):
        return capabilities.message, False
    refusals = find_refusals(capabilities, profile.flags)
    if not refusals:
        return "", False
    fork = next((refusal for refusal in refusals if refusal.needs_fork), None)
    first = fork or refusals[0]
    others = f" (+{len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return f"{first.short}{others}", fork is not None


def locate_model(profile: Profile, paths: Paths, config: Config) -> tuple[bool, bool, str]:
    """Whether the profile's model is here; if not, whether a start downloads it, else what is missing."""
    try:
        source = profile_model(profile, paths, config)
        if source.path is not None and source.path.exists():
            return True, False, ""
    except GpuboxError as error:
        return False, False, error.message
    except OSError as error:
        return False, False, f"model {profile.model}: {error.strerror}"
    return False, bool(source.fetch), "" if source.fetch else f"model missing: {source.path}"
