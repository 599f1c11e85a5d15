"""Who answers: the server that runs now, the profile it was started from, its build and what it can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpubox.config import Config, api_key
from gpubox.engines.capabilities import display_version
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths, shipped_profiles
from gpubox.profiles.profile import Profile
from gpubox.server.address import KEY_HINT
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from gpubox.server.client import LlamaClient
    from gpubox.server.other_server import OtherServerReading


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """One server that a chat can ask."""

    base_url: str
    profile_name: str = ""
    """Empty: gpubox did not start it."""
    profile: Profile | None = None
    """As its file is now; ``None`` where there is none."""
    build: str = ""
    """``b11434-abc``: as the server itself says, else as the engine was probed."""
    model: str = ""
    """The model's file name or alias."""
    launch_id: str = ""
    """Another one, another server process: its cache is empty."""
    dialect: str = "llama-server"
    """What answers (``server.dialect``): each takes its own words."""
    key: str | None = None
    """The API key to send; never shown."""

    @property
    def system(self) -> str:
        """The profile's own system prompt; empty: none."""
        return self.profile.chat.system if self.profile else ""

    def client(self) -> LlamaClient:
        """A client of it, for the caller to close."""
        from gpubox.server.client import LlamaClient

        return LlamaClient(self.base_url, self.key, dialect=self.dialect, model=self.model)

    def __repr__(self) -> str:
        return f"Serving({self.base_url!r}, {self.profile_name!r}, {self.build!r})"


async def find_endpoint(
    paths: Paths, config: Config, *, url: str | None = None, slot: str = MAIN_INSTANCE
) -> ServerEndpoint:
    """The server of ``slot``, or at ``url``, once it answers. Raises GpuboxError that says why there is none."""
    from gpubox.server.api_keys import api_key_for
    from gpubox.server.client import connect
    from gpubox.server.instance import observe

    if url is not None:
        key = await run_in_thread(api_key_for, paths, config, url)
        async with connect(url, key) as client:
            return await _asked(client, ServerEndpoint(url, key=key))
    view = observe(paths, slot)
    if view.running is None:
        doing = f"{view.operation.kind} {view.operation.profile} is under way." if view.operation else ""
        raise GpuboxError(
            "Nothing is running that could answer.",
            doing or view.message or "`gpubox start PROFILE` starts a server.",
            code=ExitCode.NOT_RUNNING,
        )
    launch = view.running.launch
    found = ServerEndpoint(
        base_url=launch.base_url,
        profile_name=launch.profile,
        profile=_profile(paths, launch.profile),
        build=display_version(launch.engine_version),
        model=PurePath(launch.model_path).name if launch.model_path else "",
        launch_id=view.running.launch_id,
        key=api_key(paths),
    )
    async with connect(launch.base_url, found.key) as client:
        return await _asked(client, found)


async def _asked(client: LlamaClient, found: ServerEndpoint) -> ServerEndpoint:
    from gpubox.server.dialect import is_llama_props

    health = await client.health()
    props = (await client.props() or {}) if health.status == "ok" else {}
    if not (found.profile_name or client.denied or is_llama_props(props)) and (other_server := await _peer(client)):
        if not other_server.model:
            raise GpuboxError(f"{found.base_url} ({other_server.engine}) lists no model.", code=ExitCode.UNHEALTHY)
        return replace(found, dialect=other_server.dialect, build=other_server.engine, model=other_server.model)
    if health.status != "ok":
        who = found.profile_name or found.base_url
        why = {"unreachable": "does not answer", "loading": "is still loading its model"}.get(
            health.status, f"answers /health with {health.detail}"
        )
        code = ExitCode.UNHEALTHY if health.status == "error" else ExitCode.NOT_RUNNING
        raise GpuboxError(f"{who} {why}.", "`gpubox status` says more.", code=code)
    if client.denied:
        raise GpuboxError(
            "The server wants an API key that gpubox does not have.",
            "Put it into the api-key file." if found.profile_name else KEY_HINT,
            code=ExitCode.UNHEALTHY,
        )
    build, path = props.get("build_info"), props.get("model_path")
    build = display_version(build) if isinstance(build, str) else ""
    model = PurePath(path).name if isinstance(path, str) else ""
    if not isinstance(build, str) or build.startswith("b0-"):  # built outside of git: the engine's version says more
        build = ""
    return replace(found, build=build or found.build, model=found.model or model)


async def _peer(client: LlamaClient) -> OtherServerReading | None:
    """What a server that is no llama-server says of itself; ``None`` for any other."""
    from gpubox.server.dialect import detect_dialect, read_other_server
    from gpubox.server.other_server import LLAMA

    dialect = await detect_dialect(client)
    return await read_other_server(client, dialect) if dialect not in ("", LLAMA) else None


def _profile(paths: Paths, name: str) -> Profile | None:
    from gpubox.profiles.loader import PROFILE_NAME, load_profile

    if not PROFILE_NAME.fullmatch(name):
        return None
    for folder in (paths.profiles, shipped_profiles()):
        path = folder / f"{name}.toml"
        if path.is_file():
            try:
                return load_profile(path)
            except GpuboxError:
                return None  # its file was broken since; the server runs on
    return None
