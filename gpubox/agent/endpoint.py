"""The server that answers a chat: its address, the profile it was started from, its build and model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpubox.address import KEY_HINT
from gpubox.concurrency import run_in_thread
from gpubox.config import Config, api_key
from gpubox.engines.capabilities import engine_label
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile

if TYPE_CHECKING:
    from gpubox.server.client import LlamaClient


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """One server that a chat can ask."""

    base_url: str
    profile_name: str = ""
    """Empty if gpubox did not start the server."""
    profile: Profile | None = field(default=None, repr=False)
    """The profile as its file is now; ``None`` if the file is missing or broken."""
    build: str = ""
    """``b11434-abc``: from the server itself, else from the probe of its engine."""
    model: str = ""
    """The model's file name or alias."""
    launch_id: str = ""
    """Changes with each server process, whose cache then is empty."""
    dialect: str = "llama-server"
    """Which program answers (``server.dialect``): it decides which fields a request may have."""
    key: str | None = field(default=None, repr=False)
    """The API key to send; never shown."""

    @property
    def system_prompt(self) -> str:
        """The profile's system prompt; empty: none."""
        return self.profile.chat.system if self.profile else ""

    def client(self) -> LlamaClient:
        """A new client of this server. The caller closes it."""
        from gpubox.server.client import LlamaClient

        return LlamaClient(self.base_url, self.key, dialect=self.dialect, model=self.model)


async def find_endpoint(paths: Paths, config: Config, *, url: str | None = None) -> ServerEndpoint:
    """The box's active server, or the one at ``url``, if it is ready. Raises GpuboxError if not, and says why."""
    from gpubox.profiles.loader import load_catalog
    from gpubox.server.client import connect
    from gpubox.server.instance import observe
    from gpubox.server.status import api_key_for

    if url is not None:
        endpoint = ServerEndpoint(url, key=await run_in_thread(api_key_for, paths, config, url))
    else:
        view = observe(paths, MAIN_INSTANCE)
        if view.running is None:
            operation = f"{view.operation.kind} {view.operation.profile} is in progress." if view.operation else ""
            raise GpuboxError(
                "No server is running that could answer.",
                operation or view.message or "`gpubox start PROFILE` starts a server.",
                code=ExitCode.NOT_RUNNING,
            )
        launch = view.running.launch
        catalog = await run_in_thread(load_catalog, paths)
        endpoint = ServerEndpoint(
            base_url=launch.base_url,
            profile_name=launch.profile,
            profile=catalog.profiles.get(launch.profile),
            build=engine_label(launch.engine_path, launch.engine_version),
            model=PurePath(launch.model_path).name if launch.model_path else "",
            launch_id=view.running.launch_id,
            key=api_key(paths),
        )
    async with connect(endpoint.base_url, endpoint.key) as client:
        return await _query(client, endpoint)


async def _query(client: LlamaClient, endpoint: ServerEndpoint) -> ServerEndpoint:
    """``endpoint`` with what the server says of itself. Raises GpuboxError if the server cannot answer a chat."""
    from gpubox.server.other_server import LLAMA, detect_dialect, is_llama_props, read_other_server

    health = await client.health()
    props = await client.props() if health.status == "ok" else {}
    if not (endpoint.profile_name or client.denied or is_llama_props(props)):
        dialect = await detect_dialect(client)
        other = await read_other_server(client, dialect) if dialect not in ("", LLAMA) else None
        if other:
            if not other.model:
                raise GpuboxError(f"{endpoint.base_url} ({other.engine}) lists no models.", code=ExitCode.UNHEALTHY)
            return replace(endpoint, dialect=other.dialect, build=other.engine, model=other.model)
    if health.status != "ok":
        problem = {"unreachable": "does not answer", "loading": "is still loading its model"}.get(
            health.status, f"answers /health with {health.detail}"
        )
        raise GpuboxError(
            f"{endpoint.profile_name or endpoint.base_url} {problem}.",
            "`gpubox status` says more.",
            code=ExitCode.UNHEALTHY if health.status == "error" else ExitCode.NOT_RUNNING,
        )
    if client.denied:
        raise GpuboxError(
            "The server requires an API key that gpubox does not have.",
            "Put the key into the api-key file." if endpoint.profile_name else KEY_HINT,
            code=ExitCode.UNHEALTHY,
        )
    build_info, model_path = props.get("build_info"), props.get("model_path")
    build = build_info if isinstance(build_info, str) else ""
    if build.startswith("b0-"):  # built outside of git: the engine's version is more exact
        build = ""
    model = PurePath(model_path).name if isinstance(model_path, str) else ""
    return replace(endpoint, build=build or endpoint.build, model=endpoint.model or model)
