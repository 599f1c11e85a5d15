"""Runs the targets of a plan one after the other, and restores the server that ran before, also after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpubox.address import server_root
from gpubox.bench.events import Emit, ItemProgress, Note, TargetServerEvent, ignore_event
from gpubox.bench.model import RunInfo, Target
from gpubox.bench.overrides import apply_overrides
from gpubox.bench.run_store import Run, list_runs
from gpubox.config import Config, api_key
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.hardware.process import is_alive
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.supervisors import make_supervisor
from gpubox.profiles.profile import Profile
from gpubox.sanitize import sanitize_line
from gpubox.server.client import LlamaClient
from gpubox.server.instance import InstanceView, observe
from gpubox.server.other_server import EXTRA_FIELDS, LLAMA, LM_STUDIO, OLLAMA, OPENAI, detect_dialect, read_other_server
from gpubox.server.responses import context_size
from gpubox.server.state import Launch, RunningServer
from gpubox.server.status import api_key_for

_CONTROLS = {"cache_prompt": "its cache", "ignore_eos": "the length of answers", "chat_template_kwargs": "thinking"}


async def identify_endpoint(client: LlamaClient, model: str, *, managed: bool) -> tuple[str, str, dict[str, Any]]:
    """The dialect, the model's name for requests, and llama-server's ``/props`` (empty for other servers).

    ``managed``: gpubox started it, so it is a llama-server. Raises GpuboxError if nothing answers or the model is
    missing.
    """
    props = await client.get_json("/props")
    props = props if isinstance(props, dict) else {}
    if managed or "default_generation_settings" in props:
        return LLAMA, model or "gpubox", props  # a llama-server accepts any model name
    models = _model_ids(await client.get_json("/v1/models"))
    if model and models and model not in models:
        raise GpuboxError(
            f"{client.base_url} has no model {model!r}.",
            f"Its models are: {sanitize_line(', '.join(models[:8]))[:400]}.",
        )
    if not model and not models:
        raise GpuboxError(f"{client.base_url} lists no models.", "Name one: --model NAME.", code=ExitCode.UNHEALTHY)
    dialect = await detect_dialect(client)
    if not model and dialect in (OLLAMA, LM_STUDIO) and (peer := await read_other_server(client, dialect)):
        model = peer.model  # the loaded one: naming another would make the server load it
    return dialect or OPENAI, model or models[0], {}


def uncontrolled_settings(dialect: str) -> str:
    """A clause that names the settings which requests cannot control on such a server; empty if there are none."""
    missing = [field for field in _CONTROLS if field not in EXTRA_FIELDS.get(dialect, frozenset())]
    if not missing:
        return ""
    settings = ", ".join(_CONTROLS[field] for field in missing)
    return f"{dialect} does not support {', '.join(missing)}, so gpubox cannot control {settings}"


def _model_ids(models: Any) -> list[str]:
    data = models.get("data") if isinstance(models, dict) else None
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


ProfileLookup = Callable[[str], Profile]
EXIT_SECONDS = 2.0
SWITCHING = ("switching",)
"""Stored instead of a command line during a switch: after a kill, any target of the run may be running."""


@dataclass(frozen=True, slots=True)
class ActiveTarget:
    """The target that answers requests now."""

    target: Target
    base_url: str
    key: str | None
    running: RunningServer | None
    """``None`` for a URL target."""
    dialect: str
    """The kind of server: llama-server, vllm, ollama, openai."""
    model: str
    """The model's name in requests."""
    props: dict[str, Any]

    @property
    def context_tokens(self) -> int | None:
        """The context size of one slot."""
        return context_size(self.props)


