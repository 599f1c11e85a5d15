"""Finds models on this machine and on Hugging Face, and plans them, also when only their header is here.

``models.remote_header`` makes a stand-in with the real header, which the planner reads as any model, and an engine can
measure in a dry run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.interchange.importing import default_flags
from gpubox.interchange.profile_draft import profile_name
from gpubox.models.find import LocalModel, find_local_models
from gpubox.models.header_cache import read_model
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_download import HubDownload
from gpubox.models.hub_search import HubQuant, HubRepository, read_repository, repository_name, search_hub
from gpubox.models.remote_header import fetch_header_file
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, MemoryPlan
from gpubox.planner.planner import Planner, changed_flags, no_plan, read_flags
from gpubox.planner.solve import solutions
from gpubox.planner.verdict import judge
from gpubox.profiles.loader import free_profile_name
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.profiles.writer import save_profile
from gpubox.server.instance import running_servers
from gpubox.server.launch import check_port
from gpubox.server.state import RunningServer

T = TypeVar("T")
Item = TypeVar("Item")
_DRAFT_HEAD_NOTE = "it contains a draft head (MTP): spec-type draft-mtp uses it"
_PORTS = 20
"""So many are tried for a new profile."""
_CONNECTIONS = 4
"""So many repositories or headers are read at once."""


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """What Hugging Face holds for a text."""

    repositories: tuple[HubRepository, ...] = ()
    problems: tuple[GpuboxError, ...] = ()
    """Why it could not be searched, or repositories that could not be read."""
    on_disk: frozenset[str] = frozenset()
    """References of the quants that are on this machine already."""


@dataclass(frozen=True, slots=True)
class LaunchIdea:
    """How a model would be launched that has no profile yet."""

    flags: Mapping[str, FlagValue | None]
    """Set over those that a new profile gets; None removes one."""
    engine: str = ""
    replaces: Sequence[RunningServer] = ()
    """The servers that would stop first."""
    keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES


class Finder:
    """The models for the owner's texts. Methods block, and are safe in several threads."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self.paths, self.config = paths, config
        self._planner = Planner(paths, config)
        self._headers: dict[str, Path] = {}
        """Repository -> a header of it that was fetched."""

    def on_disk(self, text: str) -> list[LocalModel]:
        """The models on this machine that ``text`` names."""
        name = repository_name(text)
        return find_local_models(name.replace("/", "--") if name else text, self.config, self.paths)

    def on_hub(self, client: HubClient, text: str, limit: int) -> HubAnswer:
        """The repositories that ``text`` names or that match it. Never raises GpuboxError."""
        try:
            name = repository_name(text)
            names = [name] if name else search_hub(client, text, limit)
        except GpuboxError as error:
            return HubAnswer(problems=(error,))
        answers = _in_parallel(lambda name: _read(client, name), names)
        repositories = [answer for answer in answers if isinstance(answer, HubRepository)]
        return HubAnswer(
            tuple(repositories),
            tuple(answer for answer in answers if isinstance(answer, GpuboxError)),
            frozenset(
                repository.reference(quant)
                for repository in repositories
                for quant in repository.quants
                if HubDownload(repository, quant.files).is_complete
            ),
        )

    def idea(self) -> LaunchIdea:
        """A launch that replaces what runs now."""
        return LaunchIdea({}, replaces=running_servers(self.paths, MAIN_INSTANCE))

    def plan_local(self, model: LocalModel, idea: LaunchIdea, *, may_dry_run: bool = False) -> MemoryPlan:
        """The plan of a model on this machine. ``may_dry_run``: the engine may measure it."""
        return plan_model(self._planner, model.name, model.path, self.paths, idea, may_dry_run=may_dry_run)

    def plan_quant(
        self, client: HubClient, repository: HubRepository, quant: HubQuant, idea: LaunchIdea, *,
        may_dry_run: bool = False,
    ) -> MemoryPlan:  # fmt: skip
        """The plan of a quant on the hub, from its header alone. ``may_dry_run``: the engine may measure the header."""
        name = repository.reference(quant)
        try:
            path = self.header_of(client, repository, quant)
        except GpuboxError as error:
            plan = no_plan(name, error, idea.keep_free_bytes)
            return replace(plan, problem=plan.problem.removeprefix(f"{repository.name}/"))  # its heading names it
        self._headers.setdefault(repository.name, path)
        return plan_model(self._planner, name, path, self.paths, idea, may_dry_run=may_dry_run)

    def plan_quants(
        self, client: HubClient, repository: HubRepository, quants: Sequence[HubQuant], idea: LaunchIdea,
        on_planned: Callable[[], None], *, may_dry_run: bool = False,
    ) -> list[MemoryPlan]:  # fmt: skip
        """The plans of several quants, in their order. The first one's vocabulary is used for the others.

        ``on_planned`` is called after each, in some thread.
        """

        def plan(quant: HubQuant) -> MemoryPlan:
            made = self.plan_quant(client, repository, quant, idea, may_dry_run=may_dry_run)
            on_planned()
            return made

        return [*map(plan, quants[:1]), *_in_parallel(plan, quants[1:])]

    def new_profile(self, name: str, model: str, plan: MemoryPlan | None, *, header: Path | None = None) -> Profile:
        """Writes a profile for a model, with the flags that make it fit (or read least) if it would not without them.

        ``model``: a path, or ``hf:user/name:QUANT``, of which ``header`` is the stand-in. Raises GpuboxError.
        """
        file = header or Path(model)
        gguf = read_model(file, self.paths)
        solution = plan.solutions[0].flags if plan and plan.solutions else {}
        flags = changed_flags(default_flags(gguf), solution)
        free = free_profile_name(profile_name(name), self.paths)
        profile = Profile(name=free, model=model, title=name.removeprefix("hf:"), flags=flags)
        profile = replace(profile, port=self._port(profile))
        return replace(profile, path=save_profile(profile, self.paths))

    def _port(self, profile: Profile) -> int:
        """The first port that is neither the gateway's, which starts beside it, nor in use now."""
        taken = {server.launch.port for server in running_servers(self.paths, MAIN_INSTANCE)}  # these stop before it
        for port in range(profile.port, profile.port + _PORTS):
            with contextlib.suppress(GpuboxError):
                if port != self.config.gateway.port:
                    if port not in taken:
                        check_port(profile.host, port, self.paths)
                    return port
        return profile.port

    def header_of(self, client: HubClient, repository: HubRepository, quant: HubQuant) -> Path:
        """The stand-in of a quant. Raises GpuboxError."""
        return fetch_header_file(client, repository, quant, self.paths, self._headers.get(repository.name))


