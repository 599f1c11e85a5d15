"""Compute buffers: the law, and which measurement applies. The numbers are llama.cpp's own (build 11434)."""

from __future__ import annotations

from dataclasses import replace

from gpubox.paths import Paths
from gpubox.planner.compute import ComputeBuffers, MeasuredRun, Measurement, Structure, predict
from gpubox.planner.measured import RunStore

MIB = 1024 * 1024
SMOL = Structure("f", 31, 0, 1, 512, 4096, 30, lawful=True, linear=True)


def run(structure: Structure, **sizes: float) -> MeasuredRun:
    """A run with compute buffers in MiB; ``rpc`` is a device."""
    names = {"host": "Host", "rpc": "RPC a:1"}
    return MeasuredRun(structure, Measurement(compute={names[key]: round(size * MIB) for key, size in sizes.items()}))


MEASURED = run(SMOL, rpc=17.51, host=8.52)


def predicted(structure: Structure, *runs: MeasuredRun) -> ComputeBuffers:
    buffers = predict(structure, runs)
    assert buffers
    return buffers


def mib(structure: Structure, *runs: MeasuredRun) -> dict[str, float]:
    return {device: round(size / MIB, 2) for device, size in predicted(structure, *runs).main.items()}


def test_the_law_of_flash_attention() -> None:
    grown = replace(SMOL, cells=32768)
    assert mib(grown, MEASURED) == {"RPC a:1": 45.51, "Host": 36.52}
    assert predicted(grown, MEASURED).certainty == "law"
    assert predicted(SMOL, MEASURED).certainty == "measured"


def test_without_the_law_two_measurements_give_the_slope() -> None:
    off = replace(SMOL, lawful=False)
    first = run(off, host=87.51)
    second = run(replace(off, cells=8192), host=167.51)
    grown = replace(off, cells=32768)
    assert predicted(grown, first).certainty == "near"
    assert predicted(grown, first, second).certainty == "law"
    assert mib(grown, first, second) == {"Host": 647.51}
    assert predicted(replace(grown, linear=False), first, second).certainty == "near"


def test_points_that_contradict_the_law_are_followed_instead() -> None:
    second = run(replace(SMOL, cells=8192), rpc=53, host=43)
    copies = run(SMOL, rpc=37, host=27)
    assert mib(replace(SMOL, cells=16384), copies, second) == {"RPC a:1": 85.0, "Host": 75.0}


def test_the_nearest_structure_is_an_estimate() -> None:
    none = run(SMOL, host=12)
    some = run(replace(SMOL, cpu_expert_layers=4), host=14)
    wanted = replace(SMOL, cpu_expert_layers=9)
    assert predicted(wanted, none, some).certainty == "near"
    assert mib(wanted, none, some) == {"Host": 14.0}
    assert predict(replace(SMOL, family="other"), [none, some]) is None


def test_measurements_are_kept_on_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache")
    RunStore(paths).add(MEASURED)
    RunStore(paths).add(replace(MEASURED, structure=replace(SMOL, cells=8192)))
    RunStore(paths).add(MEASURED)  # the same structure once more
    assert [each.structure.cells for each in RunStore(paths).runs("f")] == [8192, 4096]
    file = paths.plans / "f.json"
    text = file.read_bytes()
    for damage in (
        b"",
        b"[]",
        text.replace(b'"weights"', b'"heavy"'),
        text[:-5],
        text.replace(b'"family": "f"', b'"family": "x"'),
    ):
        file.write_bytes(damage)
        assert RunStore(paths).runs("f") == []
