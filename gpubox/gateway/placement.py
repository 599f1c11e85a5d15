"""Where a profile starts, and which servers stop for it: it runs beside others only if the planner says it fits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.launch_flags import read_launch_flags
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import Planner
from gpubox.planner.verdict import judge
from gpubox.profiles.loader import ProfileCatalog
from gpubox.profiles.profile import Profile
from gpubox.server.held_instance import InstanceBusy, busy_error
from gpubox.server.instance import InstanceView, instance_names, observe
from gpubox.server.state import RunningServer

_MOST_SEARCHED = 6
"""Of so many servers every combination is planned; of more, all that were not used for longest."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a profile starts."""

    instance: str
    displaces: tuple[str, ...] = ()
    """The instances whose servers stop for it, ``instance`` itself among them if a server runs there."""


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """A running server that may have to go."""

    instance: str
    profile: str
    companion: bool = False
    stays: str = ""
    """Why it is never displaced: ``is pinned``; empty: it may go."""
    idle_seconds: float = 0.0
    """Since its last request ended; 0 while it has one."""
    rpc: frozenset[str] = frozenset()
    """The RPC servers that it uses. Each serves one client, and lets all others wait for ever."""


PlanWithout = Callable[[Sequence[str]], MemoryPlan]
"""Plans the profile as if the servers of these instances had stopped."""


def decide(
    profile: Profile, rpc: frozenset[str], servers: Sequence[PlacedServer], plan: PlanWithout,
    taken: Collection[str] = (),
) -> Placement:  # fmt: skip
    """Where ``profile``, which needs the RPC servers ``rpc``, starts. Pure but for ``plan``.

    ``taken``: instances that are not free although none of the ``servers`` runs there. Raises GpuboxError if a server
    that stays is in the way.
    """
    if running := next((server for server in servers if server.profile == profile.name), None):
        return Placement(running.instance)
    # Its own instance is the only place for a companion, and for a profile called main.
    must = [server for server in servers if server.rpc & rpc or server.instance == profile.name]
    _check_may_go(profile, must, "both use the same RPC server or place")
    first = judge(plan(_names(must)))
    others = [server for server in servers if server not in must]
    if first.fit == "fits" or (profile.companion and first.fit != "short"):
        return _placement(profile, servers, must, taken)
    normal = [server for server in others if not server.companion]
    if first.fit == "unknown":
        _check_may_go(profile, normal, f"whether both fit is not certain ({first.words})")
        return _placement(profile, servers, [*must, *normal], taken)
    best = _fewest(others, lambda gone: judge(plan(_names([*must, *gone]))).fit)
    if best is None and first.fit == "tight":
        best = ()  # it fits beside those that stay
    if best is None:
        best = tuple(server for server in normal if not server.stays)
        staying = [server for server in others if server.stays]
        if staying and judge(plan(_names([*must, *others]))).fit != "short":
            _check_may_go(profile, staying, "there is not enough memory for both")
    return _placement(profile, servers, [*must, *best], taken)


def _fewest(
    others: Sequence[PlacedServer], verdict: Callable[[Sequence[PlacedServer]], str]
) -> tuple[PlacedServer, ...] | None:
    """The servers to displace: no companion if that is enough, few, idle, and long unused ones; None: none help."""
    may_go = sorted((server for server in others if not server.stays), key=lambda server: -server.idle_seconds)
    for pool in ([server for server in may_go if not server.companion], may_go):
        tight: tuple[PlacedServer, ...] | None = None
        answer = ""
        for group in _groups(pool):
            answer = verdict(group)
            if answer == "fits":
                return group
            tight = group if answer == "tight" and tight is None else tight
        if tight is None and answer == "unknown":  # what they hold is not known: then all of them go
            tight = tuple(pool)
        if tight is not None:
            return tight
    return None


def _groups(pool: Sequence[PlacedServer]) -> Iterator[tuple[PlacedServer, ...]]:
    """Servers that may go together, the best group first."""
    for size in range(1, min(len(pool), _MOST_SEARCHED) + 1):
        groups = combinations(pool[:_MOST_SEARCHED], size)
        yield from sorted(groups, key=lambda group: sum(not each.idle_seconds for each in group))
    for size in range(_MOST_SEARCHED + 1, len(pool) + 1):
        yield tuple(pool[:size])


def _placement(
    profile: Profile, servers: Sequence[PlacedServer], gone: Iterable[PlacedServer], taken: Collection[str]
) -> Placement:
    displaces = _names(gone)
    left = {*taken, *(server.instance for server in servers)} - set(displaces)
    instance = profile.name if profile.companion or MAIN_INSTANCE in left else MAIN_INSTANCE
    return Placement(instance, displaces)


def _names(servers: Iterable[PlacedServer]) -> tuple[str, ...]:
    return tuple(server.instance for server in servers)