def plan_model(
    planner: Planner, name: str, path: Path, paths: Paths, idea: LaunchIdea, *, may_dry_run: bool = False
) -> MemoryPlan:
    """The plan of a model with the flags that a new profile for it gets, and what would make it fit if it does not.

    Blocks. Never raises: a problem is part of the plan.
    """
    try:
        model = read_model(path, paths)
        flags = changed_flags(default_flags(model), idea.flags)
        profile = Profile(name=name, model=str(path), engine=idea.engine, flags=flags)
        situation, plan = planner.prepare(
            profile, replaces=idea.replaces, keep_free_bytes=idea.keep_free_bytes, may_dry_run=may_dry_run
        )
    except GpuboxError as error:
        return no_plan(name, error, idea.keep_free_bytes)
    if may_dry_run and judge(plan).fit == "unknown":  # the engine could not measure it: an estimate is better
        plan = planner.plan_in(situation, {}, keep_free_bytes=idea.keep_free_bytes)
    if judge(plan).fit != "unknown":
        launch, instead = read_flags(situation, {}), ", in place of what runs" if idea.replaces else ""
        kv = "/".join(dict.fromkeys((launch.type_k, launch.type_v)))
        plan = replace(plan, notes=(*plan.notes, f"for ctx-size {launch.context}, KV {kv}{instead}"))
    if model.metadata.get(f"{model.architecture}.nextn_predict_layers", 0):
        plan = replace(plan, draft_head=True, notes=(*plan.notes, _DRAFT_HEAD_NOTE))
    if (judge(plan).spare_bytes or 0) >= 0:
        return plan
    return replace(plan, solutions=solutions(planner, situation, keep_free_bytes=idea.keep_free_bytes))


def _read(client: HubClient, name: str) -> HubRepository | GpuboxError:
    try:
        return read_repository(client, name)
    except GpuboxError as error:
        return error


def _in_parallel(work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """The results in the order of ``items``, of which _CONNECTIONS are worked on at once.

    Unlike those of a ThreadPoolExecutor, the threads do not delay Ctrl-C. ``work`` must not raise.
    """
    results: dict[int, T] = {}
    waiting = iter(enumerate(items))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                task = next(waiting, None)
            if task is None:
                return
            results[task[0]] = work(task[1])

    threads = [threading.Thread(target=run, daemon=True) for _ in items[:_CONNECTIONS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in sorted(results)]
