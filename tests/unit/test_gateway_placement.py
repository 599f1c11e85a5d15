"""Which servers stop for a profile: none if it fits, else few, idle and long unused ones, never a pinned one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from gpubox.errors import GpuboxError
from gpubox.gateway.placement import PlacedServer, Placement, decide, find_placement
from gpubox.paths import Paths
from gpubox.planner.plan import DevicePlan, MemoryPlan
from gpubox.profiles.loader import ProfileCatalog
from gpubox.profiles.profile import Profile
from gpubox.server.held_instance import InstanceBusy

GIB = 1 << 30
NEW = Profile("new", "new.gguf")
A = PlacedServer("main", "a", idle_seconds=10)
B = PlacedServer("b", "b", idle_seconds=20)
C = PlacedServer("c", "c", idle_seconds=5)
EMBED = PlacedServer("embed", "embed", companion=True, idle_seconds=1000)


class Card:
    """A card of 24 GiB, and what each server holds on it."""

    def __init__(self, needs: float, **holds: float) -> None:
        self.needs, self.known, self.holds = needs, True, holds
        self.plans = 0

    def __call__(self, gone: Sequence[str]) -> MemoryPlan:
        self.plans += 1
        free = int((24 - sum(size for name, size in self.holds.items() if name not in gone)) * GIB)
        weights = int(self.needs * GIB)
        device = DevicePlan("CUDA0", "gpu", weights, 0, 0, 0, 0, 0, free_bytes=free if self.known else None)
        host = DevicePlan("Host", "host", 0, 0, 0, 0, 0, 0, free_bytes=64 * GIB)
        return MemoryPlan("new", (device, host), "formula")


def place(card: Card, *servers: PlacedServer, profile: Profile = NEW, rpc: str = "") -> Placement:
    return decide(profile, frozenset({rpc} - {""}), servers, card)


def test_an_empty_box_and_what_runs_already() -> None:
    assert place(Card(20)) == Placement("main")
    assert place(Card(99)) == Placement("main")  # the Supervisor's own check refuses it, and names flags that fit
    assert place(Card(1, main=1, b=1), A, replace(B, profile="new")) == Placement("b")


def test_nothing_goes_where_it_fits_beside() -> None:
    assert place(Card(5, main=10), A) == Placement("new")
    assert place(Card(5, b=10), B) == Placement("main")  # the main place is free
    assert place(Card(5, main=10), A, profile=replace(NEW, companion=True)) == Placement("new")


def test_the_fewest_go_and_of_equal_ones_the_one_unused_for_longest() -> None:
    thirds = {"main": 8.0, "b": 7.0, "c": 7.0}
    assert place(Card(6, **thirds), A, B, C) == Placement("new", ("b",))
    assert place(Card(6, **thirds), A, replace(B, idle_seconds=0.0), C) == Placement("main", ("main",))  # b is busy
    assert place(Card(9.2, **thirds), A, B, C) == Placement("main", ("main",))  # b and c alone are not enough
    assert place(Card(15, **thirds), A, B, C).displaces == ("b", "main")
    assert set(place(Card(23, **thirds), A, B, C).displaces) == {"main", "b", "c"}


def test_what_fits_tightly_makes_room_rather() -> None:
    assert place(Card(4.9, main=10, b=9), A, B) == Placement("new", ("b",))
    assert place(Card(23.9, main=10), A) == Placement("main", ("main",))
    assert place(Card(13.9, main=10), replace(A, stays="is pinned")) == Placement("new")  # it fits beside what stays


def test_companions_stay_unless_nothing_else_helps() -> None:
    assert place(Card(14, main=10, embed=4), A, EMBED) == Placement("main", ("main",))
    assert set(place(Card(22, main=10, embed=4), A, EMBED).displaces) == {"main", "embed"}


def test_an_unknown_verdict_lets_only_a_companion_run_beside() -> None:
    unknown = Card(1)
    unknown.known = False
    assert place(unknown, A, B, EMBED) == Placement("main", ("main", "b"))
    assert place(unknown, A, profile=replace(NEW, companion=True)) == Placement("new")
    with pytest.raises(GpuboxError, match="a is pinned, and whether both fit is not certain"):
        place(unknown, replace(A, stays="is pinned"))


def test_a_pinned_server_never_goes() -> None:
    pinned = replace(B, stays="is pinned")
    assert place(Card(6, main=8, b=7, c=7), A, pinned, C) == Placement("main", ("main",))
    with pytest.raises(GpuboxError, match="b is pinned, and there is not enough memory for both"):
        place(Card(20, main=8, b=7, c=7), A, pinned, C)
    # even without it there would not be enough: the Supervisor's check says so
    assert place(Card(30, main=8, b=7), A, pinned) == Placement("main", ("main",))


def test_an_rpc_server_has_one_client() -> None:
    remote = replace(A, rpc=frozenset({"10.0.0.2:50052"}))
    assert place(Card(1, main=1), remote, rpc="10.0.0.2:50052") == Placement("main", ("main",))
    assert place(Card(1, main=1), remote, rpc="10.0.0.3:50052") == Placement("new")
    with pytest.raises(GpuboxError, match="both use the same RPC server"):
        place(Card(1, main=1), replace(remote, stays="is pinned"), rpc="10.0.0.2:50052")


def test_a_profile_called_main_has_one_place() -> None:
    assert place(Card(1, main=1), A, profile=replace(NEW, name="main")) == Placement("main", ("main",))


def test_a_crowd_of_servers_is_decided_quickly() -> None:
    crowd = [PlacedServer(f"s{number}", f"s{number}", idle_seconds=number) for number in range(30)]
    card = Card(20, **{server.instance: 0.8 for server in crowd})
    assert len(place(card, *crowd).displaces) == 26
    assert card.plans < 100


class Plans:
    """Plans on a card of 24 GiB by what each profile needs."""

    def __init__(self, **needs: float) -> None:
        self.needs = needs

    def plan(self, profile: Profile, **options: object) -> MemoryPlan:
        return replace(Card(self.needs[profile.name])([]), profile=profile.name)


@pytest.mark.parametrize(
    ("name", "fits"), [("small", True), ("large", False), ("main", False), ("far", False), ("same", False)]
)
def test_beside_another_operation_only_what_leaves_it_its_memory_and_place(paths: Paths, name: str, fits: bool) -> None:
    profiles = {each: Profile(each, "m.gguf") for each in ("comes", "small", "large", "main", "same")}
    profiles |= {each: Profile(each, "m.gguf", flags={"rpc": "10.0.0.2:50052"}) for each in ("far", "comes-far")}
    planner = Plans(**{"comes": 15, "comes-far": 1, "small": 5, "large": 12, "main": 1, "far": 1, "same": 1})
    others = {"comes": ("main",), "comes-far": ("same",)}
    find = partial(find_placement, profiles[name], paths, ProfileCatalog(profiles, {}), planner, {})  # type: ignore[arg-type]
    if fits:
        assert find(others) == Placement(name)  # the place of the main instance is taken
        assert find({}) == Placement("main")
    else:
        with pytest.raises(InstanceBusy, match=f"{name} waits for comes"):
            find(others)