class TargetServer:
    """Owns the main instance for as long as a run lasts."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        profiles: ProfileLookup,
        emit: Emit = ignore_event,
        *,
        on_restore_point: Callable[[Launch | None, tuple[str, ...]], None] = lambda previous, applied_argv: None,
        earlier: RunInfo | None = None,
        stop_now: bool = False,
    ) -> None:
        """``on_restore_point(previous, applied_argv)`` is called before each change, so that a crash can be undone.

        ``earlier``: a run whose ``restore_pending`` is taken over if it is true.
        """
        self.paths, self.config, self.emit = paths, config, emit
        self._profiles, self._on_restore_point, self._stop_now = profiles, on_restore_point, stop_now
        self._supervisor = make_supervisor(
            paths, config, MAIN_INSTANCE, lambda event: emit(TargetServerEvent(event)), cold=True
        )
        self._active: ActiveTarget | None = None
        self._client: LlamaClient | None = None
        self._switching = asyncio.Lock()
        self.tokens = (0, 0)
        """Prompt tokens and generated tokens of this run's own requests since ``reset_counts``."""
        self.unattributed_tokens = 0
        """Generated tokens beyond ``tokens`` that may still be this run's own."""
        self.token_count_unknown = False
        """A reply broke off, so the number of tokens that the server counts for it is unknown."""
        self.switch_seconds = 0.0
        """How long the last switch took: stopping the old server, waiting for its VRAM, loading the new one."""
        self._applied_argv = earlier.applied_argv if earlier else ()
        running = observe(paths, MAIN_INSTANCE).running
        self._previous = running.launch if running else None
        self.restore_pending = bool(earlier and earlier.restore_pending)
        # If another server runs by now, the owner has started it since, so it is the one to restore.
        if earlier and earlier.restore_pending and (running is None or started_by_run(running, earlier)):
            self._previous = earlier.previous

    @property
    def active(self) -> ActiveTarget:
        """The target in use; only between ``serve`` and ``restore``."""
        assert self._active is not None, "no target is active"
        return self._active

    @property
    def active_or_none(self) -> ActiveTarget | None:
        return self._active

    @property
    def client(self) -> LlamaClient:
        """The HTTP client of ``active``."""
        assert self._client is not None, "no target is active"
        return self._client

    @property
    def running(self) -> RunningServer | None:
        """The process of the active target; ``None`` without one, and for a URL target."""
        return self._active.running if self._active else None

    @property
    def alive(self) -> bool:
        """Whether the process of the active target runs; a URL target counts as alive."""
        running = self.running
        return self._active is not None and (running is None or is_alive(running.process))

    def is_gone(self, error: GpuboxError) -> bool:
        """Whether ``error`` means that the server is gone, rather than that it refused."""
        return error.code == ExitCode.NOT_RUNNING or not self.alive

    async def wait_for_exit(self) -> None:
        """Waits until the process has exited: a broken connection can precede its exit by a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                while self.running and self.alive:
                    await asyncio.sleep(0.05)

    def profile_of(self, target: Target) -> Profile:
        """The target's profile with its overrides. Raises UsageError."""
        return apply_overrides(self._profiles(target.profile), target)

    def report_progress(self, item: str, text: str) -> None:
        """Emits the progress of ``item``."""
        self.emit(ItemProgress(item, text))

    def count_tokens(self, prompt: int, generated: int, *, unattributed: int = 0) -> None:
        """Counts the tokens of one request. Tokens that the server counts beyond these are somebody else's.

        ``unattributed``: the most that it may have generated in addition after its stream was closed.
        """
        self.unattributed_tokens += unattributed
        self.tokens = (self.tokens[0] + prompt, self.tokens[1] + generated)

    def reset_counts(self) -> None:
        """Starts counting tokens from zero."""
        self.tokens, self.unattributed_tokens, self.token_count_unknown = (0, 0), 0, False

    def outside_change(self) -> str:
        """What somebody else did to the server since the target started, in a few words; empty: nothing.

        A crash is no outside change, and neither is a restart with the same command line.
        """
        own = self.running
        if own is None or self.alive:
            return ""
        name, view = self.active.target.name, observe(self.paths, MAIN_INSTANCE)
        if view.running:
            other = view.running.launch
            return "" if other.argv == own.launch.argv else f"{other.profile} was started in place of {name}"
        if view.operation:
            return f"another gpubox is replacing {name}"
        return f"{name} was stopped" if view.state.running is None else ""

    async def serve(self, target: Target, *, force_restart: bool = False) -> None:
        """Makes ``target`` the active one.

        A server that already runs with the same launch is kept, unless ``force_restart`` is true.

        Raises GpuboxError if the target does not start; ``restore_pending`` is then true.
        """
        async with self._switching:
            if self._active and self._active.target == target and self.alive and not (force_restart and self.running):
                return
            await self._disconnect()
            if target.url:
                url = server_root(target.url)
                await self._connect(target, url, api_key_for(self.paths, self.config, url), None)
            elif target.stopped:
                if observe(self.paths, MAIN_INSTANCE).running:
                    self._store_restore_point()
                    await self._supervisor.stop()
                self._active = ActiveTarget(target, "", None, None, "", "", {})
            else:
                await self._switch(target, force_restart=force_restart)

    async def restore(self) -> None:
        """Restores the server that ran before, or none. A server that somebody else started meanwhile stays.

        Raises GpuboxError if it does not start.
        """
        async with self._switching:
            change = self.outside_change()
            await self._disconnect()
            if not self.restore_pending:
                return
            if change:
                self.emit(Note(f"The previous server is not restored, because {change}."))
            elif self._previous:
                await self._supervisor.restore_launch(self._previous)
            else:
                await self._supervisor.stop()
            self.restore_pending = False

    def _store_restore_point(self) -> None:
        self.restore_pending = True
        self._on_restore_point(self._previous, self._applied_argv)

    async def _switch(self, target: Target, *, force_restart: bool) -> None:
        profile = replace(self.profile_of(target), restart=False)  # the run itself restarts a server that dies
        self._applied_argv = SWITCHING
        self._store_restore_point()
        began = time.monotonic()
        running = await self._supervisor.switch(
            profile,
            stop_now=self._stop_now,
            allow_exposed=self.config.allow_exposed,
            restore=False,  # the previous server is restored at the end of the run, not between two targets
            force_restart=force_restart,
        )
        self.switch_seconds = time.monotonic() - began
        self._applied_argv = running.launch.argv
        self._store_restore_point()
        await self._connect(target, running.launch.base_url, api_key(self.paths), running)

    async def _connect(self, target: Target, url: str, key: str | None, running: RunningServer | None) -> None:
        client = LlamaClient(url, key, timeout=10.0)
        try:
            dialect, model, props = await identify_endpoint(client, target.model, managed=running is not None)
        except BaseException:
            await client.close()
            raise
        self._client = client
        self._active = ActiveTarget(target, client.base_url, key, running, dialect, model, props)
        self.reset_counts()

    async def _disconnect(self) -> None:
        client, self._client, self._active = self._client, None, None
        if client:
            await client.close()