def _check_may_go(profile: Profile, servers: Iterable[PlacedServer], why: str) -> None:
    if staying := [server for server in servers if server.stays]:
        first = staying[0]
        raise GpuboxError(
            f"{profile.name} is not started: {first.profile} {first.stays}, and {why}.",
            f"`gpubox stop {first.profile}` makes room, or take `pinned` out of its profile.",
            code=ExitCode.WOULD_NOT_FIT,
        )


def find_placement(
    profile: Profile, paths: Paths, catalog: ProfileCatalog, planner: Planner, idle_seconds: Mapping[str, float],
    beside: Mapping[str, Sequence[str]],
) -> Placement:  # fmt: skip
    """Where ``profile`` starts beside, or in place of, the servers that run now.

    ``idle_seconds``, ``beside``: as in OperationRequest. The instances of other operations it leaves alone, with the
    memory for what was or will be there, whichever is more: each may still fail, and bring back what it stopped.
    Blocks: it may run the engine. Raises GpuboxError; InstanceBusy while another gpubox starts or stops a server,
    because what that will hold is not known yet, and where there is no certain place beside those operations.
    """
    views = {name: observe(paths, name) for name in instance_names(paths)}
    taken = {name for instances in beside.values() for name in instances}
    if busy := next((name for name, view in views.items() if view.operation and name not in taken), None):
        raise busy_error(paths, busy)
    running = {name: view.running for name, view in views.items() if view.running}
    servers = [_server(name, server, catalog, idle_seconds.get(name, 0.0))
               for name, server in running.items() if name not in taken]  # fmt: skip
    changed = [running[name] for name in taken & set(running)]
    kept: Counter[str] = Counter()
    for other, instances in beside.items():
        before = [server.launch.profile for name in instances for server in _servers_of(views.get(name))]
        kept += _needs([other], catalog, planner) | _needs(before, catalog, planner)

    def plan(gone: Sequence[str]) -> MemoryPlan:
        leaving = [*(running[name] for name in gone), *changed]
        alone = planner.plan(profile, replaces=leaving, may_dry_run=len(leaving) < len(running))
        devices = (replace(device, free_bytes=device.free_bytes and device.free_bytes - kept[device.device])
                   for device in alone.devices)  # fmt: skip
        return replace(alone, devices=tuple(devices))

    rpc = _rpc_of_profile(profile)
    if not beside:
        return decide(profile, rpc, servers, plan)
    waits = InstanceBusy(f"{profile.name} waits for {next(iter(beside))}.", "Both need the same place, or memory.")
    if any(rpc & _rpc_of_profile(catalog.get(other)) for other in beside):
        raise waits
    try:
        placement = decide(profile, rpc, servers, plan, taken)
    except GpuboxError:
        raise waits from None
    fit = judge(plan(placement.displaces)).fit
    if placement.instance in taken or fit == "short" or (fit == "unknown" and not profile.companion):
        raise waits
    return placement


def _servers_of(view: InstanceView | None) -> Iterator[RunningServer]:
    """What runs in an instance, and what an operation has stopped there and may bring back."""
    if view and view.running:
        yield view.running
    if view and view.operation:
        yield from view.operation.replaces.values()


def _needs(names: Iterable[str], catalog: ProfileCatalog, planner: Planner) -> Counter[str]:
    """What profiles take together, in bytes by device, as far as that is known."""
    plans = [planner.plan(catalog.get(name)) for name in set(names)]
    needs: Counter[str] = Counter()
    for device in (device for plan in plans for device in plan.devices):
        needs[device.device] += device.total_bytes
    return needs


def _server(instance: str, server: RunningServer, catalog: ProfileCatalog, idle_seconds: float) -> PlacedServer:
    launch = server.launch
    profile = catalog.profiles.get(launch.profile)
    stays = "is pinned" if profile and profile.pinned else ""
    rpc = ",".join(value for word, value in pairwise(launch.argv) if word == "--rpc")
    if instance.startswith("~"):  # a temporary instance: it ends with its command
        stays = "is in use by a command of gpubox"
    return PlacedServer(
        instance=instance,
        profile=launch.profile,
        companion=bool(profile and profile.companion),
        stays=stays,
        idle_seconds=idle_seconds,
        rpc=_endpoints(rpc or launch.env.get("LLAMA_ARG_RPC", "")),
    )


def _rpc_of_profile(profile: Profile) -> frozenset[str]:
    try:
        return _endpoints(",".join(read_launch_flags(profile.flags, {**os.environ, **profile.env}).rpc))
    except ValueError:
        return frozenset()  # the check before the start refuses it


def _endpoints(text: str) -> frozenset[str]:
    endpoints = (part.strip().lower() for part in text.split(","))
    return frozenset(part.replace("localhost:", "127.0.0.1:") for part in endpoints if part)
