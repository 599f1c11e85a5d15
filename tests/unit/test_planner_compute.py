"""Compute buffers: the law, and which measurement applies. The numbers are llama.cpp's own (build 11434)."""

from __future__ import annotations

from dataclasses import replace

from gpubox.paths import Paths
from gpubox.planner.compute import Point, Structure, predict
from gpubox.planner.store import MeasuredRun, RunStore

MIB = 1024 * 1024
SMOL = Structure("f", 31, 0, 1, 512, 4096, 30, lawful=True, linear=True)
MEASURED = Point(SMOL, {"RPC a:1": round(17.51 * MIB), "Host": round(8.52 * MIB)}, {})


def mib(structure: Structure, *points: Point) -> dict[str, float]:
    return {device: round(size / MIB, 2) for device, size in predict(structure, points).main.items()}


def test_the_law_of_flash_attention() -> None:
    grown = replace(SMOL, cells=32768)
    assert mib(grown, MEASURED) == {"RPC a:1": 45.51, "Host": 36.52}
    assert predict(grown, [MEASURED]).certainty == "law"
    assert predict(SMOL, [MEASURED]).certainty == "measured"


def test_without_the_law_two_measurements_give_the_slope() -> None:
    off = replace(SMOL, lawful=False)
    first = Point(off, {"Host": round(87.51 * MIB)}, {})
    second = Point(replace(off, cells=8192), {"Host": round(167.51 * MIB)}, {})
    grown = replace(off, cells=32768)
    assert predict(grown, [first]).certainty == "near"
    assert predict(grown, [first, second]).certainty == "law"
    assert mib(grown, first, second) == {"Host": 647.51}
    assert predict(replace(grown, linear=False), [first, second]).certainty == "near"


def test_points_that_contradict_the_law_are_followed_instead() -> None:
    second = Point(replace(SMOL, cells=8192), {"RPC a:1": 53 * MIB, "Host": 43 * MIB}, {})
    copies = replace(MEASURED, main={"RPC a:1": 37 * MIB, "Host": 27 * MIB})
    assert mib(replace(SMOL, cells=16384), copies, second) == {"RPC a:1": 85.0, "Host": 75.0}


def test_the_nearest_structure_is_an_estimate() -> None:
    none = Point(SMOL, {"Host": 12 * MIB}, {})
    some = Point(replace(SMOL, cpu_expert_layers=4), {"Host": 14 * MIB}, {})
    wanted = replace(SMOL, cpu_expert_layers=9)
    assert predict(wanted, [none, some]).certainty == "near"
    assert mib(wanted, none, some) == {"Host": 14.0}
    assert predict(replace(SMOL, family="other"), [none, some]).certainty == "unknown"


def test_measurements_are_kept_on_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    run = MeasuredRun(MEASURED, {"Host": 28 * MIB}, {}, {}, {})
    RunStore(paths).add(run)
    RunStore(paths).add(replace(run, point=replace(MEASURED, structure=replace(SMOL, cells=8192))))
    RunStore(paths).add(run)  # the same structure once more
    assert [each.point.structure.cells for each in RunStore(paths).runs("f")] == [8192, 4096]
    file = paths.plans / "f.json"
    text = file.read_bytes()
    for damage in (
        b"",
        b"[]",
        b'{"schema": 1, "runs": [{}]}',
        text[:-5],
        text.replace(b'"family": "f"', b'"family": "x"'),
    ):
        file.write_bytes(damage)
        assert RunStore(paths).runs("f") == []