def started_by_run(running: RunningServer, info: RunInfo) -> bool:
    """Whether this run started the server last; otherwise the owner has started it since."""
    if info.applied_argv == SWITCHING:
        profiles = {target.profile for target in info.plan.targets if target.profile and not target.stopped}
        return running.launch.profile in profiles
    return running.ready_at is None or info.applied_argv == running.launch.argv


async def restore_or_report(target_server: TargetServer) -> GpuboxError | None:
    """As ``TargetServer.restore``, but returns the error: another exception may already be propagating.

    After Ctrl-C the previous server may still be loading; the next gpubox finds it.
    """
    try:
        await target_server.restore()
    except GpuboxError as error:
        target_server.emit(Note(f"The previous server could not be restored: {error.message}"))
        return error
    return None


def pending_restore(paths: Paths) -> RunInfo | None:
    """The newest killed run whose server, or half-finished switch, is still in place.

    ``None`` if another server was started or stopped since: that was the owner's choice.
    """
    view = observe(paths, MAIN_INSTANCE)
    infos = map(_pending_info, reversed(list_runs(paths)))
    return next((info for info in infos if info and _is_in_place(view, info)), None)


def clear_pending_restores(paths: Paths) -> None:
    """Marks every killed run as restored."""
    for run in list_runs(paths):
        if info := _pending_info(run):
            with contextlib.suppress(GpuboxError), run.owned():
                run.save(replace(info, restore_pending=False))


async def restore(info: RunInfo, paths: Paths, config: Config, emit: Emit = ignore_event) -> str:
    """Restores the server that ran before ``info``'s run. Returns its profile, empty if none ran.

    Raises GpuboxError.
    """
    await TargetServer(paths, config, no_profile, emit, earlier=info).restore()
    clear_pending_restores(paths)
    running = observe(paths, MAIN_INSTANCE).running
    return running.launch.profile if running else ""


def _pending_info(run: Run) -> RunInfo | None:
    with contextlib.suppress(GpuboxError):
        info = run.info
        return info if info.restore_pending and not run.busy else None
    return None


def _is_in_place(view: InstanceView, info: RunInfo) -> bool:
    if view.operation:
        return False
    if view.running is None:
        return view.state.operation is not None  # killed between stop and start
    return started_by_run(view.running, info)


def no_profile(name: str) -> Profile:
    """The lookup where no profile is started: what runs is measured, or what ran is restored."""
    raise UsageError(f"The profile {name} is not needed here.")
