"""Where a cgroup can be made, from folders as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.sandbox import cgroup
from gpubox.sandbox.cgroup import Cgroup
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.units import MIB

SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/term.scope"


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """Version 2, with all folders down to a terminal's scope; memory is handed down as far as app.slice."""
    root = tmp_path / "cgroup"
    for folder in [root, *((root / SCOPE).relative_to(root).parents), Path(SCOPE)]:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "cgroup.procs").write_text("")
        (root / folder / "cgroup.subtree_control").write_text("" if str(folder) == SCOPE else "memory pids")
    (root / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "own").write_text(f"0::/{SCOPE}\n")
    return root


def test_the_nearest_folder_above_its_own_that_hands_memory_down(unified: Path, tmp_path: Path) -> None:
    parents = cgroup._candidates(unified, tmp_path / "own", as_root=False)

    assert parents[0] == Cgroup(unified / "user.slice/user-1000.slice/user@1000.service/app.slice", 2)
    assert unified not in [place.folder for place in parents]


def test_the_top_is_only_roots(unified: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/session-2.scope\n")

    assert cgroup._candidates(unified, tmp_path / "own", as_root=False) == []
    assert cgroup._candidates(unified, tmp_path / "own", as_root=True) == [Cgroup(unified, 2)]


def test_nothing_where_memory_is_not_handed_down(unified: Path, tmp_path: Path) -> None:
    for path in unified.rglob("cgroup.subtree_control"):
        path.write_text("pids")

    assert cgroup._candidates(unified, tmp_path / "own", as_root=True) == []


def test_version_1_is_for_root(tmp_path: Path) -> None:
    (tmp_path / "memory/box").mkdir(parents=True)
    (tmp_path / "own").write_text("8:pids:/\n4:memory:/box\n0::/\n")

    assert cgroup._candidates(tmp_path, tmp_path / "own", as_root=False) == []
    parents = cgroup._candidates(tmp_path, tmp_path / "own", as_root=True)
    assert parents == [Cgroup(tmp_path / "memory/box", 1), Cgroup(tmp_path / "memory", 1)]


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert cgroup._candidates(tmp_path, tmp_path / "none", as_root=True) == []


def test_the_bound_is_all_that_a_policy_grants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "find", lambda: Cgroup(tmp_path, 2))
    group = cgroup.make(Policy(memory_bytes=100 * MIB, kernel_bytes=50 * MIB, scratch_bytes=10 * MIB))

    assert group is not None
    assert (group.folder / "memory.max").read_text() == str(180 * MIB)
    assert (group.folder / "memory.oom.group").read_text() == "1"
    (group.folder / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert not group.was_full()
    (group.folder / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 1\n")
    assert group.was_full()


def test_doctor_says_which(tmp_path: Path) -> None:
    assert Confinement("bubblewrap", cgroup=2).memory == "memory bounded by a cgroup (version 2)"
    assert Confinement("bubblewrap").memory.startswith("no cgroup here")
    assert "seeing the host's processes" in Confinement("landlock").weakness
